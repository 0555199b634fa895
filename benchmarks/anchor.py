"""How far one measured run of a small cluster anchors a study: error of its other runs before and
after, by study.

    python benchmarks/anchor.py [TRUTH.csv...] [--anchors N | --hidden N]

A study is the runs of one table with one chip and one software that several cluster sizes have.
Runs on as few chips as any are taken one at a time as the only known run, spread evenly over those
there are; `calibrate` fits it, and every other run of the study is predicted with that. `same
model` counts the runs of the anchor's model alone. Prints mean |predicted / measured - 1| before
and after, averaged over anchors, and for how many anchors it fell; the last line weighs each study
by the root of its runs.

With --hidden N settings that the tables tell are hidden one at a time, of at most N runs a table,
and `meshwright anchor` infers them from step time and peak memory. Prints by setting how many were
found rightly and wrongly, and of how many it said that they cannot be told.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.measured.anchor import SETTINGS, Setting, anchor_run, values_of
from meshwright.runs.measured.cells import TruthTable, read_table_file
from meshwright.runs.measured.files import MeasuredRun, runs_of_table
from meshwright.runs.measured.fit import fit_runs
from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.trust.calibration import Calibration
from meshwright.values.errors import ConfigError

LEAST_RUNS = 4
"""Runs that a study has besides the anchor."""
Floats = NDArray[np.float64]
Runs = Sequence[MeasuredRun]
Figure = Callable[[MeasuredRun], float | None]
FIGURES: dict[str, tuple[Figure, Callable[[Prediction], float]]] = {
    "step time": (lambda run: run.step_s, lambda found: found.step_s),
    "peak memory": (lambda run: run.peak_bytes, lambda found: found.peak_memory_bytes),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchored:
    """One study, one quantity: mean errors over its anchors."""

    name: str
    quantity: str
    runs: int
    anchors: int
    before: float
    after: float
    fell: float
    """Share of the anchors under which the error fell."""


def tables(paths: Sequence[Path]) -> list[TruthTable]:
    """Read the tables of runs among some files."""
    return [table for path in paths if isinstance(table := read_table_file(path), TruthTable)]


def studies(found: Sequence[TruthTable]) -> Iterator[tuple[str, list[MeasuredRun]]]:
    """Yield the studies of several cluster sizes."""
    groups: dict[tuple[str, str, str], list[MeasuredRun]] = defaultdict(list)
    for table in found:
        for run in runs_of_table(table).runs:
            groups[table.name, run.case.machines.nodes[0].chip.name, run.case.stack_name].append(
                run
            )
    for key, runs in groups.items():
        answered = {p.row_id for p in predict_rows(run.case for run in runs).predictions}
        kept = [run for run in runs if run.case.row_id in answered]
        if len({chips(run) for run in kept}) > 1:
            yield " ".join(key), kept


def chips(run: MeasuredRun) -> int:
    """Of one run."""
    return run.case.machines.num_chips


def anchored(
    name: str, runs: Runs, *, quantity: str, most: int, same_model: bool
) -> Anchored | None:
    """Return how a study's other runs fare; None where there are too few."""
    measured, predicted = FIGURES[quantity]
    told = [run for run in runs if measured(run) is not None]
    scores = []
    for anchor in _anchors(told, most):
        rest = [
            run
            for run in told
            if run is not anchor and (not same_model or run.case.model == anchor.case.model)
        ]
        if len(rest) < LEAST_RUNS:
            continue
        calibration = fit_runs([anchor]).calibration
        truth = np.array([measured(run) for run in rest])
        scores.append([_error(rest, truth, predicted, known) for known in (None, calibration)])
    if not scores:
        return None
    before, after = np.mean(scores, axis=0)
    fell = float(np.mean([late < early for early, late in scores]))
    return Anchored(
        name=name,
        quantity=quantity,
        runs=len(told),
        anchors=len(scores),
        before=float(before),
        after=float(after),
        fell=fell,
    )


def _anchors(runs: Runs, most: int) -> list[MeasuredRun]:
    """Runs on the fewest chips, evenly over those there are."""
    if not runs:
        return []
    least = min(chips(run) for run in runs)
    small = [run for run in runs if chips(run) == least]
    return [small[i] for i in np.unique(np.linspace(0, len(small) - 1, most).astype(int))]


