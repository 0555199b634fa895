"""Fused attention forward, and multi-head latent attention."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distil.source import Rows, Source, merged, read, version_of
from distil.surface import Fit, Floats, Held, Surface, fit, split
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.tables import KV_READ_SHARE

__all__ = ["fit_attention"]

_KEYS = ("head_dim", "num_heads", "num_key_value_heads", "isl", "batch_size")
_MLA_KEYS = ("num_heads", "isl", "batch_size")
_HEADS = (
    1,
    2,
    4,
    8,
    12,
    16,
    24,
    32,
    40,
    48,
    64,
    80,
    96,
    128,
    160,
    192,
    256,
    320,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
)
_SEQUENCES = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384, 32768)
_HEAD_DIMS = (64, 128, 192, 256)
_GROUPS = (1, 2, 4, 8, 16, 48)
_KERNELS = {
    "ampere": "sglang",
    "ada": "vllm",
    "hopper": "vllm",
    "blackwell": "sglang",
    "blackwell-rtx": "vllm",
}
"""The framework whose kernel is the fastest of those that serve a generation on long sequences and
nearest to what trains there: FlashAttention 2 (SGLang on A100 199 TFLOP/s, vLLM 172, TensorRT-LLM
142), 3 (vLLM on H100 580, SGLang 560, TensorRT-LLM 485), trtllm-gen (SGLang on B200 1169, vLLM
1151, TensorRT-LLM 995). Mixing them row by row tells of frameworks, not of shapes."""
_FULL_FRAMEWORK = "vllm"  # FlashAttention 2, 3 and 4; SGLang runs Triton on most chips
_FULL_KEYS = ("num_heads", "isl", "batch_size")
_FULL_HEAD_DIM = 64
_KV_BYTES = 2e7
"""Keys and values that differ by fewer bytes than this tell nothing of their cost."""
_MLA_DIMS = 192 + 128
"""Of one head's query and key, and of its value."""
_LARGE_SEQUENCE = 1024


def fit_attention(chip: str, source: Source) -> dict[str, Fit]:
    """The causal kernel in bf16 without a window, full attention of one head size, and MLA's
    kernel."""
    fits = {}
    files = source.frameworks("attention", "context_attention_perf")
    rows, versions = _best(chip, files)
    fits["attention/bf16"] = core = _fit_core(chip, rows, versions)
    full = source.frameworks("encoder_attention", "encoder_attention_perf").get(_FULL_FRAMEWORK)
    if full is not None:
        rows = read(full, _FULL_KEYS, attn_dtype="bfloat16", head_dim=_FULL_HEAD_DIM)
        fits["encoder_attention/bf16"] = _fit_full(
            chip, rows, float(str(core.facts["kv_s_per_byte"])), version_of(full)
        )
    file = source.frameworks("mla", "context_mla_perf").get("trtllm")
    if file is not None:
        latent = read(file, _MLA_KEYS, mla_dtype="bfloat16", kv_cache_dtype="bfloat16")
        fits["mla/bf16"] = _fit_latent(chip, latent, version_of(file))
    return fits


def _best(chip: str, files: dict[str, Path]) -> tuple[Rows, list[str]]:
    """The rows of the framework with the kernel of this generation; of another one, head sizes that
    it lacks."""
    first = _KERNELS[find_chip(chip).generation]
    parts, used = [_read(files[first])], [version_of(files[first])]
    for name in sorted(set(files) - {first}):
        known = {
            dim
            for dim in _HEAD_DIMS
            if sum(int((part.keys[:, 0] == dim).sum()) for part in parts) >= _FEW
        }
        rows = _read(files[name])
        rows = rows.where(~np.isin(rows.keys[:, 0], list(known)))
        if len(rows.seconds):
            parts.append(rows)
            used.append(version_of(files[name]))
    return merged(parts), used


_FEW = 500


def _read(file: Path) -> Rows:
    """Without Triton's kernels, which SGLang falls back on and which take up to four times as long
    as the others."""
    kind = {
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "window_size": 0,
        "head_dim": _HEAD_DIMS,
    }
    rows = read(file, _KEYS, without_kernel="triton", **kind)
    return rows.where(rows.keys[:, 3] >= min(_SEQUENCES))


def _fit_core(chip: str, rows: Rows, versions: list[str]) -> Fit:
    head_dim, heads, kv_heads, sequence, batch = rows.keys.T.astype(np.float64)
    held = split(len(head_dim))
    kv_bytes = 4.0 * batch * sequence * kv_heads * head_dim
    slope = _kv_slope(rows.where(~held), kv_bytes[~held])
    net = np.maximum(rows.seconds - slope * kv_bytes, 0.2 * rows.seconds)
    columns = (head_dim, heads / kv_heads, batch * heads, sequence)
    surface = Surface(
        points=(
            tuple(sorted(set(rows.keys[:, 0].tolist()))),
            _GROUPS,
            _upto(_HEADS, columns[2]),
            _upto(_SEQUENCES, sequence),
        ),
        growth=(1.0, 0.0, 1.0, 2.0),
        stiffness=(0.001, 0.01, 0.01, 0.01),
        rising=(True, False, True, True),
        base=lambda dim, group, heads, sequence: _roofline(chip, dim, heads, sequence),
        doubt=0.05,
    )
    table, moved = fit(surface, [c[~held] for c in columns], net[~held])
    return Fit(
        surface=surface,
        log_seconds=table,
        held=_held(columns, rows.seconds, slope * kv_bytes, held),
        rows=int((~held).sum()),
        moved=moved,
        facts={"measured_by": versions, "kv_s_per_byte": slope},
    )


