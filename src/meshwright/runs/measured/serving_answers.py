"""What serving runs are predicted to do, and the file that says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.runs.measured.rows import Unanswerable
from meshwright.runs.measured.serving_rows import ServingCase
from meshwright.trust.intervals import (
    Fits,
    Kind,
    ServingQuantity,
    serving_interval,
    serving_kind,
)
from meshwright.values.text import csv_text
from meshwright.values.units import GIB

__all__ = [
    "COLUMNS",
    "FIGURES",
    "SCORED",
    "ServingAnswers",
    "ServingPrediction",
    "serving_predictions_csv",
]

FIGURES: Mapping[ServingQuantity, str] = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "e2e": "e2e_latency_ms",
    "throughput": "throughput_out_tok_s_per_gpu",
    "serving_memory": "memory_gb",
}
"""Columns of the tables, by figure."""
SCORED = ("source", "row_id", *FIGURES.values(), "oom")
"""Columns that predictions are compared by."""
COLUMNS = (
    *SCORED,
    *(f"{name}_{end}" for name in FIGURES.values() for end in ("low", "high")),
    *("fits", "assumed"),
)
_MS = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPrediction:
    """What one run is predicted to do; None is no answer."""

    source: str
    row_id: str
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    tokens_per_s_per_chip: float | None = None
    memory_gib: float | None = None
    oom: bool | None = None
    room: float | None = None
    """Of an engine that fills what is free with its cache, tokens that it has room for over those
    of one request."""
    case: ServingCase | None = None

    @property
    def figures(self) -> dict[ServingQuantity, float | None]:
        """What was predicted, in the units of the tables."""
        seconds = (self.ttft_s, self.tpot_s, self.e2e_s)
        times = (None if value is None else value * _MS for value in seconds)
        return dict(
            zip(FIGURES, (*times, self.tokens_per_s_per_chip, self.memory_gib), strict=True)
        )

    @property
    def kind(self) -> Kind:
        """Which published runs say how far off a prediction may be."""
        case = self.case
        assert case is not None, "predictions of rows carry their case"
        return serving_kind(
            model=case.model,
            chip=case.node.chip,
            engine=case.engine.name,
            way=_WAYS[case.kind] if case.pools is None else "two pools",
        )

    @property
    def intervals(self) -> dict[ServingQuantity, tuple[float, float] | None]:
        """The 80 % intervals of the figures."""
        kind = self.kind
        return {
            name: None if value is None else serving_interval(kind, name, value)
            for name, value in self.figures.items()
        }

    @property
    def verdict(self) -> Fits | None:
        """`no` where it runs out, `at risk` where the upper end of its memory would, or where the
        engine's share of the chip leaves no request room; None where nothing tells."""
        memory, case = self.intervals["serving_memory"], self.case
        if self.oom:
            return "no"
        if self.room is not None:
            return "at risk" if self.room < 1 else "yes"
        if memory is not None and case is not None:
            return "at risk" if memory[1] * GIB > case.node.chip.usable_bytes else "yes"
        return None if self.oom is None else "yes"

    @property
    def cells(self) -> tuple[str, ...]:
        """The line of the predictions file."""
        ends = [end for pair in self.intervals.values() for end in pair or (None, None)]
        return (
            *(self.source, self.row_id),
            *map(_written, self.figures.values()),
            "" if self.oom is None else str(int(self.oom)),
            *map(_written, ends),
            *(self.verdict or "", "; ".join(self.case.assumed if self.case else ())),
        )


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


_WAYS: Mapping[str, str] = {
    "closed_loop": "one pool",
    "max_load": "as many as fit",
    "static": "static batches",
    "first_token": "static batches",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingAnswers:
    """Predictions in the order of the rows, and the rows without one."""

    predictions: tuple[ServingPrediction, ...]
    unanswered: tuple[Unanswerable, ...]

    @property
    def reasons(self) -> dict[str, dict[str, int]]:
        """Unanswered rows by table and reason."""
        counts: dict[str, Counter[str]] = {}
        for row in self.unanswered:
            counts.setdefault(row.source, Counter())[row.reason] += 1
        return {name: dict(found) for name, found in counts.items()}


def serving_predictions_csv(answers: ServingAnswers) -> str:
    """Return the predictions file: a line per row, blank figures where there is no answer."""
    blank = ((row.source, row.row_id, *[""] * (len(COLUMNS) - 2)) for row in answers.unanswered)
    return csv_text(COLUMNS, (*(prediction.cells for prediction in answers.predictions), *blank))
