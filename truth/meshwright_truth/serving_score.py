"""The page that says how wrong predictions of serving runs are, as text."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.serving_answers import SCORED, ServingAnswers
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted
from meshwright_truth.score import spearman

__all__ = [
    "HEADINGS",
    "QUANTITIES",
    "Errors",
    "ServingFigures",
    "cells_of",
    "guesses_of_answers",
    "read_guesses",
    "score_serving",
    "serving_accuracy_page",
]

QUANTITIES = ("ttft_ms", "tpot_ms", "e2e_latency_ms", "throughput_out_tok_s_per_gpu", "memory_gb")
_ALIKE = ("model", "gpu", "engine", "precision", "input_len", "output_len", "measure_kind", "mode")
_SMALLEST_GROUP = 6
Guess = Mapping[str, str]
Guesses = Mapping[tuple[str, str], Guess]


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Of one quantity."""

    n: int
    mape: float
    """Mean of |predicted / measured - 1|."""
    medape: float
    bias: float
    """Geometric mean of predicted / measured, less 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingFigures:
    """The figures of a set of rows; None where there is nothing to compare."""

    rows: int
    answered: float
    errors: Mapping[str, Errors]
    oom_f1: float | None
    groups: int
    spearman: float | None
    """Median over groups of the rank correlation of throughput per chip."""
    best_tp: float | None
    """Share of groups in which the best predicted configuration has the best measured one's tp."""

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        errors = {
            name: {"n": e.n, "mape": e.mape, "medape": e.medape, "bias": e.bias}
            for name, e in self.errors.items()
        }
        rest = {
            "oom_f1": self.oom_f1,
            "groups": self.groups,
            "spearman": self.spearman,
            "best_tp": self.best_tp,
        }
        return {"rows": self.rows, "answered": self.answered, **errors, **rest}


def guesses_of_answers(answers: ServingAnswers) -> Guesses:
    """Return the predictions as cells."""
    return {
        (p.source, p.row_id): dict(zip(SCORED, p.cells, strict=False)) for p in answers.predictions
    }


def read_guesses(path: Path) -> Guesses:
    """Read a predictions file; ConfigError where it is none."""
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    if not rows or not {"source", "row_id"} <= set(rows[0]):
        raise ConfigError(
            f"{path}: columns source, row_id expected, as `meshwright serving predict` writes them"
        )
    return {(row["source"], row["row_id"]): row for row in rows}


def score_serving(tables: Sequence[TruthTable], guesses: Guesses) -> dict[str, ServingFigures]:
    """Return figures per table, its dense and its expert models, and each engine and chip."""
    parts: dict[str, list[tuple[Mapping[str, str], Guess]]] = defaultdict(list)
    for table in tables:
        for row in table.rows:
            pair = (row, guesses.get((table.name, row["row_id"]), {}))
            kind = "moe" if row.get("n_experts") else "dense"
            for name in (
                table.name,
                f"{table.name} {kind}",
                f"{table.name} {row['engine']} {row['gpu']} {kind}",
            ):
                parts[name].append(pair)
    return {name: _figures(pairs) for name, pairs in sorted(parts.items())}


def _figures(pairs: Sequence[tuple[Mapping[str, str], Guess]]) -> ServingFigures:
    correlations, best = _ranks(pairs)
    return ServingFigures(
        rows=len(pairs),
        answered=statistics.fmean(
            any(g.get(q) for q in QUANTITIES) or bool(g.get("oom")) for _, g in pairs
        ),
        errors={q: found for q in QUANTITIES if (found := _errors(pairs, q)) is not None},
        oom_f1=_oom_f1(pairs),
        groups=len(correlations),
        spearman=statistics.median(correlations) if correlations else None,
        best_tp=statistics.fmean(best) if best else None,
    )


def _errors(pairs: Iterable[tuple[Mapping[str, str], Guess]], quantity: str) -> Errors | None:
    ratios = []
    for row, guess in pairs:
        measured, predicted = _number(row.get(quantity)), _number(guess.get(quantity))
        if measured and predicted and not _is_oom(row):
            ratios.append(predicted / measured)
    if not ratios:
        return None
    errors = [abs(ratio - 1.0) for ratio in ratios]
    bias = math.exp(statistics.fmean(map(math.log, ratios))) - 1.0
    return Errors(
        n=len(ratios), mape=statistics.fmean(errors), medape=statistics.median(errors), bias=bias
    )


def _oom_f1(pairs: Iterable[tuple[Mapping[str, str], Guess]]) -> float | None:
    told = [
        (_is_oom(row), guess["oom"] == "1")
        for row, guess in pairs
        if guess.get("oom") in ("0", "1") and row.get("oom")
    ]
    if not any(true for true, _ in told):
        return None
    right = sum(true and said for true, said in told)
    return 2 * right / (sum(true for true, _ in told) + sum(said for _, said in told))