def _fit_full(chip: str, rows: Rows, kv_s_per_byte: float, version: str) -> Fit:
    """Rows without a mask: as many key as query heads, no copy into a cache, less the kernel's read
    of keys and values."""
    rows = rows.where(rows.keys[:, 1] >= min(_SEQUENCES))
    heads, sequence, batch = rows.keys.T.astype(np.float64)
    columns = (batch * heads, sequence)
    read_s = KV_READ_SHARE * kv_s_per_byte * 4.0 * batch * sequence * heads * _FULL_HEAD_DIM
    net = np.maximum(rows.seconds - read_s, 0.2 * rows.seconds)
    held = split(len(heads))
    surface = Surface(
        points=(_measured(columns[0]), _measured(sequence)),
        growth=(1.0, 2.0),
        stiffness=(0.003, 0.003),
        twist=(0.003,),
        rising=(True, True),
        base=lambda heads, sequence: _full_roofline(chip, heads, sequence),
        doubt=0.05,
        shortest=0.05,
    )
    table, moved = fit(surface, [c[~held] for c in columns], net[~held])
    return Fit(
        surface=surface,
        log_seconds=table,
        held=_held(columns, rows.seconds, read_s, held),
        rows=int((~held).sum()),
        moved=moved,
        facts={"measured_by": [version], "head_dim": _FULL_HEAD_DIM},
    )


def _kv_slope(rows: Rows, kv_bytes: Floats) -> float:
    """Seconds per byte of keys and values: median over shapes that were measured with few and with
    many key-value heads."""
    groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for key, seconds, size in zip(rows.keys.tolist(), rows.seconds, kv_bytes, strict=True):
        groups.setdefault((key[0], key[1], key[3], key[4]), []).append((size, seconds))
    slopes = []
    for pairs in groups.values():
        (low, first), (high, last) = min(pairs), max(pairs)
        if high - low > _KV_BYTES and (last - first) > 0.1 * first:
            slopes.append((last - first) / (high - low))
    return float(np.median(slopes))


def _fit_latent(chip: str, rows: Rows, version: str) -> Fit:
    rows = rows.where(rows.keys[:, 1] >= min(_SEQUENCES))
    heads, sequence, batch = rows.keys.T.astype(np.float64)
    held = split(len(heads))
    columns = (batch * heads, sequence)
    surface = Surface(
        points=(_upto(_HEADS, columns[0]), _upto(_SEQUENCES, sequence)),
        growth=(1.0, 2.0),
        stiffness=(0.03, 0.03),
        twist=(0.03,),
        rising=(True, True),
        base=partial(_latent_roofline, chip),
        doubt=0.05,
    )
    table, moved = fit(surface, [c[~held] for c in columns], rows.seconds[~held])
    return Fit(
        surface=surface,
        log_seconds=table,
        held=_held(columns, rows.seconds, np.zeros(len(heads)), held),
        rows=int((~held).sum()),
        moved=moved,
        facts={"measured_by": [version]},
    )


def _measured(column: Floats) -> tuple[float, ...]:
    return tuple(sorted(set(column.tolist())))


def _upto(points: tuple[int, ...], column: Floats) -> tuple[int, ...]:
    return tuple(point for point in points if point <= column.max())


def _held(
    columns: tuple[Floats, ...], seconds: Floats, added: Floats, held: NDArray[np.bool_]
) -> Held:
    return Held(
        columns=tuple(c[held] for c in columns),
        seconds=seconds[held],
        added=added[held],
        large=columns[-1][held] >= _LARGE_SEQUENCE,
    )


def _roofline(name: str, head_dim: Floats, heads: Floats, sequence: Floats) -> Floats:
    """Log of causal work at half the peak, traffic of queries and results, and 4 us, added up."""
    chip = find_chip(name)
    work_s = (
        2 * heads * sequence * (sequence + 256) * head_dim / (0.5 * chip.peak_flops_per_s("bf16"))
    )
    traffic_s = 4 * heads * sequence * head_dim / (0.85 * chip.memory_bytes_per_s)
    return np.asarray(np.log(work_s + traffic_s + 4e-6))


def _full_roofline(name: str, heads: Floats, sequence: Floats) -> Floats:
    """As causal attention with as much work: sqrt(2) times the sequence."""
    return _roofline(name, np.full_like(heads, float(_FULL_HEAD_DIM)), heads, np.sqrt(2) * sequence)


def _latent_roofline(name: str, heads: Floats, sequence: Floats) -> Floats:
    return _roofline(name, np.full_like(heads, _MLA_DIMS / 2), heads, sequence)
