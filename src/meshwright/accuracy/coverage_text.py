"""How often intervals hold and verdicts are right, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import get_args

from meshwright.accuracy.spreads import HELD, Coverage, TableCoverage
from meshwright.accuracy.verdicts import FirstPlan, Verdicts
from meshwright.confidence import MOST_HEADROOM, Fits, Quantity
from meshwright.units import counted

__all__ = ["coverage_lines", "coverage_section", "markdown", "verdict_lines"]

_NOUNS: Mapping[Quantity, str] = {"step_time": "Step time", "peak_memory": "Peak memory"}
VERDICTS: tuple[Fits, ...] = get_args(Fits)

_HEAD = """## How sure

Every estimate carries an 80 % interval: what was measured over what was predicted on published runs of its kind. Kinds go from fine to
coarse: the same software, dense or with experts, on chips of one generation; of one maker; of one family of software; all such models;
all runs. Step times of models below a billion parameters are kinds of their own. The finest with two or more (table, model) groups is
used (three for memory), and `plan` and `explain` say when it is not the run's own. What some tables show of step times, another
laboratory may miss: a kind's runs of k tables weigh k / (k + 5), the next coarser kind's the rest.

The tables below are a test: each table's runs are held against intervals made without that table (a laboratory that was never seen), and
without the run's model alone. Repeats of one run count once, models of a table weigh alike. A width of x1.5 means that the upper end is one
and a half times the lower one. Memory is tested on runs that are predicted to use a tenth of the chip or more.
"""  # noqa: E501


def coverage_section(
    coverage: Mapping[Quantity, Coverage], verdicts: Mapping[str, Verdicts]
) -> str:
    """Return the section of the page; nothing where nothing was tested."""
    if not coverage:
        return ""
    return (
        "\n".join(
            [_HEAD, *coverage_lines(coverage), *(verdict_lines(verdicts) if verdicts else [])]
        )
        + "\n"
    )


def coverage_lines(coverage: Mapping[Quantity, Coverage]) -> list[str]:
    """Return a table for each quantity, with a line of all."""
    return [
        line
        for quantity, found in coverage.items()
        for line in _coverage_table(_NOUNS[quantity], found)
    ]


def _coverage_table(noun: str, found: Coverage) -> list[str]:
    heading = ["table", "runs", "models", "inside, table unknown", "inside, model unknown", "width"]
    rows = [[name, *_cells(table)] for name, table in found.tables.items()]
    runs, models = (
        sum(t.runs for t in found.tables.values()),
        sum(t.models for t in found.tables.values()),
    )
    mean = [
        "mean, weighed by the root of models",
        str(runs),
        str(models),
        _share(found.without_table),
        _share(found.without_model),
        "",
    ]
    words = (
        f"{noun}: {HELD:.0%} of runs are to lie inside. All intervals are widened by one factor for"
        f" it, x{found.widening:.2f}."
    )
    return [words.replace("%", " %", 1), "", markdown(heading, [*rows, mean]), ""]


def _cells(table: TableCoverage) -> list[str]:
    near = "" if table.without_model is None else _share(table.without_model)
    return [
        str(table.runs),
        str(table.models),
        _share(table.without_table),
        near,
        f"x{table.width:.2f}",
    ]


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def verdict_lines(verdicts: Mapping[str, Verdicts]) -> list[str]:
    """Return what became of the runs of each verdict."""
    heading = ["table", "runs", *(f"`{verdict}`: runs, ran out" for verdict in VERDICTS)]
    rows = [
        [name, str(found.runs), *(_outcome(found, verdict) for verdict in VERDICTS)]
        for name, found in verdicts.items()
    ]
    words = (
        "Whether runs fit: `no` where the predicted peak is beyond what a process sees, `yes`"
        " where it leaves as much free as the upper end of its interval needs, at most"
        f" {100 * MOST_HEADROOM:.0f} % of the chip, `at risk` between. Each table is judged by"
        " intervals made without it."
    )
    table = markdown(heading, [*rows, ["all", *_all(list(verdicts.values()))]])
    return [
        words,
        "",
        table,
        *_first_lines([plan for found in verdicts.values() for plan in found.first]),
    ]


def _first_lines(plans: list[FirstPlan]) -> list[str]:
    """Say what became of the plans that would have been printed first."""
    if not plans:
        return []
    sure, lost = (
        sum(plan.fits == "yes" for plan in plans),
        [plan.lost_frac for plan in plans if plan.lost_frac is not None],
    )
    mean = (
        f", {100 * statistics.fmean(lost):.1f} % slower than the fastest run in the mean"
        if lost
        else ""
    )
    return [
        "",
        (
            f"Of {counted(len(plans), 'set')} of runs that differ in layout alone, some of which"
            " ran out of memory, the plan that would have been printed first (of those told `yes`"
            f" the fastest, else of those `at risk`; `yes` in {sure}) started in"
            f" {sum(plan.started for plan in plans)}{mean}."
        ),
    ]


def _outcome(found: Verdicts, verdict: Fits) -> str:
    out, fitted = found.ran_out.get(verdict, 0), found.fitted.get(verdict, 0)
    return f"{out + fitted}, {100 * out / (out + fitted):.0f} %" if out + fitted else ""


def _all(found: list[Verdicts]) -> list[str]:
    both = Verdicts(
        fitted={verdict: sum(f.fitted.get(verdict, 0) for f in found) for verdict in VERDICTS},
        ran_out={verdict: sum(f.ran_out.get(verdict, 0) for f in found) for verdict in VERDICTS},
    )
    return [str(both.runs), *(_outcome(both, verdict) for verdict in VERDICTS)]


def markdown(heading: list[str], rows: list[list[str]]) -> str:
    """Return a table whose first column holds words and the others numbers."""
    align = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heading, align, *rows])
