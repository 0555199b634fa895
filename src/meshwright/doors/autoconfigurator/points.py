"""Points of the inference grid, predicted or measured, and the tables that they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.csv_text import csv_text
from meshwright.errors import ConfigError
from meshwright.runs.store import write_whole

__all__ = ["Point", "PointTable", "Refused", "write_points"]

THEIRS = ("TP", "PP", "BS", "Latency [ms]", "Throughput per GPU [samples/sec/gpu]")
"""NeMo's headings, to the letter."""
OURS = (
    *(
        "GPUs",
        "Nodes",
        "First Token [ms]",
        "TPOT [ms]",
        "Output Tokens per GPU [tokens/sec/gpu]",
        "Memory [GiB]",
    ),
    *(
        "Model",
        "GPU",
        "Data Type",
        "Input Len",
        "Output Len",
        "Source",
        "Engine",
        "Predicted Latency [ms]",
    ),
)
FINAL, BESIDE = "final_summary", "predicted_summary"
FAILED = ("TP", "PP", "BS", "Class", "Reason", "Evidence")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point that runs."""

    tp: int
    pp: int
    batch: int
    latency_ms: float
    """Of a static batch, predicted: from its first prompt token to its last new one. Measured: of a
    request, mean, with as many clients."""
    samples_per_s_per_gpu: float
    """NeMo's throughput."""
    first_token_ms: float
    tpot_ms: float | None
    """None of one token."""
    memory_gib: float | None = None
    """Of the fullest chip, as predicted; None where it was measured, which says nothing of it."""
    predicted_ms: float | None = None
    """Of a measured point: what was predicted of this engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """One point that can't run, or did not."""

    tp: int
    pp: int
    batch: int
    kind: str
    """`rule` and `oom` before a run, of a run its failure class."""
    reason: str
    evidence: str | None = None
    """The line that shows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointTable:
    """All points of a grid, with what they share."""

    points: Sequence[Point]
    refused: Sequence[Refused]
    folder: Path
    """Of the inference part; its summary holds the tables."""
    model: str
    chip: str
    gpus_per_node: int
    data_type: str
    input_len: int
    output_len: int
    source: Literal["predicted", "measured"]
    engine: str


def write_points(table: PointTable, *, beside: bool = False) -> Path:
    """Write `final_output.csv`, `all_points.csv` and `failed_points.csv`; return the first. Every
    row says what it is of.

    They are the final summary, unless they lie `beside` one that is measured.
    """
    folder = table.folder / (BESIDE if beside else FINAL)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}") from None
    rows = [
        [p.tp, p.pp, p.batch, round(p.latency_ms, 3), round(p.samples_per_s_per_gpu, 3)]
        for p in table.points
    ]
    more = [_more(table, point) for point in table.points]
    failed = [[p.tp, p.pp, p.batch, p.kind, p.reason, p.evidence] for p in table.refused]
    write_whole(folder / "final_output.csv", csv_text(THEIRS, rows))
    write_whole(
        folder / "all_points.csv",
        csv_text((*THEIRS, *OURS), [[*row, *rest] for row, rest in zip(rows, more, strict=True)]),
    )
    write_whole(folder / "failed_points.csv", csv_text(FAILED, failed))
    return folder / "final_output.csv"


def _more(table: PointTable, point: Point) -> list[Any]:
    gpus = point.tp * point.pp
    return [
        *(
            gpus,
            -(-gpus // table.gpus_per_node),
            _rounded(point.first_token_ms, 3),
            _rounded(point.tpot_ms, 3),
        ),
        *(
            _rounded(point.samples_per_s_per_gpu * table.output_len, 3),
            _rounded(point.memory_gib, 2),
        ),
        *(
            table.model,
            table.chip,
            table.data_type,
            table.input_len,
            table.output_len,
            table.source,
            table.engine,
        ),
        _rounded(point.predicted_ms, 3),
    ]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
