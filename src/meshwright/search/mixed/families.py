"""The search over plans of one chunk per stage, and over interleaved ones behind it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from meshwright.search.mixed.branch import FAMILY_MARGIN, MOST_SOLVED, FamilySearch
from meshwright.search.mixed.cut_book import CutBook
from meshwright.search.mixed.grid import Grid, chunks_of
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.reprice import Outcome
from meshwright.search.mixed.ways import Ways, ways_of

__all__ = ["search_mixed"]


def search_mixed(
    problem: MixedProblem,
    grid: Grid,
    score: Score,
    *,
    most_solved: int = MOST_SOLVED,
    known: float = np.inf,
    last: float | None = None,
    chunked: float = np.inf,
    ways: Ways | None = None,
    cuts: CutBook | None = None,
) -> Outcome:
    """Return the best plans of the grid, and a bound of all; those not much worse than the score of
    a `known` plan alone, and behind the best than the `last` one asked for, as `known` if None;
    interleaved ones only below `chunked`.

    Of `ways` only these are searched; `cuts` are shared between searches of a grid.

    Plans with one chunk per stage and interleaved ones are searched apart: the closed form of the
    latter is less sure, so that the best of both are told apart by the simulation.
    """
    chunks, top = chunks_of(problem, grid), problem.request.top
    ways = ways_of(problem, grid, score, most_chunks=max(chunks)) if ways is None else ways
    cuts = cuts or CutBook(problem, grid)
    families = [
        family for family in ([v for v in chunks if v == 1], [v for v in chunks if v > 1]) if family
    ]
    outcomes, others = list[Outcome](), list[Outcome]()
    last = known if last is None else last
    for family in families:
        # Plans of one chunk come first: their best is the ceiling of the interleaved ones. These
        # get a margin on it, as their closed form is up to 14 % below the simulation, which has the
        # last word.
        known = min([known, *(outcome.best[0].score for outcome in outcomes if outcome.best)])
        ceiling = min(FAMILY_MARGIN * known, np.inf if family == [1] else chunked)
        search = FamilySearch(
            problem, grid, score, most_solved, ways, cuts, family, ceiling=ceiling
        )
        outcomes.append(search.run())
        if top > 1:
            others.append(search.others(FAMILY_MARGIN * last))
            last = min([last, *(o.best[top - 1].score for o in others if len(o.best) >= top)])
    return _together(outcomes, others, ways=len(ways.common))


def _together(outcomes: Sequence[Outcome], others: Sequence[Outcome], *, ways: int) -> Outcome:
    """Join what the searches brought: the last that was made of a family has all its plans."""
    last = others or outcomes
    return Outcome(
        best=tuple(
            sorted((found for each in last for found in each.best), key=attrgetter("score"))
        ),
        orders=tuple(
            sorted((found for each in outcomes for found in each.orders), key=attrgetter("score"))
        ),
        near=tuple(found for outcome in outcomes for found in outcome.near),
        bound=min(outcome.bound for outcome in outcomes),
        later_bound=min(outcome.bound for outcome in last),
        ways=ways,
        boxes=sum(outcome.boxes for outcome in last),
        solved=sum(outcome.solved for outcome in last),
    )
