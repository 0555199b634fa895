"""The page that says how wrong the predictions are, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.accuracy.coverage_text import markdown
from meshwright.accuracy.score import Figures
from meshwright.errors import ConfigError
from meshwright.units import counted

__all__ = ["SUMMARY", "Earlier", "accuracy_page", "read_earlier", "show"]

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

_HEAD = """# Accuracy

Written by `meshwright validate`. Every row of the tables is predicted without a look at what was measured, and compared with it.

- Errors are |predicted / measured - 1|. Bias is the geometric mean of predicted / measured, less 1: below zero is too optimistic.
- Rank correlation and regret are taken inside sets of at least 8 runs that differ in layout only. Regret is the throughput lost by
  running the layout that was predicted to be the fastest.
- Rows whose notes say that a figure is doubtful are left out, and tiny test models are compared in memory only.
"""  # noqa: E501


def accuracy_page(
    figures: Mapping[str, Figures],
    *,
    earlier: Earlier | None = None,
    unanswered: Mapping[str, Mapping[str, int]] | None = None,
    sureness: str = "",
) -> str:
    """Return the page in Markdown: a summary, how sure it is, then each table with its figures,
    beside those of before where given."""
    parts = [
        _HEAD,
        "## All tables\n",
        _summary(figures),
        *([f"\n{sureness.rstrip()}"] if sureness else []),
    ]
    for name in sorted(figures):
        parts += [
            f"\n## {name}\n",
            _one_table(figures[name], None if earlier is None else earlier.get(name, {})),
        ]
        reasons = (unanswered or {}).get(name, {})
        parts += [
            f"\nNot answered: {counted(count, 'row')}, {_escaped(reason)}."
            for reason, count in reasons.items()
        ]
    return "\n".join(parts) + "\n"


def _summary(figures: Mapping[str, Figures]) -> str:
    heading = ["table", *(words for _, words in SUMMARY)]
    rows = [
        [name, *(show(key, getattr(figures[name], key)) for key, _ in SUMMARY)]
        for name in sorted(figures)
    ]
    return markdown(heading, rows)


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
