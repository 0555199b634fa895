"""Layers of interleaved plans, moved between stages and between chunks where the simulation says
that a step becomes faster.

The closed form that ranks knows how long stages take, not how chunks of unlike times wait for each
other in a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.simulate import steady_steps_s
from meshwright.cost.stages import Floats
from meshwright.search.balance import WORTH_A_SPLIT
from meshwright.search.mixed.blocks import table_at
from meshwright.search.mixed.curves import OneWay
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.mixed.reprice import Found, Repriced, pipeline_of
from meshwright.values.mixed_layout import MixedLayout

__all__ = ["dealt"]

Ints = NDArray[np.int64]
MOST_OPERATIONS = 15_000
"""Operations of one plan that are simulated at most, each of all moves that are tried together: a
twentieth of a second."""
AT_ONCE = 32
"""Moves between chunks that are tried together."""
ENDS = 3
"""Slowest stages that give a layer, and quickest that take one."""
BETTER = 1e-4
"""Share of the step that a move must gain."""


def dealt(found: Found, priced: Repriced, problem: MixedProblem) -> list[MixedLayout]:
    """Return a plan with layers moved between stages, and with its chunks dealt unlike too, where
    either makes the step shorter.

    Formula:  one layer at a time from one of the slowest stages to one of the quickest, the best
              such move first; then between chunks of a stage or of a round, the best of the first
              moves that help. Chunks dealt unlike must gain 1 % of the step over even ones
    Units:    layers.
    Source:   `cost/simulate.py` says how long a step is.
    Valid:    interleaved plans that were simulated; each stage recomputes as before.
    Checked:  tests/search/test_mixed_dealt.py
    """
    if (
        priced.layout.vpp == 1
        or priced.pipeline != "event simulation"
        or "layers" in problem.request.same
    ):
        return []
    chunks = _Chunks(found, priced, problem)
    # Stages first: their chunks stay even, which the closed form and most software know. Unlike
    # chunks then must be worth their words, as uneven splits of one kind of chip must.
    layout, start = priced.layout, np.array(priced.layout.chunk_layers)
    pipeline_s = float(chunks.steps_s([start])[0])
    even, even_s = _best_first(chunks, start, pipeline_s)
    rest, rest_s = _between_chunks(chunks, even, even_s)
    results = [_with_chunks(layout, even)] if even_s < pipeline_s else []
    gained = even_s - rest_s
    return (
        [*results, _with_chunks(layout, rest)]
        if gained > WORTH_A_SPLIT * (priced.step_s - pipeline_s + even_s)
        else results
    )


class _Chunks:
    """What a plan's chunks take by their layers, in model order, and how long the step then is."""

    def __init__(self, found: Found, priced: Repriced, problem: MixedProblem) -> None:
        layout, self.prefix = priced.layout, found.case.prefix
        self.pp, self.vpp = layout.pp, layout.vpp
        self.pipeline = pipeline_of(layout, problem.site, price=priced.price, chunks=priced.chunks)
        self.left = MOST_OPERATIONS // (
            2 * min(layout.num_microbatches, 16 * layout.pp) * layout.pp * layout.vpp
        )
        blocks = [block for block in found.blocks for _ in range(block.stages)]
        ways = [stage.way for stage in found.solved.stages]
        self.redone = np.tile([stage.redone for stage in found.solved.stages], self.vpp)
        self.forward_layer_s = np.tile(
            [block.curve.forward_layer_s for block in blocks], (self.vpp, 1)
        )
        self.backward_layer_s = np.tile(
            [b.curve.backward_layer_s[way] for b, way in zip(blocks, ways, strict=True)],
            (self.vpp, 1),
        )
        by_block = [
            b.curve.by_block and way == len(b.curve.ways) - 1
            for b, way in zip(blocks, ways, strict=True)
        ]
        redo = [b.curve.redo_layer_s * chosen for b, chosen in zip(blocks, by_block, strict=True)]
        self.redo_layer_s = np.tile(redo, (self.vpp, 1))
        self.most = np.array([self._most(found, stage) for stage in range(self.pp)])
        # What embedding and head take: the priced chunks at the ends less their layers.
        self.end_forward_s, self.end_backward_s = np.zeros((2, self.pp * self.vpp))
        forward, backward = self.times(np.array(layout.chunk_layers))
        for end in (0, -1):
            self.end_forward_s[end] = priced.chunks.forward_s[end] - forward[end]
            self.end_backward_s[end] = priced.chunks.backward_s[end] - backward[end]

    def _most(self, found: Found, stage: int) -> int:
        """Layers of a stage that fit at most when it recomputes as it does."""
        places = [block for block in found.blocks for _ in range(block.stages)]
        own, total = found.solved.stages[stage], sum(each.layers for each in found.blocks)
        block = replace(places[stage], only=OneWay(way=own.way, redone=own.redone))
        table = table_at(block, stage=stage, case=found.case, layers=np.arange(1, total + 1))
        return int(np.isfinite(table.backward_s).sum())

    def times(self, layers: Ints) -> tuple[Floats, Floats]:
        """Forward and backward of each chunk."""
        prefix = np.clip(self.prefix - (np.cumsum(layers) - layers), 0, layers)
        counts = np.stack([layers - prefix, prefix], axis=1)
        redone = np.minimum(1.0, self.redone / layers) * (self.redo_layer_s * counts).sum(axis=1)
        forward = (self.forward_layer_s * counts).sum(axis=1) + self.end_forward_s
        return forward, (self.backward_layer_s * counts).sum(axis=1) + redone + self.end_backward_s

    def steps_s(self, deals: Sequence[Ints]) -> Floats:
        """Seconds of the pipeline, simulated, of some ways to deal the layers, (N,)."""
        self.left -= 1
        forward, backward = (
            np.array(times) for times in zip(*[self.times(layers) for layers in deals], strict=True)
        )
        links = np.tile(self.pipeline.links_s, (len(deals), 1))
        return steady_steps_s(
            self.pipeline, forward_s=forward, backward_s=np.maximum(backward, 0.0), links_s=links
        )

    def fit(self, layers: Ints) -> bool:
        """Whether every stage has room for its layers."""
        return bool((layers.reshape(self.vpp, self.pp).sum(axis=0) <= self.most).all())


