"""Ways to cut a stage that a search has met, with their cost curves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.shapes import Floats
from meshwright.search.mixed.bounds import Cuts
from meshwright.search.mixed.curves import MIDDLE, Curve, Once, curves, fitting_layers, once_tables
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.inner import Block, TableKey
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.mixed.stages import StageTable

__all__ = ["CutBook"]

Ints = NDArray[np.int64]


class CutBook:
    """Ways to cut a stage that the search has met, by id, with their curves; a book that grows."""

    def __init__(self, problem: MixedProblem, grid: Grid) -> None:
        self.problem, self.grid = problem, grid
        self.ids: dict[tuple[int, int, bool], int] = {}
        self.curves: list[Curve] = []
        self.onces: list[tuple[Once, ...]] = []
        self.keys: list[tuple[int, int, bool]] = []
        self.fitting: list[Ints] = []
        self.tables: list[dict[TableKey, StageTable]] = []
        self._table: Cuts | None = None

    def id_of(self, pool: int, option: int, *, piped: bool) -> int:
        """Return the number under which a cut is known."""
        return self.ids[pool, int(option), piped]

    def add(self, options: Ints) -> None:
        """Price what some ways need and is not known."""
        for pool in range(options.shape[1]):
            own = np.unique(options[options[:, pool] >= 0, pool])
            alone = np.unique(options[(options >= 0).sum(axis=1) == 1][:, pool])
            for piped, wanted in ((True, own), (False, alone[alone >= 0])):
                self._add(pool, np.array([o for o in wanted if (pool, int(o), piped) not in self.ids], dtype=np.int64), piped)

    def _add(self, pool: int, numbers: Ints, piped: bool) -> None:
        if not len(numbers):
            return
        problem, layouts = self.problem, self.grid.options[pool].layouts.take(numbers)
        found = curves(layouts, self.grid.axes.recomputations, pool=pool, site=problem.site, piped=piped)
        onces = once_tables(found, layouts, pool=pool, site=problem.site, most=problem.site.model.total_layers)
        for number, curve, once in zip(numbers, found, onces, strict=True):
            self.ids[pool, int(number), piped] = len(self.curves)
            self.curves.append(curve)
            self.tables.append({})
            self.onces.append(once)
            self.keys.append((pool, int(number), piped))
            self.fitting.append(fitting_layers(curve, limit_bytes=self.limit_bytes(pool), most=problem.site.model.total_layers))
        self._table = None

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
            chips_per_stage=int(self.grid.options[pool].chips[option]),
            domain=self.problem.cluster.pools[pool].node.domain_size,
            limit_bytes=self.limit_bytes(pool),
            tables=self.tables[number],
        )

    @property
    def table(self) -> Cuts:
        """All cuts in columns, an absent one last."""
        if self._table is None:
            self._table = self._columns()
            self.pools = np.array([*(key[0] for key in self.keys), -1])
            self.numbers = np.array([*(key[1] for key in self.keys), -1])
            options = [self.grid.options[key[0]] for key in self.keys]
            self.commons = np.array([*(int(o.common[key[1]]) for o, key in zip(options, self.keys, strict=True)), -1])
            self.gbs = np.array([*(int(self.grid.gbs[c]) for c in self.commons[:-1]), 1])
        return self._table

    def _columns(self) -> Cuts:
        most = self.problem.site.model.total_layers
        curves_, middle = self.curves, [curve.backward_layer_s.min(axis=0) for curve in self.curves]

        def column(values: list[float]) -> Floats:
            return np.array([*values, 0.0])

        def table(values: list[Floats]) -> Floats:
            return np.concatenate([np.stack(values), np.zeros((1, most + 1))])

        shares = [c.forward_layer_s / (c.forward_layer_s + b) for c, b in zip(curves_, middle, strict=True)]
        return Cuts(
            chips=column([float(self.grid.options[pool].chips[option]) for pool, option, _ in self.keys]).astype(np.int64),
            forward_s=column([float(c.forward_layer_s.min()) for c in curves_]),
            backward_s=column([float(b.min()) for b in middle]),
            forward_share=column([float(share.max()) for share in shares]),
            backward_share=column([float((1 - share).max()) for share in shares]),
            slow_backward_s=column([float(c.backward_layer_s.max()) for c in curves_]),
            head_s=column([float(c.forward_base_s[2] + c.backward_base_s[:, 2].min()) for c in curves_]),
            first_forward_s=column([float(c.forward_base_s[1]) for c in curves_]),
            first_backward_s=column([float(c.backward_base_s[:, 1].max()) for c in curves_]),
            near_s=column([min(c.near_message_s, c.message_s, c.cross_message_s) for c in curves_]),
            far_s=column([max(c.near_message_s, c.message_s, c.cross_message_s) for c in curves_]),
            fitting=table([np.concatenate([[0], f[1:].cumsum()]).astype(np.float64) for f in self.fitting]).astype(np.int64),
            reduce_s=table([once[MIDDLE].reduce_s for once in self.onces]),
            gather_s=table([once[MIDDLE].gather_s for once in self.onces]),
            optimizer_s=table([once[MIDDLE].optimizer_s for once in self.onces]),
        )
