"""Beliefs, held against hand calculations and against plain sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshwright.runs.belief import (
    Belief,
    Hypothesis,
    Prior,
    Sizes,
    Slow,
    believe_bounds,
    believe_values,
    correlations,
    drawn_logs,
    hypotheses_of,
    normal_cdf,
    read_sizes,
)


def one(*, mean: float = 0.0, shared: float, own: float) -> Prior:
    return Prior(mean=np.array([mean]), shared=np.array([[shared]]), own=own)


def test_a_run_moves_a_twin_by_the_shared_part_alone() -> None:
    # variance 0.03 shared by both, 0.01 each one's own: a run 0.2 above moves the other by 0.03 /
    # 0.04 of that, and leaves it
    # 0.03 - 0.03**2 / 0.04 = 0.0075 of the shared variance.
    prior = Prior(mean=np.zeros(2), shared=np.full((2, 2), 0.03), own=0.01)
    belief = believe_values(prior, [0], np.array([0.2]), noise=np.zeros(1))
    assert belief.mean[1] == pytest.approx(0.15)
    assert belief.spread[1] == pytest.approx(math.sqrt(0.0075 + 0.01))


def test_a_noisy_run_moves_less() -> None:
    prior = Prior(mean=np.zeros(2), shared=np.full((2, 2), 0.03), own=0.01)
    belief = believe_values(prior, [0], np.array([0.2]), noise=np.array([math.sqrt(0.04)]))
    assert belief.mean[1] == pytest.approx(0.2 * 0.03 / 0.08)


def test_no_run_changes_nothing() -> None:
    prior = Prior(mean=np.array([0.1, 0.4]), shared=np.eye(2), own=0.2)
    for belief in (
        believe_values(prior, [], np.zeros(0), noise=np.zeros(0)),
        believe_bounds(prior, [], []),
    ):
        assert (belief.mean == prior.mean).all()
        assert (belief.shared == prior.shared).all()


def test_layouts_that_lean_on_the_same_exchange_move_together() -> None:
    # Two lean on the second factor with half of their step, the third with nothing; only the first
    # is run, and is slow.
    slopes = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    prior = correlations(
        slopes=slopes,
        widths=np.array([0.1, 0.3]),
        axes=np.array([[0.0], [9.0], [9.0]]),
        noise=0.05,
        spread=np.full(3, 0.1),
        mean=np.zeros(3),
    )
    moved = believe_values(prior, [0], np.array([0.2]), noise=np.zeros(1)).mean
    assert moved[1] > moved[2] > 0


def test_what_is_alike_moves_more_than_what_is_far() -> None:
    prior = correlations(
        slopes=np.ones((3, 1)),
        widths=np.array([0.1]),
        axes=np.array([[0.0], [1.0], [6.0]]),
        noise=0.2,
        spread=np.full(3, 0.3),
        mean=np.zeros(3),
    )
    moved = believe_values(prior, [0], np.array([0.2]), noise=np.zeros(1)).mean
    assert moved[1] > moved[2] > 0


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.5])
def test_the_whole_spread_is_that_of_the_interval(spread: float) -> None:
    prior = correlations(
        slopes=np.array([[1.0], [1.0]]),
        widths=np.array([0.1]),
        axes=np.zeros((2, 1)),
        noise=0.1,
        spread=np.full(2, spread),
        mean=np.zeros(2),
    )
    assert Belief(mean=prior.mean, shared=prior.shared, own=prior.own).spread == pytest.approx(
        [spread, spread]
    )


def test_one_bound_by_hand() -> None:
    # A standard normal, all of it shared, seen above 0: mean sqrt(2 / pi), variance 1 - 2 / pi.
    belief = believe_bounds(one(shared=1.0, own=0.0), [0], [True])
    assert belief.mean[0] == pytest.approx(math.sqrt(2 / math.pi), abs=1e-6)
    assert belief.shared[0, 0] == pytest.approx(1 - 2 / math.pi, abs=1e-6)


@pytest.mark.parametrize("above", [(True, True, False), (False, False, False), (True, False, True)])
def test_several_bounds_against_sampling(above: tuple[bool, ...]) -> None:
    draw = np.random.default_rng(1)
    root = draw.standard_normal((4, 4)) * 0.4
    prior = Prior(mean=np.array([0.1, -0.2, 0.0, 0.05]), shared=root @ root.T, own=0.05)
    belief = believe_bounds(prior, [0, 1, 2], above)
    hidden = prior.mean + draw.standard_normal((400_000, 4)) @ root.T
    seen = hidden[:, :3] + math.sqrt(prior.own) * draw.standard_normal((400_000, 3)) > 0
    kept = hidden[(seen == np.array(above)).all(axis=1)]
    assert len(kept) > 5_000
    assert belief.mean == pytest.approx(kept.mean(axis=0), abs=0.03)
    assert np.sqrt(np.diag(belief.shared)) == pytest.approx(kept.std(axis=0), rel=0.06)


def test_a_bound_that_could_not_be_missed_tells_nothing() -> None:
    belief = believe_bounds(one(mean=-8.0, shared=0.25, own=0.1), [0], [False])
    assert belief.mean[0] == pytest.approx(-8.0, abs=1e-3)
    assert belief.shared[0, 0] == pytest.approx(0.25, rel=1e-3)


def test_a_bound_against_all_belief_still_gives_numbers() -> None:
    belief = believe_bounds(one(mean=-8.0, shared=0.25, own=0.01), [0], [True])
    assert -8.0 < belief.mean[0] < 1.0


def test_draws_have_the_belief_s_mean_and_covariance() -> None:
    belief = Belief(mean=np.array([1.0, 2.0]), shared=np.array([[0.2, 0.1], [0.1, 0.3]]), own=0.05)
    draw = np.random.default_rng(2)
    drawn = belief.draws(draw.standard_normal((200_000, 2)), draw.standard_normal((200_000, 2)))
    assert drawn.mean(axis=0) == pytest.approx([1.0, 2.0], abs=0.01)
    assert np.cov(drawn.T).ravel() == pytest.approx([0.25, 0.1, 0.1, 0.35], abs=0.01)


def test_the_normal_distribution() -> None:
    assert normal_cdf(np.array([0.0, 1.2815515655446004, -1.2815515655446004])) == pytest.approx(
        [0.5, 0.9, 0.1]
    )


def drawn(prior: Prior, rows: list[int], seen: list[float], count: int = 48_000) -> np.ndarray:
    noise, chance = np.zeros(len(rows)), np.random.default_rng(4)
    return drawn_logs(prior, rows, np.array(seen), noise=noise, count=count, chance=chance)


def test_one_hypothesis_draws_what_the_belief_says() -> None:
    # By hand as above: a run 0.2 above moves a twin by 0.15, and leaves a variance of 0.0175.
    prior = Prior(mean=np.zeros(2), shared=np.full((2, 2), 0.03), own=0.01)
    found = drawn(prior, [0], [0.2])[:, 1]
    assert found.mean() == pytest.approx(0.15, abs=0.005)
    assert found.var() == pytest.approx(0.0175, rel=0.05)


def test_a_miss_is_explained_by_the_wider_hypothesis() -> None:
    """Two layouts believed alike to 2 or to 40 %: a run 0.5 off the other leaves the wide one, by
    normal densities at 0.5 of deviations 0.0283 and 0.566, e**-156 against e**-0.39."""
    shared = np.full((3, 3), 0.09)
    told = tuple(Hypothesis(shared=shared, own=own, weight=0.5) for own in (0.02**2, 0.4**2))
    prior = Prior(mean=np.zeros(3), shared=shared, own=0.02**2, hypotheses=told)
    assert drawn(prior, [0, 1], [0.0, 0.5])[:, 2].std() > 0.35
    assert drawn(prior, [0, 1], [0.0, 0.01])[:, 2].std() < 0.15


def test_a_run_slow_for_reasons_of_its_own_tells_nothing_of_others() -> None:
    """Three twins, two of which took what was predicted and one twice as long: the fourth is as
    the two, where no run is ever slow it is between."""
    shared, seen = np.full((4, 4), 0.04), [0.0, 0.0, math.log(2.0)]
    usual = Prior(mean=np.zeros(4), shared=shared, own=0.01**2)
    slow = Prior(mean=np.zeros(4), shared=shared, own=0.01**2, slow=Slow(share=0.1, mean=0.6))
    assert np.median(drawn(usual, [0, 1, 2], seen)[:, 3]) == pytest.approx(
        math.log(2) / 3, abs=0.01
    )
    assert abs(np.median(drawn(slow, [0, 1, 2], seen)[:, 3])) < 0.01


def test_a_tenth_of_the_runs_to_come_may_be_slow() -> None:
    prior = Prior(
        mean=np.zeros(1), shared=np.zeros((1, 1)), own=1e-6, slow=Slow(share=0.1, mean=0.6)
    )
    found = drawn(prior, [], [])[:, 0]
    assert (found > 0.1).mean() == pytest.approx(0.1 * math.exp(-0.1 / 0.6), abs=0.005)


def test_hypotheses_have_the_sizes_of_their_parts() -> None:
    size = Sizes(factors=0.5, trend=0.1, alike=0.2, octaves=1.0, own=0.03, weight=1.0)
    [found] = hypotheses_of(
        [size],
        slopes=np.array([[1.0], [0.0]]),
        widths=np.array([0.4]),
        axes=np.array([[0.0], [2.0]]),
        common=0.3,
    )
    # 0.5**2 * 0.4**2 + 0.1**2 * 1 + 0.2**2 + 0.3**2; across: -0.01 + 0.04 * exp(-2) + 0.09
    assert found.shared[0, 0] == pytest.approx(0.04 + 0.01 + 0.04 + 0.09)
    assert found.shared[0, 1] == pytest.approx(-0.01 + 0.04 * math.exp(-2.0) + 0.09)
    assert found.own == pytest.approx(0.0009)


def test_the_shipped_sizes_are_shares_of_all_studies() -> None:
    assert sum(size.weight for size in read_sizes()) == pytest.approx(1.0, abs=0.01)
