"""What is taken for a blank micro batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.runs.measured.examples import LLAMA, SMALL_GPT, case_of

from meshwright.runs.measured.blanks import NOTICED
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.runs.measured.rows import Case
from meshwright_truth.blanks import hidden_runs, share_found, tuned_rows


def answer(case: Case) -> Prediction:
    [found] = predict_rows([case]).predictions
    return found


def sizes(case: Case) -> list[list[int]]:
    return [[layout.mbs for layout in tier] for tier in case.choices]


@pytest.mark.parametrize(
    ("base", "cells"),
    [(SMALL_GPT, {}), (LLAMA, {"pp": "1"}), (LLAMA, {"seq_len": "16384", "tp": "4"})],
    ids=["small", "large", "long"],
)
def test_a_blank_micro_batch_is_the_fastest_that_fits(
    base: dict[str, str], cells: dict[str, str]
) -> None:
    """Against each size told in turn: no size that fits is faster by more than is noticed, and no
    smaller one is as fast."""
    taken = answer(case_of(base, **cells, mbs=""))
    told = [
        answer(case_of(base, **cells, mbs=str(size)))
        for size in (1, 2, 4, 8, 16, 32)
        if taken.case.layout.gbs // taken.case.layout.dp % size == 0
    ]
    fitting = [one for one in told if one.fits]
    assert fitting and taken.fits
    fastest = min(one.step_s for one in fitting)
    assert taken.step_s <= (1 + NOTICED) * fastest
    smaller = [one for one in fitting if one.case.layout.mbs < taken.case.layout.mbs]
    assert all(one.step_s > (1 + NOTICED) * fastest for one in smaller)


def test_where_nothing_fits_the_size_that_needs_least_is_taken() -> None:
    case = case_of(LLAMA, model="llama3-70b", tp="1", pp="1", mbs="", zero="0", num_gpus="8")
    taken = answer(case)
    assert not taken.fits
    each = [answer(replace(case, layout=x, choices=())) for tier in case.choices for x in tier]
    assert taken.used_bytes == min(one.used_bytes for one in each)


def test_kempnerforge_takes_the_micro_batch_of_its_configurations() -> None:
    """configs/train/7b*.toml take 4 sequences; a pipeline of sequences of 4,096 tokens one."""
    cells = {"framework": "KempnerForge (FSDP2)", "mbs": "", "tp": "1", "seq_len": "4096"}
    flat, piped = (case_of(LLAMA, **cells, gbs="1024", pp=pp) for pp in ("1", "2"))
    assert (flat.layout.mbs, flat.choices) == (4, ())
    assert (piped.layout.mbs, piped.choices) == (1, ())


def test_pipelines_of_torchtitan_have_as_many_micro_batches_as_stages() -> None:
    """By hand: 128 sequences over 16 replicas are 8 each, in 2 stages 2 micro batches of 4."""
    case = case_of(LLAMA, framework="torchtitan", mbs="", sp="")
    assert sizes(case) == [[4]]
    assert answer(case).case.layout.num_microbatches == 2
    assert sizes(case_of(LLAMA, framework="torchtitan", mbs="", pp="1"))[0] == [1, 2, 4]


def test_interleaved_stages_take_sizes_that_come_in_rounds() -> None:
    """By hand: 8 sequences in micro batches of 8 are one round of 1, and 2 stages need two."""
    assert sizes(case_of(LLAMA, mbs="")) == [[1, 2, 4, 8]]
    assert sizes(case_of(LLAMA, mbs="", vpp="2")) == [[1, 2, 4]]


UNCUT = dict.fromkeys(("tp", "pp", "vpp", "dp"), "")


def test_axes_that_are_not_told_are_such_that_the_run_fits() -> None:
    """By hand: 175 billion parameters of 16 bytes and more are over 2.8 TB, and 128 chips of 80 GB
    hold them in cuts alone: distributed optimizers leave 6 bytes and more of each unshared."""
    row = {**UNCUT, "model": "gpt3-175b", "num_gpus": "128", "gbs": "1536", "mbs": ""}
    taken = answer(case_of(LLAMA, **row, zero="1", recompute=""))
    layout = taken.case.layout
    assert taken.fits and layout.tp * layout.pp >= 14
    assert layout.num_chips == 128 and 8 % layout.tp == 0 and 96 % layout.pp == 0
    said = f"parallel axes not told: tp={layout.tp} pp={layout.pp} cp=1 ep=1 taken"
    assert said in taken.case.assumed


def test_axes_stay_uncut_where_that_fits_or_one_is_told() -> None:
    small = answer(case_of(SMALL_GPT, **UNCUT))
    assert small.fits and small.case.layout.tp == small.case.layout.pp == 1
    row = {**UNCUT, "tp": "1", "model": "gpt3-175b", "num_gpus": "128", "gbs": "1536"}
    told = answer(case_of(LLAMA, **row, zero="1", recompute=""))
    assert not told.fits and "parallel axes" not in told.case.assumptions


def test_experts_are_shared_where_nothing_is_told_of_them_either() -> None:
    row = {**UNCUT, "model": "mixtral-8x7b", "arch": "", "num_gpus": "16", "gbs": "64"}
    open_cuts = [layout for tier in case_of(LLAMA, **row, ep="").choices[1:] for layout in tier]
    assert {layout.ep for layout in open_cuts} == {1, 2, 4, 8}
    told = [layout for tier in case_of(LLAMA, **row, ep="4").choices for layout in tier]
    assert {layout.ep for layout in told} == {4}
    assert all(cut.tp * cut.dp % (cut.ep * (cut.etp or 1)) == 0 for cut in open_cuts)


def test_what_is_told_is_kept() -> None:
    assert case_of(LLAMA).choices == ()
    assert case_of(LLAMA, mbs="", ga="4").choices == ()
    assert answer(case_of(LLAMA, mbs="", ga="4")).case.layout.mbs == 2


def test_hiding_finds_again_what_the_rule_takes() -> None:
    """A table whose rows tell what the rule takes is found in full, one with another size never."""
    best = answer(case_of(SMALL_GPT, mbs="")).case.layout.mbs
    rows = {
        name: {**SMALL_GPT, "row_id": name, "mbs": str(size), "step_time_s": "1", "oom": "0"}
        for name, size in (("best", best), ("other", 1 if best > 1 else 2))
    }
    for name, row in rows.items():
        runs = hidden_runs([TruthTable(name, (row,))])
        of_size = [run for run in runs if run.assumption == "micro batch"]
        assert share_found(of_size) == (1.0 if name == "best" else 0.0)
        assert (of_size[0].time_ratio == 1.0) == (name == "best")


def test_tuned_rows_are_the_fastest_of_their_set() -> None:
    rows = tuple(
        {**SMALL_GPT, "row_id": str(s), "mbs": str(s), "step_time_s": str(s), "oom": "0"}
        for s in (2, 1, 4)
    )
    assert tuned_rows([TruthTable("t", rows)]) == {("t", "1")}
