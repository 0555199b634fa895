"""Measured times of what only serving runs: attention over a cache, experts of a few tokens, an
engine's own all-reduce.

Made by `scripts/distil_serving.py` (docs/operators.md). Every lookup returns None where the chip,
the type or the engine has no table.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from meshwright.values.hardware.tables import ChipTables, shipped

if TYPE_CHECKING:
    from meshwright.values.hardware.grid import Floats, Lookup

__all__ = [
    "SPREAD_HIDDEN",
    "SPREAD_INTER",
    "SPREAD_TOKENS",
    "cached_attention_seconds",
    "cached_latent_seconds",
    "engine_all_reduce_seconds",
    "expert_layer_seconds",
    "serving_facts",
    "spread_expert_seconds",
]

_OTHERS = ("trtllm", "sglang", "vllm")
"""Whose kernel stands in, in this order, where an engine's own was not measured."""


def serving_facts(chip: str) -> dict[str, object]:
    """Return what is known of a chip's tables, empty where there are none."""
    tables = _tables(chip)
    return {} if tables is None else dict(tables.meta)


def cached_attention_seconds(
    chip: str,
    *,
    kernels: str,
    stored: str,
    head_dim: Floats | float,
    group: Floats | float,
    kv_sequences: Floats | float,
    context: Floats | float,
) -> Lookup | None:
    """Time of attention of one new token per sequence over `context` cached ones.

    Formula:  interpolated in log head size, queries per key head, batch * key heads, context
    Units:    seconds.
    Source:   docs/operators.md, Serving.
    Valid:    no window; `stored` bf16 or fp8.
    Checked:  tests/values/hardware/test_serving_tables.py
    """
    return _find(
        chip, f"decode_attention/{stored}", kernels, head_dim, group, kv_sequences, context
    )


def cached_latent_seconds(
    chip: str,
    *,
    kernels: str,
    stored: str,
    heads: Floats | float,
    batch: Floats | float,
    context: Floats | float,
) -> Lookup | None:
    """Time of multi-head latent attention of one new token per sequence over `context` cached ones.

    Formula:  interpolated in log heads, batch, context
    Units:    seconds.
    Source:   docs/operators.md, Serving.
    Valid:    a latent of 512 and 64 rotary dims, as DeepSeek V2 and V3 have.
    Checked:  tests/values/hardware/test_serving_tables.py
    """
    return _find(chip, f"decode_mla/{stored}", kernels, heads, batch, context)


def expert_layer_seconds(
    chip: str,
    *,
    kernels: str,
    weights: str,
    tokens_per_expert: Floats | float,
    experts: Floats | float,
    hidden: Floats | float,
    inter: Floats | float,
) -> Lookup | None:
    """Time of one gated expert layer on a rank with `experts` experts, each of which gets
    `tokens_per_expert` tokens on average.

    Formula:  interpolated in the logarithms
    Units:    seconds; `inter` is what this rank holds of each expert.
    Source:   docs/operators.md, Serving.
    Valid:    shares of the experts that fall as a power of their rank; the busiest rank.
    Checked:  tests/values/hardware/test_serving_tables.py
    """
    return _find(chip, f"experts/{weights}", kernels, tokens_per_expert, experts, hidden, inter)


def spread_expert_seconds(
    chip: str,
    *,
    kernels: str,
    weights: str,
    tokens_per_expert: Floats | float,
    experts: Floats | float,
    hidden: float,
    inter: float,
) -> Lookup | None:
    """Time of the same layer where each rank has tokens of its own and a low-latency exchange
    brings every expert few of them.

    Formula:  interpolated in log tokens per expert, log experts; times hidden * inter over those of
              DeepSeek V3, which was measured
    Units:    seconds.
    Source:   docs/operators.md, Serving.
    Valid:    up to SPREAD_TOKENS tokens on a rank; an engine's own kernels alone.
    Checked:  tests/values/hardware/test_serving_tables.py
    """
    family = f"spread_experts/{weights}"
    found = _find(chip, family, kernels, tokens_per_expert, experts, stand_ins=())
    if found is None:
        return None
    return replace(found, seconds=found.seconds * hidden * inter / (SPREAD_HIDDEN * SPREAD_INTER))


SPREAD_HIDDEN, SPREAD_INTER = 7168, 2048
"""Of the measured layer."""
SPREAD_TOKENS = 1024
"""Tokens that reach a rank's experts, counted once per expert, up to which it was measured: 128 of
each rank, 8 experts each."""


def engine_all_reduce_seconds(
    chip: str, *, kernels: str, ranks: Floats | float, buffer_bytes: Floats | float
) -> Lookup | None:
    """Time of an engine's all-reduce inside a server.

    Formula:  interpolated in log ranks, log bytes
    Units:    seconds.
    Source:   docs/operators.md, Serving.
    Valid:    2 to 8 ranks, on GB200 and GB300 2 to 4; more take the time of the most measured, and
              say so.
    Checked:  tests/values/hardware/test_serving_tables.py
    """
    return _find(chip, "all_reduce/bf16", kernels, ranks, buffer_bytes)


def _find(
    chip: str,
    family: str,
    kernels: str,
    *arguments: Floats | float,
    stand_ins: tuple[str, ...] = _OTHERS,
) -> Lookup | None:
    tables = _tables(chip)
    names = [f"{family}/{word}" for word in (kernels, *stand_ins)]
    grids = [tables.grids[name] for name in names if name in tables.grids] if tables else []
    return grids[0].lookup(*arguments) if grids else None


@cache
def _tables(chip: str) -> ChipTables | None:
    return shipped(f"serving/{chip}.npz")
