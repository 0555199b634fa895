"""Grouped products of gated expert layers."""

from __future__ import annotations

from functools import partial

import numpy as np

from distil.source import Rows, Source, read, version_of
from distil.surface import Fit, Floats, Held, Surface, fit, misses, split
from meshwright.cost.kernels import element_bytes
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.workload import Precision

__all__ = ["fit_experts"]

_DTYPES: dict[Precision, str] = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8-blockwise": "fp8_block",
    "nvfp4": "nvfp4",
}
_KEYS = (
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
)
_GATED = ["moe_torch_flow", "moe_torch_flow_cutlass", "deepgemm"]
"""TensorRT-LLM's kernels for gated layers at training sizes; its rows of layers without a gate and
of the low-latency kernel for a few tokens have other names."""
_HALVES = tuple(sorted({round(2 ** (i / 2)) for i in range(31)}))
_EXPERTS = tuple(2**i for i in range(10))
_HIDDEN = (2048, 3072, 4096, 5120, 6144, 7168, 8192)
_POWERS = tuple(2**i for i in range(5, 15))
_INTER = tuple(sorted({*_POWERS, *(3 * 2**i for i in range(4, 13))}))
_LARGE_TOKENS = 64


def fit_experts(chip: str, source: Source) -> dict[str, Fit]:
    """One table per precision."""
    file = source.frameworks("moe", "moe_perf").get("trtllm")
    fits = {}
    for precision, dtype in _DTYPES.items():
        rows = (
            None
            if file is None
            else _rows(
                read(file, _KEYS, moe_dtype=dtype, distribution="balanced", kernel_source=_GATED)
            )
        )
        if file is not None and rows is not None and len(rows.seconds) > _FEW:
            fits[f"experts/{precision}"] = _fit(chip, precision, rows, version_of(file))
    return fits


_FEW = 300


def _rows(rows: Rows) -> Rows:
    """Those in which every expert has a batch of tokens, as in training."""
    tokens, _, _, topk, experts, _, _ = rows.keys.T
    return rows.where(tokens * topk >= _LEAST_TOKENS * experts)


_LEAST_TOKENS = 8
_READS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""How often the kernel may pass over all tokens of the group, in bytes of 16-bit tokens at the peak
bandwidth: candidates."""


def _fit(chip: str, precision: Precision, rows: Rows, version: str) -> Fit:
    """The surface with that share of time for tokens that are not routed here which makes the rows
    agree best, on a coarse grid.

    With 256 experts over 256 ranks the kernel still walks over the tokens of all ranks; in training
    only routed ones arrive.
    """
    columns = _columns(rows)
    held = split(len(rows.seconds))
    seen = [c[~held] for c in columns]
    coarse = _surface(chip, precision, columns, inter=_POWERS, stiffness=0.01)
    disagreement = {
        reads: _disagreement(coarse, seen, _net(chip, rows, reads)[~held]) for reads in _READS
    }
    reads = min(_READS, key=lambda count: disagreement[count])
    surface = _surface(chip, precision, columns, inter=_INTER, stiffness=0.003, twist=0.003)
    table, moved = fit(surface, seen, _net(chip, rows, reads)[~held])
    return Fit(
        surface=surface,
        log_seconds=table,
        held=Held(
            columns=tuple(c[held] for c in columns),
            seconds=rows.seconds[held],
            added=_walk_s(chip, rows, reads)[held],
            large=columns[0][held] >= _LARGE_TOKENS,
        ),
        rows=int((~held).sum()),
        moved=moved,
        facts={"measured_by": [version], "passes_over_all_tokens": reads},
    )


def _columns(rows: Rows) -> tuple[Floats, ...]:
    tokens, hidden, inter, topk, experts, tp, ep = rows.keys.T.astype(np.float64)
    return tokens * topk / experts, experts / ep, hidden, inter / tp


def _walk_s(chip: str, rows: Rows, reads: float) -> Floats:
    tokens, hidden = rows.keys[:, 0].astype(np.float64), rows.keys[:, 1]
    return np.asarray(reads * 2 * tokens * hidden / find_chip(chip).memory_bytes_per_s)


def _net(chip: str, rows: Rows, reads: float) -> Floats:
    return np.maximum(rows.seconds - _walk_s(chip, rows, reads), 0.2 * rows.seconds)


def _surface(
    chip: str,
    precision: Precision,
    columns: tuple[Floats, ...],
    *,
    inter: tuple[int, ...],
    stiffness: float,
    twist: float = 0.0,
) -> Surface:
    return Surface(
        points=tuple(
            _within(points, column)
            for points, column in zip((_HALVES, _EXPERTS, _HIDDEN, inter), columns, strict=True)
        ),
        growth=(1.0, 1.0, 1.0, 1.0),
        stiffness=(stiffness,) * 4,
        twist=(twist,) * 6 if twist else (),
        rising=(True, True, True, True),
        base=partial(_roofline, chip, precision),
        doubt=0.05,
    )


def _disagreement(surface: Surface, columns: list[Floats], net: Floats) -> float:
    table, _ = fit(surface, columns, net)
    return float(np.mean(np.minimum(np.abs(misses(surface, table, columns, net)), 0.1)))


def _within(points: tuple[int, ...], column: Floats) -> tuple[int, ...]:
    """Points from the last at or below the least measured to the first at or above the largest."""
    low = max((p for p in points if p <= column.min()), default=points[0])
    high = min((p for p in points if p >= column.max()), default=points[-1])
    return tuple(p for p in points if low <= p <= high)


def _roofline(
    name: str, precision: Precision, tokens: Floats, experts: Floats, hidden: Floats, inter: Floats
) -> Floats:
    chip = find_chip(name)
    work_s = 6 * tokens * experts * hidden * inter / (0.6 * chip.peak_flops_per_s(precision))
    weights_s = (
        element_bytes(precision) * 3 * experts * hidden * inter / (0.85 * chip.memory_bytes_per_s)
    )
    tokens_s = tokens * experts * (10 * hidden + 8 * inter) / (0.85 * chip.memory_bytes_per_s)
    return np.asarray(np.log(np.maximum(work_s, weights_s) + tokens_s + 2e-5))
