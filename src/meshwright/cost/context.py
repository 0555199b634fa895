"""Context parallelism around attention: rings, gathers, and swaps of tokens for heads."""

from __future__ import annotations

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.collectives import all_to_all_s, group_of, point_to_point_s
from meshwright.cost.kernels import streaming_s
from meshwright.cost.operators import FULL, Part, Site
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block

__all__ = ["CORE", "context_parts", "ring_steps"]

CORE = frozenset({"core_attn"})


def context_parts(site: Site, block: Block, core: Part) -> list[Part]:
    """Return what context parallelism adds to an attention block.

    Formula:  tokens swapped for heads around the core, where the software does so or no ring
              carries the attention; else the exchange of keys and values, and the merging of what
              its steps give
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   DeepSpeed-Ulysses (arXiv:2309.14509); Ring attention (arXiv:2310.01889); Transformer
              Engine's context parallelism.
    Valid:    blocks of attention, whatever cp of the shapes; `core` is the block's core.
    Checked:  tests/cost/test_attention.py
    """
    return (
        [_swap_exchange(site, block)]
        if _swaps(site)
        else [_ring_merge(site, block), _context_exchange(site, block, core)]
    )


def _swaps(site: Site) -> bool:
    """Whether context-parallel ranks swap tokens for heads: as the software does, or because no
    ring carries the attention."""
    return site.stack.context_exchange == "all-to-all" or site.model.refuses_ring


def ring_steps(site: Site) -> Floats:
    """Pieces in which a core's keys come.

    Formula:  cp on a ring, 1 where tokens were swapped for heads
    Units:    pieces, (U,).
    Source:   Ring attention (arXiv:2310.01889), section 3; DeepSpeed-Ulysses (arXiv:2309.14509),
              section 3.2.
    Valid:    blocks of attention.
    Checked:  tests/cost/test_attention.py
    """
    return np.ones_like(site.shapes.cp) if _swaps(site) else site.shapes.cp


@makes("cp_comm")
def _context_exchange(site: Site, block: Block, core: Part) -> Part:
    """Exchange of keys and values over the cp group, hidden behind the core as far as the stack
    can.

    Formula:  forward (cp - 1) messages of a rank's keys and values, backward twice that (gradients
              travel too); exposed = max(0, exchange - overlap * core); a tp-by-cp grid that leaves
              the domain uses the NIC. Gathered at once (torch's) each message has a key and a value
              for every query head, all are there before the second of the core's cp steps, again in
              the backward pass, and fp32 gradients pass round behind its other steps
    Units:    seconds per micro batch and rank, (U,).
    Source:   Ring attention (arXiv:2310.01889); Megatron-Core context parallelism; torch 2.13,
              _context_parallel/_attention.py (rotate_method, convert_to_f32); repeat_kv in
              torchtitan's models/llama3/model/model.py.
    """
    heads, kv_heads = site.local_heads
    qk, value = site.head_widths
    at_once = site.stack.context_exchange == "gather"
    if site.model.mla is not None or at_once:
        kv_heads = heads
    cp, stride = site.shapes.cp, site.shapes.tp
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
    return _exchange(site, forward_s=first, backward_s=last, kernels=(2.0, 4.0))


SWAP_PASSES = 4.0
"""Reads and writes of what a swap of tokens for heads sends, each way: sorted by rank before, and
put together behind."""


@makes("cp_comm")
def _swap_exchange(site: Site, block: Block) -> Part:
    """All-to-alls that swap tokens for heads around the core, forward and backward: of queries,
    keys, values and outputs.

    Formula:  all_to_all(bytes of a rank's part) each, and SWAP_PASSES copies of them; few key-value
              heads are repeated until each rank has one
    Units:    seconds per micro batch and rank, (U,).
    Source:   DeepSpeed-Ulysses (arXiv:2309.14509), section 3.2.
    """
    heads, kv_heads = site.local_heads
    qk, value = site.head_widths
    cp, tokens = site.shapes.cp, site.tokens(block)
    kv_heads = heads if site.model.mla is not None else np.minimum(np.maximum(kv_heads, cp), heads)
    sent = [
        tokens * count * width * site.activation_bytes
        for count, width in ((heads, qk), (kv_heads, qk), (kv_heads, value), (heads, value))
    ]
    group = group_of(cp, site.shapes.tp, site.pool)
    copies = streaming_s(site.pool.node.chip, SWAP_PASSES * np.sum(sent, axis=0)) * (cp > 1)
    time = np.sum([all_to_all_s(group, size) for size in sent], axis=0) + copies
    return _exchange(site, forward_s=time, backward_s=time, kernels=(12.0, 12.0))


def _exchange(
    site: Site, *, forward_s: Floats, backward_s: Floats, kernels: tuple[float, float]
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
    )


RING_MERGE_BYTES = 12.0
"""Bytes per output element that each further step of a ring moves: read the step's output (2) and
the fp32 sum (4), write it (4), and the rows' scales (2); backward adds gradients in the same
way."""
RING_MERGE_KERNELS = (2.0, 3.0)
"""Kernels of a merge, forward of outputs and of rows' scales, backward of the gradients of queries,
keys and values (transformer_engine's attention/dot_product_attention/context_parallel.py)."""


def _ring_merge(site: Site, block: Block) -> Part:
    """Merge the outputs of a ring's steps, and add up its gradients; nothing where cp is 1.

    Formula:  (cp - 1) * (elements * RING_MERGE_BYTES / memory rate + RING_MERGE_KERNELS * ramp)
              each way, elements = tokens * heads * value width
    Units:    seconds per micro batch and rank, (U,).
    Source:   counting at RING_MERGE_BYTES: a ring of cp steps is merged cp - 1 times.
    """
    heads, _ = site.local_heads
    more = site.shapes.cp - 1
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
