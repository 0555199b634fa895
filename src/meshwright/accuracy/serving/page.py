"""The page that says how wrong predictions of serving runs are, as text."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.accuracy.serving.score import QUANTITIES, ServingFigures
from meshwright.units import counted

__all__ = ["HEADINGS", "cells_of", "serving_accuracy_page"]

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
"""  # noqa: E501


def serving_accuracy_page(
    figures: Mapping[str, ServingFigures], unanswered: Mapping[str, Mapping[str, int]]
) -> str:
    """Return the page."""
    lines = [
        _INTRODUCTION,
        "| table | " + " | ".join(HEADINGS) + " |",
        "| --- |" + " ---: |" * len(HEADINGS),
    ]
    lines += ["| " + " | ".join((name, *cells_of(found))) + " |" for name, found in figures.items()]
    lines += ["", "## Rows without an answer", ""]
    for table, reasons in unanswered.items():
        lines += [
            f"- {table}, {counted(count, 'row')}: {reason}" for reason, count in reasons.items()
        ]
    return "\n".join(lines) + "\n"


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
