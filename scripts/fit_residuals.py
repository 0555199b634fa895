#!/usr/bin/env python3
"""Write `trust/residuals.csv` and `trust/assumptions.csv`: how far predictions of published runs
are off, by kind of run, and how far they move where a row does not tell something.

    scripts/fit_residuals.py [TRUTH.csv...]

Without tables it reads the folder MESHWRIGHT_TRUTH, else the folder truth. Run
it again whenever a formula or a constant has moved. It prints how many runs of each table lie
inside the 80 % intervals that were made without that table, and without all that is like the run in
its model, software, family of software, chip or a feature. The rules are those of
`meshwright_truth.spreads`, `coverage` and `blanks`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.runs.measured.cells import TruthTable  # noqa: E402
from meshwright.runs.measured.predict import predict_rows  # noqa: E402
from meshwright.runs.measured.rows import read_table  # noqa: E402
from meshwright.trust.intervals import QUANTITIES  # noqa: E402
from meshwright_truth.blanks import doubts_csv, doubts_of, hidden_runs  # noqa: E402
from meshwright_truth.coverage import coverage, widening_of  # noqa: E402
from meshwright_truth.page import coverage_lines  # noqa: E402
from meshwright_truth.residuals import Residual, residuals_of, unknown_software  # noqa: E402
from meshwright_truth.spreads import fit_spreads, spreads_csv  # noqa: E402
from meshwright_truth.verdicts import read_measured  # noqa: E402

TRUST = ROOT / "src" / "meshwright" / "trust"


def truth_tables(words: Sequence[str]) -> list[Path]:
    """Return the tables that are named, else all of the folder of published runs."""
    folder = Path(os.environ.get("MESHWRIGHT_TRUTH") or ROOT / "truth")
    return [Path(word) for word in words] or sorted(folder.glob("*.csv"))


def measured_residuals(tables: Sequence[TruthTable]) -> list[Residual]:
    """Predict every row of the tables and return the residuals."""
    read = [(table, read_table(table)) for table in tables]
    answers = predict_rows(case for _, cases in read for case in cases)
    return residuals_of(read, answers, as_family=unknown_software(read))


def main() -> None:
    """Write the presets and print the coverage."""
    tables = read_measured(truth_tables(sys.argv[1:])).kept
    residuals = measured_residuals(tables)
    factors = {
        quantity: widening_of([r for r in residuals if r.quantity == quantity])
        for quantity in QUANTITIES
    }
    spreads = fit_spreads(residuals, factors=factors)
    (TRUST / "residuals.csv").write_text(spreads_csv(spreads), encoding="utf-8")
    doubts = doubts_of(hidden_runs(tables))
    (TRUST / "assumptions.csv").write_text(doubts_csv(doubts), encoding="utf-8")
    print(
        f"{len(spreads)} kinds of {len({r.table for r in residuals})} tables;"
        f" {len(doubts)} widths of what may be untold"
    )
    found = {
        quantity: held
        for quantity in QUANTITIES
        if (held := coverage(residuals, quantity)) is not None
    }
    print("\n".join(coverage_lines(found)))


if __name__ == "__main__":
    main()
