"""Ways to cut a stage that a search has met, with their cost curves, and single plans of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """One way to cut a stage."""

    pool: int
    option: int
    curve: Curve
    once: tuple[Once, ...]
    fitting: Ints
    tables: dict[TableKey, StageTable] = field(default_factory=dict)


class CutBook:
    """Ways to cut a stage that the search has met, by id, with their curves; a book that grows."""

    def __init__(self, problem: MixedProblem, grid: Grid) -> None:
        self.problem, self.grid = problem, grid
        self.ids = [
            [np.full(len(options.common), -1) for options in grid.options] for _ in (False, True)
        ]
        self.cuts: list[_Cut] = []
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
        site, limit = self.problem.site, self.limit_bytes(pool)
        layouts = self.grid.options[pool].layouts.take(numbers)
        most, ways = site.model.total_layers, self.grid.axes.recomputations
        found = curves(layouts, ways, pool=pool, site=site, piped=piped)
        onces = once_tables(found, layouts, pool=pool, site=site, most=most)
        for number, curve, once in zip(numbers, found, onces, strict=True):
            self.ids[piped][pool][number] = len(self.cuts)
            fitting = fitting_layers(curve, limit_bytes=limit, most=most)
            self.cuts.append(
                _Cut(pool=pool, option=int(number), curve=curve, once=once, fitting=fitting)
            )

    def limit_bytes(self, pool: int) -> float:
        """What a chip of a pool may use."""
        part = self.problem.parts[pool]
        return part.setting.limit_bytes - part.headroom_bytes

    def block(self, number: int, *, stages: int, layers: int) -> Block:
        """Return some stages of one cut, for the inner problem."""
        cut = self.cuts[number]
        return Block(
            curve=cut.curve,
            once=cut.once,
            stages=stages,
            layers=layers,
            chips_per_stage=int(self.chips[cut.pool][cut.option]),
            domain=self.problem.cluster.pools[cut.pool].node.domain_size,
            limit_bytes=self.limit_bytes(cut.pool),
            tables=cut.tables,
        )

    @property
    def table(self) -> Cuts:
        """All cuts in columns, an absent one last."""
        known = len(self.cuts)
        if self._table is None or len(self._table.chips) != known + 1:
            self._store(self._columns(self.cuts[self._filled :]))
            columns = {name: column[: known + 1] for name, column in self._columns_by_name.items()}
            room = Room(**{name: columns[f"room_{name}"] for name in Room.__slots__})
            own = {f.name: columns[f.name] for f in fields(Cuts) if f.name != "room"}
            self._table = Cuts(room=room, **own)
            self.pools, self.numbers, self.commons = (columns[name] for name in _KEYS)
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

    def _columns(self, cuts: list[_Cut]) -> dict[str, Any]:
        """Columns of some cuts by name, those of Cuts and their keys."""
        found, most = [cut.curve for cut in cuts], self.problem.site.model.total_layers
        nodes = [self.problem.cluster.pools[cut.pool].node for cut in cuts]
        options = [self.grid.options[cut.pool] for cut in cuts]

        def whole(values: Iterable[Any]) -> Ints:
            return np.array(list(values), dtype=np.int64)

        def roles(name: str) -> Floats:
            tables = [[getattr(role, name) for role in cut.once] for cut in cuts]
            return np.array(tables).reshape(-1, len(ROLES), most + 1)

        return {
            "pools": whole(cut.pool for cut in cuts),
            "numbers": whole(cut.option for cut in cuts),
            "commons": whole(own.common[c.option] for own, c in zip(options, cuts, strict=True)),
            "chips": whole(self.chips[cut.pool][cut.option] for cut in cuts),
            **_pass_columns(found),
            "domain": whole(node.domain_size for node in nodes),
            "near_s": np.array([curve.near_message_s for curve in found]),
            "inside_s": np.array([curve.message_s for curve in found]),
            "across_s": np.array([curve.cross_message_s for curve in found]),
            "fitting": whole(
                np.concatenate([[0], cut.fitting[1:].cumsum()]) for cut in cuts
            ).reshape(-1, most + 1),
            **{name: roles(name) for name in ("reduce_s", "gather_s", "optimizer_s")},
            **self._room_columns(cuts),
        }

    def _room_columns(self, cuts: list[_Cut]) -> dict[str, Floats]:
        """What memory the cuts leave."""
        rooms = [room_of(cut.curve, limit_bytes=self.limit_bytes(cut.pool)) for cut in cuts]
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

    def each(value: Callable[[Curve], Any]) -> Floats:
        return np.array([float(value(curve)) for curve in found])

    def share(curve: Curve, backward: Floats) -> Floats:
        """The forward's share of a layer."""
        return np.asarray(curve.forward_layer_s / (curve.forward_layer_s + backward))

    def least(curve: Curve) -> Floats:
        """A layer's backward in the quickest way."""
        return np.asarray(curve.backward_layer_s.min(axis=0))

    return {
        "forward_s": each(lambda c: c.forward_layer_s.min()),
        "backward_s": each(lambda c: least(c).min()),
        "forward_share": each(lambda c: share(c, least(c)).max()),
        "backward_share": each(lambda c: (1 - share(c, least(c))).max()),
        "slow_backward_s": each(lambda c: c.backward_layer_s.max()),
        "most_forward_s": each(lambda c: c.forward_layer_s.max()),
        "most_backward_s": each(lambda c: least(c).max()),
        "head_s": each(lambda c: c.forward_base_s[LAST] + c.backward_base_s[:, LAST].min()),
        "first_s": each(_least_first_s),
        "first_forward_s": each(lambda c: c.forward_base_s[FIRST]),
        "first_backward_s": each(lambda c: c.backward_base_s[:, FIRST].max()),
        "slow_share": each(
            lambda c: (
                c.backward_layer_s.max(axis=0)
                / (c.forward_layer_s + c.backward_layer_s.max(axis=0))
            ).max()
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

    def caps_of(self, leaf: Boxes) -> Ints:
        """Return how many stages each block of a leaf may have, (K,)."""
        caps = np.zeros(leaf.ids.shape[1], dtype=np.int64)
        for place, (pool, option) in enumerate(self.cuts_of(leaf)):
            caps[place] = self.cuts.grid.options[pool].stages[option]
        return caps

    def choice_of(self, boxes: Boxes, row: int) -> tuple[object, ...]:
        """Return `Found.choice` of a row whose stages are known."""
        ids, stages = boxes.ids[row].tolist(), boxes.stages_from[row].tolist()
        parts = [
            (int(self.cuts.pools[i]), int(self.cuts.numbers[i]), count)
            for i, count in zip(ids, stages, strict=True)
            if i >= 0
        ]
        return (*sorted(parts), int(boxes.vpp[row]))

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
