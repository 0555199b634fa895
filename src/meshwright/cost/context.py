"""Context parallelism around attention: rings, gathers, swaps of tokens for heads, and swaps inside
rings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.collectives import (
    all_gather_s,
    all_to_all_s,
    group_of,
    point_to_point_s,
    reduce_scatter_s,
)
from meshwright.cost.kernels import streaming_s
from meshwright.cost.operators import FULL, Part, Site
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block
from meshwright.values.stack import ContextExchange
from meshwright.values.workload import CpCommType

__all__ = [
    "CORE",
    "WAYS",
    "context_parts",
    "exchange_ways",
    "ring_steps",
    "spread_core",
    "swap_ranks",
]

CORE = frozenset({"core_attn"})
WAYS: dict[CpCommType, ContextExchange] = {
    "p2p": "ring",
    "a2a": "all-to-all",
    "all_gather": "kv-gather",
    "a2a+p2p": "two-level",
}
"""What Megatron-Core's words for `cp_comm_type` mean."""
CANDIDATES: tuple[ContextExchange, ...] = ("ring", "all-to-all", "two-level", "kv-gather")
"""Ways that `fastest` chooses among, the first where several take the same time: all that
Megatron-Core's cp_comm_type has (p2p, a2a, a2a+p2p, all_gather)."""


def _way(site: Site) -> ContextExchange:
    """What the run says, else the software."""
    said = site.work.cp_comm_type
    return site.stack.context_exchange if said is None else WAYS[said]


def spread_core(site: Site, block: Block, core: Callable[[Site, Block], Part]) -> list[Part]:
    """Return an attention block's core, and what context parallelism adds to it.

    Formula:  core + context_parts; where the software leaves the way open, those of the way that
              takes least forward and backward together, shape by shape
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   `context_parts`; a user who tunes a run takes the fastest of Megatron-Core's
              cp_comm_type.
    Valid:    blocks of attention.
    Checked:  tests/cost/test_context.py
    """
    if not np.any(site.shapes.cp > 1):
        return [core(site, block)]
    if _way(site) != "fastest":
        placed = core(site, block)
        return [placed, *context_parts(site, block, placed)]
    tried = _tried(site, block, core)
    chosen = _cheapest(site, tried)
    return [
        _where(part, chosen == at)
        for at, parts in enumerate(tried)
        if np.any(chosen == at)
        for part in parts
    ]


def exchange_ways(
    site: Site, block: Block, core: Callable[[Site, Block], Part]
) -> tuple[ContextExchange, ...]:
    """Return by which way each shape's context-parallel ranks exchange, (U,) words.

    Formula:  the software's own; where it leaves that open, as `spread_core` chooses
    Units:    none.
    Source:   as `spread_core`.
    Valid:    blocks of attention; without context parallelism any way is as good.
    Checked:  tests/cost/test_context.py
    """
    way: ContextExchange = "all-to-all" if site.model.refuses_ring else _way(site)
    if way != "fastest":
        return tuple(way for _ in site.shapes.cp)
    chosen = _cheapest(site, _tried(site, block, core))
    return tuple(CANDIDATES[at] for at in chosen)


def _tried(site: Site, block: Block, core: Callable[[Site, Block], Part]) -> list[list[Part]]:
    """The parts of each way of CANDIDATES."""
    return [
        spread_core(replace(site, stack=replace(site.stack, context_exchange=way)), block, core)
        for way in CANDIDATES
    ]


def _cheapest(site: Site, tried: list[list[Part]]) -> NDArray[np.int64]:
    """Index of the way that takes least time and may run, (U,)."""
    totals = [
        np.where(
            _may_run(site, way),
            np.sum([np.zeros_like(site.shapes.cp) + p.forward_s + p.backward_s for p in parts], 0),
            np.inf,
        )
        for way, parts in zip(CANDIDATES, tried, strict=True)
    ]
    return np.asarray(np.argmin(totals, axis=0))


