"""Studies made from published ones, with something done to them (benchmarks/adversarial.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.runs.belief import Prior
from meshwright.runs.forecasts import Options
from meshwright.runs.replay import Moment, judged

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """The script, which finds its neighbour beside it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import adversarial  # type: ignore[import-not-found]  # a script beside the package
    finally:
        sys.path.pop(0)
    return adversarial


@pytest.fixture(scope="module")
def studies(benchmark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two small tables, each believed in by what the other says."""
    folder = tmp_path_factory.mktemp("truth")
    for name in ("cn_gpu_training", "uci_4xA100"):
        text = (ROOT / "truth" / f"{name}.csv").read_text(encoding="utf-8")
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return benchmark.studies_of(folder)


def test_beliefs_leave_out_the_table_of_the_set(studies: Any) -> None:
    assert len(studies) == 2
    assert {one.found.table for one in studies} == {"cn_gpu_training", "uci_4xA100"}
    weights = [[h.weight for h in one.options.step.hypotheses] for one in studies]
    assert weights[0] != weights[1]


def test_the_same_seed_makes_the_same_studies(benchmark: Any, studies: Any) -> None:
    first, again, other = (
        benchmark.adversaries(studies, count=10, seed=seed) for seed in (3, 3, 4)
    )
    assert [one.way for one in first] == [*benchmark.WAYS, *benchmark.WAYS]
    assert [one.truth for one in first] == [one.truth for one in again]
    assert [one.truth for one in first] != [one.truth for one in other]


def test_a_way_changes_what_it_says(benchmark: Any, studies: Any) -> None:
    study, chance = studies[0], np.random.default_rng(1)
    before = np.array(study.found.measured)
    finite = np.isfinite(before)
    for way, change in benchmark.WAYS.items():
        truth, answer = change(study, chance)
        same = np.array_equal(truth[finite], before[finite])
        assert same is (way == "noise"), way
        assert np.isfinite(truth).sum() >= benchmark.LEAST
        if answer is not None:
            seen = [answer(int(i)) for i in np.flatnonzero(finite)]
            assert all(0 < run.noise < 0.3 for run in seen)
            assert [run.step_s for run in seen] != truth[finite].tolist()


def test_what_is_said_at_the_end_holds_in_a_small_sample(benchmark: Any, studies: Any) -> None:
    """20 studies of two sets; the script has 1,000 of 70. A binomial of 20 that is right in 80 % is
    right in 12 or more with 99 %."""
    ends = [benchmark.ends_of(one) for one in benchmark.adversaries(studies, count=20, seed=1)]
    right = sum(end[0.8].regret_frac <= 0.02 for end in ends)
    assert right >= 12
    for end in ends:
        assert end[0.8].stopped_after <= end[0.9].stopped_after <= end[0.95].stopped_after
        assert end[0.8].stated_confidence >= 0.8


def test_a_study_is_judged_by_truth_and_not_by_what_it_saw() -> None:
    """Of two runs the second looked faster and is not: it is what the study names."""
    moments = [
        Moment(index=0, best=0, confidence=0.5),
        Moment(index=1, best=1, confidence=0.85),
    ]
    found = judged(moments, [1.0, 1.3, 2.0], confidence=0.8)
    assert (found.stopped_after, found.runs_to_2_percent) == (2, 1)
    assert found.regret_frac == pytest.approx(0.3)


def test_exchanges_of_a_broken_node_weigh_as_their_share(benchmark: Any, studies: Any) -> None:
    """One factor that is half of the first layout's step and none of the second's."""
    options = Options(
        step=Prior(mean=np.zeros(2), shared=np.eye(2), own=0.0),
        fill=Prior(mean=np.zeros(2), shared=np.eye(2), own=0.0),
        axes=np.zeros((2, 1)),
    )

    class Found:
        measured = (1.0, 1.0)

    class Study:
        found = Found()
        slopes = np.array([[0.5], [0.0]])

    Study.options = options  # type: ignore[attr-defined]  # a stand-in
    truth, _ = benchmark.broken_node(Study, np.random.default_rng(2))
    assert truth[1] == 1.0 and 1.15 <= truth[0] <= 2.0
