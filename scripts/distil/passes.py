"""NCCL collectives, and the passes of fp8 quantisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distil.source import Source, age_of, merged, read, version_of, versions_in
from distil.surface import Fit, Floats, Held, Surface, fit, split
from meshwright.values.hardware.catalogue import find_chip

__all__ = ["fit_collectives", "fit_quantisation"]

_OPS = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "alltoall",
    "reduce_scatter": "reduce_scatter",
}
_TABLES = {"amax": "computescale_perf", "cast": "scale_matrix_perf"}
_ELEMENTS = tuple(2**i for i in range(18, 32))
_LARGE_BYTES = 2**20


def fit_collectives(source: Source) -> dict[str, Fit]:
    """One table per collective, of the newest NCCL measured: the median of its runs (folders may be
    named after other versions)."""
    files = sorted((source.folder / "comm" / "nccl").glob("*/nccl_perf.parquet"))
    version = max((known for file in files for known in versions_in(file)), key=age_of)
    files = [file for file in files if version in versions_in(file)]
    fits = {}
    for op, name in _OPS.items():
        runs = [
            read(
                file, ("num_gpus", "message_size"), op_name=name, nccl_dtype="half", version=version
            )
            for file in files
        ]
        rows = merged(runs, "median")
        ranks, values = rows.keys.T.astype(np.float64)
        columns = (
            ranks,
            2 * values,
        )  # counted in values of two bytes: 8 H100 gather 2**28 in 1.40 ms, 335 GB/s of 450 a link
        points = tuple(tuple(sorted(set(column.tolist()))) for column in columns)
        surface = Surface(
            points=points,
            growth=(0.0, 1.0),
            stiffness=(0.0003, 0.003),
            rising=(False, True),
            base=_line(columns, rows.seconds),
        )
        facts: dict[str, object] = {"measured_by": [f"nccl {version}"]}
        fits[f"collective/{op}"] = _fit(
            surface, columns, rows.seconds, large=columns[1] >= _LARGE_BYTES, facts=facts
        )
    return fits


def _line(columns: tuple[Floats, ...], seconds: Floats) -> Callable[..., Floats]:
    """Log of latency + bytes / rate per number of ranks, latency the median of short messages, rate
    that of the longest ones."""
    counts = np.unique(columns[0])
    latency, pace = [], []
    for count in counts:
        short, long = (
            (columns[0] == count) & (columns[1] <= _SHORT_BYTES),
            (columns[0] == count) & (columns[1] >= _LONG_BYTES),
        )
        latency.append(float(np.median(seconds[short])))
        pace.append(float(np.median(seconds[long] / columns[1][long])))

    def base(ranks: Floats, size: Floats) -> Floats:
        return np.asarray(
            np.log(np.interp(ranks, counts, latency) + size * np.interp(ranks, counts, pace))
        )

    return base


_SHORT_BYTES = 2**13
_LONG_BYTES = 2**27


def fit_quantisation(chip: str, source: Source) -> dict[str, Fit]:
    """TensorRT-LLM's passes, those inside its fp8 rows, from 2**18 values on."""
    bandwidth = find_chip(chip).memory_bytes_per_s
    fits = {}
    for step, table in _TABLES.items():
        files = {
            name: file
            for name, file in source.frameworks("quantize", table).items()
            if name == "trtllm"
        }
        if not files:
            continue
        rows = read(files["trtllm"], ("m", "k"))
        rows = rows.where(np.prod(rows.keys, axis=1) >= _ELEMENTS[0])
        elements = np.prod(rows.keys.astype(np.float64), axis=1)
        surface = Surface(
            points=(_ELEMENTS,),
            growth=(1.0,),
            stiffness=(0.1,),
            rising=(True,),
            base=lambda n: np.log(3 * n / bandwidth + 3e-6),
        )
        facts: dict[str, object] = {"measured_by": [version_of(file) for file in files.values()]}
        fits[f"quantise/{step}"] = _fit(
            surface, (elements,), rows.seconds, large=elements >= _LARGE_BYTES, facts=facts
        )
    return fits


def _fit(
    surface: Surface,
    columns: tuple[Floats, ...],
    seconds: Floats,
    *,
    large: object,
    facts: dict[str, object],
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
        facts=facts,
    )
