#!/usr/bin/env python3
"""Write `trust/serving_residuals.csv`: how far predictions of published serving runs are off, by
kind of run.

    scripts/fit_serving_residuals.py [TRUTH.csv...]

Without tables it reads those named inference_*.csv of the folder MESHWRIGHT_TRUTH, else of truth.
Run it again whenever a formula or a constant of serving has moved. It prints how many runs lie
inside the 80 % intervals made without their engine's runs of a collection. The rules are those of
`scripts/fit_residuals.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.runs.measured.serving_predict import predict_serving  # noqa: E402
from meshwright.runs.measured.serving_rows import read_serving_table  # noqa: E402
from meshwright.trust.intervals import SERVING_QUANTITIES  # noqa: E402
from meshwright_truth.coverage import coverage, widening_of  # noqa: E402
from meshwright_truth.serving_residuals import serving_residuals  # noqa: E402
from meshwright_truth.spreads import fit_spreads, spreads_csv  # noqa: E402

PRESET = ROOT / "src" / "meshwright" / "trust" / "serving_residuals.csv"


def main() -> None:
    """Write the preset and print the coverage."""
    folder = Path(os.environ.get("MESHWRIGHT_TRUTH") or ROOT / "truth")
    paths = [Path(word) for word in sys.argv[1:]] or sorted(folder.glob("inference_*.csv"))
    tables = [read_serving_table(path) for path in paths]
    residuals = serving_residuals(tables, predict_serving(tables))
    factors = {
        quantity: widening_of([r for r in residuals if r.quantity == quantity])
        for quantity in SERVING_QUANTITIES
    }
    spreads = fit_spreads(residuals, factors=factors)
    PRESET.write_text(spreads_csv(spreads), encoding="utf-8")
    print(f"{PRESET.name}: {len(spreads)} kinds of {len({r.table for r in residuals})} tables")
    for quantity in SERVING_QUANTITIES:
        if (held := coverage(residuals, quantity)) is not None:
            means = ", ".join(f"{leave} {mean:.0%}" for leave, mean in held.means.items())
            print(f"{quantity}: {means}; median width x{held.widths['table']:.2f}")


if __name__ == "__main__":
    main()
