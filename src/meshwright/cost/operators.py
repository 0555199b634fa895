"""Parts: the operators of a block with their time, kernels and what they keep for the backward
pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.collectives import Group, all_gather_s, all_reduce_s, group_of
from meshwright.cost.kernels import (
    EagerPass,
    eager_s,
    element_bytes,
    kind_of_activations,
    own_s,
    streaming_s,
)
from meshwright.cost.stages import Floats, Shapes, block_tokens, stream_seq_len
from meshwright.values.hardware.cluster import Pool
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import LoraTarget, Workload

__all__ = [
    "FULL",
    "HALF",
    "Part",
    "Site",
    "Term",
    "as_measured",
    "eager",
    "norm",
    "norm_output",
    "passes",
    "tensor_exchange",
]

Term = Literal["matmul", "attention", "pointwise", "tp_comm", "cp_comm", "ep_comm", "head"]
FULL = 4.0
"""Bytes of a number in fp32."""
HALF = 2.0
"""Bytes of an activation in half precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where parts are priced: everything but the block itself."""

    model: ModelSpec
    work: Workload
    stack: Stack
    pool: Pool
    shapes: Shapes

    @property
    def activation_bytes(self) -> float:
        """Bytes of one activation element."""
        return 4.0 if self.work.precision in ("fp32", "tf32") else HALF

    @property
    def saved_input_bytes(self) -> float:
        """Bytes in which a linear layer keeps its input: one byte in fp8 where the software keeps
        the narrow one."""
        if self.stack.narrow_linear != "transformer-engine":
            return self.activation_bytes
        return min(self.activation_bytes, max(1.0, element_bytes(self.work.precision)))

    def adapted(self, target: LoraTarget | None) -> bool:
        """Whether an adapter stands beside a linear layer."""
        return self.work.lora_rank > 0 and target in self.work.lora_targets

    def kept_input_bytes(self, target: LoraTarget | None) -> float:
        """Bytes in which a linear layer keeps its input for the gradient of its weights: none where
        they are frozen, unless an adapter beside it reads the half-precision one."""
        if not self.work.lora_rank:
            return self.saved_input_bytes
        return self.activation_bytes if self.adapted(target) else 0.0

    @property
    def kept_context_bytes(self) -> float:
        """Bytes in which attention's output is kept: by the layer behind it, as its input, or in a
        format of its own where those are narrow; where that keeps none, by fused attention, whose
        backward pass reads it."""
        kept = self.kept_input_bytes("linear_proj")
        if 0 < kept < self.activation_bytes and self.stack.attention_output_bytes:
            return self.stack.attention_output_bytes
        return kept or self.activation_bytes * (self.work.attention in ("flash", "flash1"))

    @property
    def gathered_bytes(self) -> tuple[float, float]:
        """Bytes of an element that sequence parallelism gathers, forward and backward.

        Transformer Engine gathers what it has cast (gather_along_first_dim of its
        pytorch/distributed.py): inputs by rows; gradients of outputs by rows and by columns, but
        for those of one scale a tensor, which are turned after it.
        """
        wide, precision = self.activation_bytes, self.work.precision
        if self.stack.narrow_linear == "torchao-gathers" and precision == "fp8":
            return 1.0, 1.0
        cast = self.stack.narrow_linear == "transformer-engine" and self.stack.family == "megatron"
        if not cast or element_bytes(precision) > 1.0:
            return wide, wide
        each = element_bytes(precision)
        return each, each if precision == "fp8" else min(wide, 2.0 * each)

    @property
    def gathers_alone(self) -> bool:
        """Whether no product hides its gather: torch's asynchronous tensor parallelism finds no
        pattern where torchao scales by row (pytorch issue 149990)."""
        torchao = self.stack.narrow_linear != "transformer-engine"
        return torchao and self.work.precision == "fp8-blockwise"

    @property
    def local_heads(self) -> tuple[Floats, Floats]:
        """Query and key-value heads of one rank; with fewer key-value heads than ranks each keeps
        one."""
        tp = self.shapes.tp
        return self.model.num_heads / tp, np.maximum(self.model.num_kv_heads / tp, 1.0)

    @property
    def head_widths(self) -> tuple[int, int]:
        """Width of one head's query-key product and of its value."""
        mla = self.model.mla
        if mla is None:
            return self.model.head_dim, self.model.head_dim
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim

    def tokens(self, block: Block) -> Floats:
        """Tokens of one micro batch before tensor parallelism, (U,)."""
        return block_tokens(self.model, block, self.work, self.shapes)

    def split_tokens(self, block: Block) -> Floats:
        """Tokens that norms and residuals of one rank see, (U,)."""
        return self.tokens(block) / self.shapes.sequence_shards

    def keys(self, block: Block) -> int:
        """Keys that a query could see: the stream's own sequence, or the encoder's for cross
        attention."""
        return (
            self.work.seq_len
            if block.kind == "cross_attention"
            else stream_seq_len(self.model, block, self.work)
        )

    def key_tokens(self, block: Block) -> Floats:
        """Tokens of one micro batch that keys and values are made of, (U,): the encoder's for cross
        attention."""
        return self.shapes.mbs * self.keys(block) / self.shapes.cp

    def tp_group(self) -> Group:
        """Return the tensor-parallel group."""
        return group_of(self.shapes.tp, np.ones_like(self.shapes.tp), self.pool)

    def streaming(self, bytes_moved: Floats) -> Floats:
        """Return the time of one memory pass with its ramp."""
        return streaming_s(self.pool.node.chip, bytes_moved) + self.pool.node.chip.ramp_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One operator of one block on one rank and one micro batch; arrays of shape (U,)."""

    name: str
    term: Term
    forward_s: Floats
    backward_s: Floats
    kernels_forward: Floats | float = 1.0
    kernels_backward: Floats | float = 1.0
    saved_bytes: Floats | float = 0.0
    """Kept from the forward to the backward pass."""
    redone_by: frozenset[str] = frozenset()
    """Recompute modules under which it runs forward again (`full` redoes all)."""
    freed_by: frozenset[str] = frozenset()
    """Recompute modules under which `saved_bytes` is not kept."""
    weight_s: Floats | float = 0.0
    """Of `backward_s`, the gradient of the weights, which a zero-bubble schedule can postpone."""
    unread_s: Floats | float = 0.0
    """Of `forward_s`, what only makes the layer's output, and so need not run again where recompute
    stops early."""
    gather_s: Floats | float = 0.0
    """Of `forward_s`, gathers of the block's input, which checkpointing by operator runs again."""
    flops: Floats | float = 0.0
    """Arithmetic of the forward pass that matrix units do."""
    moved_bytes: Floats | float = 0.0
    """Device memory that the forward pass reads and writes at the least: operands and results once
    each; 0 for exchanges."""
    sent_bytes: Floats | float = 0.0
    """Of an exchange: the sizes of the collectives and messages of the forward pass, hidden or
    not."""


