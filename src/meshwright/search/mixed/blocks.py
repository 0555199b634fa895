"""Blocks of stages, what they are assigned, and what the closed form gives an assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.closed_forms import chain_s, interleaved_chain_s
from meshwright.cost.once import exposed_exchange_s
from meshwright.cost.pipeline import pipeline_of_stages_s
from meshwright.cost.stages import Floats
from meshwright.search.mixed.curves import Curve, Once, OneWay, StageTable, role_of, stage_table
from meshwright.values.layout import SCHEDULES

__all__ = [
    "Block",
    "Case",
    "Chosen",
    "Solved",
    "TableKey",
    "chosen",
    "in_flight",
    "links_of",
    "once_s",
    "own_message_s",
    "rest_s",
    "stage_chain_s",
    "table_at",
    "table_of",
    "value_s",
]

Ints = NDArray[np.int64]
TableKey = tuple[int, float, int, OneWay | None]
"""Role, micro batches in flight, chunks, and how the stage must recompute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A run of stages on one pool."""

    curve: Curve
    once: tuple[Once, ...]
    """By role."""
    stages: int
    layers: int
    chips_per_stage: int
    domain: int
    """Chips of a fast domain."""
    limit_bytes: float
    only: OneWay | None = None
    """How all its stages recompute; None leaves it to each."""
    tables: dict[TableKey, StageTable] = field(default_factory=dict, compare=False, repr=False)
    """Stages that were priced: one book per curve, shared by its blocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What all blocks share."""

    num_microbatches: int
    pp: int
    vpp: int
    blocking: bool
    """Whether messages stop the stage."""
    dp_overlap: float
    overhead_s: float
    prefix: int
    """Layers of the model's first segment, where it has two."""
    even: bool = False
    """Whether all stages of a block have equally many layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """One stage of a solution."""

    layers: int
    way: int
    redone: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Solved:
    """The best assignment."""

    stages: tuple[Chosen, ...]
    bound_s: float
    """No assignment of these blocks takes less."""

    @property
    def times_s(self) -> tuple[Floats, Floats]:
        """Forward and backward of all stages."""
        return (
            np.array([stage.forward_s for stage in self.stages]),
            np.array([stage.backward_s for stage in self.stages]),
        )


def in_flight(stage: int, case: Case) -> float:
    """Micro batches that a stage holds at its peak, as `cost.stages.place_stages` counts them."""
    below, vpp, micro = case.pp - stage - 1, case.vpp, case.num_microbatches
    if vpp == 1:
        return float(min(below + 1, micro))
    return min(2 * below + (vpp - 1) * case.pp + 1, micro * vpp) / vpp


def own_message_s(block: Block, pp: int) -> float:
    """One message between two stages of a block: over the fast domain where that holds all."""
    near = block.chips_per_stage * pp <= block.domain
    return block.curve.near_message_s if near else block.curve.message_s


def links_of(blocks: Sequence[Block]) -> Floats:
    """One message over each boundary, (pp - 1,)."""
    pp = sum(block.stages for block in blocks)
    found: list[float] = []
    for i, block in enumerate(blocks):
        found += [own_message_s(block, pp)] * (block.stages - 1)
        if i + 1 < len(blocks):
            found.append(max(block.curve.cross_message_s, blocks[i + 1].curve.cross_message_s))
    return np.array(found)


def stage_chain_s(
    case: Case,
    *,
    stage: int,
    forward_s: Floats,
    backward_s: Floats,
    below_s: Floats,
    to_next_s: Floats | float,
    to_last_s: float,
    message_s: float,
    waits_s: tuple[float, float],
) -> Floats:
    """The chain of a stage by the closed form, with what lies below it.

    `to_next_s` and `to_last_s` are the messages at its ends, `message_s` any of the rounds between,
    `waits_s` the forward and backward of all stages in those rounds.
    """
    below = case.pp - 1 - stage
    if case.vpp == 1:
        return chain_s(
            num_microbatches=case.num_microbatches,
            count_below=below,
            forward_s=forward_s,
            backward_s=backward_s,
            below_s=below_s,
            hold_s=case.blocking * (to_next_s + to_last_s),
            once_s=case.blocking * to_next_s,
        )
    rounds = (case.vpp - 1) * case.pp
    return interleaved_chain_s(
        num_microbatches=case.num_microbatches,
        warmup=2 * below + rounds,
        vpp=case.vpp,
        forward_s=forward_s,
        backward_s=backward_s,
        below_s=below_s + rounds * message_s,
        down_s=waits_s[0],
        up_s=waits_s[1],
    )


def once_s(once: Once, layers: int, forward: Floats, backward: Floats, case: Case) -> Floats:
    """Exposed exchange and optimizer where the fullest stage has so many layers."""
    reduce, gather = (
        exposed_exchange_s(
            table[layers], case.dp_overlap * pass_s, chunks=np.array(case.vpp), pp=np.array(case.pp)
        )
        for table, pass_s in ((once.reduce_s, backward), (once.gather_s, forward))
    )
    return np.asarray(reduce + gather + once.optimizer_s[layers])


def table_at(
    block: Block, *, stage: int, case: Case, layers: Ints, prefix: Ints | None = None
) -> StageTable:
    """Stages of a block at a place of the pipeline by their layers, of which `prefix` are of the
    model's first segment."""
    return stage_table(
        block.curve,
        layers=layers,
        prefix=np.zeros_like(layers) if prefix is None else prefix,
        role=role_of(stage, case.pp),
        in_flight=in_flight(stage, case),
        vpp=case.vpp,
        limit_bytes=block.limit_bytes,
        only=block.only,
    )


def table_of(block: Block, *, stage: int, case: Case, most: int) -> StageTable:
    """The same by layers 1 .. most, none of them of the first segment; kept in the block's book."""
    key = role_of(stage, case.pp), in_flight(stage, case), case.vpp, block.only
    if key not in block.tables:
        block.tables[key] = table_at(block, stage=stage, case=case, layers=np.arange(1, most + 1))
    return block.tables[key]


def chosen(table: StageTable, at: int, layers: int) -> Chosen:
    """Return the stage of one entry of a table."""
    return Chosen(
        layers=layers,
        way=int(table.way[at]),
        redone=int(table.redone[at]),
        forward_s=float(table.forward_s[at]),
        backward_s=float(table.backward_s[at]),
    )


def value_s(blocks: Sequence[Block], case: Case, solved: Solved) -> float:
    """Return what the closed form gives an assignment, all of a step."""
    forward, backward = solved.times_s
    pipeline = pipeline_of_stages_s(
        schedule=SCHEDULES.index("1f1b"),
        vpp=case.vpp,
        num_microbatches=case.num_microbatches,
        forward_s=forward,
        backward_s=backward,
        p2p_s=links_of(blocks),
        p2p="blocking" if case.blocking else "overlapped",
    ).pipeline_s
    return float(pipeline) + rest_s(blocks, case, solved)


def rest_s(blocks: Sequence[Block], case: Case, solved: Solved) -> float:
    """Return what a step takes beyond its pipeline: the exchange and the optimizer of the stage
    where they take longest, hidden behind the first stage's passes."""
    forward, backward = solved.times_s
    places = [block for block in blocks for _ in range(block.stages)]
    once = (
        once_s(block.once[role_of(stage, len(places))], own.layers, forward[0], backward[0], case)
        for stage, (block, own) in enumerate(zip(places, solved.stages, strict=True))
    )
    return max(0.0, *map(float, once)) + case.overhead_s
