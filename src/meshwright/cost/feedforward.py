"""Dense and expert feed-forward blocks, part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.cost.kernels import EagerPass
from meshwright.cost.linear import linear
from meshwright.cost.operators import (
    Part,
    Site,
    as_measured,
    eager,
    norm,
    norm_output,
    passes,
    tensor_exchange,
)
from meshwright.cost.routing import routed_rows, routing_parts
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block

__all__ = ["feedforward_output_bytes", "mlp_parts", "moe_parts"]

MLP = frozenset({"mlp"})
MOE = frozenset({"moe"})
DENSE_ACTIVATION = frozenset({"mlp", "mlp_act"})
EXPERT_ACTIVATION = frozenset({"moe", "moe_act"})
SHARED = frozenset({"moe", "shared_experts"})


EXPERT_BIAS_FORWARD = (
    EagerPass(read=0.0, written=4.0),  # bias times probability, both broadcast
    EagerPass(read=6.0, written=4.0),  # sum
    EagerPass(read=4.0, written=4.0, wide=True),  # parts joined
    EagerPass(read=4.0, written=2.0),  # cast
)
EXPERT_BIAS_BACKWARD = (
    EagerPass(read=2.0, written=4.0),  # cast
    EagerPass(read=4.0, written=2.0),  # gradient of a part
    EagerPass(read=2.0, written=2.0, wide=True),  # parts joined
    EagerPass(
        read=4.0, written=4.0, count=2.0
    ),  # products for the gradients of biases and probabilities
    EagerPass(read=4.0, written=0.0, count=2.0, wide=True),  # their sums
)
"""Passes per output element that the biases of the experts' second layers take: no kernel is fused
there, as each expert's bias is weighed by its tokens' probabilities in fp32, expert by expert
(`_apply_bias` of megatron/core/transformer/moe/experts.py)."""
EXPERT_BIAS_KERNELS = ((2.0, 2.0), (6.0, 2.0))
"""Kernels of one expert, and those of all, forward and backward."""
CLAMP_FORWARD = (
    EagerPass(read=2.0, written=2.0, count=2.0),
    EagerPass(read=2.0, written=2.0, count=2.0, wide=True),
)
CLAMP_BACKWARD = (
    EagerPass(read=2.0, written=1.0, count=4.0),  # three comparisons, and their conjunction
    EagerPass(read=3.0, written=2.0, count=2.0),  # selection
    EagerPass(read=2.0, written=2.0, count=2.0, wide=True),  # halves joined
)
"""Passes per inner element of an expert whose gate is clamped before the fused activation: both
halves of the first layer's output in strides, joined again (`weighted_bias_quick_geglu_impl` of
megatron/core/fusions/fused_bias_geglu.py); `clamp_backward` of torch compares and selects. The
clamped copy is kept for the activation's backward pass beside the output itself for the clamp's."""
CLAMP_KERNELS = (3.0, 7.0)


_UNREAD_OF_EXPERTS = {
    "experts second layer": 1.0,
    "shared experts second layer": 1.0,
    "expert exchange": 0.5,
}
"""Shares of a mixture's forward that only make its output: routed rows are weighted before their
second product (torchtitan's score_before_experts; the weighted SwiGLU of Megatron-Core and NeMo
AutoModel), and then sent back."""


def mlp_parts(site: Site, block: Block) -> list[Part]:
    """Return the parts of a dense feed-forward.

    Formula:  norm, first layer (twice as wide where gated), activation, second layer,
              tensor-parallel exchange; where the stack's recompute stops early, the second layer
              and the exchange behind it are `unread_s`
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Megatron-LM (arXiv:1909.08053); gated units (arXiv:2002.05202); torch.utils.checkpoint
              (non-reentrant checkpointing stops once every tensor that backward asks for is there),
              and compilers drop what nothing reads.
    Valid:    any ModelSpec with dense layers; the feed-forward is a layer's last block.
    Checked:  tests/cost/test_feedforward.py
    """
    tokens = site.tokens(block)
    width = site.model.ffn / site.shapes.tp
    inner = _two_layers(
        site,
        "feed-forward",
        tokens,
        np.full_like(tokens, float(site.model.hidden)),
        width,
        1.0,
        MLP,
        DENSE_ACTIVATION,
    )
    count = site.model.norms_per_layer / 2
    exchange = tensor_exchange(site, block, MLP)
    if site.stack.recompute_stops_early and count <= 1:  # a norm behind the block reads its output
        inner[-1] = replace(inner[-1], unread_s=inner[-1].forward_s)
        exchange = replace(exchange, unread_s=exchange.forward_s - exchange.gather_s)
    return [norm(site, block, count), norm_output(site, block), *inner, exchange]


def _two_layers(
    site: Site,
    name: str,
    tokens: Floats,
    into: Floats,
    width: Floats,
    groups: Floats | float,
    redo: frozenset[str],
    redo_activation: frozenset[str],
) -> list[Part]:
    """Widen, activate, narrow: `groups` times (experts) on `tokens` each.

    Formula:  linear(into, matrices * width), passes, linear(width, into); elements = tokens *
              groups * width; passes move (matrices + 1) forward and 2 * matrices + 1 backward, and
              keep matrices (+ 1 of a gate in eager mode), each times elements * activation_bytes,
              a byte with narrow_activation_input
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   counting reads and writes: gradients are written of what was read.
    """
    matrices = 2.0 if site.model.gated else 1.0
    size, kept = site.activation_bytes, site.kept_input_bytes("linear_fc2")
    elements = tokens * groups * width
    eager = (
        0.0 if site.stack.pointwise_fused or not site.model.gated else 1.0
    )  # autograd keeps the activated gate apart
    act_bytes = elements * (matrices + 1) * size
    act_backward = elements * (2 * matrices + 1) * size
    act = passes(
        site,
        f"{name} activation",
        forward_bytes=act_bytes,
        backward_bytes=act_backward,
        kernels=1.0,
        saved=elements * (matrices + eager) * (1.0 if site.stack.narrow_activation_input else size),
        redone_by=redo_activation,
        freed_by=redo,
    )
    act = as_measured(site, act, ("swiglu" if site.model.gated else "gelu", 1.0, (elements,)))
    return [
        linear(
            site,
            f"{name} first layer",
            into=into,
            out=matrices * width,
            tokens=tokens,
            groups=groups,
            redone_by=redo,
        ),
        act,
        linear(
            site,
            f"{name} second layer",
            into=width,
            out=into,
            tokens=tokens,
            groups=groups,
            saved=elements * kept,
            redone_by=redo,
            freed_by=redo_activation,
        ),
    ]


def feedforward_output_bytes(site: Site, block: Block) -> Floats:
    """Bytes that a block's second layers hand back, (U,): one row per token of a dense
    feed-forward, one per token and expert of a mixture; 0 of other blocks.

    Formula:  rows * width * activation_bytes, rows = tokens / sequence shards of a dense
              feed-forward, `routed_rows` of experts
    Units:    bytes per micro batch and rank.
    Source:   MaxText's `mlpwo`, which names both (layers/linears.py, layers/moe.py).
    Valid:    any block.
    Checked:  tests/cost/test_offload.py
    """
    moe = site.model.moe
    if block.kind == "moe" and moe is not None:
        rows, width = routed_rows(site, site.tokens(block)).received, moe.latent_dim
    elif block.kind == "mlp":
        rows, width = site.split_tokens(block), None
    else:
        return np.zeros_like(site.tokens(block))
    return rows * float(width or site.model.hidden) * site.activation_bytes


def moe_parts(site: Site, block: Block) -> list[Part]:
    """Return the parts of a mixture of experts: router, dispatch, experts, combine, shared experts.

    Formula:  a rank's etp * num_experts / ep experts' shards see `routed_rows`
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Megatron-Core MoE (arXiv:2504.14960, parallel folding).
    Valid:    the busiest rank's rows, see `busiest_share`; dropless, or padded to a capacity.
    Checked:  tests/cost/test_feedforward.py
    """
    moe = site.model.moe
    assert moe is not None
    tokens, shapes = site.tokens(block), site.shapes
    experts = np.maximum(moe.num_experts / shapes.ep, 1.0)
    routed = routed_rows(site, tokens)
    rows = routed.received
    width = np.full_like(tokens, float(moe.latent_dim or site.model.hidden))
    expert_width = moe.expert_ffn / shapes.etp
    inner = _two_layers(
        site, "experts", rows / experts, width, expert_width, experts, MOE, EXPERT_ACTIVATION
    )
    parts = [
        norm(site, block, site.model.norms_per_layer / 2),
        norm_output(site, block),
        *routing_parts(site, routed, width),
        *inner,
    ]
    if moe.expert_bias and not site.stack.expert_bias_fused:
        parts.append(_expert_biases(site, rows, width, experts))
    if site.model.gated and moe.clamps_gate and not site.stack.expert_bias_fused:
        parts.append(_clamp(site, rows * expert_width))
    if moe.latent_dim:
        parts += _latent(site, block, float(moe.latent_dim))
    if moe.shared_ffn:
        shared = moe.shared_ffn / shapes.tp
        hidden = np.full_like(tokens, float(site.model.hidden))
        parts += _two_layers(site, "shared experts", tokens, hidden, shared, 1.0, SHARED, SHARED)
        parts.append(tensor_exchange(site, block, SHARED))
    if site.stack.recompute_stops_early and site.model.norms_per_layer <= 2 and not moe.latent_dim:
        parts = [
            replace(part, unread_s=part.forward_s * _UNREAD_OF_EXPERTS.get(part.name, 0.0))
            for part in parts
        ]
    return parts


def _expert_biases(site: Site, rows: Floats, width: Floats, experts: Floats) -> Part:
    """Biases of the experts' second layers, weighed by probabilities.

    Formula:  eager passes over rows * width elements; kernels = of one * experts + of all
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   `_apply_bias` of megatron/core/transformer/moe/experts.py, counted at
              EXPERT_BIAS_FORWARD, EXPERT_BIAS_BACKWARD and EXPERT_BIAS_KERNELS.
    """
    forward, backward = (each * experts + every for each, every in EXPERT_BIAS_KERNELS)
    return eager(
        site,
        "expert biases",
        elements=rows * width,
        forward=EXPERT_BIAS_FORWARD,
        backward=EXPERT_BIAS_BACKWARD,
        kernels=(forward, backward),
        redone_by=MOE,
    )


def _clamp(site: Site, inner: Floats) -> Part:
    """Clamp of a gate in front of its fused activation.

    Formula:  eager passes over inner elements; keeps 2 * inner * activation_bytes
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   `weighted_bias_quick_geglu_impl` of Megatron-Core, counted at CLAMP_FORWARD,
              CLAMP_BACKWARD.
    """
    return eager(
        site,
        "experts clamp",
        elements=inner,
        forward=CLAMP_FORWARD,
        backward=CLAMP_BACKWARD,
        kernels=CLAMP_KERNELS,
        saved=2.0 * inner * site.activation_bytes,
        redone_by=EXPERT_ACTIVATION,
        freed_by=EXPERT_ACTIVATION,
    )


def _latent(site: Site, block: Block, latent: float) -> list[Part]:
    """Projections between hidden and the experts' latent width, whole on every rank.

    Formula:  linear(hidden, latent) and linear(latent, hidden) on split tokens; the second keeps
              tokens * latent * saved_input_bytes
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   `fc1_latent_proj` and `fc2_latent_proj` of megatron/core/transformer/moe/moe_layer.py.
    """
    tokens = site.split_tokens(block)
    into, out = np.full_like(tokens, float(site.model.hidden)), np.full_like(tokens, latent)
    return [
        linear(site, "expert down projection", into=into, out=out, tokens=tokens, redone_by=MOE),
        linear(
            site,
            "expert up projection",
            into=out,
            out=into,
            tokens=tokens,
            saved=tokens * latent * site.kept_input_bytes(None),
            redone_by=MOE,
            freed_by=MOE,
        ),
    ]
