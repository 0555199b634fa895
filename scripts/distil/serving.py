"""Operators of serving engines: attention over a cache, expert layers of a few tokens, the engines'
own all-reduce."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from distil.source import Rows, Source, merged, read, version_of
from distil.surface import Fit, Floats, Held, Surface, fit, split
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.serving_tables import SPREAD_HIDDEN, SPREAD_INTER

__all__ = ["FRAMEWORKS", "fit_serving"]

FRAMEWORKS = ("sglang", "trtllm", "vllm")
_CACHES = {"bf16": "bfloat16", "fp8": "fp8"}
_WEIGHTS: dict[str, tuple[str, ...]] = {
    "bf16": ("bfloat16",),
    "fp8": ("fp8",),
    "fp8-blockwise": ("fp8_block",),
    "nvfp4": ("nvfp4",),
    "int4": ("int4_wo",),
    "mxfp4": ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
}
"""Our word for the weights' type, and the source's: of mxfp4 the faster of 16- and 8-bit
activations, which engines choose."""
_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-blockwise": 1.0,
    "nvfp4": 0.5625,
    "int4": 0.5625,
    "mxfp4": 0.53125,
}
_CACHE_KEYS = ("head_dim", "num_heads", "num_key_value_heads", "batch_size", "isl", "step")
_LATENT_KEYS = ("num_heads", "batch_size", "isl", "step")
_EXPERT_KEYS = (
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
)
_HEAD_DIMS = (64, 128, 192, 256)
_GROUPS = (1, 2, 4, 8, 16)
_POWERS = tuple(2**i for i in range(21))
_HIDDEN = (1024, 2048, 4096, 8192)
_FEW = 300
_LARGE_CONTEXT = 1024
_LARGE_TOKENS = 16
_LARGE_BYTES = 2**20


def fit_serving(chip: str, source: Source) -> dict[str, Fit]:
    """All tables of one chip, named `<operator>/<type>/<framework>`."""
    fits: dict[str, Fit] = {}
    for framework in FRAMEWORKS:
        fits |= _cached_attention(chip, source, framework)
        fits |= _latent(chip, source, framework)
        fits |= _experts(chip, source, framework)
        fits |= _spread_experts(chip, source, framework)
        fits |= _all_reduce(source, framework)
    return fits


def _files(source: Source, operator: str, table: str, framework: str) -> list[Path]:
    """Every version's file of a framework: later ones measured some shapes alone."""
    return sorted((source.folder / operator / framework).glob(f"*/{table}.parquet"))


def _read(files: list[Path], keys: tuple[str, ...], **equal: object) -> Rows | None:
    parts = [rows for file in files if len((rows := read(file, keys, **equal)).seconds)]
    return merged(parts) if parts else None


def _cached_attention(chip: str, source: Source, framework: str) -> dict[str, Fit]:
    """One new token per sequence over a cache, no window."""
    fits = {}
    files = _files(source, "attention", "generation_attention_perf", framework)
    for name, dtype in _CACHES.items():
        rows = _read(files, _CACHE_KEYS, kv_cache_dtype=dtype, window_size=0, head_dim=_HEAD_DIMS)
        if rows is None or len(rows.seconds) < _FEW:
            continue
        dim, heads, kv_heads, batch, new, step = rows.keys.T.astype(np.float64)
        columns = (dim, heads / kv_heads, batch * kv_heads, new + step)
        surface = Surface(
            points=(
                _within(_HEAD_DIMS, dim),
                _GROUPS,
                _within(_POWERS, columns[2]),
                _within(_POWERS, columns[3]),
            ),
            growth=(1.0, 0.5, 1.0, 1.0),
            stiffness=(0.003, 0.003, 0.003, 0.003),
            twist=(0.0, 0.0, 0.0, 0.0, 0.0, 0.003),
            rising=(True, False, True, True),
            base=partial(_cache_roofline, chip, _BYTES[name]),
            doubt=0.1,
        )
        fits[f"decode_attention/{name}/{framework}"] = _fit(
            surface, columns, rows.seconds, columns[3] >= _LARGE_CONTEXT, files
        )
    return fits


