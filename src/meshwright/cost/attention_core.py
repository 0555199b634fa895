"""Attention's core: queries by keys, softmax, and values; fused or kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.context import CORE, ring_steps
from meshwright.cost.kernels import element_bytes, matmul_share, streaming_s
from meshwright.cost.operators import HALF, Part, Site
from meshwright.cost.stages import Floats
from meshwright.values.hardware.grid import Lookup
from meshwright.values.hardware.tables import (
    NARROW_HEAD_GROWTH,
    attention_backward_seconds,
    attention_forward_seconds,
    kin,
    mla_forward_seconds,
)
from meshwright.values.models.spec import Block
from meshwright.values.workload import AttentionKernel, Precision

__all__ = [
    "attention_core",
    "core_in_memory",
    "core_saved",
    "flash_core",
    "half_precision",
    "scores_per_query",
]

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
SHARE_HEAD = 128.0
"""Head size at which the chips' efficiencies of attention, and FlashAttention-2's share of them,
were measured (`attention_source` in `values/hardware/chips.csv`)."""
FP8_SPEED = (1.22, 1.16)
"""Speed of fused attention in fp8 against bf16, forward and backward: medians over five causal
lengths from 2,048 to 32,768, 64 heads of 128 on GB200, cuDNN 9.18 (NVIDIA/cudnn-frontend,
benchmark/sdpa_benchmark_training; 1.19 to 1.25 and 1.10 to 1.19)."""
FP8_CAST_BYTES = 3.0
"""Bytes per element of queries, keys, values and the output's gradient that their cast moves: read
in half precision, written in fp8."""
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
"""Speed of attention's two batched products against large ones: one dim is a head's, 64 or 128.
Fitted on runs whose scores lie in memory (V100, T4 and A100 of dlperf_gpt, amp, vtrain,
korthikanti2022, megatron_lm_readme and aleph_alpha_layouts): the mean error over tables rises with
0.4 and with 0.6, and more with width / (width + DEPTH_HALF), which V100 and T4 contradict."""
SCORE_SAVED = {"fused-softmax": 2.0, "unfused": 4.0}
"""Bytes kept per score: the softmax's output; eager mode also what was masked (in fp32 the output
alone, as what is scaled and masked in place is not kept). Dropout adds its mask and a copy, 3 in
half precision (arXiv:2205.05198, equation 2)."""

FUSED_IN_FOURS = 4.0
"""The fused softmax wants this many or a multiple of heads and sequences on a rank, else the passes
run one by one (attn_batches in is_kernel_available of megatron's fused_softmax.py, and of
Transformer Engine's)."""
CORE_KERNELS = (5.0, 9.0)
"""Kernels of a core in memory with a fused softmax, forward and backward: assumed."""
EAGER_PASSES, EAGER_CASTS = 2.0, 2.0
"""Kernels that eager mode has more each way: scale and mask, and in half precision the casts to
fp32 and back (forward_torch_softmax of megatron's fused_softmax.py)."""


def attention_core(site: Site, block: Block) -> Part:
    """Return the products of queries with keys and of what they give with values.

    Formula:  fused, or scores in memory, as the workload says
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   FlashAttention-2 (arXiv:2307.08691); Megatron-LM (arXiv:1909.08053).
    Valid:    blocks of attention.
    Checked:  tests/cost/test_attention.py
    """
    fused = site.work.attention in ("flash", "flash1")
    return flash_core(site, block) if fused else core_in_memory(site, block)


def scores_per_query(site: Site, block: Block) -> float:
    """Mean number of keys that one query is multiplied with.

    Formula:  a window and one tile of 128 where there is one (half a tile stays at either end of
              it); keys / 2 + 64 where a fused kernel skips masked tiles (half a tile stays); else
              every key; a fused kernel sees those of a packed sample alone
    Units:    keys.
    Source:   FlashAttention-2 (arXiv:2307.08691), section 3.1, skips tiles above the diagonal.
    Valid:    any attention; context parallelism balances the masked half over its ranks.
    Checked:  tests/cost/test_attention.py
    """
    fused = site.work.attention in ("flash", "flash1")
    keys = _sample_keys(site, block) if fused else float(site.keys(block))
    if block.window is not None and block.window < keys and fused:
        return min(block.window + 128.0, keys * 0.5 + 64.0)
    return keys * 0.5 + 64.0 if block.causal and fused and keys > 128 else keys


def _sample_keys(site: Site, block: Block) -> float:
    """Keys of one sample, which a fused kernel's sequences are where several are packed.

    Formula:  min(keys, sample_len) in self attention
    Source:   Transformer Engine's and flash-attn's kernels of variable length (cu_seqlens).
    """
    keys, sample = float(site.keys(block)), site.work.sample_len
    return keys if sample is None or block.kind == "cross_attention" else min(keys, float(sample))


def core_saved(site: Site, block: Block) -> Floats:
    """Bytes of queries, keys and values that the core keeps, (U,); latent: kv_heads are heads.

    Formula:  (tokens * heads * qk + key_tokens * kv_heads * (qk + value)) * activation_bytes, a
              byte each in 8 bits
    Units:    bytes.
    Source:   Korthikanti et al. (arXiv:2205.05198), section 4.1.
    Valid:    any attention.
    Checked:  tests/cost/test_attention.py::test_grouped_queries_keep_fewer_keys
    """
    heads, kv_heads = site.local_heads
    qk, value = site.head_widths
    if site.model.mla is not None:
        kv_heads = heads
    return (site.tokens(block) * heads * qk + site.key_tokens(block) * kv_heads * (qk + value)) * (
        1.0 if _in_8_bits(site) else site.activation_bytes
    )


@makes("attention")
def flash_core(site: Site, block: Block) -> Part:
    """Fused attention, whose scores never leave the chip.

    Formula:  forward = (measured, else roofline) / library share + ramp; backward = measured /
              library share, else the forward time * 2.5 * forward efficiency / backward efficiency,
              + 3 ramps; in fp8 over FP8_SPEED, with casts; keeps row sums, 4 bytes per token and
              head, and its output, where the projection behind it keeps a narrow copy instead
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   FlashAttention-2 (arXiv:2307.08691), section 3.1; its backward pass is three kernels
              (flash_bwd_launch_template.h). Shipped tables have the forward pass alone. Output:
              what FlashAttnFunc and transformer_engine's FusedAttnFunc save for their backward.
    Valid:    any attention.
    Checked:  tests/cost/test_attention.py::test_flash_multiplies_half_the_keys
    """
    chip, tokens = site.pool.node.chip, site.tokens(block)
    heads, _ = site.local_heads
    share = _library_share(site)
    if site.model.mla is not None:
        measured, measured_backward = _measured_latent_s(site, block), None
    else:
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
    if _in_8_bits(site):
        cast_in, cast_back = _fp8_casts_s(site, block)
        forward, backward = forward / FP8_SPEED[0] + cast_in, backward / FP8_SPEED[1] + cast_back
    return Part(
        name="attention core",
        term="attention",
        forward_s=forward + chip.ramp_s,
        backward_s=backward + 3 * chip.ramp_s,
        kernels_forward=1,
        kernels_backward=3,
        saved_bytes=tokens * heads * 4.0 + _output_saved(site, block),
        redone_by=CORE,
        freed_by=CORE,
        flops=_flash_flops(site, block),
        moved_bytes=core_saved(site, block)
        + tokens * heads * site.head_widths[1] * site.activation_bytes,
    )


def _output_saved(site: Site, block: Block) -> Floats:
    """Bytes of its output that a fused core keeps beside what the output projection keeps, (U,).

    Formula:  tokens * heads * value * activation_bytes where the projection keeps its input
              narrower; else 0, as both keep one tensor
    Source:   the backward passes read it: flash_attn_interface.py; Transformer Engine's Linear
              keeps the cast copy.
    """
    heads, _ = site.local_heads
    output = site.tokens(block) * heads * site.head_widths[1] * site.activation_bytes
    narrow = site.kept_context_bytes < site.activation_bytes
    return output * (narrow and not site.stack.attention_output_bytes)


def _in_8_bits(site: Site) -> bool:
    """Whether fused attention runs in fp8, as the software says of 8-bit runs."""
    fused = site.work.attention in ("flash", "flash1")
    return fused and site.stack.attention_in_8_bits and element_bytes(site.work.precision) <= 1


def _fp8_casts_s(site: Site, block: Block) -> tuple[Floats, Floats]:
    """Time of the casts in front of either pass.

    Formula:  FP8_CAST_BYTES * elements of queries, keys and values / memory rate + ramp; backward
              of the output's gradient
    Source:   combine_and_quantize of Transformer Engine's dot_product_attention/utils.py.
    """
    heads, _ = site.local_heads
    gradient = site.tokens(block) * heads * site.head_widths[1]
    return (
        site.streaming(FP8_CAST_BYTES * core_saved(site, block)),
        site.streaming(FP8_CAST_BYTES * gradient),
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
    return chip.sustained_share * (chip.flash2_share if _is_older(site) else 1.0)


def _is_older(site: Site) -> bool:
    """Whether the fused kernel is Dao's FlashAttention 1 or 2, not the chip vendor's best."""
    return site.work.attention == "flash1" or site.stack.attention_library == "flash2"


def _head_speed(site: Site) -> float:
    """Speed of attention with the model's heads against heads of SHARE_HEAD.

    Formula:  min(1, qk / SHARE_HEAD)^(1 - NARROW_HEAD_GROWTH); on a systolic array min(1, filled /
              filled(SHARE_HEAD)), filled = (qk + value) / (whole(qk) + whole(value)), whole(width)
              = ceil(width / matrix_width) * matrix_width
    Source:   narrow heads as FlashAttention-2's; one side of either product is a head's width, and
              what it leaves of the array is idle (jax-ml/scaling-book, tpus.md, on arrays of 128
              and 256).
    """
    qk, value = site.head_widths
    side = site.pool.node.chip.matrix_width
    if side is None:
        return float(min(1.0, qk / SHARE_HEAD) ** (1.0 - NARROW_HEAD_GROWTH))

    def filled(*widths: float) -> float:
        return float(sum(widths) / sum(np.ceil(width / side) * side for width in widths))

    return float(min(1.0, filled(qk, value) / filled(SHARE_HEAD)))


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
    """Time by a table of the chip or its generation; None without.

    Formula:  table(batch, heads, kv_heads, width, piece) * narrow * steps * queries * compute
              scale: steps of a ring, each a causal kernel over piece = keys / steps; queries = a
              sequence's queries / keys; a window: full attention over keys / seen pieces of `seen`
              keys each. width = head_dim and narrow = 1; of FlashAttention 1 and 2, where the table
              is of another kernel, width = max(head_dim, SHARE_HEAD) and narrow = min(1, head_dim /
              SHARE_HEAD)^NARROW_HEAD_GROWTH; packed samples are
              so many more sequences of theirs
    Source:   docs/operators.md, or the user's docs/profile.md; Ring attention (arXiv:2310.01889).
              Narrow heads slow FlashAttention-3 more than FlashAttention-2, whose share of it is
              known at SHARE_HEAD. That a window costs what such pieces cost is assumed: loops over
              keys end soon after they began.
    """
    chip, nearest = site.pool.node.chip, kin(site.pool.node.chip)
    if nearest.relation not in ("itself", "generation"):
        return None
    steps = ring_steps(site)  # of the ring, each over one piece of the keys
    heads, kv_heads = (count / (site.shapes.cp / steps) for count in site.local_heads)
    keys, seen = _sample_keys(site, block), scores_per_query(site, block)
    samples = float(site.keys(block)) / keys
    windowed = block.window is not None and seen < (keys * 0.5 + 64.0 if block.causal else keys)
    piece = np.full_like(steps, seen) if windowed else keys / steps
    width, narrow = float(site.model.head_dim), 1.0
    if _is_older(site) and chip.flash2_share < 1 and chip.tables is None:
        narrow = min(1.0, width / SHARE_HEAD) ** NARROW_HEAD_GROWTH
        width = max(width, SHARE_HEAD)
    found = lookup(
        nearest.table,
        batch=site.shapes.mbs * samples * (keys / seen if windowed else 1.0),
        heads=heads,
        kv_heads=np.clip(kv_heads, 1.0, heads),
        head_dim=width,
        sequence=piece,
        mask="causal" if block.causal and not windowed else "full",
        precision="bf16" if site.activation_bytes <= HALF else half_precision(site),
    )
    if found is None:
        return None
    queries = (
        site.tokens(block) * site.shapes.cp / (site.shapes.mbs * samples * keys)
    )  # fewer than keys in cross attention
    return np.asarray(
        found.seconds
        * narrow
        * steps
        * queries
        * nearest.compute_scale("fp16" if chip.bf16_flops_per_s is None else "bf16")
    )


LATENT_WIDTHS = (192, 128)
"""Widths of queries and keys, and of values, that the tables of latent attention were measured
with: DeepSeek-V3's."""


@makes("attention")
def _measured_latent_s(site: Site, block: Block) -> Floats | None:
    """Forward time of latent attention by a table of the chip or its generation; None without one,
    and for other widths than LATENT_WIDTHS.

    Formula:  table(mbs, heads, piece) * steps * compute scale: steps of a ring, each a causal
              kernel over piece = keys / steps
    Source:   docs/operators.md; Ring attention (arXiv:2310.01889). A user's profile has none.
    """
    nearest = kin(site.pool.node.chip)
    if nearest.relation not in ("itself", "generation") or site.head_widths != LATENT_WIDTHS:
        return None
    if not block.causal or block.window is not None:
        return None
    steps = ring_steps(site)
    found = mla_forward_seconds(
        nearest.table,
        batch=site.shapes.mbs,
        heads=site.local_heads[0] / (site.shapes.cp / steps),
        sequence=site.keys(block) / steps,
    )
    if found is None:
        return None
    return np.asarray(found.seconds * steps * nearest.compute_scale("bf16"))


@makes("attention")
def core_in_memory(site: Site, block: Block) -> Part:
    """Attention in single kernels: 2 batched products forward, 4 backward, passes over scores.

    Formula:  forward = products + passes + ramps; backward = 2 products + passes + ramps, one for
              each of CORE_KERNELS, in eager mode EAGER_PASSES and, in half precision, EAGER_CASTS
              more; a product = max(2 * scores * width / (peak * matmul_share * BATCHED_SHARE), one
              pass over scores); passes = scores * (SOFTMAX_BYTES - SKIPPED_BYTES, fused ones wider
              in fp32, + 5 with dropout); keeps scores * (SCORE_SAVED, + 1 + activation_bytes with
              dropout); eager where `_runs_eagerly`
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   arXiv:2205.05198, equation 2, for what is kept; counting: dropout reads 2, writes 2 +
              1 bytes; ramps and kernels are assumed.
    Valid:    any attention without a window.
    Checked:  tests/cost/test_attention.py::test_bytes_that_scores_in_memory_move
    """
    chip, tokens = site.pool.node.chip, site.tokens(block)
    heads, _ = site.local_heads
    scores = tokens * heads * float(site.keys(block))
    dropout = 5.0 if site.work.dropout else 0.0
    eager = _runs_eagerly(site, heads)

    def by_kernel(fused: float, unfused: float) -> Floats:
        return np.where(eager, unfused, fused * site.activation_bytes / HALF)

    fused, unfused = (
        np.subtract(SOFTMAX_BYTES[name], np.multiply(block.causal, SKIPPED_BYTES[name]))
        for name in _KERNELS
    )
    moved = [scores * (by_kernel(fused[way], unfused[way]) + dropout) for way in (0, 1)]
    more = EAGER_PASSES + EAGER_CASTS * (site.activation_bytes <= HALF)
    kernels = [np.where(eager, count + more, count) for count in CORE_KERNELS]
    precision = half_precision(site)
    rate = chip.peak_flops_per_s(precision) * matmul_share(chip, precision) * BATCHED_SHARE
    pass_s = streaming_s(chip, scores * site.activation_bytes)
    products_s = sum(np.maximum(2.0 * scores * width / rate, pass_s) for width in site.head_widths)
    saved_scores = scores * (
        by_kernel(*(SCORE_SAVED[kernel] for kernel in _KERNELS))
        + (1 + site.activation_bytes) * bool(site.work.dropout)
    )
    return Part(
        name="attention core",
        term="attention",
        forward_s=products_s + streaming_s(chip, moved[0]) + kernels[0] * chip.ramp_s,
        backward_s=2 * products_s + streaming_s(chip, moved[1]) + kernels[1] * chip.ramp_s,
        kernels_forward=kernels[0],
        kernels_backward=kernels[1],
        saved_bytes=saved_scores,
        redone_by=CORE,
        freed_by=CORE,
        flops=2.0 * scores * sum(site.head_widths),
        moved_bytes=moved[0] + 2.0 * scores * site.activation_bytes + core_saved(site, block),
    )


_KERNELS: tuple[AttentionKernel, AttentionKernel] = ("fused-softmax", "unfused")


def _runs_eagerly(site: Site, heads: Floats) -> NDArray[np.bool_]:
    """Whether the passes over scores run one by one, (U,): as told, or because a GPU's fused kernel
    refuses a rank's heads.

    Formula:  unfused, or mbs * heads no multiple of FUSED_IN_FOURS on NVIDIA's and AMD's chips
    Source:   FUSED_IN_FOURS.
    """
    if site.work.attention == "unfused":
        return np.ones(site.shapes.tp.shape, dtype=np.bool_)
    refuses = site.pool.node.chip.vendor in ("NVIDIA", "AMD")
    return np.asarray(refuses & (site.shapes.mbs * heads % FUSED_IN_FOURS != 0))


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