@makes("pointwise")
def passes(
    site: Site,
    name: str,
    *,
    forward_bytes: Floats,
    backward_bytes: Floats,
    kernels: float = 1.0,
    saved: Floats | float = 0.0,
    redone_by: frozenset[str] = frozenset(),
    freed_by: frozenset[str] = frozenset(),
) -> Part:
    """Price memory-bound work by the bytes that it reads and writes; without fused kernels each
    takes twice the passes.

    Formula:  bytes / (bandwidth * efficiency) + ramp per kernel
    Units:    seconds, (U,).
    Source:   roofline; twice: an eager framework writes and reads each intermediate once more.
    Valid:    element-wise work and norms.
    Checked:  tests/cost/test_operators.py
    """
    scale = 1.0 if site.stack.pointwise_fused else 2.0
    chip = site.pool.node.chip
    forward = streaming_s(chip, forward_bytes * scale) + kernels * scale * chip.ramp_s
    backward = streaming_s(chip, backward_bytes * scale) + kernels * scale * chip.ramp_s
    return Part(
        name=name,
        term="pointwise",
        forward_s=forward,
        backward_s=backward,
        kernels_forward=kernels * scale,
        kernels_backward=kernels * scale,
        saved_bytes=saved,
        redone_by=redone_by,
        freed_by=freed_by,
        moved_bytes=forward_bytes * scale,
    )


