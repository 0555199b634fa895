"""Which shapes are measured: log grids by device and effort, and a model's own. Pure, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from meshwright.trainer.profile.device import DeviceKind
from meshwright.values.data import package_yaml
from meshwright.values.hardware.profile import Effort
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "DIMS",
    "EFFORTS",
    "Axes",
    "Point",
    "Timing",
    "grid",
    "grid_points",
    "model_points",
    "sized",
    "sustained_point",
]

Point = tuple[int, ...]
Axes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How much care each shape gets."""

    budget_s: float
    """Most time of one shape, after its first run and beyond the least repeats."""
    least_repeats: int
    most_repeats: int
    goal_frac: float
    """Enough where the median's spread (quartiles over median, by root of repeats) is below it."""
    sustained_s: float
    """How long the largest product runs without a pause."""
    longest_s: float
    """The grid of products ends before one would take longer than this at the rate of a trial."""


K = 2**10
_UNITS = {"K": K, "M": K * K}


def _number(word: str) -> int:
    return int(word.rstrip("KM")) * _UNITS.get(word[-1], 1)


def _axis(words: str) -> tuple[int, ...]:
    """Read `16, 64, 1K`, `16..8K` (each twice the one before) or `16..4K by 4`."""
    first, dots, rest = words.partition("..")
    if not dots:
        return tuple(map(_number, words.split(", ")))
    last, _, step = rest.partition(" by ")
    points = [_number(first)]
    while points[-1] < _number(last):
        points.append(points[-1] * int(step or 2))
    return tuple(points)


_DESIGN = package_yaml("trainer/profile/grids.yaml")
EFFORTS: dict[Any, Timing] = {name: Timing(**row) for name, row in _DESIGN["timing"].items()}
"""The care that each effort takes."""
DIMS: dict[str, tuple[str, ...]] = {name: tuple(dims) for name, dims in _DESIGN["dims"].items()}
"""Names of the axes of each family."""
_GRIDS: dict[Any, dict[Any, dict[str, Axes]]] = {
    device: {
        effort: {family: tuple(map(_axis, axes)) for family, axes in families.items()}
        for effort, families in efforts.items()
    }
    for device, efforts in _DESIGN["grids"].items()
}
"""Points of each axis by device, effort and family."""

_SUSTAINED = {"cpu": 2 * K, "cuda": 8 * K}
"""No dimension of the product that runs for seconds is larger."""
_MODEL_TOKENS: dict[DeviceKind, tuple[int, ...]] = {"cpu": (256, K), "cuda": (2 * K, 4 * K, 8 * K)}
"""Tokens of a micro batch at which a model's own shapes are measured."""
_MODEL_TP: dict[DeviceKind, tuple[int, ...]] = {"cpu": (1,), "cuda": (1, 2, 4, 8)}
_EXPERTS_AT_ONCE = 64
"""A rank holds no more experts than this; more are cut by halves."""


def grid(family: str, *, device: DeviceKind, effort: Effort) -> Axes:
    """Return the axes of a family of operators."""
    return _GRIDS[device][effort][family]


def grid_points(axes: Sequence[Sequence[int]]) -> list[Point]:
    """Return every point of a grid, small work before large."""
    return sorted(product(*axes), key=lambda point: (prod(point), point))


def sized(axes: Axes, *, most: float) -> Axes:
    """Drop last points of the longest axes until the largest product is at most `most`."""
    kept = [list(axis) for axis in axes]
    while prod(axis[-1] for axis in kept) > most and any(len(axis) > 1 for axis in kept):
        longest = max((axis for axis in kept if len(axis) > 1), key=lambda axis: axis[-1])
        longest.pop()
    return tuple(tuple(axis) for axis in kept)


def sustained_point(axes: Axes, *, device: DeviceKind) -> Point:
    """Return the largest product of a grid that is worth repeating for seconds."""
    return tuple(
        max((point for point in axis if point <= _SUSTAINED[device]), default=axis[0])
        for axis in axes
    )


def model_points(model: ModelSpec | None, *, device: DeviceKind) -> dict[str, list[Point]]:
    """Return the exact shapes of a model by family, on one rank of a tensor-parallel group."""
    points: dict[str, list[Point]] = {}
    if model is None:
        return points
    for tp in _MODEL_TP[device]:
        if model.num_heads % tp or model.ffn % tp:
            continue
        for tokens in _MODEL_TOKENS[device]:
            for family, found in _on_one_rank(model, tokens=tokens, tp=tp).items():
                points.setdefault(family, []).extend(found)
    return {family: list(dict.fromkeys(found)) for family, found in points.items()}


def _on_one_rank(model: ModelSpec, *, tokens: int, tp: int) -> dict[str, list[Point]]:
    linears = _linears(model, tp=tp)
    points: dict[str, list[Point]] = {
        "gemm": [(tokens, out, into) for out, into in linears],
        "gemm_dgrad": [(tokens, into, out) for out, into in linears],
        "gemm_wgrad": [(out, into, tokens) for out, into in linears],
        "norm": [(tokens, model.hidden)],
        "cross_entropy": [(tokens, -(-model.vocab // tp))],
    }
    if model.mla is None:
        heads, kv_heads = model.num_heads // tp, max(1, model.num_kv_heads // tp)
        points["attention"] = [(model.head_dim, heads // kv_heads, heads, tokens)]
    if model.moe is not None:
        experts = model.moe.num_experts
        while experts > _EXPERTS_AT_ONCE:
            experts //= 2
        per_expert = max(1, tokens * model.moe.top_k // experts)
        points["experts"] = [(per_expert, experts, model.hidden, model.moe.expert_ffn)]
    return points


def _linears(model: ModelSpec, *, tp: int) -> list[tuple[int, int]]:
    """Outputs and inputs of a rank's linear layers: columns of a pair's first, then rows."""
    h, d, ways = model.hidden, model.head_dim, 2 if model.gated else 1
    heads, kv_heads = model.num_heads // tp, max(1, model.num_kv_heads // tp)
    pairs = [(-(-model.vocab // tp), h)]
    if model.mla is None:
        pairs += [((heads + 2 * kv_heads) * d, h), (h, heads * d)]
    else:
        mla = model.mla
        query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        pairs += [
            (mla.kv_lora_rank + mla.qk_rope_head_dim, h),
            (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        ]
        pairs += (
            [(heads * query, h)]
            if mla.q_lora_rank is None
            else [(mla.q_lora_rank, h), (heads * query, mla.q_lora_rank)]
        )
        pairs += [(h, heads * mla.v_head_dim)]
    widths = [model.ffn // tp] if model.ffn else []
    widths += [model.moe.shared_ffn // tp] if model.moe is not None and model.moe.shared_ffn else []
    for width in widths:
        pairs += [(ways * width, h), (h, width)]
    return list(dict.fromkeys(pairs))
