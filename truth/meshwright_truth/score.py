"""Compare predictions with measurements: the figures of one table of runs.

The rules are those of the reference script that comes with the published runs, so that both print
the same numbers.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import fit_known, peak_memory_of, step_time_of
from meshwright.runs.measured.predict import SCORED, Answers
from meshwright.runs.replay import ALIKE, SMALLEST_GROUP, comparison_of
from meshwright.values.errors import ConfigError

__all__ = [
    "ALIKE",
    "SMALLEST_GROUP",
    "Figures",
    "Guess",
    "Guesses",
    "comparison_of",
    "guesses_of",
    "read_predictions",
    "score_table",
    "spearman",
]

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Guess:
    """A line of the predictions file; None is no answer."""

    step_s: float | None = None
    peak_gib: float | None = None
    oom: bool | None = None


Guesses = Mapping[tuple[str, str], Guess]
"""By (table, row id)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The figures of one table; None where the table has nothing to compare. Names are those of the
    reference script."""

    rows: int
    t_ans: float | None = None
    """Share of rows with a time that can be scored for which one was predicted."""
    m_ans: float | None = None
    o_ans: float | None = None
    n_time: int = 0
    mape: float | None = None
    medape: float | None = None
    """Median of |predicted / measured - 1| of the step time."""
    bias: float | None = None
    """Geometric mean of predicted / measured, less 1."""
    in10: float | None = None
    in20: float | None = None
    groups: int = 0
    """Sets of runs that are alike but for the layout."""
    spearman: float | None = None
    regret1: float | None = None
    """Median over groups of the throughput lost by running the predicted best."""
    regret1_mean: float | None = None
    regret3_mean: float | None = None
    regret_oom_mean: float | None = None
    """As regret1_mean, where runs that ran out of memory may be chosen too."""
    n_mem: int = 0
    mem_mape: float | None = None
    mem_bias: float | None = None
    n_oom: int = 0
    oom_precision: float | None = None
    oom_recall: float | None = None
    oom_f1: float | None = None
    oom_bacc: float | None = None

    def present(self) -> dict[str, float | int]:
        """Return the figures that the table has."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a comparison set; out of memory is an infinite time."""

    measured_s: float
    predicted_s: float
    out_of_memory: bool
    said_out_of_memory: bool


@dataclass(slots=True)
class _Pairs:
    """What the rows of a table give to compare."""

    wanted: dict[str, int] = field(default_factory=lambda: {"t": 0, "m": 0, "o": 0})
    sets: dict[tuple[str, ...], list[_Run]] = field(default_factory=lambda: defaultdict(list))
    memory_ratios: list[float] = field(default_factory=list)
    fits: list[tuple[bool, bool]] = field(default_factory=list)
    """(did not fit, was said not to fit)."""


def guesses_of(answers: Answers) -> dict[tuple[str, str], Guess]:
    """Return predictions as they stand in the file, rounded like there."""
    return {(p.source, p.row_id): _guess(*p.cells[2 : len(SCORED)]) for p in answers.predictions}


def read_predictions(path: Path) -> dict[tuple[str, str], Guess]:
    """Read a predictions file; ConfigError in one line where it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    missing = [name for name in SCORED if not lines or name not in lines[0]]
    if missing:
        raise ConfigError(
            f"{path}: column {', '.join(missing)} is missing; expected what `meshwright predict`"
            " writes"
        )
    return {
        (g["source"], g["row_id"]): _guess(g["step_time_s"], g["peak_mem_gib"], g["oom"])
        for g in lines
    }


def _guess(step: str, peak: str, oom: str) -> Guess:
    return Guess(_number(step), _number(peak), {"0": False, "1": True}.get(oom))


def _number(text: str | None) -> float | None:
    """A finite number, or None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def score_table(table: TruthTable, guesses: Guesses) -> Figures:
    """Return the figures of one table."""
    pairs = _Pairs()
    for row in table.rows:
        _compare(pairs, table.name, row, guesses.get((table.name, row["row_id"]), Guess()))
    ratios = [
        r.predicted_s / r.measured_s
        for runs in pairs.sets.values()
        for r in runs
        if not r.out_of_memory and math.isfinite(r.predicted_s)
    ]
    answered = {"t": len(ratios), "m": len(pairs.memory_ratios), "o": len(pairs.fits)}
    shares = {
        f"{kind}_ans": answered[kind] / wanted for kind, wanted in pairs.wanted.items() if wanted
    }
    found: dict[str, Any] = {
        **shares,
        **_time_figures(ratios),
        **_rank_figures(pairs),
        **_memory_figures(pairs),
        **_fit_figures(pairs),
    }
    return Figures(rows=len(table.rows), **found)