def _latent(chip: str, source: Source, framework: str) -> dict[str, Fit]:
    """The same of multi-head latent attention, whose cache all heads share."""
    fits = {}
    files = _files(source, "mla", "generation_mla_perf", framework)
    for name, dtype in _CACHES.items():
        rows = _read(files, _LATENT_KEYS, kv_cache_dtype=dtype)
        if rows is None or len(rows.seconds) < _FEW:
            continue
        heads, batch, new, step = rows.keys.T.astype(np.float64)
        columns = (heads, batch, new + step)
        surface = Surface(
            points=tuple(_within(_POWERS, column) for column in columns),
            growth=(1.0, 1.0, 1.0),
            stiffness=(0.003, 0.003, 0.003),
            twist=(0.0, 0.0, 0.003),
            rising=(True, True, True),
            base=partial(_latent_roofline, chip, _BYTES[name]),
            doubt=0.1,
        )
        fits[f"decode_mla/{name}/{framework}"] = _fit(
            surface, columns, rows.seconds, columns[2] >= _LARGE_CONTEXT, files
        )
    return fits


def _experts(chip: str, source: Source, framework: str) -> dict[str, Fit]:
    """Gated expert layers from one token on, with experts that are not equally liked."""
    fits = {}
    files = _files(source, "moe", "moe_perf", framework)
    for name, dtypes in _WEIGHTS.items():
        used, rows = _gated(files, dtypes)
        if rows is None:
            continue
        columns = _expert_columns(rows)
        surface = Surface(
            points=(
                _within(_TOKENS, columns[0]),
                _within(_POWERS[:10], columns[1]),
                _within(_HIDDEN, columns[2]),
                _within(_POWERS, columns[3]),
            ),
            growth=(1.0, 1.0, 1.0, 1.0),
            stiffness=(0.001, 0.003, 0.003, 0.003),
            twist=(0.001,) * 6,
            rising=(True, True, True, True),
            base=partial(_expert_roofline, chip, _BYTES[name]),
            doubt=0.1,
        )
        fits[f"experts/{name}/{framework}"] = _fit(
            surface, columns, rows.seconds, columns[0] >= _LARGE_TOKENS, used
        )
    return fits


def _spread_experts(chip: str, source: Source, framework: str) -> dict[str, Fit]:
    """The same layer where every rank has tokens of its own and few of each reach an expert
    (DeepEP's low-latency exchange and grouped products that skip the empty places): measured on
    DeepSeek's layer alone."""
    files = _files(source, "moe", "wideep_generation_moe_perf", framework)
    if not files:
        return {}
    shape = {"hidden_size": SPREAD_HIDDEN, "inter_size": SPREAD_INTER}
    rows = _read(files[-1:], _EXPERT_KEYS, moe_dtype="fp8_block", distribution=_ROUTING, **shape)
    assert rows is not None, "a table without DeepSeek's layer"
    tokens, experts, _, _ = _expert_columns(rows)
    surface = Surface(
        points=(_within(_TOKENS, tokens), _within(_POWERS[:10], experts)),
        growth=(1.0, 1.0),
        stiffness=(0.001, 0.003),
        twist=(0.001,),
        rising=(True, True),
        base=partial(_spread_roofline, chip),
        doubt=0.1,
    )
    return {
        f"spread_experts/fp8-blockwise/{framework}": _fit(
            surface, (tokens, experts), rows.seconds, tokens >= _LARGE_TOKENS, files[-1:]
        )
    }


def _spread_roofline(chip: str, tokens: Floats, experts: Floats) -> Floats:
    hidden, inter = (np.full_like(tokens, size) for size in (SPREAD_HIDDEN, SPREAD_INTER))
    return _expert_roofline(chip, 1.0, tokens, experts, hidden, inter)


_TOKENS = tuple(2.0**i for i in range(-9, 13))
_UNGATED = "moe_torch_flow_nongated"
_ROUTING = ["power_law_1.01", "power_law_1.2"]
"""Shares of the experts fall as a power of their rank: what the source plans with for trained
routers. Few tokens then reach fewer experts than balanced ones would, and the busiest of several
ranks sets the time."""


def _gated(files: list[Path], dtypes: tuple[str, ...]) -> tuple[list[Path], Rows | None]:
    """Of each shape of layer the rows of the newest version that measured it: a new version may
    measure new models' shapes alone."""
    used: list[Path] = []
    found: list[Rows] = []
    shapes: set[tuple[int, ...]] = set()
    for file in reversed(files):
        rows = read(
            file,
            _EXPERT_KEYS,
            without_kernel=_UNGATED,
            moe_dtype=list(dtypes),
            distribution=_ROUTING,
        )
        each = [tuple(shape) for shape in rows.keys[:, _SHAPE].tolist()]
        rows = rows.where(np.array([shape not in shapes for shape in each], dtype=bool))
        shapes |= set(each)
        if len(rows.seconds):
            used, found = [*used, file], [*found, rows]
    enough = sum(len(rows.seconds) for rows in found) >= _FEW
    return (used, merged(found)) if enough else ([], None)


