"""Linear layers: three products, the casts of their operands, adapters, and experts' products in
loops or tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.frozen import frozen_weight_bytes
from meshwright.cost.kernels import element_bytes, gemm_s, streaming_s
from meshwright.cost.operators import FULL, HALF, Part, Site
from meshwright.cost.stages import Floats
from meshwright.values.hardware.tables import Role
from meshwright.values.stack import Stack
from meshwright.values.workload import LoraTarget, Precision

__all__ = ["TARGETS", "linear"]

SMALL_KERNELS: dict[Precision, float] = {
    "fp8": 2.0,
    "fp8-blockwise": 1.0,
    "mxfp8": 1.0,
    "nvfp4": 3.0,
}
"""Small kernels per narrow operand and expert before a loop of products: a cast; per-tensor scales
their maximum as well; NVFP4 also a Hadamard transform (Transformer Engine's quantisers)."""
SWIZZLES: dict[Precision, float] = {"mxfp8": 2.0, "nvfp4": 2.0}
"""Small kernels per product and expert that bring both operands' block scales into cuBLAS's order
(Transformer Engine, swizzle.cu)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Casts:
    """Bytes that preparing the operands of a linear layer in a narrow format moves, beyond what its
    products read and write."""

    input_forward: float
    """Per element of its input."""
    input_backward: float = 0.0
    gradient: float
    """Per element of its output's gradient."""
    data_gradient: float = 0.0
    """Per element of its input's gradient, which is scaled in a pass of its own."""
    weight_forward: float = 0.0
    weight_backward: float = 0.0


TARGETS: dict[str, LoraTarget] = {
    "attention input projection": "linear_qkv",
    "query projection": "linear_qkv",
    "key and value projection": "linear_qkv",
    "key-value down projection": "linear_qkv",
    "query down projection": "linear_qkv",
    "latent up projection": "linear_qkv",
    "mixer input projection": "linear_qkv",
    "attention output projection": "linear_proj",
    "mixer output projection": "linear_proj",
    "feed-forward first layer": "linear_fc1",
    "experts first layer": "linear_fc1",
    "shared experts first layer": "linear_fc1",
    "feed-forward second layer": "linear_fc2",
    "experts second layer": "linear_fc2",
    "shared experts second layer": "linear_fc2",
}
"""What `lora_targets` calls a layer; head, router and the projections around latent experts never
have an adapter."""
TURNED = 2.2 / 1.4
"""Time of a cast that writes columns as well, or alone, against one that writes rows: the kernels
that torch.compile makes reach 1.4 and 2.2 TB/s on one H100 (pytorch issue 133242); Triton's own for
columns of MXFP8 twice (pytorch/ao pull request 1869) the compiled one's 0.65 against 2.1 (pytorch
issue 149982), the same."""
TORCHAO_CASTS: dict[Precision, Casts] = {
    "fp8": Casts(input_forward=5.0, input_backward=3.0 * TURNED, gradient=2.0 + 4.0 * TURNED),
    "fp8-blockwise": Casts(
        input_forward=3.0,
        input_backward=4.0 * TURNED + 3.0,
        gradient=5.0 * TURNED + 3.0,
        data_gradient=4.0,
        weight_forward=3.0,
        weight_backward=4.0 * TURNED + 3.0 + 4.0,
    ),
    "mxfp8": Casts(
        input_forward=3.0,
        input_backward=3.0 * TURNED,
        gradient=3.0 + 3.0 * TURNED,
        weight_forward=3.0,
        weight_backward=3.0 * TURNED,
    ),
}
"""torchao's under torch.compile, which keeps inputs in half precision and casts them once more for
the gradient of the weights (it lists its kernels in testing/training/roofline_utils.py). One scale
a tensor: maximum (2), cast (3); cast (3); of gradients maximum (2), both casts (4); of weights each
rank's own shard alone, gathered in 8 bits. By row: cast (3); transposed copy (4), cast (3); of
gradients cast and transposed copy (5), cast (3); backward products are scaled behind cuBLAS (4,
also of the weights' gradient: float8/float8_ops.py). MXFP8: a cast by rows and one by columns (3
each). What writes columns takes TURNED times as long."""


@makes("matmul")
def linear(
    site: Site,
    name: str,
    *,
    into: Floats,
    out: Floats,
    tokens: Floats,
    saved: Floats | float = 0.0,
    groups: Floats | float = 1.0,
    redone_by: frozenset[str] = frozenset(),
    freed_by: frozenset[str] = frozenset(),
) -> Part:
    """Price a linear layer of one rank: forward, gradient of its input, gradient of its weights.

    Formula:  gemm(tokens, out, into) + gemm(tokens, into, out) + gemm(into, out, tokens); low
              precision adds casts of the input and the output's gradient (read half precision,
              write both orientations; torchao's by TORCHAO_CASTS); with frozen weights no weight
              gradient and casts for one orientation, and of the layers of lora_targets the passes
              of a low-rank adapter (ADAPTER_BYTES), and `_unpack_s` both ways; where gradients are
              added up in a pass of their own, the stack's `accumulate_bytes` per weight; experts by
              megablox in whole tiles
    Units:    seconds, (U,).
    Source:   Megatron-LM (arXiv:1909.08053); Transformer Engine's cast-transpose for fp8; torchao's
              kernels.
    Valid:    `groups` experts in one grouped product.
    Checked:  tests/cost/test_operators.py
    """
    products = _products_s(site, into=into, out=out, rows=tokens, groups=groups)
    forward, data, weight = products.forward, products.data, products.weight
    loops = np.where(np.asarray(groups) > 1, groups, 0.0) * np.ones_like(forward)
    size = element_bytes(site.work.precision)
    casts, nothing = float(size <= 1), np.zeros_like(forward)
    cast_forward = cast_backward = adapter_forward = adapter_backward = nothing
    if casts:
        rows, weights = tokens * groups, groups * into * out
        cast_forward, cast_backward = _casts_s(site, into=into, out=out, rows=rows, weights=weights)
    backward_products = 1.0 if site.work.lora_rank else 2.0
    small_forward, small_backward = _small_kernels(site, backward_products)
    each, python = _small_kernel_s(site), site.stack.kernels_per_layer_scale
    adapter_kernels = _adapter_kernels(site)
    unpack = _unpack_s(site, name, weights=groups * into * out)
    forward, data = forward + unpack, data + unpack
    if site.adapted(TARGETS.get(name)):
        rows = tokens * groups
        adapter_forward, adapter_backward = _adapter_s(site, into=into, out=out, tokens=rows)
    return Part(
        name=name,
        term="matmul",
        forward_s=forward + cast_forward + loops * small_forward * each + adapter_forward,
        backward_s=data + weight + cast_backward + loops * small_backward * each + adapter_backward,
        weight_s=weight,
        kernels_forward=1.0
        + casts
        + loops * (1.0 + small_forward) / python
        + (adapter_forward > 0) * adapter_kernels[0],
        kernels_backward=backward_products * (1.0 + casts)
        + loops * (backward_products + small_backward) / python
        + (adapter_backward > 0) * adapter_kernels[1],
        saved_bytes=saved,
        redone_by=redone_by,
        freed_by=freed_by,
        flops=2.0 * tokens * out * into * groups,
        moved_bytes=groups * (size * (tokens * into + into * out) + max(size, HALF) * tokens * out),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Products:
    """Seconds of a layer's three matrix products, (U,) each."""

    forward: Floats
    data: Floats
    weight: Floats
    """With the pass that adds it up, where there is one; 0 for frozen weights."""


def _products_s(
    site: Site, *, into: Floats, out: Floats, rows: Floats, groups: Floats | float
) -> _Products:
    """Seconds of a linear layer's three matrix products.

    Formula:  gemm(rows, out, into), gemm(rows, into, out), gemm(out, into, rows); the last + groups
              * into * out * accumulate_bytes / memory rate + ramp where a pass adds gradients up, 0
              of frozen weights; several experts by megablox in whole tiles
    Units:    seconds, (U,).
    Source:   Megatron-LM (arXiv:1909.08053), section 3; `gemm_s`, `_megablox_s`; a stack's passes:
              its stack.toml.
    """
    chip, precision = site.pool.node.chip, site.work.precision
    at_once = STREAMS if site.stack.grouped_products == "streams" else None

    def product(m: Floats, n: Floats, k: Floats, role: Role) -> Floats:
        return gemm_s(
            chip, m=m, n=n, k=k, precision=precision, groups=groups, at_once=at_once, role=role
        )

    forward = product(rows, out, into, "forward")
    data = product(rows, into, out, "dgrad")
    weight = product(out, into, rows, _weight_role(site.stack))
    moe = site.model.moe
    dropless = moe is not None and not (moe.capacity_factor or site.stack.expert_capacity)
    if site.stack.grouped_products == "megablox" and dropless:
        tiled = _megablox_s(site, into=into, out=out, rows=rows, groups=groups)
        several = np.asarray(groups) > 1
        forward = np.where(several, tiled.forward, forward)
        data = np.where(several, tiled.data, data)
        weight = np.where(several, tiled.weight, weight)
    if site.stack.accumulate_bytes:
        weight = (
            weight
            + streaming_s(chip, groups * into * out * site.stack.accumulate_bytes)
            + chip.ramp_s
        )
    return _Products(
        forward=forward, data=data, weight=np.zeros_like(weight) if site.work.lora_rank else weight
    )


STREAMS = 2.0
"""Products of experts that run at a time where each is a kernel of its own: hardware queues that
Primus's scripts give a GPU (GPU_MAX_HW_QUEUES=2, examples/moe_package)."""
MEGABLOX_ROWS, MEGABLOX_WIDTH = 512.0, 1024.0
"""Rows, and either other side, of a tile of MaxText's grouped kernel (tile_batch_seq,
tile_embed_dim and tile_mlp_dim of its configs/base.yml)."""


def _megablox_s(
    site: Site, *, into: Floats, out: Floats, rows: Floats, groups: Floats | float
) -> _Products:
    """Time of the rows' product with the experts' weights, and of the gradients of either.

    Formula:  max(gemm, bytes / memory rate) of sides rounded up to whole tiles, rows +
              MEGABLOX_ROWS; bytes = steps * size * (both operands' tiles), steps = groups * rows *
              wide * deep / (product of a tile's sides); the data gradient is a product of the
              output's side
    Units:    seconds, (U,).
    Source:   MaxText's kernels/megablox: experts begin and end inside tiles of rows, which are
              computed whole for either neighbour, a tile more for each (make_group_metadata); each
              step reads both operands' tiles again, as the inner side is the grid's innermost.
    """
    chip, precision = site.pool.node.chip, site.work.precision
    padded = rows + MEGABLOX_ROWS
    tiles = [np.minimum(MEGABLOX_WIDTH, side) for side in (into, out)]
    wide, deep = (
        np.ceil(side / tile) * tile for side, tile in zip((into, out), tiles, strict=True)
    )
    steps = groups * padded * wide * deep / (MEGABLOX_ROWS * tiles[0] * tiles[1])

    def product(m: Floats, n: Floats, k: Floats, role: Role, read: Floats) -> Floats:
        time = gemm_s(chip, m=m, n=n, k=k, precision=precision, groups=groups, role=role)
        return np.maximum(time, streaming_s(chip, steps * element_bytes(precision) * read))

    both = tiles[0] * tiles[1]
    return _Products(
        forward=product(padded, deep, wide, "forward", MEGABLOX_ROWS * tiles[0] + both),
        data=product(padded, wide, deep, "dgrad", MEGABLOX_ROWS * tiles[1] + both),
        weight=product(deep, wide, padded, "wgrad", MEGABLOX_ROWS * (tiles[0] + tiles[1])),
    )


ADAPTER_BYTES = ((2.0, 8.0), (10.0, 4.0))
"""Bytes of half precision that a low-rank adapter moves per element of the layer's input and of its
output, forward and backward. Forward: read the input (2); write the correction (2), read it and the
layer's output and write their sum (6). Backward: read the input (2), write its correction (2), add
it to the layer's (6); read the output's gradient for either factor (2 + 2). The narrow products
between are too small to count (LoRA, arXiv:2106.09685, section 4.1)."""
SCALE_BYTES = 4.0
"""Bytes per element of the output, each way, where the whole correction is scaled by alpha / rank
in a pass of its own: read and write (ParallelLinearAdapter.forward of Megatron-Bridge's and NeMo's
peft/utils.py; PEFT's `lora_B(lora_A(x)) * scaling`)."""
ADAPTER_KERNELS = (3.0, 5.0)
"""Kernels of an adapter beside scaling, forward and backward: two products, sum; four products,
sum."""


def _unpack_s(site: Site, name: str, *, weights: Floats) -> Floats | float:
    """Time in which a frozen layer's weights of four bits are cast for a product.

    Formula:  weights * (NF4_BYTES + HALF) / memory rate + ramp; 0 of weights kept otherwise, and of
              layers that are never cut to four bits
    Units:    seconds, (U,).
    Source:   bitsandbytes' MatMul4Bit (autograd/_functions.py): dequantize_4bit before the product,
              forward and backward.
    """
    chip = site.pool.node.chip
    kept = frozen_weight_bytes(site.work, site.stack, chip)
    if not site.work.lora_rank or kept >= 1.0 or TARGETS.get(name) is None:
        return 0.0
    return streaming_s(chip, weights * (kept + HALF)) + chip.ramp_s


def _adapter_kernels(site: Site) -> tuple[float, float]:
    """Kernels of an adapter, forward and backward.

    Formula:  ADAPTER_KERNELS, and one each way that scales
    Units:    kernels.
    Source:   counting.
    """
    scaling = 0.0 if site.stack.adapter_scale_fused else 1.0
    return ADAPTER_KERNELS[0] + scaling, ADAPTER_KERNELS[1] + scaling


def _adapter_s(site: Site, *, into: Floats, out: Floats, tokens: Floats) -> tuple[Floats, Floats]:
    """Forward and backward time of the adapter beside a frozen linear layer: its passes over the
    layer's input and output.

    Formula:  tokens * (of_input * into + (of_output + scaling) * out) / memory rate + kernels *
              ramp; scaling = SCALE_BYTES where it is a pass of its own
    Units:    seconds, (U,).
    Source:   LoRA (arXiv:2106.09685), section 4.1, counted at ADAPTER_BYTES.
    """
    chip = site.pool.node.chip
    scaling = 0.0 if site.stack.adapter_scale_fused else SCALE_BYTES
    moved = (
        tokens * (of_input * into + (of_output + scaling) * out)
        for of_input, of_output in ADAPTER_BYTES
    )
    forward, backward = (
        streaming_s(chip, each) + kernels * chip.ramp_s
        for each, kernels in zip(moved, _adapter_kernels(site), strict=True)
    )
    return forward, backward


def _casts_s(
    site: Site, *, into: Floats, out: Floats, rows: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Forward and backward time of preparing a linear layer's operands in a narrow format:
    Transformer Engine's casts, in one pass; torchao's where inputs are kept in half precision.

    Formula:  forward: rows * into * input_forward + weights * weight_forward; backward: rows *
              (into * (input_backward + data_gradient) + out * gradient) + weights *
              weight_backward; each a pass with its ramp
    Units:    seconds, (U,).
    Source:   TORCHAO_CASTS; Transformer Engine's cast-transpose: counted as a read of half
              precision and a write of either orientation, of one where weights are frozen: columns
              are for their gradient (set_usage of its module/linear.py).
    """
    one_pass = HALF + (1.0 if site.work.lora_rank else 2.0) * element_bytes(site.work.precision)
    fused = Casts(input_forward=one_pass, gradient=one_pass)
    torchao = site.stack.narrow_linear != "transformer-engine"
    cast = TORCHAO_CASTS.get(site.work.precision, fused) if torchao else fused
    forward = rows * into * cast.input_forward + weights * cast.weight_forward
    backward = (
        rows * (into * (cast.input_backward + cast.data_gradient) + out * cast.gradient)
        + weights * cast.weight_backward
    )
    return site.streaming(forward), site.streaming(backward)


def _small_kernels(site: Site, backward_products: float) -> tuple[float, float]:
    """Kernels that prepare one expert's narrow operands, forward and backward.

    Formula:  casts of an operand + 2 scale passes per product; one product forward,
              backward_products backward; 0 in half precision
    Units:    kernels.
    Source:   Transformer Engine's GroupedLinear loops over experts, without Python: its launches
              count once, others `kernels_per_layer_scale` times.
    """
    precision = site.work.precision
    cast, swizzle = SMALL_KERNELS.get(precision, 0.0), SWIZZLES.get(precision, 0.0)
    return cast + swizzle, cast + backward_products * swizzle


def _small_kernel_s(site: Site) -> float:
    """Time of one such kernel, which is shorter than its launch.

    Formula:  max(launch_s * (1 - launch_hidden), ramp_s)
    Units:    seconds.
    Source:   counting: the slower of host and chip; `Chip.launch_s`, `Chip.ramp_s`.
    """
    chip = site.pool.node.chip
    return max(chip.launch_s * (1.0 - site.stack.launch_hidden), chip.ramp_s)


def _weight_role(stack: Stack) -> Role:
    """How the gradient of the weights reaches its sum: in one product with an fp32 sum, with one of
    its own beside it, or alone. A second gradient as wide as the sum is a bucket, a copy that no
    product makes."""
    if 0.0 < stack.transient_gradient_bytes < stack.gradient_bytes or stack.embedded:
        return "main_grad"
    return (
        "main_grad_fused"
        if stack.family == "megatron" and stack.gradient_bytes == FULL
        else "wgrad"
    )
