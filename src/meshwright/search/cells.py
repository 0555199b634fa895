"""The best layout of every tensor-parallel and pipeline size, and why some sizes have none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.step import Priced
from meshwright.search.axes import axes_of
from meshwright.search.balance import balanced
from meshwright.search.exhaustive import balanced_key, uneven_rows
from meshwright.search.problem import Problem
from meshwright.search.quote import price_in
from meshwright.search.rules.check import check_layout, complete_layout
from meshwright.search.space import Rejections, Space, chunks, make_space
from meshwright.values.layout import Layout, Layouts

__all__ = ["MOST_PRICED", "Cell", "Cells", "cells_of"]

MOST_PRICED = 60_000
"""Layouts that are priced at most: half a second on one core."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """All layouts of one tp and one pp."""

    tp: int
    pp: int
    best: Layout | None = None
    """The fastest that leaves the headroom free, else that fits, else the smallest."""
    step_s: float = float("inf")
    used_bytes: float = float("inf")
    """Of the fullest stage of `best`."""
    reason: str = ""
    """The rule that every layout here breaks; blank where some keep all rules."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """A map of the space."""

    cells: tuple[Cell, ...]
    """tp by tp, and of each tp pp by pp."""
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    priced: int
    """Layouts that were priced for it."""
    is_whole: bool
    """Whether these are all layouts of the space; else a cell may hold a better one."""


def cells_of(problem: Problem, *, most: int = MOST_PRICED) -> Cells:
    """Price the space, or a part of a larger one, evenly over the cells, by the closed form."""
    axes = axes_of(problem)
    space = make_space(problem, axes, Rejections())
    whole = space.size_bound <= most
    if not whole:
        space = _thinned(space, most)
    found: dict[tuple[int, int], Cell] = {}
    uneven: list[Layouts] = []
    priced = 0
    for layouts in chunks(space, Rejections()):
        priced += len(layouts)
        prices = price_in(problem.setting, layouts)
        _keep_better(problem, found, _best_of(problem, layouts, prices))
        uneven.append(_best_if_balanced(problem, layouts, prices))
    if sum(map(len, uneven)) and len(splits := balanced(Layouts.concat(uneven), problem.setting)):
        prices = price_in(problem.setting, splits, which="all")
        _keep_better(problem, found, _best_of(problem, splits, prices))
    tps, pps = tuple(sorted(axes.tp)), tuple(sorted(axes.pp))
    cells = tuple(found.get((tp, pp)) or _empty(problem, tp, pp) for tp in tps for pp in pps)
    return Cells(cells=cells, tp=tps, pp=pps, priced=priced, is_whole=whole)


def _keep_better(problem: Problem, found: dict[tuple[int, int], Cell], more: list[Cell]) -> None:
    for cell in more:
        there = found.get((cell.tp, cell.pp))
        if there is None or _rank(problem, cell) < _rank(problem, there):
            found[cell.tp, cell.pp] = cell


def _thinned(space: Space, most: int) -> Space:
    """Keep the plain ways to recompute, and of each cell as many grid rows, evenly spread."""
    ways = [way for way in space.axes.recomputations if not way.eighths]
    kept = {(way.kind, bool(way.modules)): way for way in reversed(ways)}
    axes = replace(space.axes, recomputations=tuple(reversed(kept.values())))
    grid = space.grid
    cells = grid.tp * (int(grid.pp.max(initial=0)) + 1) + grid.pp
    each = max(
        1, most // (max(1, len(np.unique(cells))) * len(axes.mbs) * len(axes.recomputations))
    )
    order = np.argsort(cells, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(cells[order])) + 1)
    rows = np.concatenate(
        [
            group[np.unique(np.linspace(0, len(group) - 1, each).astype(np.int64))]
            for group in groups
        ]
    )
    return replace(space, grid=grid.take(np.sort(rows)), axes=axes)


def _best_if_balanced(problem: Problem, layouts: Layouts, priced: Priced) -> Layouts:
    """Of each tp, pp and vpp the pipeline that would be best with stages of equal time."""
    rows = np.flatnonzero(uneven_rows(problem, priced, layouts))
    keys = [
        column[rows]
        for column in (balanced_key(priced, layouts), layouts.vpp, layouts.pp, layouts.tp)
    ]
    order = np.lexsort(keys)
    vpp, pp, tp = (key[order] for key in keys[1:])
    first = np.flatnonzero(
        np.r_[True, (np.diff(tp) != 0) | (np.diff(pp) != 0) | (np.diff(vpp) != 0)][: len(rows)]
    )
    return layouts.take(rows[order[first]])


def _best_of(problem: Problem, layouts: Layouts, priced: Priced) -> list[Cell]:
    """The best of some layouts in each cell that they lie in."""
    used: Floats = np.asarray(priced.peak_used_bytes)
    groups = _group(problem, used)
    key = np.where(groups == _MISSES, used, priced.step_s / layouts.gbs)
    order = np.lexsort((key, groups, layouts.pp, layouts.tp))
    tp, pp = layouts.tp[order], layouts.pp[order]
    first = order[np.flatnonzero(np.r_[True, (np.diff(tp) != 0) | (np.diff(pp) != 0)])]
    return [
        Cell(
            tp=int(layouts.tp[row]),
            pp=int(layouts.pp[row]),
            best=layouts.row(int(row)),
            step_s=float(priced.step_s[row]),
            used_bytes=float(used[row]),
        )
        for row in first
    ]


_MISSES = 2


def _group(problem: Problem, used: Floats) -> NDArray[np.int64]:
    """0 leaves the headroom free, 1 fits, 2 does not."""
    limit = problem.setting.limit_bytes
    return (used > limit - problem.headroom_bytes).astype(np.int64) + (used > limit)


def _rank(problem: Problem, cell: Cell) -> tuple[int, float]:
    group = int(_group(problem, np.array([cell.used_bytes]))[0])
    assert cell.best is not None
    return group, cell.used_bytes if group == _MISSES else cell.step_s / cell.best.gbs


def _empty(problem: Problem, tp: int, pp: int) -> Cell:
    """A cell without layouts, with the first rule that its plainest one breaks."""
    case = replace(problem.case, work=replace(problem.setting.work, gbs=None))
    dp = max(1, problem.num_chips // (tp * pp))
    given = {"tp": tp, "pp": pp, "dp": dp, "gbs": problem.request.gbs or problem.max_gbs}
    broken = check_layout(complete_layout(given, case), case)
    reason = broken[0].message if broken else "no layout of the space keeps all rules"
    return Cell(tp=tp, pp=pp, reason=reason)
