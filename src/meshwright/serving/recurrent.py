"""Layers that keep a state of one size for each sequence: the delta rule, and Mamba-2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshwright.values.data import package_rows
from meshwright.values.models.spec import Block, DeltaSpec, MambaSpec, ModelSpec

__all__ = ["RECURRENT", "Recurrent", "delta_rate", "delta_rule_flops", "recurrent_of"]

RECURRENT = ("delta", "mamba")
"""Kinds of blocks with a state."""
CHUNK = 64.0
"""Tokens that the chunked delta rule takes at once (flash-linear-attention)."""
SEEN = 128.0
"""Mean number of tokens of its chunk of 256 that a token of Mamba-2 sees."""
STATE_BYTES, CONV_BYTES = 4.0, 2.0
"""Of a value of the state, which Qwen3.5's config (mamba_ssm_dtype) and Nemotron 3's
(mamba_ssm_cache_dtype) keep in float32, and of the convolution's last tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrent:
    """One such layer on one rank."""

    products: tuple[tuple[float, float], ...]
    """(n, k) of each product, the one after the state last."""
    gated: float
    """Values of a token that are gated and normed before the last product."""
    convolved: float
    """Values of a token that go through the convolution."""
    inputs: float
    """Values of a token that the state reads and writes, the outputs among them."""
    flops: float
    """Of a token of a prompt."""
    state_bytes: float
    """Of a sequence: the state, and the last tokens of the convolution."""
    kernels: float
    """In eager mode: norm, products, convolution, the rule's, gated norm, product."""


def recurrent_of(model: ModelSpec, block: Block, *, tp: int) -> Recurrent:
    """Return a layer of this kind on one of `tp` ranks, whose heads are split."""
    if block.kind == "delta":
        assert model.delta is not None
        return _delta(model, model.delta, tp)
    assert model.mamba is not None
    return _mamba(model, model.mamba, tp)


def delta_rule_flops(*, key_dim: float, value_dim: float) -> float:
    """FLOPs of the chunked delta rule, of a token and value head.

    Formula:  2 * CHUNK * (3 key_dim + 2 value_dim) inside a chunk + 6 * key_dim * value_dim for
              the states
    Units:    FLOP.
    Source:   Gated DeltaNet (arXiv:2412.06464), section 3.3: products of keys with keys and of
              queries with keys, of the triangle with keys and with values, and of both with values;
              states read twice and updated.
    Valid:    prompts of several chunks.
    Checked:  tests/serving/test_recurrent.py
    """
    return 2.0 * CHUNK * (3.0 * key_dim + 2.0 * value_dim) + 6.0 * key_dim * value_dim


def _delta(model: ModelSpec, delta: DeltaSpec, tp: int) -> Recurrent:
    """Gated delta nets and Kimi delta attention.

    Formula:  into: 2 keys + values + gate + a decay and a write strength per head, low ranks in two
              products; state: value heads * key_dim * value_dim
    Source:   arXiv:2412.06464, arXiv:2510.26692; `cost.delta` has the same products.
    """
    width, heads = float(model.hidden), delta.num_value_heads / tp
    keys, values = delta.num_key_heads * delta.key_dim / tp, heads * delta.value_dim
    projected, low = 2.0 * keys + values + heads, []
    if delta.decay == "head":
        projected += heads
    else:
        low += [(float(delta.value_dim), width), (heads * delta.key_dim, float(delta.value_dim))]
    if delta.gate_rank is None:
        projected += values
    else:
        low += [(float(delta.gate_rank), width), (values, float(delta.gate_rank))]
    convolved = 2.0 * keys + values
    decay = heads * (delta.key_dim if delta.decay == "channel" else 1.0)
    rule = delta_rule_flops(key_dim=delta.key_dim, value_dim=delta.value_dim)
    return Recurrent(
        products=((projected, width), *low, (width, values)),
        gated=values,
        convolved=convolved,
        inputs=convolved + values + decay,
        flops=heads * rule,
        state_bytes=STATE_BYTES * heads * delta.key_dim * delta.value_dim
        + CONV_BYTES * convolved * (delta.conv_kernel - 1),
        kernels=_OTHERS + _RULE_KERNELS + len(low),
    )


_OTHERS, _RULE_KERNELS, _SCAN_KERNELS = 6.0, 6.0, 5.0
"""Norm, product, convolution, gated norm, product and a copy of the state's place; kernels of the
chunked rule (flash-linear-attention) and of the scan (mamba-ssm)."""


def _mamba(model: ModelSpec, mamba: MambaSpec, tp: int) -> Recurrent:
    """Mamba-2 mixers.

    Formula:  into: 2 inner + B and C of each group + a step per head; state: heads * head_dim *
              state_dim; a token 2 * SEEN * (state_dim + head_dim) + 4 * state_dim * head_dim a head
    Source:   Mamba-2 (arXiv:2405.21060), section 6; `cost.mamba` has the same.
    """
    width, heads = float(model.hidden), mamba.num_heads / tp
    inner = heads * mamba.head_dim
    states = 2.0 * max(mamba.num_groups / tp, 1.0) * mamba.state_dim
    each = 2.0 * SEEN * (mamba.state_dim + mamba.head_dim) + 4.0 * mamba.state_dim * mamba.head_dim
    return Recurrent(
        products=((2.0 * inner + states + heads, width), (width, inner)),
        gated=inner,
        convolved=inner + states,
        inputs=2.0 * inner + states + heads,
        flops=heads * each,
        state_bytes=STATE_BYTES * heads * mamba.head_dim * mamba.state_dim
        + CONV_BYTES * (inner + states) * (mamba.conv_kernel - 1),
        kernels=_OTHERS + _SCAN_KERNELS,
    )


def delta_rate(kernels: str, chip: str) -> float | None:
    """Return the FLOP/s that an engine's chunked delta rule reaches on a chip; None where it was
    not measured. FLOPs are those of `delta_rule_flops`."""
    return _rates().get((kernels, chip))


@cache
def _rates() -> Mapping[tuple[str, str], float]:
    rows = package_rows("serving/delta_rates.csv")
    return {(row["kernels"], row["chip"]): float(row["tflops"]) * 1e12 for row in rows}