def _compare(pairs: _Pairs, table: str, row: Row, guess: Guess) -> None:
    """Add what one row gives."""
    measured_s, fitted = step_time_of(table, row), fit_known(row)
    key = comparison_of(row)
    predicted, said = guess.step_s or math.inf, guess.oom is True
    if fitted is not None:
        pairs.wanted["o"] += 1
        if guess.oom is not None:
            pairs.fits.append((not fitted, said))
    if measured_s is not None:
        pairs.wanted["t"] += 1
        pairs.sets[key].append(_Run(measured_s, predicted, False, said))
    elif fitted is False:
        pairs.sets[key].append(_Run(math.inf, predicted, True, said))
    if measured := peak_memory_of(row):
        pairs.wanted["m"] += 1
        if guess.peak_gib:
            pairs.memory_ratios.append(guess.peak_gib / measured)


def _time_figures(ratios: Sequence[float]) -> dict[str, float | int]:
    if not ratios:
        return {"n_time": 0}
    errors = [abs(ratio - 1) for ratio in ratios]
    return {
        "n_time": len(ratios),
        "mape": statistics.fmean(errors),
        "medape": statistics.median(errors),
        "bias": math.exp(statistics.fmean(map(math.log, ratios))) - 1,
        "in10": sum(error <= 0.10 for error in errors) / len(errors),
        "in20": sum(error <= 0.20 for error in errors) / len(errors),
    }


def _rank_figures(pairs: _Pairs) -> dict[str, float | int | None]:
    groups = [
        runs
        for runs in pairs.sets.values()
        if sum(not run.out_of_memory for run in runs) >= SMALLEST_GROUP
    ]
    if not groups:
        return {"groups": 0}
    finished = [[run for run in runs if not run.out_of_memory] for runs in groups]
    ranks = [rho for runs in finished if (rho := _group_spearman(runs)) is not None]
    regret1 = [_regret(runs, top=1) for runs in finished]
    return {
        "groups": len(groups),
        "spearman": statistics.median(ranks) if ranks else None,
        "regret1": statistics.median(regret1),
        "regret1_mean": statistics.fmean(regret1),
        "regret3_mean": statistics.fmean(_regret(runs, top=3) for runs in finished),
        "regret_oom_mean": statistics.fmean(_regret_with_memory(runs) for runs in groups),
    }


def _group_spearman(finished: Sequence[_Run]) -> float | None:
    answered = [run for run in finished if math.isfinite(run.predicted_s)]
    if len(answered) > 2:
        return spearman([run.predicted_s for run in answered], [run.measured_s for run in answered])
    return None


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation, equal values sharing their mean rank; None where one side is constant."""
    try:
        return statistics.correlation(_ranks(first), _ranks(second))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [
        (bisect_left(ordered, value) + bisect_right(ordered, value) - 1) / 2 for value in values
    ]


def _fastest(runs: Iterable[_Run]) -> float:
    return min(run.measured_s for run in runs if not run.out_of_memory)


def _regret(finished: Sequence[_Run], *, top: int) -> float:
    """Throughput lost by measuring the `top` runs of shortest predicted time and keeping the
    best."""
    chosen = sorted(finished, key=lambda run: run.predicted_s)[:top]
    measured = [run.measured_s for run in chosen if math.isfinite(run.predicted_s)]
    return 1.0 - _fastest(finished) / min(measured) if measured else 1.0


def _regret_with_memory(runs: Sequence[_Run]) -> float:
    """The same for one choice among all runs that are said to fit; one that ran out of memory loses
    everything."""
    said_to_fit = [run for run in runs if not run.said_out_of_memory]
    if not said_to_fit:
        return 1.0
    chosen = min(said_to_fit, key=lambda run: run.predicted_s)
    if chosen.out_of_memory or not math.isfinite(chosen.predicted_s):
        return 1.0
    return 1.0 - _fastest(runs) / chosen.measured_s


def _memory_figures(pairs: _Pairs) -> dict[str, float | int]:
    ratios = pairs.memory_ratios
    if not ratios:
        return {"n_mem": 0}
    error = statistics.fmean(abs(ratio - 1) for ratio in ratios)
    return {
        "n_mem": len(ratios),
        "mem_mape": error,
        "mem_bias": math.exp(statistics.fmean(map(math.log, ratios))) - 1,
    }


def _fit_figures(pairs: _Pairs) -> dict[str, float | int | None]:
    if not pairs.fits:
        return {"n_oom": 0}
    both = sum(true and said for true, said in pairs.fits)
    alarm = sum(said and not true for true, said in pairs.fits)
    miss = sum(true and not said for true, said in pairs.fits)
    right = len(pairs.fits) - both - alarm - miss
    return {
        "n_oom": len(pairs.fits),
        "oom_precision": both / (both + alarm) if both + alarm else None,
        "oom_recall": both / (both + miss) if both + miss else None,
        "oom_f1": 2 * both / (2 * both + alarm + miss) if both + miss else None,
        "oom_bacc": (
            (both / (both + miss) + right / (right + alarm)) / 2
            if both + miss and right + alarm
            else None
        ),
    }
