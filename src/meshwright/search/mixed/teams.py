"""The search over every set of pools, each with what suits its own chips best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from meshwright.search.mixed.branch import NEAR
from meshwright.search.mixed.cut_book import CutBook
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import Grid, chunks_of, make_grid
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.reprice import Found, Outcome, Repriced
from meshwright.search.mixed.ways import Ways, ways_of
from meshwright.search.space import Rejections

__all__ = [
    "Answer",
    "Priced",
    "Side",
    "merged",
    "of_setting",
    "search_teams",
    "setting_words",
    "sides_of",
    "simulated_score",
]

PAIR = 2
"""Sets of so many pools, and smaller ones, come before larger ones, of which there are many more
ways to cut."""
Priced = tuple[Found, Repriced]
"""A plan as the closed form found it, and as it was priced again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Sets of pools under one software, number format and attention; they share a grid."""

    problem: MixedProblem
    """Of all pools of these sets."""
    sets: tuple[tuple[int, ...], ...]
    grid: Grid
    rejections: Rejections


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the search of one set of pools brought."""

    problem: MixedProblem
    outcome: Outcome
    plans: tuple[Priced, ...]


def sides_of(teams: Sequence[MixedProblem]) -> tuple[Side, ...]:
    """Put sets of pools together that are priced alike, the side with most pools first."""
    groups: dict[object, list[MixedProblem]] = {}
    for team in teams:
        setting, asked = team.lead.setting, team.request
        key = (asked.stack, setting.stack, repr(setting.work))
        groups.setdefault(key, []).append(team)
    sides = []
    for group in groups.values():
        union = tuple(sorted({pool for team in group for pool in team.team}))
        parts = {pool: team.parts[pool] for team in reversed(group) for pool in team.team}
        problem = replace(
            group[0],
            team=union,
            parts=tuple(parts.get(at, part) for at, part in enumerate(group[0].parts)),
        )
        rejections = Rejections()
        sides.append(
            Side(
                problem=problem,
                sets=tuple(team.team for team in group),
                grid=make_grid(problem, rejections),
                rejections=rejections,
            )
        )
    return tuple(sides)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """One set of pools to search."""

    problem: MixedProblem
    """Of these pools alone, as it is searched: with or without headroom."""
    side: Side
    ways: Ways
    cuts: CutBook

    @property
    def guess(self) -> float:
        """What its best plan may score."""
        return float(self.ways.guess.min(initial=np.inf))


def search_teams(
    sides: Sequence[Side],
    score: Score,
    priced: Callable[[MixedProblem, Grid, Outcome], list[Priced]],
    *,
    headroom: bool = True,
) -> list[Answer]:
    """Search every set of pools, single ones and pairs first and the most promising of them before
    the others, with what `priced` makes of each.

    Each set is searched by itself, below what its own parts reach, so that what it brings hangs on
    no other chips beside it: a cluster never gets a worse plan than a part of it. Those are left
    out of which no plan can be as good as the best plan so far; their bound is part of the proof
    all the same.
    """
    tasks = sorted(
        (task for side in sides for task in _tasks(side, score, headroom=headroom)),
        key=lambda task: (max(PAIR, len(task.problem.team)), task.guess),
    )
    answers, known, last = list[Answer](), np.inf, np.inf
    for task in tasks:
        problem, grid, ways, plans = task.problem, task.side.grid, task.ways, list[Priced]()
        if ways.bound < max(known, last):
            outcome = search_mixed(
                problem,
                grid,
                score,
                known=known,
                last=last,
                chunked=NEAR * _best_of_parts(answers, problem.team),
                ways=ways,
                cuts=task.cuts,
            )
            plans = priced(problem, grid, outcome) if outcome.best else []
            known = min([known, *(simulated_score(plan) for plan in plans)])
        else:
            outcome = _unsearched(ways)
        own = replace(task.side.problem, team=problem.team)
        answers.append(Answer(problem=own, outcome=outcome, plans=tuple(plans)))
        best = merged(answers).best[: problem.request.top]
        last = best[-1].score if len(best) == problem.request.top else np.inf
    return answers


def _best_of_parts(answers: Sequence[Answer], team: tuple[int, ...]) -> float:
    """The best score by the closed form of sets of some of a team's pools."""
    return min(
        (
            answer.outcome.best[0].score
            for answer in answers
            if answer.outcome.best and {*answer.problem.team} < {*team}
        ),
        default=np.inf,
    )


def simulated_score(plan: Priced) -> float:
    """Return the score of a plan by its simulated step."""
    found, repriced = plan
    return repriced.step_s * found.score / found.step_s


def _tasks(side: Side, score: Score, *, headroom: bool) -> list[_Task]:
    """The sets of a side that have ways to cut."""
    problem = side.problem
    if not headroom:
        parts = tuple(replace(part, headroom_bytes=0.0) for part in problem.parts)
        problem = replace(problem, parts=parts)
    ways = ways_of(problem, side.grid, score, most_chunks=max(chunks_of(problem, side.grid)))
    cuts = CutBook(problem, side.grid)
    tasks = [
        _Task(problem=replace(problem, team=pools), side=side, ways=ways.of(pools), cuts=cuts)
        for pools in side.sets
    ]
    return [task for task in tasks if len(task.ways.common)]


def _unsearched(ways: Ways) -> Outcome:
    bound = ways.bound
    return Outcome(
        best=(), bound=bound, later_bound=bound, ways=len(ways.common), boxes=0, solved=0
    )


def setting_words(problem: MixedProblem) -> tuple[str, str, str]:
    """Return software, number format and attention: what a heading says once for all its plans."""
    asked = problem.request
    return str(asked.stack), str(asked.precision), str(asked.attention)


def of_setting(problem: MixedProblem, answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers that are under a problem's software, number format and attention."""
    wanted = setting_words(problem)
    return [answer for answer in answers if setting_words(answer.problem) == wanted]


def merged(answers: Sequence[Answer]) -> Outcome:
    """Return what some searches say together."""
    outcomes = [answer.outcome for answer in answers]
    by_score = attrgetter("score")
    return Outcome(
        best=tuple(sorted((each for found in outcomes for each in found.best), key=by_score)),
        orders=tuple(sorted((each for found in outcomes for each in found.orders), key=by_score)),
        near=tuple(each for found in outcomes for each in found.near),
        bound=min((outcome.bound for outcome in outcomes), default=np.inf),
        later_bound=min((outcome.later_bound for outcome in outcomes), default=np.inf),
        ways=sum(outcome.ways for outcome in outcomes),
        boxes=sum(outcome.boxes for outcome in outcomes),
        solved=sum(outcome.solved for outcome in outcomes),
    )
