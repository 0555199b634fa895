from __future__ import annotations

from dataclasses import replace

import pytest
from tests.search.examples import CASES, layout

from meshwright.search.oom import EXPANDABLE_SLACK_SHARE, Ladder, Rung, why_oom
from meshwright.search.problem import Problem
from meshwright.search.quote import quotes
from meshwright.search.refine import requote, setting_of
from meshwright.values.units import GIB


def ladder(name: str) -> tuple[Ladder, Problem]:
    words, asked = CASES[name]
    return why_oom(layout(words, asked), asked), asked


def rungs(found: Ladder) -> list[Rung]:
    return [*found.rungs, *([found.together] if found.together is not None else [])]


@pytest.mark.parametrize("name", list(CASES))
def test_each_rung_is_priced_as_its_layout(name: str) -> None:
    found, asked = ladder(name)
    for rung in rungs(found):
        assert rung.setting.broken_rules(rung.layout) == []
        again = requote(quotes([rung.layout], rung.setting), replace(asked, setting=rung.setting))[
            0
        ]
        assert again == rung.quote
        assert rung.step_change_frac == pytest.approx(again.step_s / found.quote.step_s - 1)
        assert rung.saved_bytes == pytest.approx(found.quote.peak_bytes - again.peak_bytes)


@pytest.mark.parametrize("name", list(CASES))
def test_ladder_starts_with_the_allocator_and_has_three_rungs(name: str) -> None:
    found, _ = ladder(name)
    assert found.rungs[0].fixes[0].words == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert len(found.rungs) >= 4
    assert len({rung.fixes[0].kind for rung in found.rungs}) == len(found.rungs)
    assert all(rung.saved_bytes > 0 for rung in found.rungs[1:])


@pytest.mark.parametrize("name", list(CASES))
def test_rungs_come_in_order_of_least_slowdown(name: str) -> None:
    found, _ = ladder(name)
    ranks = [
        (rung.needs_more_gpus, rung.changes_training, rung.quote.step_s) for rung in found.rungs[1:]
    ]
    assert ranks == sorted(ranks)


def test_only_the_slack_shrinks_with_expandable_segments() -> None:
    found, _ = ladder("too large")
    before, after = found.quote.fullest.memory_bytes, found.rungs[0].quote.fullest.memory_bytes
    assert after["slack"] == pytest.approx(before["slack"] * EXPANDABLE_SLACK_SHARE)
    assert {term: size for term, size in after.items() if term != "slack"} == pytest.approx(
        {t: s for t, s in before.items() if t != "slack"}
    )
    assert found.rungs[0].step_change_frac == 0
    assert found.rungs[0].labels == ("execution only",)


def test_more_gpus_is_the_smallest_cluster_of_the_ladder_that_fits() -> None:
    found, asked = ladder("far too large")
    grown = [rung for rung in found.rungs if rung.needs_more_gpus]
    assert len(grown) == 1
    assert grown[0].setting.pool.num_chips == grown[0].layout.num_chips
    assert grown[0].layout.num_chips % asked.num_chips == 0


def test_fixes_are_combined_where_none_suffices() -> None:
    words, asked = CASES["too large"]
    tight = replace(asked, setting=replace(setting_of(asked), limit_bytes=16.0 * GIB))
    found = why_oom(layout(words, tight), tight)
    own = [rung for rung in found.rungs if not rung.needs_more_gpus]
    assert not any(rung.quote.fits for rung in own)
    assert found.together is not None
    assert found.together.quote.fits
    assert not found.together.needs_more_gpus
    kinds = [fix.kind for fix in found.together.fixes]
    assert len(kinds) == len(set(kinds)) >= 2


def test_a_layout_that_fits_needs_no_combination() -> None:
    found, _ = ladder("dense")
    assert found.quote.fits
    assert found.together is None
    assert found.quote.over_bytes < 0


def test_halving_micro_batches_of_experts_is_said_to_change_training() -> None:
    words, asked = CASES["experts"]
    found = why_oom(layout(words.replace("pp=2", "pp=2,mbs=2"), asked), asked)
    labels = {rung.fixes[0].kind: rung.labels for rung in found.rungs}
    assert labels["mbs"] == ("changes data order", "changes training")
    assert labels["gradients"] == ("changes training",)
