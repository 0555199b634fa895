"""What predictions take for a blank cell, held against rows that fill it.

    python benchmarks/blanks.py [TRUTH.csv...]

Reads the tables of the folder MESHWRIGHT_TRUTH, else of truth beside the repository. Whatever a
row tells (micro batch, recomputation, sharding, ...) is hidden in turn, and the row predicted by
each rule. Printed is, as a mean over tables, how often the rule takes what was told, the error of
the step time, and how far step time and memory move; of all rows, and of those that are the fastest
of their set, as tuned runs are. The rule of a blank cell is chosen by this table.
"""

from __future__ import annotations

import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from meshwright.runs.measured.blanks import NOTICED
from meshwright.runs.measured.predict import predict_rows
from meshwright.trust.intervals import Assumption
from meshwright.values.layout import RECOMPUTES, SHARDINGS, Layout
from meshwright_truth.blanks import Hidden, hidden_runs, share_found, tuned_rows
from meshwright_truth.verdicts import read_measured

ROOT = Path(__file__).resolve().parent.parent
SHOWN: tuple[Assumption, ...] = ("micro batch", "recompute", "sharding")
Rule = Callable[[Sequence[Hidden]], Hidden]
"""Which of some ways to fill a blank is taken; they come from small to full."""


def filled(run: Hidden) -> list[Layout]:
    """Return the layouts that the blank may stand for."""
    layout = run.told.case.layout
    if run.assumption == "micro batch":
        share = layout.gbs // layout.dp
        sizes = [1 << power for power in range(7)]
        return [replace(layout, mbs=size) for size in sizes if share % size == 0]
    if run.assumption == "recompute":
        plain = replace(
            layout, recompute_method="uniform", recompute_layers=None, recompute_modules=()
        )
        return [replace(plain, recompute=kind) for kind in RECOMPUTES]
    plain = replace(layout, shard_size=None)
    return [replace(plain, sharding=kind) for kind in SHARDINGS if kind != "hybrid"]


def all_ways(runs: Sequence[Hidden]) -> list[list[Hidden]]:
    """Price every way to fill the blank of every run; those that can't be priced are left out."""
    ways = [(i, layout) for i, run in enumerate(runs) for layout in filled(run)]
    cases = [
        replace(runs[i].told.case, layout=layout, row_id=f"{i} {place}")
        for place, (i, layout) in enumerate(ways)
    ]
    found: dict[int, list[Hidden]] = defaultdict(list)
    for made in predict_rows(cases).predictions:
        i = int(made.row_id.partition(" ")[0])
        found[i].append(replace(runs[i], blank=made))
    return [found[i] or [run] for i, run in enumerate(runs)]


def fastest(ways: Sequence[Hidden], *, noticed: float = 0.0) -> Hidden:
    """The fastest that fits, or the first that is hardly slower; without any the one that needs
    least."""
    fitting = [way for way in ways if way.blank.fits]
    if not fitting:
        return min(ways, key=lambda way: way.blank.used_bytes)
    enough = (1.0 + noticed) * min(way.blank.step_s for way in fitting)
    return next(way for way in fitting if way.blank.step_s <= enough)


RULES: dict[str, Rule] = {
    "least (one sequence, nothing)": lambda ways: ways[0],
    "full": lambda ways: ways[-1],
    "fastest that fits": fastest,
    f"fastest that fits, by {NOTICED:.0%}": lambda ways: fastest(ways, noticed=NOTICED),
}


def line(name: str, runs: Sequence[Hidden]) -> str:
    """Return one rule's figures, means over tables."""
    by_table: dict[str, list[Hidden]] = defaultdict(list)
    for run in runs:
        by_table[run.table].append(run)

    def mean(figure: Callable[[Hidden], float | None]) -> float:
        some = [[v for run in own if (v := figure(run)) is not None] for own in by_table.values()]
        return fmean(fmean(values) for values in some if values)

    moved = (
        mean(lambda run: abs(math.log(run.time_ratio))),
        mean(lambda run: abs(math.log(run.memory_ratio))),
    )
    return (
        f"  {name:32} {share_found(runs):8.1%} {mean(lambda run: run.error):8.1%}"
        f" {moved[0]:8.3f} {moved[1]:8.3f} {len(runs):6d} {len(by_table):6d}"
    )


def main() -> None:
    """Print the rules of each blank."""
    folder = Path(os.environ.get("MESHWRIGHT_TRUTH") or ROOT / "truth")
    paths = [Path(word) for word in sys.argv[1:]] or sorted(folder.glob("*.csv"))
    tables = read_measured(paths).kept
    tuned = tuned_rows(tables)
    every = [run for run in hidden_runs(tables) if run.error is not None]
    for what in SHOWN:
        some = [run for run in every if run.assumption == what]
        best = [run for run in some if (run.table, run.row["row_id"]) in tuned]
        for noun, runs in (("all rows", some), ("tuned rows", best)):
            print(f"{what}, {noun}")
            print(f"  {'rule':32}    found    error     time   memory   rows tables")
            print(line("told", [replace(run, blank=run.told) for run in runs]))
            print(line("as predict takes it", runs))
            ways = all_ways(runs)
            for name, rule in RULES.items():
                print(line(name, [rule(each) for each in ways]))


if __name__ == "__main__":
    main()
