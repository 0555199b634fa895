"""Attention blocks, part by part; their core is in `attention_core.py`."""

from __future__ import annotations

import numpy as np

from meshwright.cost.attention_core import attention_core, core_saved
from meshwright.cost.context import spread_core
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
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block

__all__ = ["attention_parts"]

ROTATION_FORWARD = (
    # half of it negated; times cosines, and its turned copy times sines
    EagerPass(read=2.0, written=2.0, count=2.5),
    # halves joined; joined with the part that is not rotated, which is empty
    EagerPass(read=2.0, written=2.0, count=2.0, wide=True),
    EagerPass(read=4.0, written=2.0, wide=True),  # sum
)
ROTATION_BACKWARD = (
    EagerPass(read=2.0, written=2.0, count=2.5),
    EagerPass(read=2.0, written=2.0, wide=True),  # halves joined
    EagerPass(read=0.0, written=2.0),  # zeros for the empty part
    EagerPass(read=4.0, written=2.0, count=2.0, wide=True),  # sum of three gradients
)
"""Passes per element of queries and keys where rotations run in plain PyTorch
(`_apply_rotary_pos_emb_bshd` of megatron/core/models/common/embeddings/rope_utils.py), as
Transformer Engine's fused kernel takes no factor (`apply_rotary_pos_emb`, from Megatron-Core 0.16
on)."""
ROTATION_KERNELS = (26.0, 16.0)
"""Kernels for queries and keys: forward also cosines and sines, their factor and cast, three
each."""
UP = frozenset({"mla_up_proj"})


def attention_parts(site: Site, block: Block) -> list[Part]:
    """Return the parts of a self- or cross-attention block of any kind.

    Formula:  norms, projections (multi-head, grouped or latent), rotary, core, tensor- and
              context-parallel exchange
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Megatron-LM (arXiv:1909.08053), grouped (arXiv:2305.13245), latent (arXiv:2405.04434).
    Valid:    any ModelSpec with attention.
    Checked:  tests/cost/test_attention.py
    """
    projections = (
        _mla_projections(site, block) if site.model.mla is not None else _projections(site, block)
    )
    count = site.model.norms_per_layer / 2
    core, *context = spread_core(site, block, attention_core)
    return [
        norm(site, block, count),
        norm_output(site, block),
        *projections,
        _core_inputs(site, block),
        core,
        tensor_exchange(site, block),
        *context,
    ]


def _projections(site: Site, block: Block) -> list[Part]:
    """The products in front of a core and behind it, and rotary's passes.

    Formula:  linear(hidden, (heads + 2 kv_heads) * head_dim), cross attention's in two, and
              linear(heads * head_dim, hidden), which keeps tokens * heads * head_dim *
              kept_context_bytes
    Source:   Megatron-LM (arXiv:1909.08053), section 3; grouped heads (arXiv:2305.13245).
    """
    tokens, h, d = site.tokens(block), site.model.hidden, site.model.head_dim
    heads, kv_heads = site.local_heads
    hidden = np.full_like(tokens, float(h))
    out_input = tokens * heads * d * site.kept_context_bytes
    output = linear(
        site,
        "attention output projection",
        into=heads * d,
        out=hidden,
        tokens=tokens,
        saved=out_input,
    )
    if block.kind == "cross_attention":
        key_tokens = site.key_tokens(block)
        parts = [
            linear(site, "query projection", into=hidden, out=heads * d, tokens=tokens),
            linear(
                site,
                "key and value projection",
                into=hidden,
                out=2 * kv_heads * d,
                tokens=key_tokens,
            ),
            output,
        ]
    else:
        parts = [
            linear(
                site,
                "attention input projection",
                into=hidden,
                out=(heads + 2 * kv_heads) * d,
                tokens=tokens,
            ),
            output,
        ]
    elements = tokens * (heads + kv_heads) * d
    return [*parts, *_query_key_norms(site, elements), *_rotary(site, elements)]


def _query_key_norms(site: Site, elements: Floats) -> list[Part]:
    """Norms of queries and keys, one kernel each; none where a compiler joins them to rotary.

    Formula:  2 * elements * activation_bytes forward, 3 * elements * activation_bytes backward;
              keeps elements * activation_bytes, their input
    Source:   q_layernorm and k_layernorm of megatron/core/transformer/attention.py, in front of
              apply_rotary_pos_emb; counting reads and writes: backward reads input and gradient.
    """
    if not site.model.qk_norm or site.stack.query_norms_joined:
        return []
    size = elements * site.activation_bytes
    return [
        passes(
            site,
            "query and key norms",
            forward_bytes=2 * size,
            backward_bytes=3 * size,
            kernels=2,
            saved=size,
        )
    ]


