"""Which way a layout's context-parallel ranks exchange, by Megatron-Core's names."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost.attention_core import attention_core
from meshwright.cost.context import WAYS, exchange_ways, swap_ranks
from meshwright.cost.operators import Site
from meshwright.cost.stages import distinct_shapes
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import CpCommType, Workload

__all__ = ["ContextWay", "context_way"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextWay:
    """How one layout's context-parallel ranks exchange."""

    word: CpCommType
    swapping: int
    """Ranks of the inner level of `a2a+p2p`."""
    chosen: bool
    """Whether it is the fastest of those that may run, where nobody said one."""

    def words(self) -> str:
        """Return it for people."""
        why = "the fastest of those that the software has" if self.chosen else "as it is set"
        return f"context parallelism by cp_comm_type={self.word}, {why}"


def context_way(
    layout: Layout, *, model: ModelSpec, pool: Pool, work: Workload, stack: Stack
) -> ContextWay | None:
    """Return the way that the layout is priced by; None without context parallelism, without
    attention, and for software that has no such setting."""
    blocks = [
        block
        for segment in model.segments
        for block, _ in segment.blocks
        if block.kind == "attention"
    ]
    if layout.cp == 1 or stack.family != "megatron" or not blocks:
        return None
    shapes, _ = distinct_shapes(Layouts.of([layout]))
    site = Site(model=model, work=work, stack=stack, pool=pool, shapes=shapes)
    (way,) = exchange_ways(site, blocks[0], attention_core)
    word = next((word for word, meant in WAYS.items() if meant == way), None)
    if word is None:
        return None
    is_open = work.cp_comm_type is None and stack.context_exchange == "fastest"
    return ContextWay(
        word=word,
        swapping=int(swap_ranks(site, way)[0]),
        chosen=is_open and not model.refuses_ring,
    )