def _may_run(site: Site, way: ContextExchange) -> NDArray[np.bool_]:
    """Whether Transformer Engine runs it: heads swapped only where every rank gets whole key-value
    heads, latent attention on a ring alone, no ring of windows or sinks."""
    inner, outer = _levels(site, way)
    if site.model.refuses_ring:
        return np.full(site.shapes.cp.shape, way == "all-to-all")
    if site.model.mla is not None:
        return np.full(site.shapes.cp.shape, way == "ring")
    whole = site.model.num_kv_heads % (site.shapes.tp * inner) == 0
    return np.asarray(whole & ((way != "two-level") | ((inner > 1) & (outer > 1))))


def swap_ranks(site: Site, way: ContextExchange) -> Floats:
    """Ranks among which tokens are swapped for heads, (U,).

    Formula:  all of them, none but oneself on a ring, the widest group inside a domain that leaves
              every rank whole key-value heads on two levels
    Units:    ranks.
    Source:   AttnFuncWithCPAndQKVOA2A of Transformer Engine's context_parallel.py, which asserts
              whole heads; Megatron-Core's hierarchical_context_parallel_sizes.
    Valid:    blocks of attention.
    Checked:  tests/cost/test_context.py::test_two_levels_swap_inside_a_domain_and_ring_between
    """
    return _levels(site, way)[0]


def _levels(site: Site, way: ContextExchange) -> tuple[Floats, Floats]:
    """Ranks among which tokens are swapped for heads, and ranks of the ring of such groups.

    Formula:  (cp, 1) where all swap, (1, cp) where none does; on two levels the largest power of
              two that divides cp and the key-value heads of a rank, inside the domain, and the rest
    Units:    ranks, (U,) each.
    Source:   as `swap_ranks`.
    """
    cp, one = site.shapes.cp, np.ones_like(site.shapes.cp)
    if way == "all-to-all" or site.model.refuses_ring:
        return cp, one
    if way != "two-level":
        return one, cp
    inner, wider = one, 2.0
    while np.any(wider <= cp):
        fits = (cp % wider == 0) & (site.model.num_kv_heads % (site.shapes.tp * wider) == 0)
        near = site.shapes.tp * wider <= site.pool.node.domain_size
        inner, wider = np.where(fits & near, wider, inner), 2.0 * wider
    return inner, cp / inner


def _where(part: Part, chosen: NDArray[np.bool_]) -> Part:
    """Return the part in the chosen shapes, nothing in the others."""
    numbers: dict[str, Any] = {
        one.name: np.where(chosen, getattr(part, one.name), 0.0)
        for one in fields(part)
        if not isinstance(getattr(part, one.name), str | frozenset)
    }
    return replace(part, **numbers)


def context_parts(site: Site, block: Block, core: Part) -> list[Part]:
    """Return what context parallelism adds to an attention block.

    Formula:  tokens swapped for heads around the core, where the software does so or no ring
              carries the attention; else the exchange of keys and values, and the merging of what
              its steps give; both where swaps are inside a ring
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   DeepSpeed-Ulysses (arXiv:2309.14509); Ring attention (arXiv:2310.01889); Transformer
              Engine's context parallelism (attention/dot_product_attention/context_parallel.py).
    Valid:    blocks of attention, whatever cp of the shapes; `core` is the block's core.
    Checked:  tests/cost/test_attention.py, tests/cost/test_context.py
    """
    way = _way(site)
    inner, outer = _levels(site, way)
    if way == "kv-gather" and not site.model.refuses_ring:
        return [_gather_exchange(site, block)]
    if way == "two-level" and not site.model.refuses_ring:
        return [
            _swap_exchange(site, block, inner),
            _ring_merge(site, block),
            _context_exchange(site, block, core),
        ]
    if np.all(outer == 1):
        return [_swap_exchange(site, block, inner)]
    return [_ring_merge(site, block), _context_exchange(site, block, core)]


