"""Matrix products: bf16, fp8 per tensor, fp8 by blocks, nvfp4."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from distil.source import Rows, Source, merged, read, version_of
from distil.surface import Fit, Floats, Held, Surface, fit, split
from meshwright.cost.kernels import element_bytes
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.workload import Precision

__all__ = ["fit_gemms"]

_DTYPES: dict[Precision, str] = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8-blockwise": "fp8_block",
    "nvfp4": "nvfp4",
}
_FRAMEWORKS: dict[Precision, tuple[str, ...]] = {
    "bf16": (
        "sglang",
        "trtllm",
        "vllm",
    ),  # all three call cuBLAS: their median is three repeats' (one node may be throttled)
    "fp8": (
        "trtllm",
        # cuBLASLt as in Transformer Engine; the only one whose quantisation passes are measured alone  # noqa: E501
    ),
    "fp8-blockwise": (
        "sglang",
        "trtllm",
        "vllm",
    ),  # DeepGEMM, CUTLASS, FlashInfer: the best kernel wins
    "nvfp4": ("sglang", "trtllm", "vllm"),
}
_ROWS = (
    1,
    2,
    4,
    8,
    12,
    16,
    17,
    32,
    33,
    48,
    49,
    64,
    65,
    80,
    81,
    96,
    97,
    112,
    113,
    128,
    129,
    160,
    161,
    192,
    193,
    224,
    225,
    256,
    257,
)
_ODD_ROWS = 4353
"""The last count of rows that needs one more tile, before 8192: from it on, between points,
products are taken to fill their tiles."""
_LARGE_FLOPS = 1e10
_LARGE_DIM = 256


def fit_gemms(chip: str, source: Source) -> dict[str, Fit]:
    """One table per precision that was measured."""
    fits = {}
    for precision, dtype in _DTYPES.items():
        files = {
            n: f
            for n, f in source.frameworks("gemm", "gemm_perf").items()
            if n in _FRAMEWORKS[precision]
        }
        parts = {
            name: read(file, ("m", "n", "k"), gemm_dtype=dtype) for name, file in files.items()
        }
        parts = {
            name: _whole_blocks(precision, rows)
            for name, rows in parts.items()
            if len(rows.seconds) > _FEW
        }
        if parts:
            fits[f"gemm/{precision}"] = _fit(
                chip, precision, source, parts, [version_of(files[name]) for name in parts]
            )
    return fits


_FEW = 1000
"""Fewer rows than this are a trial, not a sweep (518 of vLLM's fp8_block on RTX PRO 6000)."""


def _whole_blocks(precision: Precision, rows: Rows) -> Rows:
    """Kernels with block scales need whole blocks of 128; vLLM alone measured less, on a kernel ten
    times slower."""
    if precision in ("bf16", "fp8"):
        return rows
    return rows.where((rows.keys[:, 1] >= _BLOCK) & (rows.keys[:, 2] >= _BLOCK))


_BLOCK = 128


def _fit(
    chip: str, precision: Precision, source: Source, parts: dict[str, Rows], versions: list[str]
) -> Fit:
    rows = merged(parts.values(), "median" if precision == "bf16" else "least")
    m, n, k = rows.keys.T.astype(np.float64)
    extra = _quantisation(source, precision, rows.keys)
    known = np.isfinite(extra)
    least = np.maximum(
        2 * m * n * k / find_chip(chip).peak_flops_per_s(precision), 0.05 * rows.seconds
    )
    net = np.where(extra > 0, np.maximum(rows.seconds - extra, least), rows.seconds)
    held = split(len(m))
    large = (2 * m * n * k >= _LARGE_FLOPS) & (np.minimum(np.minimum(m, n), k) >= _LARGE_DIM)
    surface = _surface(chip, precision, rows.keys)
    keep = known & ~held & (m != _ODD_ROWS)
    table, moved = fit(surface, [c[keep] for c in (m, n, k)], net[keep])
    test = known & held
    return Fit(
        surface=surface,
        log_seconds=table,
        held=Held(
            columns=(m[test], n[test], k[test]),
            seconds=rows.seconds[test],
            added=extra[test],
            large=large[test],
        ),
        rows=int(keep.sum()),
        moved=moved,
        facts={
            "measured_by": versions,
            "floored_rows": int((net > rows.seconds - extra)[known].sum()),
            "spread": _spread(parts),
        },
    )


def _spread(parts: dict[str, Rows]) -> dict[str, float]:
    """Median of each framework's time over the least, on large shapes that all measured."""
    shared = set.intersection(*(set(rows.by_key) for rows in parts.values()))
    large = [
        key
        for key in shared
        if 2.0 * key[0] * key[1] * key[2] >= _LARGE_FLOPS and min(key) >= _LARGE_DIM
    ]
    if not large:
        return {}
    times = {name: np.array([rows.by_key[key] for key in large]) for name, rows in parts.items()}
    least = np.min(list(times.values()), axis=0)
    return {
        name: round(float(np.median(seconds / least)), 3) for name, seconds in sorted(times.items())
    }


def _quantisation(source: Source, precision: Precision, keys: NDArray[np.int64]) -> Floats:
    """What a measured row spends on quantising its left operand, NaN where that was not measured.

    fp8 rows run the amax pass and the cast pass that the same framework measured alone (they add
    up: on H100 32768 x 8192 by 32 takes 776 us, the passes 413 + 265, the product 99, half the bf16
    product's 189). Blockwise and nvfp4 rows run one cast pass; it is taken as vLLM's per-tensor
    cast, by the bytes moved.
    """
    if precision == "bf16":
        return np.zeros(len(keys))
    framework = "trtllm" if precision == "fp8" else "vllm"
    cast = read(source.frameworks("quantize", "scale_matrix_perf")[framework], ("m", "k")).by_key
    passes = [cast]
    if precision == "fp8":
        passes.append(
            read(source.frameworks("quantize", "computescale_perf")[framework], ("m", "k")).by_key
        )
    share = (2 + element_bytes(precision)) / 3
    pairs = [(m, k) for m, _, k in keys.tolist()]
    return np.array([share * sum(p.get(pair, np.nan) for p in passes) for pair in pairs])


def _surface(chip: str, precision: Precision, keys: NDArray[np.int64]) -> Surface:
    rows = tuple(
        sorted(
            {m for m in keys[:, 0].tolist() if m in _ROWS or (m > max(_ROWS) and m != _ODD_ROWS)}
        )
    )
    columns = tuple(sorted(set(keys[:, 1].tolist())))
    depths = tuple(sorted(set(keys[:, 2].tolist())))
    return Surface(
        points=(rows, columns, depths),
        growth=(1.0, 1.0, 1.0),
        stiffness=(0.0003, 0.001, 0.003),
        twist=(0.0003, 0.003, 0.003),
        rising=(True, True, True),
        base=partial(_roofline, chip, precision),
        doubt=0.05,
    )


def _roofline(name: str, precision: Precision, m: Floats, n: Floats, k: Floats) -> Floats:
    """Log of the larger of arithmetic at 75 % and traffic at 85 % of the peaks, and 3 us."""
    chip = find_chip(name)
    size = element_bytes(precision)
    work_s = 2 * m * n * k / (0.75 * chip.peak_flops_per_s(precision))
    traffic_s = (size * (m * k + n * k) + 2 * m * n) / (0.85 * chip.memory_bytes_per_s)
    return np.asarray(np.log(np.maximum(work_s, traffic_s) + 3e-6))