def _ranks(pairs: Iterable[tuple[Mapping[str, str], Guess]]) -> tuple[list[float], list[bool]]:
    """Rank correlation of every group that is large enough, and whether the best tp is right where
    there are several."""
    groups: dict[tuple[str, ...], list[tuple[float, float, str]]] = defaultdict(list)
    for row, guess in pairs:
        measured, predicted = (
            _number(cells.get("throughput_out_tok_s_per_gpu")) for cells in (row, guess)
        )
        if measured and predicted and not _is_oom(row):
            groups[tuple(row.get(name, "") for name in _ALIKE)].append(
                (measured, predicted, row.get("tp", ""))
            )
    large = [group for group in groups.values() if len(group) >= _SMALLEST_GROUP]
    found = [spearman([one[0] for one in group], [one[1] for one in group]) for group in large]
    several = [group for group in groups.values() if len({one[2] for one in group}) > 1]
    best = [
        max(group, key=lambda one: one[0])[2] == max(group, key=lambda one: one[1])[2]
        for group in several
    ]
    return [value for value in found if value is not None], best


def _is_oom(row: Mapping[str, str]) -> bool:
    return row.get("oom", "").strip().lower() in ("true", "1")


def _number(cell: str | None) -> float | None:
    """A positive finite number, else None."""
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


HEADINGS = (
    *("rows", "rows answered", "TTFT", "TPOT", "end to end", "throughput per chip", "memory"),
    *("OOM F1", "rank corr.", "best tp"),
)

_INTRODUCTION = """# Accuracy of serving predictions

Written by `meshwright serving validate`. Every row of the tables is predicted without a look at what was measured, and compared with it.

- Cells hold mean / median of |predicted / measured - 1|, and the bias, the geometric mean of predicted / measured, less 1.
- Rank correlation of throughput per chip is the median over groups of at least 6 rows with the same model, chip, engine, precision and
  lengths; best tp is the share of groups with several tensor-parallel sizes in which the predicted best has the measured best one's.
- TTFT runs from sending a request to its first token; TPOT is (finish - first token) / (output tokens - 1), the mean over requests; end to
  end is TTFT + (output tokens - 1) * TPOT, and throughput is requests under way * output tokens / end to end / chips, as in the tables.
- What the constants were fitted on, and how well they hold on models that were left out, says docs/serving.md.

The first table is what a user is told; the second is what can be said of a run whose benchmark is known.
"""  # noqa: E501
_PLANNED = """## As `serving plan` prices it

By model, chips, engine, weights, cache, lengths, workers and clients alone, with the engine's own
settings. Clients are spread evenly in time, and no benchmark starts all of them at once.
"""
_BENCHMARKED = """## With the benchmark's own configuration

Lengths as the benchmark draws them, clients as it starts them, the engine's settings and the pools
of its recipe where the day or the version tells which.
"""


def serving_accuracy_page(
    figures: Mapping[str, ServingFigures],
    unanswered: Mapping[str, Mapping[str, int]],
    *,
    planned: Mapping[str, ServingFigures] | None = None,
) -> str:
    """Return the page; `planned` are the figures of the same rows as `serving plan` prices them."""
    lines = [_INTRODUCTION]
    if planned is not None:
        lines += [_PLANNED, *_table(planned), ""]
    lines += [_BENCHMARKED, *_table(figures), "", "## Rows without an answer", ""]
    for table, reasons in unanswered.items():
        lines += [
            f"- {table}, {counted(count, 'row')}: {reason}" for reason, count in reasons.items()
        ]
    return "\n".join(lines) + "\n"


def _table(figures: Mapping[str, ServingFigures]) -> list[str]:
    lines = ["| table | " + " | ".join(HEADINGS) + " |", "| --- |" + " ---: |" * len(HEADINGS)]
    return lines + [
        "| " + " | ".join((name, *cells_of(found))) + " |" for name, found in figures.items()
    ]


def cells_of(found: ServingFigures) -> tuple[str, ...]:
    """One line of figures."""
    errors = (found.errors.get(quantity) for quantity in QUANTITIES)
    shown = (
        "" if e is None else f"{100 * e.mape:.1f} / {100 * e.medape:.1f} % ({100 * e.bias:+.0f} %)"
        for e in errors
    )
    rest = (
        "" if value is None else f"{value:.3f}"
        for value in (found.oom_f1, found.spearman, found.best_tp)
    )
    return (str(found.rows), f"{100 * found.answered:.1f} %", *shown, *rest)