def ring_steps(site: Site) -> Floats:
    """Pieces in which a core's keys come.

    Formula:  the ranks of a ring; 1 where tokens were swapped for heads, or keys gathered before
    Units:    pieces, (U,).
    Source:   Ring attention (arXiv:2310.01889), section 3; DeepSpeed-Ulysses (arXiv:2309.14509),
              section 3.2.
    Valid:    blocks of attention.
    Checked:  tests/cost/test_attention.py
    """
    way = _way(site)
    return np.ones_like(site.shapes.cp) if way == "kv-gather" else _levels(site, way)[1]


@makes("cp_comm")
def _context_exchange(site: Site, block: Block, core: Part) -> Part:
    """Exchange of keys and values over the cp group, hidden behind the core as far as the stack
    can.

    Formula:  forward (ranks - 1) messages of a rank's keys and values, backward twice that
              (gradients travel too); exposed = max(0, exchange - overlap * core); ranks are the
              ring's, cp unless heads are swapped inside it; a tp-by-cp grid that leaves the domain
              uses the NIC. Gathered at once (torch's) each message has a key and a value
              for every query head, all are there before the second of the core's cp steps, again in
              the backward pass, and fp32 gradients pass round behind its other steps
    Units:    seconds per micro batch and rank, (U,).
    Source:   Ring attention (arXiv:2310.01889); Megatron-Core context parallelism; torch 2.13,
              _context_parallel/_attention.py (rotate_method, convert_to_f32); repeat_kv in
              torchtitan's models/llama3/model/model.py.
    """
    heads, kv_heads = site.local_heads
    qk, value = site.head_widths
    at_once = _way(site) == "gather"
    if site.model.mla is not None or at_once:
        kv_heads = heads
    inner, cp = _levels(site, _way(site))
    stride = site.shapes.tp * inner
    message = site.tokens(block) * kv_heads * (qk + value) * site.activation_bytes
    hop, wide = (
        point_to_point_s(site.pool, message_bytes=size, distance=stride, span=stride * cp)
        for size in (message, message * FULL / site.activation_bytes)
    )
    hide = site.stack.cp_overlap
    if at_once:
        first = np.maximum(0.0, (cp - 1) * hop - hide * core.forward_s / cp)
        again = np.maximum(0.0, (cp - 1) * hop - hide * core.backward_s / cp)
        last = again + (cp - 1) * np.maximum(0.0, wide - hide * core.backward_s / cp)
    else:
        first = np.maximum(0.0, (cp - 1) * hop - hide * core.forward_s)
        last = np.maximum(0.0, 2 * (cp - 1) * hop - hide * core.backward_s)
    return _exchange(
        site, forward_s=first, backward_s=last, kernels=(2.0, 4.0), sent_bytes=(cp - 1) * message
    )


SWAP_PASSES = 4.0
"""Reads and writes of what a swap of tokens for heads sends, each way: sorted by rank before, and
put together behind."""


@makes("cp_comm")
def _swap_exchange(site: Site, block: Block, ranks: Floats) -> Part:
    """All-to-alls among so many ranks that swap tokens for heads around the core, forward and
    backward: of queries, keys, values and outputs.

    Formula:  all_to_all(bytes of a rank's part) each, and SWAP_PASSES copies of them; few key-value
              heads are repeated until each rank has one
    Units:    seconds per micro batch and rank, (U,).
    Source:   DeepSpeed-Ulysses (arXiv:2309.14509), section 3.2.
    """
    heads, kv_heads = site.local_heads
    qk, value = site.head_widths
    cp, tokens = ranks, site.tokens(block)
    kv_heads = heads if site.model.mla is not None else np.minimum(np.maximum(kv_heads, cp), heads)
    sent = [
        tokens * count * width * site.activation_bytes
        for count, width in ((heads, qk), (kv_heads, qk), (kv_heads, value), (heads, value))
    ]
    group = group_of(cp, site.shapes.tp, site.pool)
    copies = streaming_s(site.pool.node.chip, SWAP_PASSES * np.sum(sent, axis=0)) * (cp > 1)
    time = np.sum([all_to_all_s(group, size) for size in sent], axis=0) + copies
    put_in = np.sum(sent, axis=0) * (cp > 1)
    return _exchange(site, forward_s=time, backward_s=time, kernels=(12.0, 12.0), sent_bytes=put_in)


