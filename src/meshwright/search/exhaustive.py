"""Price every layout of a space: the best few, and the best of every tp and pp."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Which
from meshwright.cost.step import Priced
from meshwright.search.axes import axes_of
from meshwright.search.balance import WORTH_A_SPLIT, balanced, can_balance
from meshwright.search.problem import Problem
from meshwright.search.proof import bound_keys
from meshwright.search.quote import host_holds, price_in
from meshwright.search.rules.check import check_layout, complete_layout
from meshwright.search.space import Rejections, Space, chunks, make_space
from meshwright.values.layout import Layout, Layouts

__all__ = [
    "MOST_PRICED",
    "Cell",
    "Cells",
    "Found",
    "Harvest",
    "balanced_key",
    "cells_of",
    "search_space",
    "uneven_rows",
]

KEPT = 512
"""Fewest layouts kept on the way; many differ in chunks and recompute only, one is shown."""
KEPT_PER_PLAN = 32
"""Kept per plan that is asked for, where that is more."""
UNEVEN = 4
"""Times as many uneven pipelines: what a better split gains is not known before it is tried."""
OF_EACH = 4
"""Of them, tried of each that differ in more than recomputation."""
WORKERS = 2
"""Chunks priced at once: numpy leaves the interpreter free while it computes."""

LARGE_BYTES = 31 * 2**20
"""Just below the largest block that glibc's malloc serves from its heap
(DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB on 64 bits)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Layouts with the figures they are ranked by, (N,) each."""

    layouts: Layouts
    key: Floats
    """Smaller is better: seconds per sequence, or bytes."""
    used_bytes: Floats

    def __len__(self) -> int:
        return len(self.key)

    def best(self, count: int) -> Found:
        """Return the best `count` rows, best first, equals in their order."""
        return self.take(np.argsort(self.key, kind="stable")[:count])

    def take(self, index: Any) -> Found:
        """Return some rows."""
        return Found(
            layouts=self.layouts.take(index), key=self.key[index], used_bytes=self.used_bytes[index]
        )

    def and_also(self, other: Found, *, kept: int) -> Found:
        """Return the rows of both, and of more than `kept` the best."""
        if len(self) >= kept and other.key[0] >= self.key[-1]:
            return self
        both = Found(
            layouts=Layouts.concat((self.layouts, other.layouts)),
            key=np.concatenate((self.key, other.key)),
            used_bytes=np.concatenate((self.used_bytes, other.used_bytes)),
        )
        return both.best(kept)


@dataclass(frozen=True, kw_only=True, slots=True)
class Harvest:
    """What a search, or a chunk of it, brought: each part best first, None for none."""

    priced: int
    """Layouts priced."""
    fitting: Found | None
    """Those that leave the headroom free."""
    at_risk: Found | None
    """Those that need a part of the headroom."""
    misses: Found | None
    """Those that do not fit, by the memory they need."""
    uneven: Found | None
    """Pipelines that fit, with a slower stage: by what they would take if all were equal."""
    too_large: int
    """Layouts that do not fit."""
    bounded: Found | None = None
    """Those that leave the headroom free, by what no deal of their layers undercuts."""
    beyond_host: int = 0
    """Layouts that fit the chips and not their host's memory or drives."""

    def and_also(self, other: Harvest, *, kept: int) -> Harvest:
        """Return the best of both, at most `kept` of each part."""
        return Harvest(
            priced=self.priced + other.priced,
            fitting=_either(self.fitting, other.fitting, kept),
            at_risk=_either(self.at_risk, other.at_risk, kept),
            misses=_either(self.misses, other.misses, 1),
            uneven=_either(self.uneven, other.uneven, UNEVEN * kept),
            bounded=_either(self.bounded, other.bounded, kept),
            too_large=self.too_large + other.too_large,
            beyond_host=self.beyond_host + other.beyond_host,
        )


def _either(one: Found | None, other: Found | None, kept: int) -> Found | None:
    return one.and_also(other, kept=kept) if one is not None and other is not None else one or other


