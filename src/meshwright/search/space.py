"""The space of layouts, as columns made piece by piece: bounded memory for any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.search.axes import BLOCK_STEPS, MOST_UNEVEN_VPP, Axes
from meshwright.search.problem import Problem
from meshwright.search.rules.check import ALL_RULES, broken_rows
from meshwright.search.rules.rule import Rule, RuleCase
from meshwright.search.rules.software import stack_rules
from meshwright.search.rules.split import own_split
from meshwright.values.layout import RECOMPUTES, SHARDINGS, Layouts

__all__ = ["Rejections", "Space", "chunks", "make_space"]

Ints = NDArray[np.int64]
Columns = dict[str, Ints]
CHUNK_ROWS = 32_768
"""Layouts priced at once, before duplicates drop out: so many that numpy's overhead is spread thin,
so few that two chunks at once stay within 250 MiB."""
GRID_ROWS = 65_536
"""Rows of the grid whose micro batches are spread out at once."""

_BATCH_KEYS = frozenset({"batch", "rounds", "fill", "torch_fill", "split_backward"})
_RECOMPUTE_KEYS = frozenset({"recompute_modules", "recompute_layers"})
_GRID_RULES = tuple(
    r for r in ALL_RULES if r.key not in _BATCH_KEYS | _RECOMPUTE_KEYS | {"even_split"}
)
_BATCH_RULES = tuple(r for r in ALL_RULES if r.key in _BATCH_KEYS)
_RECOMPUTE_RULES = tuple(r for r in ALL_RULES if r.key in _RECOMPUTE_KEYS)


@dataclass(kw_only=True, slots=True)
class Rejections:
    """How many layouts were refused, by reason; grows while the space is walked."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, count: int) -> None:
        """Count some more."""
        if count:
            self.counts[reason] = self.counts.get(reason, 0) + int(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The grid of ranks (mbs, gbs and recompute at their defaults), and what is spread over it."""

    grid: Layouts
    axes: Axes
    case: RuleCase
    gbs: int | None
    """None: each layout takes the largest batch up to `max_gbs` that it can run."""
    max_gbs: int
    offered: int
    """Rows of the grid before the rules."""

    @property
    def size_bound(self) -> int:
        """No fewer than the layouts that `chunks` yields."""
        return len(self.grid) * len(self.axes.mbs) * len(self.axes.recomputations)


def make_space(problem: Problem, axes: Axes, rejections: Rejections) -> Space:
    """Build the grid and drop rows that break a rule; each counts as the layouts it stands for."""
    offered = _grid(problem, axes)
    grid = _keep(
        offered,
        problem.case,
        _GRID_RULES,
        rejections,
        weight=len(axes.mbs) * len(axes.recomputations),
    )
    return Space(
        grid=grid,
        axes=axes,
        case=problem.case,
        gbs=problem.request.gbs,
        max_gbs=problem.max_gbs,
        offered=len(offered),
    )


def _keep(
    layouts: Layouts,
    case: RuleCase,
    rules: tuple[Rule, ...],
    rejections: Rejections,
    *,
    weight: int = 1,
) -> Layouts:
    """Return the rows that keep all rules; others count under the first rule that they break."""
    good = np.ones(len(layouts), dtype=bool)
    for rule, broken in broken_rows(layouts, case, rules):
        rejections.add(f"rule: {rule.sentence}", int(np.count_nonzero(good & broken)) * weight)
        good &= ~broken
    return layouts if good.all() else layouts.take(good)


def _grid(problem: Problem, axes: Axes) -> Layouts:
    layers, domain = problem.setting.model.total_layers, problem.setting.pool.node.domain_size

    def same(values: tuple[int, ...]) -> Callable[[Columns], list[Ints]]:
        return lambda columns: [np.array(values)] * len(columns["tp"])

    options: dict[str, Callable[[Columns], list[Ints]]] = {
        "vpp": lambda columns: _chunks_per_stage(columns, axes, layers),
        "schedule": same(axes.schedule),
        "sp": lambda columns: [_sequence_parallel(axes, tp) for tp in columns["tp"]],
        "sharding": same(axes.sharding),
        "offload": same(axes.offload),
        "optimizer": same(axes.optimizer),
        "shard_size": lambda columns: _shard_sizes(columns, axes, domain),
        "ep": same(axes.ep),
        "etp": lambda columns: _expert_tensor(columns, axes),
    }
    columns = _rank_grid(problem.num_chips, axes)
    for name, of in options.items():
        columns = _spread(columns, name, of(columns))
    return _with_splits(_layouts(columns), axes, problem)


def _rank_grid(num_chips: int, axes: Axes) -> Columns:
    """All (tp, cp, pp) that divide the chips, with dp."""
    rows = [
        (tp, cp, pp, num_chips // (tp * cp * pp))
        for tp in axes.tp
        for cp in axes.cp
        if num_chips % (tp * cp) == 0
        for pp in axes.pp
        if num_chips % (tp * cp * pp) == 0
    ]
    if axes.dp is not None:
        rows = [row for row in rows if row[3] in axes.dp]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return {name: table[:, i] for i, name in enumerate(("tp", "cp", "pp", "dp"))}


def _spread(columns: Columns, name: str, options: list[Ints]) -> Columns:
    """Repeat each row for each of its options of a new column."""
    counts = np.array([len(option) for option in options], dtype=np.int64)
    spread = {key: np.repeat(column, counts) for key, column in columns.items()}
    spread[name] = (
        np.concatenate(options).astype(np.int64) if options else np.zeros(0, dtype=np.int64)
    )
    return spread


def _chunks_per_stage(columns: Columns, axes: Axes, layers: int) -> list[Ints]:
    if axes.vpp is not None:
        return [np.array(axes.vpp)] * len(columns["tp"])
    if axes.splits is not None:
        sizes = {len(split) for split in axes.splits}
        return [
            np.array(sorted({size // pp for size in sizes if size % pp == 0} or {1}))
            for pp in columns["pp"]
        ]
    by_pp = {int(pp): np.array(_searched_vpp(int(pp), layers)) for pp in np.unique(columns["pp"])}
    return [by_pp[int(pp)] for pp in columns["pp"]]


def _searched_vpp(pp: int, layers: int) -> list[int]:
    if pp == 1:
        return [1]
    return [
        v for v in range(1, layers // pp + 1) if v <= MOST_UNEVEN_VPP or layers % (pp * v) == 0
    ] or [1]


def _sequence_parallel(axes: Axes, tp: int) -> Ints:
    """As pinned; else with tensor parallelism, and where it is seldom used without it, too."""
    usual = [0, 1] if axes.either_sp and tp > 1 else [int(tp > 1)]
    return np.array(axes.sp or usual)


def _shard_sizes(columns: Columns, axes: Axes, domain: int) -> list[Ints]:
    """All ranks; under hybrid sharding proper parts that are whole domains or divide one; either
    where the software's groups may be smaller."""
    hybrid = columns["sharding"] == SHARDINGS.index("hybrid")
    grouped = np.isin(columns["sharding"], axes.grouped)
    whole = columns["dp"] * columns["cp"]
    if axes.shard_size is not None:
        return [
            np.array(axes.shard_size) if is_cut else np.array([size])
            for is_cut, size in zip(hybrid | grouped, whole, strict=True)
        ]
    parts = {int(size): _parts(int(size), domain) for size in np.unique(whole)}
    both = {size: np.append(found, size) for size, found in parts.items()}
    return [
        parts[int(size)] if is_hybrid else both[int(size)] if is_either else np.array([size])
        for is_hybrid, is_either, size in zip(hybrid, grouped, whole, strict=True)
    ]


def _parts(whole: int, domain: int) -> Ints:
    sizes = np.arange(2, min(whole, domain) + 1)
    wider = domain * 2 ** np.arange(1, 20)
    both = np.concatenate([sizes, wider])
    fits: Ints = both[(both < whole) & (whole % both == 0)]
    return fits


def _expert_tensor(columns: Columns, axes: Axes) -> list[Ints]:
    if axes.etp is not None:
        return [np.array(axes.etp)] * len(columns["tp"])
    if axes.ep == (1,):
        return [np.array([tp]) for tp in columns["tp"]]
    return [np.array([1, tp]) if tp > 1 else np.array([1]) for tp in columns["tp"]]


def _layouts(columns: Columns) -> Layouts:
    one, zero = np.ones_like(columns["tp"]), np.zeros_like(columns["tp"])
    return Layouts(
        **columns,  # type: ignore[arg-type]  # every key is a column
        mbs=one,
        gbs=columns["dp"],
        recompute=zero,
        block_recompute=zero,
        recompute_layers=zero - 1,
        recompute_modules=zero,
    )


def _with_splits(grid: Layouts, axes: Axes, problem: Problem) -> Layouts:
    """Repeat each row for each pinned split that its pipeline can have; else cut it as software
    that has a rule of its own does."""
    if axes.splits is None:
        if stack_rules(problem.setting.stack).splits != "cost":
            return grid
        own = {int(pp): own_split(problem.setting.model, pp=int(pp)) for pp in np.unique(grid.pp)}
        return replace(grid, chunk_layers=tuple(own[int(pp)] for pp in grid.pp))
    parts = []
    for split in axes.splits:
        rows = grid.take((grid.pp * grid.vpp == len(split)) | (grid.pp == len(split)))
        parts.append(replace(rows, chunk_layers=(split,) * len(rows)))
    return Layouts.concat(parts)


def chunks(space: Space, rejections: Rejections, *, rows: int = CHUNK_ROWS) -> Iterator[Layouts]:
    """Yield all layouts of the space that keep the rules, some `rows` at a time."""
    per_chunk = max(1, rows // max(1, len(space.axes.recomputations)))
    for start in range(0, len(space.grid), GRID_ROWS):
        grid = space.grid.take(np.arange(start, min(start + GRID_ROWS, len(space.grid))))
        batched = _with_batches(grid, space, rejections)
        for first in range(0, len(batched), per_chunk):
            piece = _with_recompute(
                batched.take(np.arange(first, min(first + per_chunk, len(batched)))),
                space,
                rejections,
            )
            if len(piece):
                yield piece


def _with_batches(grid: Layouts, space: Space, rejections: Rejections) -> Layouts:
    """Spread micro batches over the grid, give each its batch, and drop what does not divide."""
    spread = grid.take(np.repeat(np.arange(len(grid)), len(space.axes.mbs)))
    spread = replace(spread, mbs=np.tile(np.array(space.axes.mbs, dtype=np.int64), len(grid)))
    weight = len(space.axes.recomputations)
    given = space.gbs is not None
    gbs = np.full(len(spread), space.gbs) if given else _largest_batch(spread, space)
    spread = replace(spread, gbs=gbs)
    fits = spread.gbs > 0
    rejections.add(
        f"batch: mbs * dp is more than {space.max_gbs} sequences",
        int(np.count_nonzero(~fits)) * weight,
    )
    return _keep(spread.take(fits), space.case, _BATCH_RULES, rejections, weight=weight)


def _largest_batch(layouts: Layouts, space: Space) -> Ints:
    """The largest batch up to the bound in whole micro batches, and rounds where interleaved."""
    unit = layouts.mbs * layouts.dp * np.where(layouts.vpp > 1, layouts.pp, 1)
    return space.max_gbs // unit * unit


def _with_recompute(layouts: Layouts, space: Space, rejections: Rejections) -> Layouts:
    """Spread the ways to recompute over layouts; blocks as large as another way's are left out."""
    ways = space.axes.recomputations
    spread = layouts.take(np.repeat(np.arange(len(layouts)), len(ways)))
    kinds, block, layers, modules, eighths = (
        np.tile(np.array([getattr(w, name) for w in ways], dtype=np.int64), len(layouts))
        for name in ("kind", "block", "layers", "modules", "eighths")
    )
    size = -(-space.case.model.total_layers // (spread.pp * spread.vpp))
    wanted = -(-size * eighths // BLOCK_STEPS)
    same = (eighths > 0) & ((wanted == -(-size * (eighths - 1) // BLOCK_STEPS)) | (wanted >= size))
    spread = replace(
        spread,
        recompute=kinds,
        block_recompute=block,
        recompute_layers=np.where(eighths > 0, wanted, layers),
        recompute_modules=modules,
    )
    useless = (kinds == RECOMPUTES.index("full")) & same
    return _keep(spread.take(~useless), space.case, _RECOMPUTE_RULES, rejections)
