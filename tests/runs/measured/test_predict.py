from __future__ import annotations

import csv
import io

import pytest
from tests.runs.measured.examples import LLAMA, SMALL_GPT, case_of

from meshwright.runs.measured.predict import COLUMNS, predict_rows, predictions_csv, reasons
from meshwright.runs.measured.rows import read_row

MIXED = {
    **SMALL_GPT,
    "gpu": "V100-16GBx4+T4x4",
    "gpus_per_node": "4",
    "pp": "4",
    "framework": "DeepSpeed Megatron 3D",
    "precision": "fp16",
}


def test_rows_priced_together_equal_rows_priced_alone() -> None:
    cases = [
        case_of(LLAMA, row_id=str(i), tp=tp, pp=pp)
        for i, (tp, pp) in enumerate([("1", "2"), ("2", "4"), ("8", "1"), ("4", "2")])
    ]
    together = predict_rows(cases).predictions
    for one, case in zip(together, cases, strict=True):
        alone = predict_rows([case]).predictions[0]
        assert one.cells == alone.cells
        assert one.step_s == pytest.approx(alone.step_s, rel=1e-12)


def test_order_and_reasons_are_kept() -> None:
    rows = [
        read_row({**LLAMA, "row_id": str(i), "gpu": gpu}, source="t")
        for i, gpu in enumerate(["H100", "no-chip", "A100", "no-chip"])
    ]
    answers = predict_rows(rows)
    assert [p.row_id for p in answers.predictions] == ["0", "2"]
    assert [u.row_id for u in answers.unanswered] == ["1", "3"]
    assert list(reasons(answers)["t"].values()) == [2]


def test_a_precision_that_the_chip_lacks_is_a_reason() -> None:
    answers = predict_rows(
        [case_of(LLAMA), case_of(LLAMA, gpu="V100-32GB-SXM3", precision="nvfp4")]
    )
    assert len(answers.predictions) == 1
    assert "precision" in answers.unanswered[0].reason


def test_the_file_that_is_written() -> None:
    answers = predict_rows(
        [case_of(LLAMA), read_row({**LLAMA, "row_id": "bad", "tp": "x"}, source="t")]
    )
    lines = list(csv.reader(io.StringIO(predictions_csv(answers))))
    assert lines[0] == list(COLUMNS)
    assert lines[0][:5] == ["source", "row_id", "step_time_s", "peak_mem_gib", "oom"]
    assert lines[1][:2] == ["t", "a-1"] and float(lines[1][2]) > 0 and lines[1][4] in ("0", "1")
    assert lines[2] == ["t", "bad", *[""] * (len(COLUMNS) - 2)]


def test_every_figure_has_an_interval_a_verdict_and_what_was_assumed() -> None:
    told = {"mbs": "1", "recompute": "none", "zero": "1", "sp": "1"}
    cases = [case_of(LLAMA, **told), case_of(LLAMA, mbs="", zero=""), case_of(LLAMA, tp="1")]
    sure, blank, short = (
        dict(zip(COLUMNS, p.cells, strict=True)) for p in predict_rows(cases).predictions
    )
    for line in (sure, blank, short):
        for low, high in (
            ("step_time_low_s", "step_time_high_s"),
            ("peak_mem_low_gib", "peak_mem_high_gib"),
        ):
            assert 0 < float(line[low]) < float(line[high])
        assert (line["fits"] == "no") == (line["oom"] == "1")
    assert sure["fits"] == "yes" and sure["assumed"] == ""
    for words in ("micro batch not told: 1 taken", "sharding not told: zero1 taken"):
        assert words in blank["assumed"]
    assert "sequence parallelism" not in case_of(LLAMA, tp="1").assumed, "one rank"


def test_memory_definitions_are_ordered() -> None:
    words = {
        "after": "Mem Alloc",
        "allocated": "max allocated",
        "reserved": "max reserved",
        "used": "VRAM used",
    }
    found = predict_rows(
        [case_of(LLAMA, row_id=key, mem_def=text) for key, text in words.items()]
    ).predictions
    peaks = {p.row_id: p.peak_memory_bytes for p in found}
    assert (
        peaks["after"]
        < peaks["allocated"]
        < peaks["reserved"]
        < peaks["used"]
        == found[0].used_bytes
    )


