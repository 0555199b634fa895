"""How well any prediction of the published runs could do: spread of runs told alike, and regret
beside the networks of its runs.

    python benchmarks/noise_floor.py [TRUTH.csv...]

Runs are alike where every column but the measured ones, notes, provenance, release and row_id
agrees. Of each set the median is the best that one prediction can say; printed is how far its runs
lie from it. A second table lists the sets of runs that differ in layout only in which the run
predicted to be the fastest was not: what it lost, and what NCCL reached at the start of its job and
of the fastest run's, where notes tell ("NCCL bench GB/s at job start AR/AG/RS=..."). Predictions
read no bandwidth of that, only whether collectives were compared first (decision 0035).
docs/noise.md holds what it printed.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import step_time_of
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import read_table
from meshwright_truth.score import SMALLEST_GROUP
from meshwright_truth.verdicts import read_measured

_DESCRIBED_BY_HAND = (
    "row_id",
    "source",
    "provenance",
    "measured_by",
    "notes",
    "release",
    "group",
    "mem_def",
    "mem_other",
    "tflops_def",
)
_MEASURED = (
    "oom",
    "error",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "mfu_peak_tflops",
    "peak_mem_gib",
)
TOLD_LATER = frozenset((*_DESCRIBED_BY_HAND, *_MEASURED))
"""Columns that may differ between runs that are told alike."""
LAYOUT_ONLY = ("group", "gpu", "num_gpus", "seq_len", "gbs", "precision", "release", "task")
"""Columns that are the same for runs that differ in layout only, as for the scorer."""
_NCCL = re.compile(r"AR/AG/RS=([\d.]{1,12})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A set in which another run than the predicted best was the fastest."""

    name: str
    share: float
    chosen_gb_per_s: str
    best_gb_per_s: str


def repeats(table: TruthTable) -> tuple[int, list[float]]:
    """Count the sets of runs told alike, and return each run's distance from its set's median, as a
    share."""
    sets = defaultdict(list)
    for row in table.rows:
        step_s = step_time_of(table.name, row)
        if step_s is not None:
            sets[tuple(value for name, value in row.items() if name not in TOLD_LATER)].append(
                step_s
            )
    alike = [times for times in sets.values() if len(times) > 1]
    return len(alike), [
        abs(time / statistics.median(times) - 1) for times in alike for time in times
    ]


def lost(table: TruthTable) -> list[Lost]:
    """Return the sets whose predicted best was not the fastest, the worst first."""
    predicted = {p.row_id: p.step_s for p in predict_rows(read_table(table)).predictions}
    sets = defaultdict(list)
    for row in table.rows:
        if step_time_of(table.name, row) is not None and row["row_id"] in predicted:
            sets[tuple(row[name] for name in LAYOUT_ONLY)].append(row)
    found = []
    for rows in sets.values():
        chosen = min(rows, key=lambda row: predicted[row["row_id"]])
        best = min(rows, key=lambda row: float(row["step_time_s"]))
        share = 1 - float(best["step_time_s"]) / float(chosen["step_time_s"])
        if len(rows) >= SMALLEST_GROUP and share > 0:
            found.append(
                Lost(
                    name=chosen["group"],
                    share=share,
                    chosen_gb_per_s=_nccl(chosen),
                    best_gb_per_s=_nccl(best),
                )
            )
    return sorted(found, key=lambda one: -one.share)


def _nccl(row: Mapping[str, str]) -> str:
    told = _NCCL.search(row["notes"])
    return told[1] if told else ""


def truth_files(words: Sequence[str]) -> list[Path]:
    """Return the files named, else those of the folder of published runs."""
    folder = Path(
        os.environ.get("MESHWRIGHT_TRUTH") or Path(__file__).resolve().parents[1] / "truth"
    )
    return [Path(word) for word in words] or sorted(folder.glob("*.csv"))


def main(words: Sequence[str]) -> None:
    """Print both tables."""
    tables = read_measured(truth_files(words)).kept
    print(
        "| table | sets told alike | runs | mean distance | largest |\n| --- | ---: | ---: | ---: |"
        " ---: |"
    )
    for table in tables:
        sets, distances = repeats(table)
        if sets:
            print(
                f"| {table.name} | {sets} | {len(distances)} | {statistics.fmean(distances):.1%} |"
                f" {max(distances):.0%} |"
            )
    print(
        "\n| set | lost | NCCL of the chosen, GB/s | of the fastest |\n| --- | ---: | ---: | ---: |"
    )
    for table in tables:
        for one in lost(table):
            if one.share >= 0.01 and one.chosen_gb_per_s:
                print(
                    f"| {one.name} | {one.share:.1%} | {one.chosen_gb_per_s} |"
                    f" {one.best_gb_per_s} |"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
