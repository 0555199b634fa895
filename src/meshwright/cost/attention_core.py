"""Attention's core: queries by keys, softmax, and values; fused or kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.context import CORE, ring_steps
from meshwright.cost.kernels import matmul_share, streaming_s
from meshwright.cost.operators import HALF, Part, Site
from meshwright.cost.stages import Floats
from meshwright.values.hardware.grid import Lookup
from meshwright.values.hardware.tables import (
    attention_backward_seconds,
    attention_forward_seconds,
    kin,
)
from meshwright.values.models.spec import Block
from meshwright.values.workload import Precision

__all__ = ["core_in_memory", "core_saved", "flash_core", "half_precision", "scores_per_query"]

FLASH_BACKWARD_PRODUCTS = 2.5
"""Matrix products of a fused attention's backward against its forward: five against two
(arXiv:2307.08691, section 3.1)."""
FLASH_LENGTH_HALF = 384.0
"""Sequence at which causal fused attention reaches half its speed (arXiv:2307.08691, figures 4 to
6: A100, 512 to 16k tokens); a query then meets half as many keys."""
FLASH1_SHARE = 0.56
"""FlashAttention 1 against 2, forward and backward of long causal sequences: 0.61 at 64 a head,
0.51 at 128 (arXiv:2307.08691, figure 4). Half a chip's work draws too little power to pull its
clock down: the sustained share counts only where it is less than this."""
SOFTMAX_BYTES = {"fused-softmax": (4.0, 6.0), "unfused": (28.0, 28.0)}
"""Bytes that the passes between the products move per score, forward and backward. Fused softmax:
read (2), write (2); backward: read its output and the gradient (2 + 2), write (2). Eager: scale
(4), mask (4), cast to fp32 (2 + 4), softmax (4 + 4), cast back (4 + 2); backward: cast (6), softmax
(12), cast (6), scale (4). In fp32 the fused kernel moves twice as much, eager mode, without casts,
about as much."""
SKIPPED_BYTES = {"fused-softmax": (1.0, 2.0), "unfused": (0.0, 0.0)}
"""Of these, what a causal mask spares: the fused kernel reads the lower triangle alone, and writes
zeros above it (Megatron-LM's fused_kernels/scaled_upper_triang_masked_softmax.h)."""
BATCHED_SHARE = 0.5
"""Speed of attention's two batched products against large ones: one dim is a head's, 64 or 128."""
SCORE_SAVED = {"fused-softmax": 2.0, "unfused": 4.0}
"""Bytes kept per score: the softmax's output; eager mode also what was masked (in fp32 the output
alone, as what is scaled and masked in place is not kept). Dropout adds its mask and a copy, 3 in
half precision (arXiv:2205.05198, equation 2)."""


def scores_per_query(site: Site, block: Block) -> float:
    """Mean number of keys that one query is multiplied with.

    Formula:  a window and one tile of 128 where there is one (half a tile stays at either end of
              it); keys / 2 + 64 where a fused kernel skips masked tiles (half a tile stays); else
              every key
    Units:    keys.
    Source:   FlashAttention-2 (arXiv:2307.08691), section 3.1, skips tiles above the diagonal.
    Valid:    any attention; context parallelism balances the masked half over its ranks.
    Checked:  tests/cost/test_attention.py
    """
    keys = float(site.keys(block))
    fused = site.work.attention in ("flash", "flash1")
    if block.window is not None and block.window < keys and fused:
        return min(block.window + 128.0, keys * 0.5 + 64.0)
    return keys * 0.5 + 64.0 if block.causal and fused and keys > 128 else keys


def core_saved(site: Site, block: Block) -> Floats:
    """Bytes of queries, keys and values that the core keeps, (U,); latent: kv_heads are heads.

    Formula:  (tokens * heads * qk + key_tokens * kv_heads * (qk + value)) * activation_bytes
    Units:    bytes.
    Source:   Korthikanti et al. (arXiv:2205.05198), section 4.1.
    Valid:    any attention.
    Checked:  tests/cost/test_attention.py::test_fused_attention_keeps_queries_keys_values_and_row_sums
    """
    heads, kv_heads = site.local_heads
    qk, value = site.head_widths
    if site.model.mla is not None:
        kv_heads = heads
    return (
        site.tokens(block) * heads * qk + site.key_tokens(block) * kv_heads * (qk + value)
    ) * site.activation_bytes


@makes("attention")
def flash_core(site: Site, block: Block) -> Part:
    """Fused attention, whose scores never leave the chip.

    Formula:  forward = (measured, else roofline) / library share + ramp; backward = measured /
              library share, else the forward time * 2.5 * forward efficiency / backward efficiency,
              + 3 ramps; keeps row sums, 4 bytes per token and head
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   FlashAttention-2 (arXiv:2307.08691), section 3.1; its backward pass is three kernels
              (flash_bwd_launch_template.h). Shipped tables have the forward pass alone.
    Valid:    any attention.
    Checked:  tests/cost/test_attention.py::test_flash_multiplies_half_the_keys
    """
    chip, tokens = site.pool.node.chip, site.tokens(block)
    heads, _ = site.local_heads
    share = _library_share(site)
    measured, measured_backward = (
        _measured_flash_s(site, block, lookup)
        for lookup in (attention_forward_seconds, attention_backward_seconds)
    )
    forward = (_roofline_flash_s(site, block) if measured is None else measured) / share
    ratio = (
        FLASH_BACKWARD_PRODUCTS
        * chip.attention_forward_efficiency
        / chip.attention_backward_efficiency
    )
    backward = ratio * forward if measured_backward is None else measured_backward / share
    return Part(
        name="attention core",
        term="attention",
        forward_s=forward + chip.ramp_s,
        backward_s=backward + 3 * chip.ramp_s,
        kernels_forward=1,
        kernels_backward=3,
        saved_bytes=tokens * heads * 4.0,  # row sums
        redone_by=CORE,
        freed_by=CORE,
        flops=_flash_flops(site, block),
        moved_bytes=core_saved(site, block)
        + tokens * heads * site.head_widths[1] * site.activation_bytes,
    )


def _flash_flops(site: Site, block: Block) -> Floats:
    """Arithmetic of the forward pass, skipped tiles not counted, (U,).

    Formula:  2 * tokens * scores_per_query * heads * (qk + value)
    Source:   counting: two products, 2 FLOP a multiply-add.
    """
    heads, _ = site.local_heads
    return 2.0 * site.tokens(block) * scores_per_query(site, block) * heads * sum(site.head_widths)


def _library_share(site: Site) -> float:
    """Sustained speed of the workload's fused kernel against a short run of the chip vendor's best.

    Formula:  sustained_share, times flash2_share unless the vendor's kernel runs; FlashAttention 1:
              min(FLASH1_SHARE, sustained_share) * flash2_share
    Source:   the constants' own: `values/hardware/chips.csv`, FLASH1_SHARE.
    """
    chip = site.pool.node.chip
    if site.work.attention == "flash1":
        return min(FLASH1_SHARE, chip.sustained_share) * chip.flash2_share
    return chip.sustained_share * (
        chip.flash2_share if site.stack.attention_library == "flash2" else 1.0
    )


def _head_speed(site: Site) -> float:
    """Speed of attention with the model's heads against heads of 128.

    Formula:  min(1, (qk / 128)^0.25); on a systolic array min(1, filled / filled(128)), filled =
              (qk + value) / (whole(qk) + whole(value)), whole(width) = ceil(width / matrix_width) *
              matrix_width
    Source:   the power is assumed; one side of either product is a head's width, and what it leaves
              of the array is idle (jax-ml/scaling-book, tpus.md, on arrays of 128 and 256).
    """
    qk, value = site.head_widths
    side = site.pool.node.chip.matrix_width
    if side is None:
        return float(min(1.0, (qk / 128) ** 0.25))

    def filled(*widths: int) -> float:
        return sum(widths) / sum(ceil(width / side) * side for width in widths)

    return float(min(1.0, filled(qk, value) / filled(128)))


@makes("attention")
def _roofline_flash_s(site: Site, block: Block) -> Floats:
    """Forward time at the chip's share of its half-precision peak (in fp32 of the fp32 peak).

    Formula:  flops / (peak * attention_forward_efficiency * speed), where speed = piece / (piece +
              FLASH_LENGTH_HALF / 2) * `_head_speed`, piece = scores_per_query / ring steps
    Source:   roofline at the chip's own share.
    """
    chip = site.pool.node.chip
    keys = scores_per_query(site, block)
    piece = keys / ring_steps(site)  # one step of a ring sees a piece of the keys
    speed = piece / (piece + FLASH_LENGTH_HALF / 2) * _head_speed(site)
    return np.asarray(
        _flash_flops(site, block)
        / (chip.peak_flops_per_s(half_precision(site)) * chip.attention_forward_efficiency * speed)
    )


@makes("attention")
def _measured_flash_s(
    site: Site, block: Block, lookup: Callable[..., Lookup | None]
) -> Floats | None:
    """Time by a table of the chip or its generation; None without, as for latent attention.

    Formula:  table(batch, heads, kv_heads, head_dim, piece) * steps * share * queries * compute
              scale: steps of a ring, each a causal kernel over piece = keys / steps; share = keys
              seen / keys of the mask; queries = a sequence's queries / keys; a window: full
              attention over keys / seen pieces of `seen` keys each
    Source:   docs/operators.md, or the user's docs/profile.md; Ring attention (arXiv:2310.01889).
              That a window costs what such pieces cost is assumed: loops over keys end soon after
              they began.
    """
    chip, nearest = site.pool.node.chip, kin(site.pool.node.chip)
    if nearest.relation not in ("itself", "generation") or site.model.mla is not None:
        return None
    steps = ring_steps(site)  # of the ring, each over one piece of the keys
    heads, kv_heads = (count / (site.shapes.cp / steps) for count in site.local_heads)
    keys, seen = float(site.keys(block)), scores_per_query(site, block)
    whole = keys * 0.5 + 64.0 if block.causal else keys
    windowed = block.window is not None and seen < whole
    piece = np.full_like(steps, seen) if windowed else keys / steps
    found = lookup(
        nearest.table,
        batch=site.shapes.mbs * (keys / seen if windowed else 1.0),
        heads=heads,
        kv_heads=np.clip(kv_heads, 1.0, heads),
        head_dim=site.model.head_dim,
        sequence=piece,
        mask="causal" if block.causal and not windowed else "full",
        precision="bf16" if site.activation_bytes <= HALF else half_precision(site),
    )
    if found is None:
        return None
    share = 1.0 if windowed else seen / whole
    queries = (
        site.tokens(block) * site.shapes.cp / (site.shapes.mbs * keys)
    )  # fewer than keys in cross attention
    return np.asarray(
        found.seconds
        * steps
        * share
        * queries
        * nearest.compute_scale("fp16" if chip.bf16_flops_per_s is None else "bf16")
    )


@makes("attention")
def core_in_memory(site: Site, block: Block) -> Part:
    """Attention in single kernels: 2 batched products forward, 4 backward, passes over scores.

    Formula:  forward = products + passes + 5 ramps; backward = 2 products + passes + 8 ramps; a
              product = max(2 * scores * width / (peak * matmul_share * BATCHED_SHARE), one pass
              over scores); passes = scores * (SOFTMAX_BYTES - SKIPPED_BYTES, wider in fp32, + 5
              with dropout); keeps scores * (SCORE_SAVED, + 1 + activation_bytes with dropout)
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   arXiv:2205.05198, equation 2, for what is kept; counting: dropout reads 2, writes 2 +
              1 bytes; ramps and kernels are assumed.
    Valid:    any attention without a window.
    Checked:  tests/cost/test_attention.py::test_bytes_that_scores_in_memory_move
    """
    chip, tokens = site.pool.node.chip, site.tokens(block)
    heads, _ = site.local_heads
    keys = float(site.keys(block))
    scores = tokens * heads * keys
    dropout = 5.0 if site.work.dropout else 0.0
    wide = site.activation_bytes / HALF if site.work.attention == "fused-softmax" else 1.0
    moved = [
        scores * ((whole - block.causal * skipped) * wide + dropout)
        for whole, skipped in zip(
            SOFTMAX_BYTES[site.work.attention], SKIPPED_BYTES[site.work.attention], strict=True
        )
    ]
    precision = half_precision(site)
    rate = chip.peak_flops_per_s(precision) * matmul_share(chip, precision) * BATCHED_SHARE
    pass_s = streaming_s(chip, scores * site.activation_bytes)
    products_s = sum(np.maximum(2.0 * scores * width / rate, pass_s) for width in site.head_widths)
    saved_scores = scores * (
        SCORE_SAVED[site.work.attention] * wide
        + (1 + site.activation_bytes) * bool(site.work.dropout)
    )
    return Part(
        name="attention core",
        term="attention",
        forward_s=products_s + streaming_s(chip, moved[0]) + 5 * chip.ramp_s,
        backward_s=2 * products_s + streaming_s(chip, moved[1]) + 8 * chip.ramp_s,
        kernels_forward=5,
        kernels_backward=9,
        saved_bytes=saved_scores,
        redone_by=CORE,
        freed_by=CORE,
        flops=2.0 * scores * sum(site.head_widths),
        moved_bytes=moved[0] + 2.0 * scores * site.activation_bytes + core_saved(site, block),
    )


def half_precision(site: Site) -> Precision:
    """Return the precision of attention's products: that of linear layers, bf16 for narrow ones.

    Formula:  fp32, tf32 and fp16 as they are; else bf16
    Units:    none.
    Source:   Transformer Engine and torchao leave attention in bf16 unless told otherwise.
    Valid:    every Precision.
    Checked:  tests/cost/test_attention.py
    """
    precision = site.work.precision
    return precision if precision in ("fp32", "tf32", "fp16") else "bf16"