def test_what_does_not_fit_is_said_and_timed_all_the_same() -> None:
    found = predict_rows(
        [case_of(LLAMA, model="llama3-70b", num_gpus="8", tp="1", pp="1", gbs="8", zero="0")]
    ).predictions[0]
    assert not found.fits and found.step_s > 0


def test_a_mix_of_one_kind_equals_that_kind() -> None:
    cells = {**MIXED, "gpu": "V100-16GBx4+V100-16GBx4"}
    case = case_of(cells)
    assert not case.machines.mixed
    plain = case_of({**MIXED, "gpu": "V100-16GB"})
    assert predict_rows([case]).predictions[0].step_s == pytest.approx(
        predict_rows([plain]).predictions[0].step_s
    )


def test_mixed_chips_are_no_faster_than_the_fast_and_no_slower_than_the_slow() -> None:
    both, fast, slow = (
        predict_rows([case_of({**MIXED, "gpu": gpu})]).predictions[0].step_s
        for gpu in (MIXED["gpu"], "V100-16GB", "T4")
    )
    assert fast * 0.8 < both < slow * 1.2


def test_layers_shifted_to_the_fast_chips_help() -> None:
    even = predict_rows([case_of(MIXED)]).predictions[0].step_s
    shifted = (
        predict_rows([case_of(MIXED, notes="layers_per_stage=[5, 4, 2, 3]")]).predictions[0].step_s
    )
    assert shifted < even


def test_interleaved_stages_on_mixed_chips_are_refused() -> None:
    answers = predict_rows([case_of(MIXED, vpp="3")])
    assert "interleaved" in answers.unanswered[0].reason


SHORT = {
    **LLAMA,
    "framework": "NeMo AutoModel (PyTorch FSDP2)",
    "num_gpus": "8",
    "tp": "1",
    "pp": "1",
    "gbs": "64",
}


def test_what_a_row_leaves_open_is_recomputed_only_where_the_run_would_not_fit() -> None:
    """Eight sequences of 8,192 tokens keep more activations than an H100 holds, one sequence does
    not."""

    def answer(**cells: str) -> tuple[str, ...]:
        return predict_rows([case_of(SHORT, **cells)]).predictions[0].cells[:5]

    small, big = {"mbs": "1", "gbs": "8"}, {"mbs": "8"}
    assert answer(**small) == answer(**small, recompute="none")
    assert answer(**big) == answer(**big, recompute="full")
    assert answer(**big) != answer(**big, recompute="none")
    assert answer(**small) != answer(**small, recompute="full")


def test_automodel_holds_whole_gradients_until_the_last_micro_batch() -> None:
    """Eight micro batches: fp32 gradients of 8.03e9 parameters stand beside the activations; one:
    each layer's are scattered."""
    peaks = [
        float(
            dict(
                zip(
                    COLUMNS,
                    predict_rows([case_of(SHORT, mbs="1", gbs=gbs, recompute="none")])
                    .predictions[0]
                    .cells,
                    strict=True,
                )
            )["peak_mem_gib"]
        )
        for gbs in ("8", "64")
    ]
    assert peaks[1] - peaks[0] == pytest.approx(8.03e9 * 4 / 2**30, rel=0.05)


def test_benchmarks_of_automodel_deal_tokens_to_experts_in_turn() -> None:
    assert case_of(SHORT).workload.routing == "in-turn"
    assert case_of(LLAMA).workload.routing == "balanced"


def test_recompute_that_a_row_names_is_kept_where_it_does_not_fit() -> None:
    kinds = [{layout.recompute for layout in tier} for tier in case_of(SHORT, mbs="1").choices]
    assert kinds == [{"none"}, {"full"}]
    assert case_of(SHORT, mbs="1", recompute="none").choices == ()
