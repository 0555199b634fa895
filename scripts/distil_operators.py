#!/usr/bin/env python3
"""Make the operator tables that the package ships from the measurements in aiconfigurator-core.

    pip install -r requirements-tables.txt
    scripts/distil_operators.py                      # from the installed package
    scripts/distil_operators.py --package FOLDER     # from an unpacked one
    scripts/distil_operators.py --check              # nothing is written; errors of the shipped
                                                     tables are printed

docs/operators.md says what the tables hold and how they are fitted; this script writes its accuracy
section.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

from distil.archive import grid_facts, write_archive  # noqa: E402
from distil.attention import fit_attention  # noqa: E402
from distil.experts import fit_experts  # noqa: E402
from distil.gemm import fit_gemms  # noqa: E402
from distil.passes import fit_collectives, fit_quantisation  # noqa: E402
from distil.report import Accuracy, accuracy, accuracy_lines  # noqa: E402
from distil.source import PACKAGE, SYSTEMS, VERSION, Source, find_package  # noqa: E402
from distil.surface import HELD_SHARE, SEED, Fit  # noqa: E402

from meshwright.values.hardware.catalogue import find_row  # noqa: E402
from meshwright.values.hardware.tables import read_tables  # noqa: E402

DATA = ROOT / "src" / "meshwright" / "values" / "hardware" / "data"
DOCS = ROOT / "docs" / "operators.md"
MARKS = ("<!-- accuracy: written by scripts/distil_operators.py -->", "<!-- accuracy ends -->")


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
        fits = fit_chip(chip, Source(folder=folder / SYSTEMS[chip]))
        if not flags.check:
            write_archive(DATA / f"{chip}.npz", facts_of(chip, fits), fits)
        shipped = read_tables(DATA / f"{chip}.npz")
        results += [accuracy(chip, name, fit, shipped.grids[name]) for name, fit in fits.items()]
        print(
            f"{chip}: {len(fits)} tables, {(DATA / f'{chip}.npz').stat().st_size} bytes",
            file=sys.stderr,
        )
    print("\n".join(accuracy_lines(results)))
    if not flags.check and not flags.chip:
        write_docs(results)
    return 0


def fit_chip(chip: str, source: Source) -> dict[str, Fit]:
    """All tables of one chip."""
    return {
        **fit_gemms(chip, source),
        **fit_attention(chip, source),
        **fit_experts(chip, source),
        **fit_collectives(source),
        **fit_quantisation(chip, source),
    }


def facts_of(chip: str, fits: dict[str, Fit]) -> dict[str, object]:
    """What the tables are, where they come from, and the constants beside them."""
    row = find_row(chip)
    blocks_are_hardware = (
        "gemm/nvfp4" in fits
    )  # chips with fp4 units apply block scales in the product itself
    same = {"gemm/fp16": "gemm/bf16", "experts/fp16": "experts/bf16"}
    if blocks_are_hardware:
        same |= {"gemm/mxfp8": "gemm/fp8-blockwise", "experts/mxfp8": "experts/fp8-blockwise"}
    attention = fits.get("attention/bf16")
    return {
        "chip": chip,
        "source": f"{PACKAGE} {VERSION}, systems/data/{SYSTEMS[chip]}",
        "source_licence": "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES",
        "source_date": "2026",
        "fabric": row.cells["domain_link"],
        "held_out": {"share": HELD_SHARE, "seed": SEED},
        "kv_s_per_byte": attention.facts["kv_s_per_byte"] if attention else 0.0,
        "full_share": 1.0,
        "same": same,
        "grids": grid_facts(fits),
    }


def write_docs(results: list[Accuracy]) -> None:
    """Replace the accuracy section of docs/operators.md."""
    text = DOCS.read_text(encoding="utf-8")
    head, tail = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    DOCS.write_text(
        "\n".join([head + MARKS[0], "", *accuracy_lines(results), "", MARKS[1]]) + tail,
        encoding="utf-8",
    )


if __name__ == "__main__":
    raise SystemExit(main())