_SHAPE = (1, 2, 3, 4)
"""Places of hidden size, inner size, choices and experts among _EXPERT_KEYS."""


def _expert_columns(rows: Rows) -> tuple[Floats, ...]:
    """Tokens per expert, experts on the rank, hidden size, inner width on the rank."""
    tokens, hidden, inter, topk, experts, tp, ep = rows.keys.T.astype(np.float64)
    return tokens * topk / experts, experts / ep, hidden, inter / tp


def _all_reduce(source: Source, framework: str) -> dict[str, Fit]:
    files = _files(source, "comm", "custom_allreduce_perf", framework)
    rows = _read(files[-1:], ("num_gpus", "message_size"))
    if rows is None:
        return {}
    ranks, values = rows.keys.T.astype(np.float64)
    columns = (ranks, 2 * values)
    surface = Surface(
        points=tuple(tuple(sorted(set(column.tolist()))) for column in columns),
        growth=(0.0, 1.0),
        stiffness=(0.0003, 0.003),
        rising=(False, True),
        base=lambda ranks, size: np.log(5e-6 + size * 4e-12 + 0 * ranks),
    )
    return {
        f"all_reduce/bf16/{framework}": _fit(
            surface, columns, rows.seconds, columns[1] >= _LARGE_BYTES, files[-1:]
        )
    }


def _fit(
    surface: Surface, columns: tuple[Floats, ...], seconds: Floats, large: object, files: list[Path]
) -> Fit:
    held = split(len(seconds))
    table, moved = fit(surface, [c[~held] for c in columns], seconds[~held])
    return Fit(
        surface=surface,
        log_seconds=table,
        held=Held(
            columns=tuple(c[held] for c in columns),
            seconds=seconds[held],
            added=np.zeros(int(held.sum())),
            large=np.asarray(large)[held],
        ),
        rows=int((~held).sum()),
        moved=moved,
        facts={"measured_by": [version_of(file) for file in files]},
    )


def _within(points: tuple[float, ...], column: Floats) -> tuple[float, ...]:
    """Points from the last at or below the least measured to the first at or above the largest."""
    low = max((p for p in points if p <= column.min()), default=points[0])
    high = min((p for p in points if p >= column.max()), default=points[-1])
    return tuple(p for p in points if low <= p <= high)


def _cache_roofline(
    name: str, size: float, dim: Floats, group: Floats, sequences: Floats, context: Floats
) -> Floats:
    """Log of the cache's bytes at 80 % of the bandwidth, arithmetic at a third of the peak, and 5
    us."""
    chip = find_chip(name)
    read_s = 2 * size * sequences * context * dim / (0.8 * chip.memory_bytes_per_s)
    work_s = 4 * sequences * group * context * dim / (0.33 * chip.peak_flops_per_s("bf16"))
    return np.asarray(np.log(np.maximum(read_s, work_s) + 5e-6))


_LATENT = 512 + 64
"""Values of a token in the cache: DeepSeek V2 and V3."""


def _latent_roofline(
    name: str, size: float, heads: Floats, batch: Floats, context: Floats
) -> Floats:
    chip = find_chip(name)
    read_s = size * batch * context * _LATENT / (0.8 * chip.memory_bytes_per_s)
    work_s = 2 * batch * heads * context * (_LATENT + 512) / (0.5 * chip.peak_flops_per_s("bf16"))
    return np.asarray(np.log(np.maximum(read_s, work_s) + 1e-5))


def _expert_roofline(
    name: str, size: float, tokens: Floats, experts: Floats, hidden: Floats, inter: Floats
) -> Floats:
    """Log of the weights of the experts hit, arithmetic at half the peak, traffic of the tokens,
    and 15 us."""
    chip = find_chip(name)
    hit = np.maximum(experts * -np.expm1(-tokens), 1.0)
    weights_s = 3 * size * hit * hidden * inter / (0.8 * chip.memory_bytes_per_s)
    work_s = 6 * tokens * experts * hidden * inter / (0.5 * chip.peak_flops_per_s("bf16"))
    tokens_s = tokens * experts * (10 * hidden + 8 * inter) / (0.8 * chip.memory_bytes_per_s)
    return np.asarray(np.log(np.maximum(weights_s, work_s) + tokens_s + 1.5e-5))