def _best_first(chunks: _Chunks, layers: Ints, step_s: float) -> tuple[Ints, float]:
    """Move layers between stages, whose chunks stay as even as can be, while that helps."""
    while chunks.left > 0:
        totals = layers.reshape(chunks.vpp, chunks.pp).sum(axis=0)
        took = np.add(*chunks.times(layers)).reshape(chunks.vpp, chunks.pp).sum(axis=0)
        order = np.argsort(took, kind="stable")
        # All moves between the few slowest and quickest are simulated at once: what a slow stage
        # costs hangs on what is above and below it in the same moment, which no sum says.
        tried = [
            moved
            for giver in order[::-1][:ENDS]
            for taker in order[:ENDS]
            if giver != taker and totals[giver] > chunks.vpp
            for moved in [_dealt_evenly(_moved(totals, int(giver), int(taker)), chunks.vpp)]
            if chunks.fit(moved)
        ]
        best, best_s = _best_of(chunks, tried)
        if best is None or best_s >= step_s * (1 - BETTER):
            return layers, step_s
        layers, step_s = best, best_s
    return layers, step_s


def _between_chunks(chunks: _Chunks, layers: Ints, step_s: float) -> tuple[Ints, float]:
    """Move layers between chunks of a stage or round, most unlike times first, while that helps."""
    # Best first would simulate all pairs for each move; the first of a few dozen that helps is
    # taken, and the pairs are sorted anew (docs/decisions/0018).
    moves = _moves(chunks, layers)
    while chunks.left > 0 and (pairs := list(islice(moves, AT_ONCE))):
        tried = [
            moved for giver, taker in pairs if chunks.fit(moved := _moved(layers, giver, taker))
        ]
        best, best_s = _best_of(chunks, tried)
        if best is not None and best_s < step_s * (1 - BETTER):
            layers, step_s, moves = best, best_s, _moves(chunks, best)
    return layers, step_s


def _best_of(chunks: _Chunks, tried: Sequence[Ints]) -> tuple[Ints | None, float]:
    if not tried:
        return None, np.inf
    steps = chunks.steps_s(tried)
    best = int(np.argmin(steps))
    return tried[best], float(steps[best])


def _moves(chunks: _Chunks, layers: Ints) -> Iterator[tuple[int, int]]:
    took, count = np.add(*chunks.times(layers)), len(layers)
    pairs = [
        (giver, taker)
        for giver in range(count)
        for taker in range(count)
        if giver != taker
        and layers[giver] > 1
        and (giver % chunks.pp == taker % chunks.pp or giver // chunks.pp == taker // chunks.pp)
    ]
    yield from sorted(pairs, key=lambda pair: took[pair[1]] - took[pair[0]])


def _moved(counts: Ints, giver: int, taker: int) -> Ints:
    moved = counts.copy()
    moved[giver] -= 1
    moved[taker] += 1
    return moved


def _dealt_evenly(totals: Ints, vpp: int) -> Ints:
    chunk = np.arange(vpp)[:, None]
    return np.asarray(totals // vpp + (chunk < totals % vpp)).ravel()


def _with_chunks(layout: MixedLayout, layers: Ints) -> MixedLayout:
    """The same plan with these layers on its chunks."""
    totals = layers.reshape(layout.vpp, layout.pp).sum(axis=0)
    stages = tuple(
        replace(stage, layers=int(count))
        for stage, count in zip(layout.stages, totals, strict=True)
    )
    even = bool((layers == _dealt_evenly(totals, layout.vpp)).all())
    return replace(layout, stages=stages, chunks=None if even else tuple(layers.tolist()))