def _rotary(site: Site, elements: Floats) -> list[Part]:
    """Rotations of queries and keys, and their norms in the same passes where a compiler runs.

    Formula:  2 * elements * activation_bytes each way; unfused ROTATION_FORWARD and
              ROTATION_BACKWARD
    Source:   counting a read and a write; the embedded trainer's as profiled (docs/profile.md).
    """
    if site.model.rotation_has_factor and not site.stack.rotation_factor_fused:
        return [
            eager(
                site,
                "rotary",
                elements=elements,
                forward=ROTATION_FORWARD,
                backward=ROTATION_BACKWARD,
                kernels=ROTATION_KERNELS,
            )
        ]
    joined = site.model.qk_norm and site.stack.query_norms_joined
    if site.model.positions != "rope" and not joined:
        return []
    passed = 2 * (elements * site.activation_bytes)
    rotary = passes(site, "rotary", forward_bytes=passed, backward_bytes=passed, kernels=2)
    if site.model.positions != "rope":
        return [rotary]
    return [as_measured(site, rotary, ("rotary", 1.0, (elements,)))]


def _mla_projections(site: Site, block: Block) -> list[Part]:
    """Latent attention's down and up projections, its output projection, and rotary's passes.

    Formula:  linear of hidden to kv_lora_rank + qk_rope, kv_lora_rank to heads * (qk_nope + value),
              heads * value to hidden, and hidden to queries, straight or over q_lora_rank; down
              projections on split tokens; rotary: 3 * 2 * tokens * heads * qk * activation_bytes
    Source:   DeepSeek-V2 (arXiv:2405.04434), section 2.1; Megatron-Core's
              multi_latent_attention.py. That rotary takes 3 passes (heads split, turned, joined) is
              assumed.
    """
    mla, tokens, h = site.model.mla, site.tokens(block), float(site.model.hidden)
    assert mla is not None
    heads = site.model.num_heads / site.shapes.tp
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    whole, split = np.full_like(tokens, h), site.split_tokens(block)
    kv_down = np.full_like(tokens, float(mla.kv_lora_rank + mla.qk_rope_head_dim))
    out_input = tokens * heads * mla.v_head_dim * site.kept_context_bytes
    parts = [
        linear(site, "key-value down projection", into=whole, out=kv_down, tokens=split),
        linear(
            site,
            "attention output projection",
            into=heads * mla.v_head_dim,
            out=whole,
            tokens=tokens,
            saved=out_input,
        ),
        _up_projection(
            site, tokens, float(mla.kv_lora_rank), heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        ),
    ]
    if mla.q_lora_rank is None:
        parts.append(linear(site, "query projection", into=whole, out=heads * qk, tokens=tokens))
    else:
        rank = np.full_like(tokens, float(mla.q_lora_rank))
        parts.append(linear(site, "query down projection", into=whole, out=rank, tokens=split))
        parts.append(_up_projection(site, tokens, float(mla.q_lora_rank), heads * qk))
    rotated = tokens * heads * qk * 2 * site.activation_bytes
    parts.append(
        passes(
            site,
            "rotary and concatenation",
            forward_bytes=3 * rotated,
            backward_bytes=3 * rotated,
            kernels=6,
            redone_by=UP,
        )
    )
    return parts


def _up_projection(site: Site, tokens: Floats, rank: float, out: Floats) -> Part:
    """One projection from a latent vector to heads.

    Formula:  linear(rank, out); keeps tokens * rank * (kept_input_bytes + activation_bytes)
    Source:   counting: its input, and that of the norm which Megatron-Core fuses in front of it.
    """
    saved = tokens * rank * (site.kept_input_bytes("linear_qkv") + site.activation_bytes)
    return linear(
        site,
        "latent up projection",
        into=np.full_like(tokens, rank),
        out=out,
        tokens=tokens,
        saved=saved,
        redone_by=UP,
    )


def _core_inputs(site: Site, block: Block) -> Part:
    """Bytes alone, no time; latent attention makes them again where up projections are redone."""
    saved = core_saved(site, block)
    zero = np.zeros_like(saved)
    return Part(
        name="queries, keys and values",
        term="attention",
        forward_s=zero,
        backward_s=zero,
        kernels_forward=0,
        kernels_backward=0,
        saved_bytes=saved,
        freed_by=UP if site.model.mla is not None else frozenset(),
    )