def _error(
    rest: Runs, truth: Floats, predicted: Callable[[Prediction], float], known: Calibration | None
) -> float:
    answers = predict_rows(
        replace(run.case, calibration=None if known is None else known.for_model(run.case.model))
        for run in rest
    )
    if len(answers.predictions) != len(rest):
        raise ConfigError(f"{answers.unanswered[0].reason}")
    return float(
        np.abs(np.array([predicted(found) for found in answers.predictions]) / truth - 1.0).mean()
    )


def told_value(run: MeasuredRun, row: Mapping[str, str], setting: Setting) -> str | None:
    """Return what a table says of a setting; None where it does not. Of networks every row that
    names one says that it is as named."""
    case, changes = run.case, dict(run.case.stack_changes)
    if setting == "micro-batch":
        return str(case.layout.mbs) if row.get("mbs") else None
    if setting == "recompute":
        return case.layout.recompute if row.get("recompute") else None
    if setting == "dispatcher":
        return str(changes["dispatcher"]) if "dispatcher" in changes else None
    if setting == "graphs":
        share = changes.get("launch_hidden")
        return None if share is None else {0.0: "off", 1.0: "on"}.get(float(share))
    if setting == "overlap":
        shares = [float(value) for name, value in changes.items() if name.endswith("_overlap")]
        return None if not shares else "on" if any(shares) else "off"
    return "as named" if row.get("interconnect") else None


def hidden(table: TruthTable, setting: Setting, *, most: int) -> Counter[str]:
    """Return how often a hidden setting of a table's runs is found: right, wrong, not told."""
    rows = {row.get("row_id", ""): row for row in table.rows}
    runs = [
        (run, value)
        for run in runs_of_table(table).runs
        if run.step_s is not None
        and (value := told_value(run, rows[run.case.row_id], setting)) is not None
        and value in (values := values_of(run.case, setting))
        and len(values) > 1
    ]
    found: Counter[str] = Counter()
    for run, value in runs[:: max(1, len(runs) // most)][:most]:
        try:
            said = anchor_run(run, [setting]).inferred[0].found
        except ConfigError:
            found["not predicted"] += 1
            continue
        found["not told" if said is None else "right" if said == value else "wrong"] += 1
    return found


def print_hidden(found: Sequence[TruthTable], most: int) -> None:
    """Print by setting, over all tables."""
    print(f"{'setting':<12} {'runs':>5} {'right':>6} {'wrong':>6} {'not told':>9}  right of found")
    for setting in SETTINGS:
        total: Counter[str] = Counter()
        for table in found:
            total += hidden(table, setting, most=most)
        said = total["right"] + total["wrong"]
        share = f"{total['right'] / said:.0%}" if said else "-"
        runs = said + total["not told"]
        print(
            f"{setting:<12} {runs:>5} {total['right']:>6} {total['wrong']:>6}"
            f" {total['not told']:>9}  {share}"
        )


def _paths(given: Sequence[Path]) -> list[Path]:
    folder = Path(
        os.environ.get("MESHWRIGHT_TRUTH") or Path(__file__).resolve().parents[1] / "truth"
    )
    return list(given) or sorted(folder.glob("*.csv"))


def main() -> None:
    """Measure every study and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--anchors", type=int, default=8, help="at most, of each study")
    parser.add_argument("--hidden", type=int, help="runs a table whose settings are hidden")
    options = parser.parse_args()
    if options.hidden is not None:
        print_hidden(tables(_paths(options.tables)), options.hidden)
        return
    found = list(studies(tables(_paths(options.tables))))
    for same_model in (True, False):
        for quantity in FIGURES:
            rows = [
                row
                for name, runs in found
                if (
                    row := anchored(
                        name, runs, quantity=quantity, most=options.anchors, same_model=same_model
                    )
                )
                is not None
            ]
            print(
                f"\n{quantity}, {'same model' if same_model else 'all models'}\n{'study':<52} runs"
                " anchors  before   after  fell"
            )
            for row in rows:
                print(
                    f"{row.name:<52} {row.runs:>4} {row.anchors:>7} {row.before:>7.1%}"
                    f" {row.after:>7.1%} {row.fell:>5.0%}"
                )
            weights = [row.runs**0.5 for row in rows]
            before, after = (
                float(np.average([getattr(row, side) for row in rows], weights=weights))
                for side in ("before", "after")
            )
            better = sum(row.after < row.before for row in rows)
            print(
                f"{'all, by the root of the runs':<60} {before:>11.1%} {after:>7.1%}   lower in"
                f" {better} of {len(rows)}"
            )


if __name__ == "__main__":
    main()