@makes("pointwise")
def eager(
    site: Site,
    name: str,
    *,
    elements: Floats,
    forward: tuple[EagerPass, ...],
    backward: tuple[EagerPass, ...],
    kernels: tuple[Floats | float, Floats | float],
    saved: Floats | float = 0.0,
    redone_by: frozenset[str] = frozenset(),
    freed_by: frozenset[str] = frozenset(),
) -> Part:
    """Price what software that fuses the rest leaves to plain PyTorch, kernel by kernel; `kernels`
    are those of either pass.

    Formula:  eager_s(passes) + ramp per kernel; the host launches a kernel without the Python of a
              module around it, so that it counts 1 / `kernels_per_layer_scale` of an operator
    Units:    seconds, (U,).
    Source:   the software's own lines, named where the passes are.
    Valid:    element-wise work.
    Checked:  tests/cost/test_operators.py
    """
    chip, python = site.pool.node.chip, site.stack.kernels_per_layer_scale
    return Part(
        name=name,
        term="pointwise",
        forward_s=eager_s(chip, forward, elements=elements) + kernels[0] * chip.ramp_s,
        backward_s=eager_s(chip, backward, elements=elements) + kernels[1] * chip.ramp_s,
        kernels_forward=kernels[0] / python,
        kernels_backward=kernels[1] / python,
        saved_bytes=saved,
        redone_by=redone_by,
        freed_by=freed_by,
        moved_bytes=elements * sum(each.count * (each.read + each.written) for each in forward),
    )


def as_measured(
    site: Site, part: Part, *pieces: tuple[str, float, tuple[Floats | float, ...]]
) -> Part:
    """Return the part with the times of the user's profile: `pieces` are the operators that it
    runs, how often, and their shapes.

    Formula:  sum over pieces of count * the profile's time, forward and backward
    Units:    seconds, (U,).
    Source:   docs/profile.md: torch's own functions, run op by op.
    Valid:    the embedded trainer; others, and what the profile lacks, stay by bytes.
    Checked:  tests/cost/test_measured.py::test_activations_are_those_measured
    """
    chip, kind = site.pool.node.chip, kind_of_activations(site.work.precision)
    if not site.stack.embedded:
        return part
    total = []
    for way in ("", "_backward"):
        times = [
            (count, own_s(chip, f"{name}{way}/{kind}", *shape)) for name, count, shape in pieces
        ]
        known = [count * seconds for count, seconds in times if seconds is not None]
        if len(known) < len(times):
            return part
        total.append(np.asarray(sum(known)))
    return replace(part, forward_s=total[0], backward_s=total[1])


UNFUSED_NORM_BYTES = 40.0
"""Bytes per element of a norm in eager mode: cast to fp32 (6), square (8), mean (4), multiply (8 +
4), cast (6), scale (4)."""
UNFUSED_NORM_SAVED = 10.0
"""Bytes per element that eager autograd keeps of a norm beyond its input: the fp32 copy (4), its
normalised form (4), a half copy (2)."""


@makes("pointwise")
def norm(site: Site, block: Block, count: float) -> Part:
    """Price `count` norms with the residual sum before each.

    Formula:  forward: read sum's operands, write sum and norm (5 elements); backward: 6 elements
    Units:    seconds, (U,).
    Source:   counted reads and writes.
    Valid:    RMSNorm and LayerNorm.
    Checked:  tests/cost/test_operators.py
    """
    tokens, size = site.split_tokens(block), site.activation_bytes
    elements = tokens * site.model.hidden * count
    dropout = 1.0 if site.work.dropout else 0.0
    saved = elements * (size + dropout)
    redo = frozenset({"layernorm"})
    if site.work.fused_norm:
        cost = passes(
            site,
            "norm",
            forward_bytes=elements * 5 * size,
            backward_bytes=elements * 6 * size,
            kernels=2 * count,
            redone_by=redo,
        )
        cost = as_measured(
            site,
            cost,
            (
                "rmsnorm" if site.model.norm == "rmsnorm" else "layernorm",
                count,
                (tokens, float(site.model.hidden)),
            ),
            ("residual", count, (elements / max(count, 1e-9),)),
        )
        return replace(cost, saved_bytes=saved)
    extra = elements * UNFUSED_NORM_SAVED
    forward = elements * (3 * size + UNFUSED_NORM_BYTES)
    cost = passes(
        site,
        "norm",
        forward_bytes=forward,
        backward_bytes=2 * forward,
        kernels=8 * count,
        redone_by=redo,
    )
    return replace(cost, saved_bytes=saved + extra)


def norm_output(site: Site, block: Block) -> Part:
    """Return what the linear layer behind a norm keeps of it, apart from the norm's own input.

    Formula:  tokens * hidden in the bytes of a linear layer's input, none of a frozen one without
              an adapter; no time; freed when norms are redone
    Units:    bytes per micro batch and rank, (U,).
    Source:   Korthikanti et al. (arXiv:2205.05198), section 4.1: inputs of the linear layers.
    Valid:    one norm before the block.
    Checked:  tests/cost/test_operators.py
    """
    elements = site.split_tokens(block) * site.model.hidden
    zero = np.zeros_like(elements)
    first: LoraTarget = "linear_fc1" if block.kind in ("mlp", "moe") else "linear_qkv"
    return Part(
        name="norm output",
        term="pointwise",
        forward_s=zero,
        backward_s=zero,
        kernels_forward=0,
        kernels_backward=0,
        saved_bytes=elements * site.kept_input_bytes(first),
        freed_by=frozenset({"layernorm"}),
    )


