"""The page that says how wrong the predictions are, as text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from meshwright.cost.headroom import MOST_HEADROOM
from meshwright.trust.intervals import Fits, Quantity
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted
from meshwright_truth.coverage import (
    LEAST_RUNS,
    LEAVES,
    NEVER_SHOWN,
    WIDEST,
    Coverage,
    TableCoverage,
)
from meshwright_truth.plan_path import PlanPath
from meshwright_truth.score import Figures
from meshwright_truth.spreads import HELD
from meshwright_truth.verdicts import FirstPlan, Verdicts

__all__ = [
    "SUMMARY",
    "Earlier",
    "accuracy_page",
    "coverage_lines",
    "coverage_section",
    "markdown",
    "read_earlier",
    "show",
    "verdict_lines",
]

_NOUNS: Mapping[Quantity, str] = {"step_time": "Step time", "peak_memory": "Peak memory"}
VERDICTS: tuple[Fits, ...] = get_args(Fits)

_HEAD = """## How sure

Every estimate carries an 80 % interval around it: as far up and down as 80 % of published runs of its kind lie from their predictions.
Kinds go from fine to coarse: the same software, dense or with experts, on chips of one generation; of one maker; on any chip; all
that builds on one software; of one family of software; all such models; with any work; all runs. Step times of models below a billion parameters, LoRA and sequences beyond
16,384 tokens are kinds of their own. The finest with two or more (table, model) groups is used (three for memory), and `plan` and
`explain` say when it is not the run's own. A kind's runs of k tables weigh k / (k + 5), the next coarser kind's the rest, and few runs
widen it (Student's t). What a row does not tell widens it by what hiding it moves where rows tell it.

The tables below are a test. Each table's runs are held against intervals made without that table; then also without the run's software
in all tables, its family of software, its generation of chips, and each feature that it has (fp8, context and expert parallelism, LoRA,
long sequences); `model` leaves out the run's model in its own table alone. Runs whose software is left out everywhere are predicted as
if nothing were known of it but its family. Shares are of rows, and means over tables, each alike. A width of x1.5 means that the upper
end is one and a half times the lower one. Memory is tested on runs that are predicted to use a tenth of the chip or more.
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
    heading = ["table", "runs", *(f"without {leave}" for leave in LEAVES), "width"]
    rows = [[name, *_cells(table)] for name, table in found.tables.items()]
    runs = sum(table.runs for table in found.tables.values())
    mean = [_share(found.means.get(leave)) for leave in LEAVES]
    widths = [f"x{found.widths[leave]:.2f}" if leave in found.widths else "" for leave in LEAVES]
    last = [
        [f"mean over tables of {LEAST_RUNS} runs or more", str(runs), *mean, ""],
        ["median width", "", *widths, ""],
    ]
    words = (
        f"{noun}: intervals are to hold {_share(HELD)}, and are widened until {_share(WIDEST)} of"
        " the runs left out lie inside, since the formulas know these tables, and of errors"
        f" {NEVER_SHOWN:g} times as large 80 % where the software is known:"
        f" x{found.widening.own:.2f} where it is,"
        f" x{found.widening.fallback:.2f} where its family or others stand in for them."
    )
    return [words, "", markdown(heading, [*rows, *last]), ""]


def _cells(table: TableCoverage) -> list[str]:
    shares = [_share(table.inside.get(leave)) for leave in LEAVES]
    return [str(table.runs), *shares, f"x{table.width:.2f}"]


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def verdict_lines(verdicts: Mapping[str, Verdicts]) -> list[str]:
    """Return what became of the runs of each verdict."""
    heading = ["table", "runs", *(f"`{verdict}`: runs, ran out" for verdict in VERDICTS)]
    rows = [
        [name, str(found.runs), *(_outcome(found, verdict) for verdict in VERDICTS)]
        for name, found in verdicts.items()
    ]
    words = (
        "Whether runs fit: `no` where the predicted peak less the allocator's slack is beyond what"
        " a process sees, `yes` where it leaves as much free as the upper end of its interval"
        f" needs, at most {100 * MOST_HEADROOM:.0f} % of the chip, `at risk` between. Each table is"
        " judged by intervals made without it."
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


Earlier = Mapping[str, Mapping[str, float]]
"""Figures by table, as `meshwright validate --json` printed them before."""

_MEANING: tuple[tuple[str, str, str], ...] = (
    ("rows", "rows of the table", "count"),
    ("n_time", "step times compared", "count"),
    ("t_ans", "step times answered", "share"),
    ("medape", "step time, median error", "share"),
    ("mape", "step time, mean error", "share"),
    ("bias", "step time, geometric mean of predicted over measured, less 1", "signed"),
    ("in10", "step times within 10 %", "share"),
    ("in20", "step times within 20 %", "share"),
    ("groups", "sets of runs that differ in layout only", "count"),
    ("spearman", "rank correlation, median over sets", "number"),
    ("regret1", "throughput lost by running the predicted best, median over sets", "share"),
    ("regret1_mean", "the same, mean", "share"),
    ("regret3_mean", "the same for the best of the predicted best three", "share"),
    (
        "regret_oom_mean",
        "throughput lost where layouts that run out of memory may be chosen",
        "share",
    ),
    ("n_mem", "memory figures compared", "count"),
    ("m_ans", "memory figures answered", "share"),
    ("mem_mape", "peak memory, mean error", "share"),
    ("mem_bias", "peak memory, geometric mean of predicted over measured, less 1", "signed"),
    ("n_oom", "runs known to fit or not", "count"),
    ("o_ans", "of them answered", "share"),
    ("oom_precision", "out of memory, precision", "share"),
    ("oom_recall", "out of memory, recall", "share"),
    ("oom_f1", "out of memory, F1", "share"),
    ("oom_bacc", "out of memory, balanced accuracy", "share"),
)
_STYLE = {name: style for name, _, style in _MEANING}

SUMMARY: tuple[tuple[str, str], ...] = (
    ("n_time", "times"),
    ("t_ans", "answered"),
    ("medape", "median error"),
    ("bias", "bias"),
    ("in20", "within 20 %"),
    ("spearman", "rank corr."),
    ("regret1_mean", "regret"),
    ("regret_oom_mean", "regret with OOM"),
    ("mem_mape", "memory error"),
    ("oom_bacc", "OOM accuracy"),
)
"""Figures of the table over all tables: (name, heading)."""

_REPORT_HEAD = """# Accuracy

Written by `meshwright validate`. Every row of the tables is predicted without a look at what was measured, and compared with it.

- Errors are |predicted / measured - 1|. Bias is the geometric mean of predicted / measured, less 1: below zero is too optimistic.
- Rank correlation and regret are taken inside sets of at least 8 runs that differ in layout only. Regret is the throughput lost by
  running the layout that was predicted to be the fastest.
- Rows whose notes say that a figure is doubtful are left out, and tiny test models are compared in memory only.
- *As `plan`* is the mean error of step times as `plan` and `explain` price the published layouts: by model, chips, layout, software and its
  release, and nothing else of the row. *All told* is that of the same runs with everything that their rows say, as `predict` prices them;
  the figures behind it are `predict`'s too. *Said no* counts runs that ran and that `plan` says do not fit. Blank where the software is
  none of ours, and for fine-tuning.
"""  # noqa: E501


def accuracy_page(
    figures: Mapping[str, Figures],
    *,
    earlier: Earlier | None = None,
    unanswered: Mapping[str, Mapping[str, int]] | None = None,
    sureness: str = "",
    paths: Mapping[str, PlanPath] | None = None,
    studies: str = "",
) -> str:
    """Return the page in Markdown: a summary, how sure it is, what rests on one study, then each
    table with its figures, beside those of before where given; `paths` are the runs as `plan`
    prices them."""
    parts = [
        _REPORT_HEAD,
        "## All tables\n",
        _summary(figures, paths or {}),
        *(f"\n{section.rstrip()}" for section in (sureness, studies) if section),
    ]
    for name in sorted(figures):
        parts += [
            f"\n## {name}\n",
            _one_table(figures[name], None if earlier is None else earlier.get(name, {})),
        ]
        if path := (paths or {}).get(name):
            parts.append(f"\n{_path_words(path)}")
        reasons = (unanswered or {}).get(name, {})
        parts += [
            f"\nNot answered: {counted(count, 'row')}, {_escaped(reason)}."
            for reason, count in reasons.items()
        ]
    return "\n".join(parts) + "\n"


def _summary(figures: Mapping[str, Figures], paths: Mapping[str, PlanPath]) -> str:
    extra = _PATH_HEADING if paths else ()
    heading = ["table", *extra, *(words for _, words in SUMMARY)]
    rows = [
        [
            name,
            *(_path_cells(paths.get(name)) if paths else ()),
            *(show(key, getattr(figures[name], key)) for key, _ in SUMMARY),
        ]
        for name in sorted(figures)
    ]
    if paths:
        rows.append([*_mean_row(paths), *("" for _ in SUMMARY)])
    return markdown(heading, rows)


_PATH_HEADING = ("as `plan`", "all told", "said no")


def _path_cells(path: PlanPath | None) -> list[str]:
    if path is None or path.plan_error is None or path.predict_error is None:
        return ["" for _ in _PATH_HEADING]
    errors = [f"{100 * error:.1f} %" for error in (path.plan_error, path.predict_error)]
    return [*errors, f"{path.said_no} of {len(path.runs)}"]


def _mean_row(paths: Mapping[str, PlanPath]) -> list[str]:
    """Means over tables, each weighed by the root of its runs."""

    def mean(errors: list[float | None]) -> str:
        pairs = zip(errors, paths.values(), strict=True)
        told = [(error, len(path.runs) ** 0.5) for error, path in pairs if error is not None]
        total = sum(error * weight for error, weight in told)
        return f"{100 * total / sum(weight for _, weight in told):.1f} %"

    found = list(paths.values())
    no, runs = sum(path.said_no for path in found), sum(len(path.runs) for path in found)
    return [
        "mean, weighed by the root of runs",
        mean([path.plan_error for path in found]),
        mean([path.predict_error for path in found]),
        f"{no} of {runs}",
    ]


def _path_words(path: PlanPath) -> str:
    """Say what became of a table's runs on `plan`'s path."""
    assert path.inside_frac is not None
    errors, refused = _path_cells(path), len(path.refused)
    left = f"; {counted(refused, 'layout')} of it refused" if refused else ""
    return (
        f"As `plan` prices it, {counted(len(path.runs), 'run')} of a software of ours:"
        f" {errors[0]} off in the mean ({errors[1]} with everything told),"
        f" {100 * path.inside_frac:.0f} % inside the interval, {errors[2]} said not to fit{left}."
    )


def _one_table(figures: Figures, earlier: Mapping[str, float] | None) -> str:
    now = figures.present()
    heading = ["figure", "now"] if earlier is None else ["figure", "before", "now"]
    rows = []
    for name, words, _ in _MEANING:
        if name in now:
            before = [] if earlier is None else [show(name, earlier.get(name))]
            rows.append([words, *before, show(name, now[name])])
    return markdown(heading, rows)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def show(name: str, value: float | None) -> str:
    """Write a figure for people: shares in per cent, nothing for None."""
    if value is None:
        return ""
    style = _STYLE[name]
    if style == "count":
        return str(int(value))
    if style == "number":
        return f"{value:.3f}"
    return f"{100 * value:+.1f} %" if style == "signed" else f"{100 * value:.1f} %"


def read_earlier(path: Path) -> Earlier:
    """Read what `meshwright validate --json` printed; ConfigError in one line where it is something
    else."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{path}: not JSON; expected what `meshwright validate --json` printed"
        ) from None
    tables = found.get("tables", found) if isinstance(found, dict) else None
    if not isinstance(tables, dict) or not all(_is_figures(table) for table in tables.values()):
        raise ConfigError(
            f"{path}: expected an object of figures by table, as `meshwright validate --json`"
            " prints it"
        )
    return tables


def _is_figures(table: Any) -> bool:
    return isinstance(table, dict) and all(
        value is None or isinstance(value, (int, float)) for value in table.values()
    )
