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
SEEN = 128.0
"""Mean number of tokens of its chunk of 256 that a token sees."""
SCAN_PASSES = (2.0, 4.0)
"""Times that a scan's inputs cross device memory, forward and backward: inputs and outputs; inputs
and the outputs' gradient read, once for what is made again and once for the gradients, which are
written."""
SCAN_KERNELS = (5.0, 14.0)
"""Kernels of a scan: forward sums of decays, states of chunks, states passed on, products of B and
C, outputs; backward the first four again, gradients of states, states passed back, those of inputs,
B, C and their products (two more kernels), of decays in chunks and of their sums
(`_mamba_chunk_scan_combined_fwd` and `_bwd` of mamba_ssm/ops/triton/ssd_combined.py at d757aef,
without a gate; copies and sums that PyTorch launches between them are left out)."""


@makes("attention")
def mamba_parts(site: Site, block: Block) -> list[Part]:
    """Return the parts of a Mamba-2 mixer: projections, convolution, chunked scan.

    Formula:  scan per token and head, FLOP: 2 * SEEN * (state + head_dim) inside chunks and 4 *
              state * head_dim for the states; backward 6 * SEEN * (state + head_dim) and 10 * state
              * head_dim; beside SCAN_PASSES and SCAN_KERNELS
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Mamba-2 (arXiv:2405.21060), section 6; backward products of ssd_combined.py: B by C,
              states of chunks made again; each other product's two gradients, and decays'.
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
    inside = 2.0 * SEEN * (mamba.state_dim + mamba.head_dim)
    across = 2.0 * mamba.state_dim * mamba.head_dim
    heads, chip = tokens * mamba.num_heads / tp, site.pool.node.chip
    flops = heads * (inside + 2.0 * across)
    rate = min(chip.peak_flops_per_s(half_precision(site)) * SCAN_EFFICIENCY, SCAN_FLOPS_PER_S)
    once = tokens * wide * site.activation_bytes
    forward_s, backward_s = (
        work / rate + streaming_s(chip, crossed * once) + kernels * chip.ramp_s
        for work, crossed, kernels in zip(
            (flops, heads * (3.0 * inside + 5.0 * across)), SCAN_PASSES, SCAN_KERNELS, strict=True
        )
    )
    scan = Part(
        name="state scan",
        term="attention",
        forward_s=forward_s,
        backward_s=backward_s,
        kernels_forward=SCAN_KERNELS[0],
        kernels_backward=SCAN_KERNELS[1],
        saved_bytes=tokens * (wide + inner + states) * site.activation_bytes,
        redone_by=CORE,
        flops=flops,
        moved_bytes=SCAN_PASSES[0] * once,
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
