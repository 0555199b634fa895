"""Ways to cut a stage that a search has met, with their cost curves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.blocks import Block, Case, Solved, TableKey, value_s
from meshwright.search.mixed.boxes import Boxes, Cuts, Limits
from meshwright.search.mixed.curves import (
    FIRST,
    LAST,
    ROLES,
    WHOLE,
    Curve,
    Once,
    StageTable,
    curves,
    fitting_layers,
    once_tables,
)
from meshwright.search.mixed.forced import LINES, Room, room_of
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.reprice import Found

__all__ = ["CutBook", "Singles"]

Ints = NDArray[np.int64]
_KEYS = ("pools", "numbers", "commons")
"""Columns in which the absent cut holds -1."""


class CutBook:
    """Ways to cut a stage that the search has met, by id, with their curves; a book that grows."""

    def __init__(self, problem: MixedProblem, grid: Grid) -> None:
        self.problem, self.grid = problem, grid
        self.ids = [
            [np.full(len(options.common), -1) for options in grid.options] for _ in (False, True)
        ]
        self.curves: list[Curve] = []
        self.onces: list[tuple[Once, ...]] = []
        self.keys: list[tuple[int, int, bool]] = []
        self.fitting: list[Ints] = []
        self.tables: list[dict[TableKey, StageTable]] = []
        self.chips = [options.chips for options in grid.options]
        self._columns_by_name: dict[str, Any] = {}
        self._filled = 0
        self._table: Cuts | None = None

    def ids_of(self, pool: int, options: Ints, *, piped: bool) -> Ints:
        """Return the numbers under which cuts are known."""
        return self.ids[piped][pool][options]

    def add(self, options: Ints) -> None:
        """Price what some ways need and is not known."""
        for pool in range(options.shape[1]):
            own = np.unique(options[options[:, pool] >= 0, pool])
            alone = np.unique(options[(options >= 0).sum(axis=1) == 1][:, pool])
            for piped, wanted in ((True, own), (False, alone[alone >= 0])):
                self._add(pool, wanted[self.ids[piped][pool][wanted] < 0], piped)

    def _add(self, pool: int, numbers: Ints, piped: bool) -> None:
        if not len(numbers):
            return
        problem, layouts = self.problem, self.grid.options[pool].layouts.take(numbers)
        found = curves(
            layouts, self.grid.axes.recomputations, pool=pool, site=problem.site, piped=piped
        )
        onces = once_tables(
            found, layouts, pool=pool, site=problem.site, most=problem.site.model.total_layers
        )
        for number, curve, once in zip(numbers, found, onces, strict=True):
            self.ids[piped][pool][number] = len(self.curves)
            self.curves.append(curve)
            self.tables.append({})
            self.onces.append(once)
            self.keys.append((pool, int(number), piped))
            self.fitting.append(
                fitting_layers(
                    curve, limit_bytes=self.limit_bytes(pool), most=problem.site.model.total_layers
                )
            )

    def limit_bytes(self, pool: int) -> float:
        """What a chip of a pool may use."""
        part = self.problem.parts[pool]
        return part.setting.limit_bytes - part.headroom_bytes

    def block(self, number: int, *, stages: int, layers: int) -> Block:
        """Return some stages of one cut, for the inner problem."""
        pool, option, _ = self.keys[number]
        return Block(
            curve=self.curves[number],
            once=self.onces[number],
            stages=stages,
            layers=layers,
            chips_per_stage=int(self.chips[pool][option]),
            domain=self.problem.cluster.pools[pool].node.domain_size,
            limit_bytes=self.limit_bytes(pool),
            tables=self.tables[number],
        )

    @property
    def table(self) -> Cuts:
        """All cuts in columns, an absent one last."""
        known = len(self.curves)
        if self._table is None or len(self._table.chips) != known + 1:
            fresh = range(self._filled, known)
            self._store(self._columns(fresh))
            columns = {name: column[: known + 1] for name, column in self._columns_by_name.items()}
            room = Room(**{name: columns[f"room_{name}"] for name in Room.__slots__})
            self._table = Cuts(
                room=room,
                **{
                    field.name: columns[field.name]
                    for field in fields(Cuts)
                    if field.name != "room"
                },
            )
            self.pools, self.numbers, self.commons = (
                self._columns_by_name[name][: known + 1] for name in ("pools", "numbers", "commons")
            )
            self.gbs = np.append(self.grid.gbs, 1)[self.commons]
        return self._table

    def _store(self, columns: dict[str, Floats]) -> None:
        """Put columns of further cuts behind the known ones; arrays grow by doubling, and the row
        behind the last is the absent cut."""
        count = len(columns["chips"])
        for name, fresh in columns.items():
            known = self._columns_by_name.get(name)
            absent = -1 if name in _KEYS else 0
            if known is None or len(known) < self._filled + count + 1:
                grown = np.full(
                    (2 * (self._filled + count + 1), *fresh.shape[1:]), absent, dtype=fresh.dtype
                )
                if known is not None:
                    grown[: self._filled] = known[: self._filled]
                self._columns_by_name[name] = known = grown
            known[self._filled : self._filled + count] = fresh
        self._filled += count

    def _columns(self, fresh: range) -> dict[str, Any]:
        """Columns of some cuts by name, those of Cuts and their keys."""
        at = slice(fresh.start, fresh.stop)
        curves_, onces, keys, fitting = (
            self.curves[at],
            self.onces[at],
            self.keys[at],
            self.fitting[at],
        )
        most = self.problem.site.model.total_layers

        def roles(name: str) -> Floats:
            return np.array([[getattr(role, name) for role in once] for once in onces]).reshape(
                -1, len(ROLES), most + 1
            )

        return {
            "pools": np.array([key[0] for key in keys], dtype=np.int64),
            "numbers": np.array([key[1] for key in keys], dtype=np.int64),
            "commons": np.array(
                [int(self.grid.options[pool].common[option]) for pool, option, _ in keys],
                dtype=np.int64,
            ),
            "chips": np.array(
                [self.chips[pool][option] for pool, option, _ in keys], dtype=np.int64
            ),
            **_pass_columns(curves_),
            "domain": np.array(
                [self.problem.cluster.pools[pool].node.domain_size for pool, _, _ in keys],
                dtype=np.int64,
            ),
            "near_s": np.array([c.near_message_s for c in curves_]),
            "inside_s": np.array([c.message_s for c in curves_]),
            "across_s": np.array([c.cross_message_s for c in curves_]),
            "fitting": (
                np.array(
                    [np.concatenate([[0], f[1:].cumsum()]) for f in fitting], dtype=np.int64
                ).reshape(-1, most + 1)
            ),
            "reduce_s": roles("reduce_s"),
            "gather_s": roles("gather_s"),
            "optimizer_s": roles("optimizer_s"),
            **self._room_columns(at),
        }

    def _room_columns(self, at: slice) -> dict[str, Floats]:
        """What memory the cuts leave."""
        rooms = [
            room_of(curve, limit_bytes=self.limit_bytes(pool))
            for curve, (pool, _, _) in zip(self.curves[at], self.keys[at], strict=True)
        ]
        shapes = {
            name: (-1, LINES) if name in ("slope", "start_s") else (-1,) for name in Room.__slots__
        }
        return {
            f"room_{name}": np.array([getattr(room, name) for room in rooms]).reshape(shape)
            for name, shape in shapes.items()
        }


def _least_first_s(curve: Curve) -> float:
    """What a stage takes beyond its layers at least because it is the first, maybe the last too."""
    base = curve.forward_base_s + curve.backward_base_s.min(axis=0)
    return max(0.0, float(min(base[FIRST], base[WHOLE] - base[LAST])))


def _pass_columns(found: list[Curve]) -> dict[str, Floats]:
    """Seconds of a layer, the head and the first stage, by cut.

    Over the choices of recompute each is the least or the most: a bound from below may take none
    for slower than a plan could have it, and a memory or a share from above none for quicker.
    """
    middle = [curve.backward_layer_s.min(axis=0) for curve in found]
    shares = [
        c.forward_layer_s / (c.forward_layer_s + b) for c, b in zip(found, middle, strict=True)
    ]
    return {
        "forward_s": np.array([float(c.forward_layer_s.min()) for c in found]),
        "backward_s": np.array([float(b.min()) for b in middle]),
        "forward_share": np.array([float(share.max()) for share in shares]),
        "backward_share": np.array([float((1 - share).max()) for share in shares]),
        "slow_backward_s": np.array([float(c.backward_layer_s.max()) for c in found]),
        "most_forward_s": np.array([float(c.forward_layer_s.max()) for c in found]),
        "most_backward_s": np.array([float(b.max()) for b in middle]),
        "head_s": np.array(
            [float(c.forward_base_s[2] + c.backward_base_s[:, 2].min()) for c in found]
        ),
        "first_s": np.array([_least_first_s(c) for c in found]),
        "first_forward_s": np.array([float(c.forward_base_s[1]) for c in found]),
        "first_backward_s": np.array([float(c.backward_base_s[:, 1].max()) for c in found]),
        "slow_share": np.array(
            [
                float((b.max(axis=0) / (c.forward_layer_s + b.max(axis=0))).max())
                for c in found
                for b in [c.backward_layer_s]
            ]
        ),
    }


class Singles:
    """Reads rows of one search; a leaf is a row by itself."""

    def __init__(self, problem: MixedProblem, limits: Limits, cuts: CutBook, score: Score) -> None:
        self.limits, self.cuts, self.objective = limits, cuts, score
        segments = problem.site.model.segments
        self.prefix = segments[0].num_layers if len(segments) > 1 else 0
        self.even = "layers" in problem.request.same

    def inner(self, leaf: Boxes) -> tuple[tuple[Block, ...], Case]:
        """Return what a leaf leaves to be solved."""
        blocks = tuple(
            self.cuts.block(int(i), stages=int(stages), layers=int(layers))
            for i, stages, layers in zip(
                leaf.ids[0], leaf.stages_from[0], leaf.layers_from[0], strict=True
            )
            if i >= 0
        )
        case = Case(
            num_microbatches=int(leaf.num_microbatches[0]),
            pp=sum(block.stages for block in blocks),
            vpp=int(leaf.vpp[0]),
            blocking=self.limits.blocking,
            dp_overlap=self.limits.dp_overlap,
            overhead_s=self.limits.overhead_s,
            prefix=self.prefix,
            even=self.even,
        )
        return blocks, case

    def found(self, leaf: Boxes, blocks: tuple[Block, ...], case: Case, solved: Solved) -> Found:
        """Return a leaf's plan with the split of its layers."""
        step_s = value_s(blocks, case, solved)
        return Found(
            score=self.score(leaf, step_s),
            step_s=step_s,
            common=int(self.cuts.commons[leaf.ids[0, 0]]),
            cuts=self.cuts_of(leaf),
            blocks=blocks,
            case=case,
            solved=solved,
        )

    def cuts_of(self, leaf: Boxes) -> tuple[tuple[int, int], ...]:
        """Return pool and option of each block of a leaf."""
        return tuple(
            (int(self.cuts.pools[i]), int(self.cuts.numbers[i])) for i in leaf.ids[0] if i >= 0
        )

    def score(self, leaf: Boxes, step_s: float) -> float:
        """Return the score of a leaf whose step takes so long."""
        return float(
            self.objective.of(
                step_s / int(self.cuts.gbs[leaf.ids[0, 0]]), float(self.rate(leaf)[0])
            )
        )

    def rate(self, boxes: Boxes) -> Floats:
        """Return the rate at which seconds count, with the fewest chips of each row."""
        return self.objective.rate(
            boxes.stages_from * self.cuts.table.chips[boxes.ids], self.cuts.pools[boxes.ids]
        )
