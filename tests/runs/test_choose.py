"""Choices worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from meshwright.runs.belief import Prior
from meshwright.runs.choose import (
    STRATEGIES,
    Choice,
    Stop,
    Tried,
    chances_of,
    choose,
    ends,
)
from meshwright.runs.forecasts import Options


def options(
    steps: Sequence[float],
    *,
    fills: Sequence[float] | None = None,
    common: float = 0.02,
    own: float = 0.01,
) -> Options:
    """Layouts that share one unknown factor."""
    size = len(steps)
    shared = np.full((size, size), common)
    fill = np.log(np.array(fills if fills is not None else [0.1] * size))
    return Options(
        step=Prior(mean=np.log(np.array(steps)), shared=shared, own=own),
        fill=Prior(mean=fill, shared=np.full((size, size), 0.01), own=0.01),
        axes=np.arange(size, dtype=float)[:, None],
    )


def test_the_first_run_is_what_is_predicted_fastest() -> None:
    found = choose(options([3.0, 1.0, 2.0]), {})
    assert isinstance(found, Choice)
    assert found.index == 1
    assert "fastest with" in found.because


def test_the_first_run_is_not_one_that_hardly_fits() -> None:
    found = choose(options([1.0, 1.05], fills=[1.3, 0.5]), {})
    assert isinstance(found, Choice)
    assert found.index == 1


def test_a_layout_just_over_the_limit_is_worth_a_run_when_it_is_much_faster() -> None:
    found = choose(options([1.0, 2.0], fills=[1.02, 0.5]), {1: Tried(step_s=2.0)})
    assert isinstance(found, Choice)
    assert found.index == 0


def test_running_out_of_memory_warns_of_those_that_need_more() -> None:
    # Both are predicted a little over; the first ran out, so the second, which needs more, is
    # dearer than the slower third.
    prior = options([1.0, 1.0, 1.15], fills=[1.0, 1.02, 0.5])
    found = choose(prior, {0: Tried(ran_out=True)})
    assert isinstance(found, Choice)
    assert found.index == 2


def test_a_slow_run_lifts_all_and_does_not_make_others_look_fast() -> None:
    # Everything takes x1.5 of its prediction on this machine, and that is common: 1.3 predicted is
    # no better than 1.5 seen.
    found = choose(
        options([1.0, 1.3], common=0.2, own=0.0025), {0: Tried(step_s=1.5)}, tolerance=0.02
    )
    assert isinstance(found, Stop)
    assert "no other of 2 candidates is faster" in found.because


def test_what_is_own_to_a_slow_run_makes_the_next_worth_trying() -> None:
    found = choose(options([1.0, 1.1], common=0.0001, own=0.02), {0: Tried(step_s=1.5)})
    assert isinstance(found, Choice)
    assert found.index == 1
    assert "expected gain" in found.because


@pytest.mark.parametrize(("tolerance", "stops"), [(0.02, False), (0.4, True)])
def test_tolerance_ends_the_search(tolerance: float, stops: bool) -> None:
    found = choose(
        options([1.0, 1.0, 1.0], common=0.01, own=0.01), {0: Tried(step_s=1.0)}, tolerance=tolerance
    )
    assert isinstance(found, Stop) is stops


def test_a_certain_prediction_stops_after_one_run() -> None:
    found = choose(options([1.0, 1.2, 1.4], common=0.01, own=1e-6), {0: Tried(step_s=1.3)})
    assert isinstance(found, Stop)


def test_a_noisy_best_does_not_stop() -> None:
    # It looks a fifth faster than predicted. Where that may be noise, it is nearer to the
    # prediction than it looks, and the other as likely the best.
    prior = options([1.0, 1.0], common=0.01, own=0.01)
    assert isinstance(choose(prior, {0: Tried(step_s=0.8)}), Stop)
    assert isinstance(choose(prior, {0: Tried(step_s=0.8, noise=0.2)}), Choice)


def test_of_two_leaders_within_the_noise_the_noisier_runs_again() -> None:
    """The third can't be the best; 1.00 +- 8 % and 1.03 +- 4 % may both be."""
    prior = options([1.0, 1.0, 3.0], common=0.01, own=0.01)
    runs = {0: Tried(step_s=1.0, noise=0.08), 1: Tried(step_s=1.03, noise=0.04)}
    found = choose(prior, runs, confidence=0.8)
    assert isinstance(found, Choice)
    assert found.index == 0 and found.because.startswith("once more: ")
    other = choose(prior, runs, confidence=0.8, repeats=False)
    assert isinstance(other, Choice) and other.index == 2
    waits = {**runs, 0: Tried(step_s=1.0, noise=0.08, pending=True)}
    again = choose(prior, waits, confidence=0.8)
    assert isinstance(again, Choice) and again.index == 2


