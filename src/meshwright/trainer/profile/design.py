"""Which shapes are measured: log grids by device and effort, and a model's own. Pure, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from meshwright.trainer.profile.device import DeviceKind
from meshwright.values.hardware.profile import Effort
from meshwright.values.models.spec import ModelSpec

__all__ = [
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


EFFORTS: dict[Effort, Timing] = {
    "quick": Timing(
        budget_s=0.05,
        least_repeats=3,
        most_repeats=50,
        goal_frac=0.02,
        sustained_s=1.0,
        longest_s=0.1,
    ),
    "standard": Timing(
        budget_s=0.2,
        least_repeats=5,
        most_repeats=200,
        goal_frac=0.01,
        sustained_s=5.0,
        longest_s=0.3,
    ),
    "full": Timing(
        budget_s=0.6,
        least_repeats=7,
        most_repeats=500,
        goal_frac=0.005,
        sustained_s=20.0,
        longest_s=1.0,
    ),
}


def _powers(first: int, last: int, step: int = 2) -> tuple[int, ...]:
    """From first to last, each `step` times the one before."""
    points = [first]
    while points[-1] * step <= last:
        points.append(points[-1] * step)
    return tuple(points)


K, M = 2**10, 2**20

_GRIDS: dict[DeviceKind, dict[Effort, dict[str, Axes]]] = {
    "cpu": {
        "quick": {
            "gemm": ((64, 256, K), (256, K, 2 * K), (256, K, 2 * K)),
            "grouped_gemm": ((64, 256), (4,), (512,), (512,)),
            "experts": ((64, 256), (4,), (512,), (512,)),
            "attention": ((32, 64), (1, 4), (8, 32), (64, 256, K)),
            "norm": ((256, 2 * K), (256, 2 * K)),
            "elements": ((64 * K, M // 2, 4 * M),),
            "cross_entropy": ((128, 512), (2 * K, 32 * K)),
            "embedding": ((512, 2 * K), (256, K), (2 * K, 32 * K)),
            "parameters": ((M // 4, 8 * M),),
            "bytes": ((M, 16 * M, 128 * M),),
            "message": ((4 * K, 64 * K, M, 16 * M),),
        },
        "standard": {
            "gemm": (
                (16, 64, 256, K, 4 * K),
                (128, 512, K, 2 * K, 4 * K),
                (128, 512, K, 2 * K, 4 * K),
            ),
            "grouped_gemm": ((16, 64, 256), (4, 16), (512, 2 * K), (512, 2 * K)),
            "experts": ((16, 64, 256), (4, 16), (512, K), (512, K)),
            "attention": ((32, 64, 128), (1, 4), (4, 16), (64, 256, K, 2 * K)),
            "norm": (_powers(64, 4 * K, 4), _powers(256, 4 * K, 4)),
            "elements": (_powers(64 * K, 16 * M, 4),),
            "cross_entropy": ((128, 512, 2 * K), (2 * K, 8 * K, 32 * K)),
            "embedding": ((512, 2 * K, 8 * K), (256, 2 * K), (2 * K, 32 * K)),
            "parameters": (_powers(64 * K, 16 * M, 4),),
            "bytes": (_powers(64 * K, 256 * M, 4),),
            "message": (_powers(K, 64 * M, 4),),
        },
        "full": {
            "gemm": (_powers(16, 8 * K), _powers(128, 8 * K), _powers(128, 8 * K)),
            "grouped_gemm": (_powers(16, K, 4), (2, 8, 32), (256, K, 4 * K), (256, K, 4 * K)),
            "experts": (_powers(16, K, 4), (2, 8, 32), (256, K, 2 * K), (256, K, 2 * K)),
            "attention": ((32, 64, 128), (1, 4, 8), (8, 32), _powers(128, 4 * K)),
            "norm": (_powers(64, 16 * K, 4), _powers(256, 8 * K)),
            "elements": (_powers(16 * K, 64 * M),),
            "cross_entropy": (_powers(128, 4 * K, 4), (8 * K, 32 * K, 128 * K)),
            "embedding": (_powers(256, 16 * K, 4), (512, 2 * K), (32 * K, 128 * K)),
            "parameters": (_powers(16 * K, 64 * M),),
            "bytes": (_powers(16 * K, K * M // 2),),
            "message": (_powers(K, K * M // 4),),
        },
    },
    "cuda": {
        "quick": {
            "gemm": ((512, 2 * K, 8 * K), (K, 4 * K, 16 * K), (K, 4 * K, 16 * K)),
            "grouped_gemm": ((128, K), (8,), (2 * K,), (2 * K,)),
            "experts": ((128, K), (8,), (2 * K,), (2 * K,)),
            "attention": ((64, 128), (1, 8), (8, 32), (K, 4 * K, 16 * K)),
            "norm": ((K, 8 * K), (2 * K, 8 * K)),
            "elements": (_powers(M, 256 * M, 16),),
            "cross_entropy": ((K, 8 * K), (32 * K, 128 * K)),
            "embedding": ((K, 8 * K), (4 * K,), (32 * K, 128 * K)),
            "parameters": (_powers(M, 256 * M, 16),),
            "bytes": (_powers(M, 2 * K * M, 8),),
            "message": (_powers(M, 2 * K * M, 8),),
        },
        "standard": {
            "gemm": (
                _powers(128, 32 * K, 4),
                (256, K, 4 * K, 8 * K, 16 * K),
                (256, K, 4 * K, 8 * K, 16 * K),
            ),
            "grouped_gemm": ((64, 256, K, 4 * K), (4, 16), (K, 4 * K), (K, 4 * K)),
            "experts": ((64, 256, K, 4 * K), (4, 16), (2 * K, 4 * K), (K, 4 * K)),
            "attention": ((64, 128), (1, 8), (8, 32, 128), _powers(512, 32 * K)),
            "norm": (_powers(256, 16 * K, 4), _powers(K, 16 * K)),
            "elements": (_powers(64 * K, 256 * M, 4),),
            "cross_entropy": (_powers(512, 8 * K, 4), (32 * K, 128 * K)),
            "embedding": (_powers(K, 16 * K, 4), (2 * K, 8 * K), (32 * K, 128 * K)),
            "parameters": (_powers(64 * K, 256 * M, 4),),
            "bytes": (_powers(64 * K, 4 * K * M, 4),),
            "message": (_powers(64 * K, 4 * K * M, 4),),
        },
        "full": {
            "gemm": (_powers(64, 64 * K), _powers(256, 32 * K), _powers(128, 32 * K)),
            "grouped_gemm": (
                _powers(16, 4 * K, 4),
                (2, 8, 32),
                (512, 2 * K, 8 * K),
                (512, 2 * K, 8 * K),
            ),
            "experts": (
                _powers(16, 4 * K, 4),
                (2, 8, 32),
                (2 * K, 4 * K, 8 * K),
                (512, 2 * K, 8 * K),
            ),
            "attention": ((64, 128, 256), (1, 4, 8, 16), (16, 32, 64, 128), _powers(256, 64 * K)),
            "norm": (_powers(64, 64 * K), _powers(512, 16 * K)),
            "elements": (_powers(16 * K, 1024 * M),),
            "cross_entropy": (_powers(256, 16 * K), (16 * K, 32 * K, 64 * K, 128 * K, 256 * K)),
            "embedding": (_powers(256, 32 * K), (K, 4 * K, 16 * K), (32 * K, 128 * K, 256 * K)),
            "parameters": (_powers(16 * K, 1024 * M),),
            "bytes": (_powers(16 * K, 8 * K * M),),
            "message": (_powers(16 * K, 8 * K * M),),
        },
    },
}
"""Points of each axis, by family: products (m, n, k), grouped products (tokens of an expert,
experts, n, k), expert layers (tokens of an expert, experts, hidden, inter), attention (head dim,
heads per KV head, batch times heads, sequence), norms (rows, width), ..."""

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
    for tp in (tp for tp in _MODEL_TP[device] if _divides(model, tp)):
        for tokens in _MODEL_TOKENS[device]:
            for family, found in _on_one_rank(model, tokens=tokens, tp=tp).items():
                points.setdefault(family, []).extend(found)
    return {family: list(dict.fromkeys(found)) for family, found in points.items()}


def _divides(model: ModelSpec, tp: int) -> bool:
    return model.num_heads % tp == 0 and model.ffn % tp == 0


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
