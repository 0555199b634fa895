#!/usr/bin/env python3
"""Make the tables of serving operators that the package ships from the measurements in
aiconfigurator-core.

    pip install -r requirements-tables.txt
    scripts/distil_serving.py                      # from the installed package
    scripts/distil_serving.py --package FOLDER     # from an unpacked one
    scripts/distil_serving.py --check              # nothing is written; errors of the shipped
                                                   tables are printed

Only operator tables are read, never the source's file of end-to-end runs. docs/operators.md says
what the tables hold; this script writes the accuracy section of serving there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

from distil.archive import grid_facts, write_archive  # noqa: E402
from distil.report import Accuracy, accuracy, accuracy_lines  # noqa: E402
from distil.serving import fit_serving  # noqa: E402
from distil.source import PACKAGE, SYSTEMS, VERSION, Source, find_package  # noqa: E402
from distil.surface import HELD_SHARE, SEED  # noqa: E402

from meshwright.values.hardware.tables import read_tables  # noqa: E402

DATA = ROOT / "src" / "meshwright" / "values" / "hardware" / "data" / "serving"
DOCS = ROOT / "docs" / "operators.md"
MARKS = (
    "<!-- serving accuracy: written by scripts/distil_serving.py -->",
    "<!-- serving accuracy ends -->",
)


def main() -> int:
    """Read the flags, make or check the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--package",
        type=Path,
        help="folder of an unpacked or installed package (default: the installed one)",
    )
    parser.add_argument(
        "--chip", action="append", choices=sorted(SYSTEMS), help="only this chip (default: all)"
    )
    parser.add_argument(
        "--check", action="store_true", help="print the errors of the shipped tables, write nothing"
    )
    flags = parser.parse_args()
    folder = find_package(flags.package)
    results: list[Accuracy] = []
    for chip in flags.chip or SYSTEMS:
        fits = fit_serving(chip, Source(folder=folder / SYSTEMS[chip]))
        path = DATA / f"{chip}.npz"
        if not flags.check:
            write_archive(path, facts_of(chip) | {"grids": grid_facts(fits)}, fits)
        shipped = read_tables(path)
        results += [accuracy(chip, name, fit, shipped.grids[name]) for name, fit in fits.items()]
        print(f"{chip}: {len(fits)} tables, {path.stat().st_size} bytes", file=sys.stderr)
    print("\n".join(accuracy_lines(results)))
    if not flags.check and not flags.chip:
        write_docs(results)
    return 0


def facts_of(chip: str) -> dict[str, object]:
    """Where the tables of a chip come from."""
    return {
        "chip": chip,
        "source": f"{PACKAGE} {VERSION}, systems/data/{SYSTEMS[chip]}",
        "source_licence": "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES",
        "source_date": "2026",
        "held_out": {"share": HELD_SHARE, "seed": SEED},
        "same": {},
    }


def write_docs(results: list[Accuracy]) -> None:
    """Replace the accuracy section of serving in docs/operators.md."""
    text = DOCS.read_text(encoding="utf-8")
    head, tail = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    DOCS.write_text(
        "\n".join([head + MARKS[0], "", *accuracy_lines(results), "", MARKS[1]]) + tail,
        encoding="utf-8",
    )


if __name__ == "__main__":
    raise SystemExit(main())