def test_runs_of_one_layout_are_their_weighted_mean() -> None:
    """Weights 1 / 0.01 and 1 / 0.04 of ln 1 and ln 2: the mean is 2 ** (1 / 5)."""
    found = Tried(step_s=1.0, noise=0.1).with_another(Tried(step_s=2.0, noise=0.2))
    assert found.step_s == pytest.approx(2**0.2)
    assert found.noise == pytest.approx(1 / math.sqrt(100 + 25))
    failed = Tried(step_s=1.0, noise=0.1).with_another(Tried(pending=True))
    assert (failed.step_s, failed.pending) == (1.0, True)


def test_chances_are_those_of_the_draws() -> None:
    """Two alike and one far off: each of the two is near the best at least half of the time."""
    prior = options([1.0, 1.0, 3.0], common=0.01, own=0.01)
    first, second, third = chances_of(prior, {}, tolerance=0.02)
    assert 0.5 < first < 0.65 and 0.5 < second < 0.65 and third == 0.0
    assert chances_of(prior, {0: Tried(step_s=0.5)}, tolerance=0.02)[0] > 0.97


def test_two_at_a_time_are_not_twins() -> None:
    # The second run of a pair is chosen while the first is on its way; with all alike it is another
    # one, never the same.
    prior = options([1.0, 1.0, 1.0, 1.5])
    pending = choose(prior, {3: Tried(step_s=1.5), 0: Tried(pending=True)})
    assert isinstance(pending, Choice)
    assert pending.index in (1, 2)


def test_a_run_that_failed_for_other_reasons_is_not_repeated_and_tells_nothing() -> None:
    found = choose(options([1.0, 1.01, 5.0]), {0: Tried()})
    assert isinstance(found, Choice)
    assert found.index == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_runs_each_layout_once_and_then_stops(strategy: str) -> None:
    pytest.importorskip("optuna", reason="needs optuna")
    prior = options([1.0, 1.1, 1.2, 1.3, 1.4])
    runs: dict[int, Tried] = {}
    while isinstance(
        found := choose(prior, runs, strategy=strategy, tolerance=-1e9, seed=3),  # type: ignore[arg-type]
        Choice,
    ):
        assert found.index not in runs
        runs[found.index] = Tried(step_s=1.0 + 0.1 * found.index)
    assert sorted(runs) == [0, 1, 2, 3, 4]
    assert found.because == "every candidate has been run"


def test_the_grid_goes_in_the_order_of_the_axes() -> None:
    prior = options([1.0, 1.1, 1.2])
    first = choose(prior, {}, strategy="grid")
    second = choose(prior, {0: Tried(step_s=9.0)}, strategy="grid")
    assert isinstance(first, Choice)
    assert isinstance(second, Choice)
    assert (first.index, second.index) == (0, 1)


def test_random_draws_differ_by_seed_and_not_by_time() -> None:
    prior = options([1.0] * 8)
    drawn = [choose(prior, {}, strategy="random", seed=seed) for seed in range(12)]
    assert drawn == [choose(prior, {}, strategy="random", seed=seed) for seed in range(12)]
    assert len({found.index for found in drawn if isinstance(found, Choice)}) > 3


def test_tpe_comes_to_prefer_the_better_half() -> None:
    pytest.importorskip("optuna", reason="needs optuna")
    prior = options([1.0] * 64)
    runs = {i: Tried(step_s=1.0 if i < 8 else 10.0) for i in [*range(4), *range(20, 40)]}
    chosen = [choose(prior, runs, strategy="optuna", seed=seed) for seed in range(20)]
    assert sum(found.index < 16 for found in chosen if isinstance(found, Choice)) > 5


def test_the_first_two_runs_go_by_expected_time_and_later_ones_by_their_chance() -> None:
    """The second layout is predicted 3 % slower, and nothing that others show tells of the third,
    5 % slower: its chance to be the fastest by 2 % is larger, its time is not."""
    known = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.2**2]])
    mean = np.log([1.0, 1.03, 1.05, 9.0])
    shared = np.zeros((4, 4))
    shared[:3, :3] = known
    never = Prior(mean=np.log(np.full(4, 0.1)), shared=np.full((4, 4), 0.01), own=0.01)
    step = Prior(mean=mean, shared=shared, own=1e-4)
    prior = Options(step=step, fill=never, axes=np.arange(4.0)[:, None])
    first = choose(prior, {}, confidence=0.99)
    second = choose(prior, {0: Tried(step_s=1.0)}, confidence=0.99)
    failed = {0: Tried(step_s=1.0), 3: Tried()}
    third = choose(prior, failed, confidence=0.99)
    assert isinstance(first, Choice) and isinstance(second, Choice) and isinstance(third, Choice)
    assert (first.index, second.index, third.index) == (0, 1, 2)


@pytest.mark.parametrize(
    ("sure", "lost", "over"), [(0.7, 0.09, True), (0.69, 0.0, False), (0.99, 0.11, False)]
)
def test_a_study_ends_when_it_is_sure_and_little_can_be_lost(
    sure: float, lost: float, over: bool
) -> None:
    """Little is five tolerances."""
    assert ends(sure, lost, confidence=0.7, tolerance=0.02) is over
    assert not ends(sure, lost, confidence=0.7, tolerance=-1.0)
