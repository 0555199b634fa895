#!/usr/bin/env python3
"""Write `trust/residuals.csv`: how far predictions of published runs are off, by kind of run.

    scripts/fit_residuals.py [TRUTH.csv...]

Without tables it reads the folder MESHWRIGHT_TRUTH, else the folder truth. Run
it again whenever a formula or a constant has moved. It prints how many runs of each table lie
inside the 80 % intervals that were made without that table, and without the run's model. The rules
are those of `meshwright_truth.residuals`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.runs.measured.predict import predict_rows  # noqa: E402
from meshwright.runs.measured.rows import read_table  # noqa: E402
from meshwright.trust.intervals import QUANTITIES  # noqa: E402
from meshwright_truth.page import coverage_lines  # noqa: E402
from meshwright_truth.residuals import (  # noqa: E402
    Residual,
    coverage,
    fit_spreads,
    residuals_of,
    spreads_csv,
    widening_of,
)
from meshwright_truth.verdicts import read_measured  # noqa: E402

PRESET = ROOT / "src" / "meshwright" / "trust" / "residuals.csv"


def truth_tables(words: Sequence[str]) -> list[Path]:
    """Return the tables that are named, else all of the folder of published runs."""
    folder = Path(os.environ.get("MESHWRIGHT_TRUTH") or ROOT / "truth")
    return [Path(word) for word in words] or sorted(folder.glob("*.csv"))


def measured_residuals(paths: Sequence[Path]) -> list[Residual]:
    """Predict every row of the tables and return the residuals."""
    read = [(table, read_table(table)) for table in read_measured(paths).kept]
    return residuals_of(read, predict_rows(case for _, cases in read for case in cases))


def main() -> None:
    """Write the preset and print the coverage."""
    residuals = measured_residuals(truth_tables(sys.argv[1:]))
    factors = {
        quantity: widening_of([r for r in residuals if r.quantity == quantity])
        for quantity in QUANTITIES
    }
    spreads = fit_spreads(residuals, factors=factors)
    PRESET.write_text(spreads_csv(spreads), encoding="utf-8")
    print(
        f"{PRESET.relative_to(ROOT)}: {len(spreads)} kinds, {len({r.table for r in residuals})}"
        " tables"
    )
    found = {
        quantity: held
        for quantity in QUANTITIES
        if (held := coverage(residuals, quantity)) is not None
    }
    print("\n".join(coverage_lines(found)))


if __name__ == "__main__":
    main()
