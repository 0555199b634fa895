#!/usr/bin/env python3
"""How far off is what a user of `plan` gets: published layouts by the software's name alone.

    benchmarks/plan_path.py [TABLE.csv...] [--rows]

Model, chips, sequence, batch, number format and layout come from each row, the software by its name
and release (`truth/meshwright_truth/plan_stacks.csv`); nothing else of the row is told. Prints for
each table of runs on a software of ours the mean error as `plan` prices them, as it does with the
options that a row names (attention, norms, routing, words of its software, graphs), as `predict`
does with everything that rows say, the ratios of the first two to the third, and how many runs
that ran are said not to fit; --rows adds the runs that differ most. All tables of `truth/` where
none is named.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from meshwright_truth.plan_path import PlanPath, PlanPriced, plan_path
from meshwright_truth.verdicts import read_measured

TRUTH = Path(__file__).parents[1] / "truth"


def line_of(name: str, found: PlanPath) -> str:
    """Return one line of the summary."""
    plan, predict, inside = found.plan_error, found.predict_error, found.inside_frac
    options = found.options_error
    assert plan is not None and predict is not None
    assert options is not None and inside is not None
    return (
        f"{name:26} {len(found.runs):5} {100 * plan:6.1f} % {100 * options:6.1f} %"
        f" {100 * predict:6.1f} % {plan / predict:5.2f} {options / predict:5.2f}"
        f" {100 * inside:5.0f} % {found.said_no:5} {len(found.refused):5}"
    )


def furthest(found: PlanPath) -> list[PlanPriced]:
    """Return the runs of which the two commands say most different times."""

    def apart(run: PlanPriced) -> float:
        return abs(math.log(run.plan_s / run.predict_s))

    return sorted(found.runs, key=apart, reverse=True)[:12]


def main() -> None:
    """Print a line for every table."""
    named = [Path(word) for word in sys.argv[1:] if word != "--rows"]
    tables = read_measured(named or sorted(TRUTH.glob("*.csv"))).kept
    print(f"{'table':26}  runs     plan  options  predict ratio ratio  inside    no refused")
    for table in tables:
        found = plan_path(table)
        if found.runs or found.refused:
            if found.runs:
                print(line_of(table.name, found), flush=True)
            if "--rows" in sys.argv:
                for run in furthest(found):
                    print(
                        f"    {run.row_id}: plan {run.plan_s / run.measured_s:.2f}, predict"
                        f" {run.predict_s / run.measured_s:.2f} of {run.measured_s:.3g} s"
                        f" {run.verdict}"
                    )
                for row_id, reason in found.refused[:8]:
                    print(f"    not priced: {row_id}: {reason[:150]}")


if __name__ == "__main__":
    main()