def search_space(
    problem: Problem,
    space: Space,
    rejections: Rejections,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Harvest:
    """Price all layouts; `progress` is told how many are done and a bound of all."""
    kept = kept_of(problem)
    _keep_pages()
    found = Harvest(priced=0, fitting=None, at_risk=None, misses=None, uneven=None, too_large=0)
    for part in _in_order(problem, chunks(space, rejections)):
        found = found.and_also(part, kept=kept)
        if progress is not None:
            progress(found.priced, space.size_bound)
    rejections.add("memory: more than a chip has", found.too_large)
    rejections.add("host: more than its memory or drives have", found.beyond_host)
    return _with_balanced(problem, found, kept=kept)


def _with_balanced(problem: Problem, found: Harvest, *, kept: int) -> Harvest:
    """Add the best uneven pipelines with the splits that make their stages' times equal."""
    if found.uneven is None:
        return found
    promising = found.uneven.layouts.take(found.uneven.key < _worst(found, kept))
    if not len(promising):
        return found
    layouts = balanced(promising.take(_first_of_each(promising, OF_EACH)), problem.setting)
    if not len(layouts):
        return found
    more = _harvest(problem, layouts, which="all")
    return replace(
        found.and_also(more, kept=kept + more.priced),
        bounded=found.bounded,
        priced=found.priced,
        too_large=found.too_large,
    )


_BUT_RECOMPUTE = (
    *("tp", "sp", "cp", "ep", "etp", "pp", "vpp", "dp"),
    *("sharding", "shard_size", "mbs", "gbs", "schedule"),
)


def _first_of_each(layouts: Layouts, count: int) -> NDArray[np.int64]:
    """Numbers of the first `count` rows of each that differ in more than recompute, ascending."""
    columns = [getattr(layouts, name) for name in _BUT_RECOMPUTE]
    _, kind = np.unique(np.stack(columns), axis=1, return_inverse=True)
    kind = kind.reshape(-1)  # numpy 2.0.0 alone keeps the axes of what was given
    order = np.argsort(kind, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(kind[order]) != 0])
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return np.sort(order[place < count])


def _worst(found: Harvest, kept: int) -> float:
    """What a layout must beat to be kept."""
    fitting = found.fitting
    return float("inf") if fitting is None or len(fitting) < kept else float(fitting.key[-1])


def kept_of(problem: Problem) -> int:
    """Return how many best layouts a search keeps."""
    return max(KEPT, KEPT_PER_PLAN * problem.request.top)


def _keep_pages() -> None:
    """Free one large, untouched block: glibc then keeps freed columns for the next chunk, instead
    of returning their pages each time.

    Without it a third of the time goes into page faults (measured by `benchmarks/plan.py`); other
    allocators do not mind.
    """
    np.empty(LARGE_BYTES, dtype=np.uint8)


def _in_order(problem: Problem, pieces: Iterator[Layouts]) -> Iterator[Harvest]:
    """Price pieces in WORKERS threads, and yield in order, so that ties never hang on timing."""
    waiting: deque[Future[Harvest]] = deque()
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        for piece in pieces:
            waiting.append(pool.submit(_harvest, problem, piece))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _harvest(problem: Problem, layouts: Layouts, *, which: Which = "representative") -> Harvest:
    setting = problem.setting
    priced = price_in(setting, layouts, which=which)
    used = priced.peak_used_bytes
    key = used if problem.request.objective == "memory" else priced.step_s / layouts.gbs
    fits, free = used <= setting.limit_bytes, used <= setting.limit_bytes - problem.headroom_bytes
    hosted = host_holds(setting.pool, priced)

    def part(rows: NDArray[np.bool_], by: Floats, count: int) -> Found | None:
        index = np.flatnonzero(rows)
        if not len(index):
            return None
        if len(index) > count:
            index = index[np.sort(np.argpartition(by[index], count)[:count])]
        return Found(layouts=layouts.take(index), key=by[index], used_bytes=used[index]).best(count)

    return Harvest(
        priced=len(layouts),
        fitting=part(free & hosted, key, kept_of(problem)),
        at_risk=part(fits & ~free & hosted, key, kept_of(problem)),
        misses=part(~fits, used, 1),
        uneven=part(
            uneven_rows(problem, priced, layouts),
            balanced_key(priced, layouts),
            UNEVEN * kept_of(problem),
        ),
        bounded=(
            None
            if problem.request.objective == "memory"
            else part(free & hosted, bound_keys(problem, priced, layouts), kept_of(problem))
        ),
        too_large=int(np.count_nonzero(~fits)),
        beyond_host=int(np.count_nonzero(fits & ~hosted)),
    )


def uneven_rows(problem: Problem, priced: Priced, layouts: Layouts) -> NDArray[np.bool_]:
    """Say which pipelines lose enough to their slowest stage for another split to be worth its
    words, (N,).

    They leave the headroom free, or fit with a last stage that needs most memory: a split for speed
    makes it smaller.
    """
    if problem.request.objective == "memory":
        return np.zeros(len(layouts), dtype=bool)
    used, limit = priced.memory.used, problem.setting.limit_bytes
    peak, last_is_fullest = used.max(axis=1), np.argmax(used, axis=1) == used.shape[1] - 1
    room = (peak <= limit - problem.headroom_bytes) | (peak <= limit) & last_is_fullest
    return np.asarray(
        room
        & can_balance(layouts, problem.setting)
        & (priced.time["imbalance"] > WORTH_A_SPLIT * priced.step_s)
    )


def balanced_key(priced: Priced, layouts: Layouts) -> Floats:
    """Seconds per sequence if all stages took the same, (N,)."""
    return np.asarray((priced.step_s - priced.time["imbalance"]) / layouts.gbs)


MOST_PRICED = 60_000
"""Layouts that are priced at most: half a second on one core."""


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
