"""Linear attention by the delta rule, part by part."""

from __future__ import annotations

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.attention_core import half_precision
from meshwright.cost.kernels import streaming_s
from meshwright.cost.linear import linear
from meshwright.cost.mamba import CORE, SCAN_EFFICIENCY, SCAN_FLOPS_PER_S
from meshwright.cost.operators import Part, Site, norm, norm_output, passes, tensor_exchange
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block

__all__ = ["delta_parts"]

CHUNK = 64.0
"""Tokens that the chunked form takes at once (flash-linear-attention's chunk_gated_delta_rule, and
transformers' own of Qwen3-Next)."""


@makes("attention")
def delta_parts(site: Site, block: Block) -> list[Part]:
    """Return the parts of delta attention: projections, convolution, chunked rule, gated norm.

    Formula:  linear(hidden, 2 keys + values + gate + decay + 1 a head), low-rank ones in two; the
              rule as _rule; linear(values, hidden)
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Gated DeltaNet (arXiv:2412.06464), section 3; Kimi Linear (arXiv:2510.26692).
    Valid:    models with a DeltaSpec; heads are split over tp.
    Checked:  tests/cost/test_delta.py
    """
    delta, tokens = site.model.delta, site.tokens(block)
    assert delta is not None
    tp = site.shapes.tp
    keys, values = _widths(site)
    hidden = np.full_like(tokens, float(site.model.hidden))
    heads = delta.num_value_heads / tp
    projected = 2 * keys + values + heads
    parts, ranks = [], []
    if delta.decay == "head":
        projected = projected + heads
    else:
        ranks.append((float(delta.value_dim), heads * delta.key_dim))
    if delta.gate_rank is None:
        projected = projected + values
    else:
        ranks.append((float(delta.gate_rank), values))
    for rank, out in ranks:
        low = np.full_like(tokens, rank)
        parts.append(linear(site, "gate down projection", into=hidden, out=low, tokens=tokens))
        parts.append(linear(site, "gate up projection", into=low, out=out, tokens=tokens))
    conv = tokens * (2 * keys + values) * 2 * site.activation_bytes
    gated = tokens * values * site.activation_bytes
    return [
        norm(site, block, site.model.norms_per_layer / 2),
        norm_output(site, block),
        linear(site, "delta input projection", into=hidden, out=projected, tokens=tokens),
        *parts,
        passes(site, "convolution", forward_bytes=conv, backward_bytes=2 * conv, kernels=3),
        _rule(site, block),
        passes(site, "gated norm", forward_bytes=3 * gated, backward_bytes=5 * gated, kernels=2),
        linear(
            site,
            "delta output projection",
            into=values,
            out=hidden,
            tokens=tokens,
            saved=tokens * values * site.kept_input_bytes("linear_proj"),
        ),
        tensor_exchange(site, block),
    ]


def _widths(site: Site) -> tuple[Floats, Floats]:
    """Widths of queries (as of keys) and of values of one rank.

    Formula:  heads / tp * dim of each
    Source:   counting; Megatron-Core's gated_delta_net.py splits both by heads.
    """
    delta = site.model.delta
    assert delta is not None
    tp = site.shapes.tp
    return (
        delta.num_key_heads * delta.key_dim / tp,
        delta.num_value_heads * delta.value_dim / tp,
    )


@makes("attention")
def _rule(site: Site, block: Block) -> Part:
    """The chunked delta rule, whose states never leave the chip.

    Formula:  per token and value head 2 * CHUNK * (3 key_dim + 2 value_dim) inside a chunk and 6 *
              key_dim * value_dim for the states, at min(peak * SCAN_EFFICIENCY, SCAN_FLOPS_PER_S),
              + 2 passes over queries, keys, values and decay; backward 2.5 times that; keeps what
              goes into the convolution, the rule and the gate: 4 keys + 4 values + decay
    Source:   arXiv:2412.06464, section 3.3: products of keys with keys and of queries with keys, of
              the triangle with keys and with values, and of both with values; states read twice
              and updated. That its kernels (flash-linear-attention, Triton) reach what Mamba-2's
              do is assumed.
    """
    delta, tokens, chip = site.model.delta, site.tokens(block), site.pool.node.chip
    assert delta is not None
    heads = delta.num_value_heads / site.shapes.tp
    keys, values = _widths(site)
    inside = 2.0 * CHUNK * (3 * delta.key_dim + 2 * delta.value_dim)
    flops = tokens * heads * (inside + 6.0 * delta.key_dim * delta.value_dim)
    decay = heads * (delta.key_dim if delta.decay == "channel" else 1.0)
    rate = min(chip.peak_flops_per_s(half_precision(site)) * SCAN_EFFICIENCY, SCAN_FLOPS_PER_S)
    moved = tokens * (2 * keys + 2 * values + decay) * 2 * site.activation_bytes
    seconds = flops / rate + streaming_s(chip, moved)
    return Part(
        name="delta rule",
        term="attention",
        forward_s=seconds + 5 * chip.ramp_s,
        backward_s=2.5 * seconds + 8 * chip.ramp_s,
        kernels_forward=6,
        kernels_backward=12,
        saved_bytes=tokens * (4 * keys + 4 * values + decay) * site.activation_bytes,
        redone_by=CORE,
        flops=flops,
        moved_bytes=moved,
    )
