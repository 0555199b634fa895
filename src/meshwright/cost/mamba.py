"""Mamba-2 mixers, part by part."""

from __future__ import annotations

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.attention_core import half_precision
from meshwright.cost.kernels import streaming_s
from meshwright.cost.linear import linear
from meshwright.cost.operators import Part, Site, norm, norm_output, passes, tensor_exchange
from meshwright.values.models.spec import Block

__all__ = ["mamba_parts"]

CORE = frozenset({"core_attn"})
SCAN_EFFICIENCY = 0.15
"""Share of the half-precision peak in the chunked scan (arXiv:2405.21060, figure 10: A100 scan
against FlashAttention-2 of like FLOPs)."""
SCAN_FLOPS_PER_S = 47e12
"""Most that the scan's kernels (mamba-ssm, Triton) reach on any chip: what the figure above says of
an A100. They were tuned there and use none of the matrix instructions that came later; Nemotron-3
on H100, GB200 and GB300 (megatron_bridge) runs at this rate."""


@makes("attention")
def mamba_parts(site: Site, block: Block) -> list[Part]:
    """Return the parts of a Mamba-2 mixer: projections, convolution, chunked scan.

    Formula:  scan per token and head: chunk/2 * (state + head_dim) * 2 inside chunks of 256, and 4
              * state * head_dim for the states
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Mamba-2 (arXiv:2405.21060), section 6.
    Valid:    models with a MambaSpec; heads are split over tp.
    Checked:  tests/cost/test_mamba.py
    """
    mamba, tokens = site.model.mamba, site.tokens(block)
    assert mamba is not None
    tp, h = site.shapes.tp, float(site.model.hidden)
    inner = mamba.num_heads * mamba.head_dim / tp
    states = 2.0 * np.maximum(mamba.num_groups / tp, 1.0) * mamba.state_dim
    hidden = np.full_like(tokens, h)
    wide = 2 * inner + states + mamba.num_heads / tp
    chunk_flops = (
        2 * 128.0 * (mamba.state_dim + mamba.head_dim) + 4.0 * mamba.state_dim * mamba.head_dim
    )
    flops = tokens * mamba.num_heads / tp * chunk_flops
    chip = site.pool.node.chip
    scan_s = flops / min(
        chip.peak_flops_per_s(half_precision(site)) * SCAN_EFFICIENCY, SCAN_FLOPS_PER_S
    ) + streaming_s(chip, tokens * wide * 2 * site.activation_bytes)
    scan = Part(
        name="state scan",
        term="attention",
        forward_s=scan_s + 5 * chip.ramp_s,
        backward_s=2.5 * scan_s + 8 * chip.ramp_s,
        kernels_forward=6,
        kernels_backward=12,
        saved_bytes=tokens * (wide + inner + states) * site.activation_bytes,
        redone_by=CORE,
        flops=flops,
        moved_bytes=tokens * wide * 2 * site.activation_bytes,
    )
    conv = tokens * (inner + states) * 2 * site.activation_bytes
    return [
        norm(site, block, 1.0),
        norm_output(site, block),
        linear(site, "mixer input projection", into=hidden, out=wide, tokens=tokens),
        passes(
            site, "convolution and gate", forward_bytes=2 * conv, backward_bytes=4 * conv, kernels=3
        ),
        scan,
        linear(
            site,
            "mixer output projection",
            into=inner,
            out=hidden,
            tokens=tokens,
            saved=tokens * inner * site.kept_input_bytes("linear_proj"),
        ),
        tensor_exchange(site, block),
    ]