@makes("tp_comm")
def tensor_exchange(site: Site, block: Block, redone_by: frozenset[str] = frozenset()) -> Part:
    """Price a block's tensor-parallel collectives.

    Formula:  forward and backward each: one all-reduce of the activations, or with sequence
              parallelism one all-gather and one reduce-scatter (backward gathers the input once
              more for the weights' gradient, behind the data gradient); times the share that the
              stack does not hide: all of it across domains, over PCIe, and of layers that user
              buffers do not take. Gathers are of `Site.gathered_bytes` an element (of latents of
              half precision), not hidden where the stack says so, and gradients scattered once for
              each product that reads the input. Where its tensors
              have the sequence behind the batch, a copy of the whole input after the gather and one
              before the scatter, with several sequences in a micro batch
    Units:    seconds, (U,).
    Source:   Megatron-LM (arXiv:1909.08053), Korthikanti et al. (arXiv:2205.05198) section 4.2.2;
              Transformer Engine's user buffers overlap within an NVLink domain only; copies:
              `gather_dim` and `scatter_dim` of torch's _functional_collectives.py; 8 bits:
              torchao/float8/float8_tensor_parallel.py, transformer_engine/pytorch/distributed.py.
    Valid:    one column-parallel and one row-parallel layer per block.
    Checked:  tests/cost/test_operators.py
    """
    group = site.tp_group()
    elements = site.tokens(block) * site.model.hidden
    size = elements * site.activation_bytes
    split = site.shapes.sp > 0
    taken = site.model.takes_user_buffers & split if site.stack.family == "megatron" else True
    hides = (group.local >= group.size) & site.pool.node.domain_link.maps_peers & taken
    shown = 1.0 - np.where(hides, site.stack.tp_overlap, 0.0)
    share = _gathered_width(site, block) / site.model.hidden
    latent = site.model.mla is not None and block.kind == "attention"
    widths = (site.activation_bytes,) * 2 if latent else site.gathered_bytes
    order = site.stack.sequence_parallel
    strided = (order != "megatron") * (split & (site.shapes.tp > 1) & (site.shapes.mbs > 1))
    gather, gather_again = (
        all_gather_s(group, sent) * (1.0 if site.gathers_alone else shown)
        + strided * site.streaming(2.0 * sent)
        for sent in (elements * width * share for width in widths)
    )
    scatter = all_gather_s(group, size) * shown + strided * site.streaming(2.0 * size)
    whole = all_reduce_s(group, size) * shown
    products = _input_products(site, block) if order == "dtensor-per-product" else 1.0
    kernels = np.where(site.shapes.tp > 1, np.where(split, 2.0, 1.0), 0.0)
    return Part(
        name="tensor parallel exchange",
        term="tp_comm",
        forward_s=np.where(split, gather + scatter, whole),
        backward_s=np.where(split, gather_again + products * scatter, whole),
        kernels_forward=kernels,
        kernels_backward=kernels + split * (site.shapes.tp > 1) * (products - 1.0),
        redone_by=redone_by,
        gather_s=np.where(split, gather, 0.0),
        sent_bytes=np.where(
            site.shapes.tp > 1, np.where(split, elements * widths[0] * share + size, size), 0.0
        ),
    )


def _gathered_width(site: Site, block: Block) -> float:
    """Elements of a token that sequence parallelism gathers before a block's products.

    Formula:  hidden; latent attention of Megatron-Core q_lora_rank + kv_lora_rank + qk_rope, or
              hidden + kv_lora_rank + qk_rope where queries have no latent
    Units:    elements.
    Source:   Megatron-Core's multi_latent_attention.py: down projections are duplicated and run on
              split tokens, gather_from_sequence_parallel_region takes what comes out of them.
    """
    mla, hidden = site.model.mla, float(site.model.hidden)
    if mla is None or block.kind != "attention" or site.stack.family != "megatron":
        return hidden
    return (mla.q_lora_rank or hidden) + mla.kv_lora_rank + mla.qk_rope_head_dim


def _input_products(site: Site, block: Block) -> float:
    """Products that read a block's input: queries, keys and values; gate and other half."""
    if block.kind in ("attention", "cross_attention"):
        return 3.0
    return 2.0 if site.model.gated else 1.0
