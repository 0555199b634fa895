"""The search over several kinds of chips against brute force, on the benchmark's random cases."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from benchmarks.mixed_brute_force import brute_force, random_case

from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import make_grid
from meshwright.search.mixed.problem import Score, resolve_mixed
from meshwright.search.space import Rejections


@pytest.mark.parametrize("seed", range(24))
def test_random_cases_are_those_of_brute_force(seed: int) -> None:
    problem = resolve_mixed(random_case(Random(seed)))
    grid = make_grid(problem, Rejections())
    best = brute_force(problem, grid, wide=False).get(frozenset(), np.inf)
    outcome = search_mixed(problem, grid, Score(rates=None))
    assert bool(outcome.best) == np.isfinite(best) and outcome.gap == 0
    if outcome.best:
        assert outcome.best[0].step_s == pytest.approx(best, rel=1e-9)