GATHER_PASSES = 2.0
"""Reads and writes of gathered keys and values that put their chunks in order, and of their
gradients before they are scattered."""


@makes("cp_comm")
def _gather_exchange(site: Site, block: Block) -> Part:
    """Gathers of all keys and values in front of the core, again in the backward pass, and a
    scatter of their gradients behind it.

    Formula:  forward all_gather(keys) + all_gather(values) + GATHER_PASSES copies; backward that,
              and the same by reduce_scatter
    Units:    seconds per micro batch and rank, (U,).
    Source:   AttnFuncWithCPAndKVAllGather of Transformer Engine's context_parallel.py; Llama 3
              (arXiv:2407.21783), section 3.3.2.
    """
    heads, kv_heads = site.local_heads
    kv_heads = heads if site.model.mla is not None else kv_heads
    group = group_of(site.shapes.cp, site.shapes.tp, site.pool)
    whole = [
        site.tokens(block) * site.shapes.cp * kv_heads * width * site.activation_bytes
        for width in site.head_widths
    ]
    chip, several = site.pool.node.chip, site.shapes.cp > 1
    copies = streaming_s(chip, GATHER_PASSES * np.sum(whole, axis=0)) * several
    gather, scatter = (
        np.sum([collective(group, size) for size in whole], axis=0) + copies
        for collective in (all_gather_s, reduce_scatter_s)
    )
    put_in = np.sum(whole, axis=0) * several
    return _exchange(
        site,
        forward_s=gather,
        backward_s=gather + scatter,
        kernels=(4.0, 8.0),
        sent_bytes=put_in,
    )


def _exchange(
    site: Site,
    *,
    forward_s: Floats,
    backward_s: Floats,
    kernels: tuple[float, float],
    sent_bytes: Floats,
) -> Part:
    kernels_forward, kernels_backward = (
        np.where(site.shapes.cp > 1, each, 0.0) for each in kernels
    )
    return Part(
        name="context parallel exchange",
        term="cp_comm",
        forward_s=forward_s,
        backward_s=backward_s,
        kernels_forward=kernels_forward,
        kernels_backward=kernels_backward,
        redone_by=CORE,
        sent_bytes=sent_bytes,
    )


RING_MERGE_BYTES = 12.0
"""Bytes per output element that each further step of a ring moves: read the step's output (2) and
the fp32 sum (4), write it (4), and the rows' scales (2); backward adds gradients in the same
way."""
RING_MERGE_KERNELS = (2.0, 3.0)
"""Kernels of a merge, forward of outputs and of rows' scales, backward of the gradients of queries,
keys and values (transformer_engine's attention/dot_product_attention/context_parallel.py)."""


def _ring_merge(site: Site, block: Block) -> Part:
    """Merge the outputs of a ring's steps, and add up its gradients; nothing of one step.

    Formula:  (steps - 1) * (elements * RING_MERGE_BYTES / memory rate + RING_MERGE_KERNELS * ramp)
              each way, elements = tokens * heads * value width
    Units:    seconds per micro batch and rank, (U,).
    Source:   counting at RING_MERGE_BYTES: a ring of n steps is merged n - 1 times.
    """
    heads, _ = site.local_heads
    more = ring_steps(site) - 1
    elements = site.tokens(block) * heads * site.head_widths[1]
    chip = site.pool.node.chip
    forward_s, backward_s = (
        (streaming_s(chip, elements * RING_MERGE_BYTES) + kernels * chip.ramp_s) * more
        for kernels in RING_MERGE_KERNELS
    )
    return Part(
        name="context parallel merge",
        term="pointwise",
        forward_s=forward_s,
        backward_s=backward_s,
        kernels_forward=RING_MERGE_KERNELS[0] * more,
        kernels_backward=RING_MERGE_KERNELS[1] * more,
        redone_by=CORE,
    )
