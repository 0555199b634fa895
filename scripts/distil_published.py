#!/usr/bin/env python3
"""Write the published runs that stand beside an answer: src/meshwright/search/published.csv.

    scripts/distil_published.py [-o FILE] truth/*.csv

One run for each model, chip, software and number format: of those that `plan` prices by the names
alone, the one of the newest release, of these the fastest for its chips. The file holds what the
run was and what it measured, with its source; what we say of it is found when it is asked.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "truth")]

from meshwright.runs.measured.cells import TruthTable, read_table_file  # noqa: E402
from meshwright.runs.measured.files import step_time_of  # noqa: E402
from meshwright.runs.measured.rows import Case, read_row  # noqa: E402
from meshwright.search.published import price_run, run_of  # noqa: E402
from meshwright.values.errors import MeshwrightError  # noqa: E402
from meshwright.values.layout import Layout  # noqa: E402
from meshwright_truth.plan_path import asked_of, named_stack, priced  # noqa: E402

OUTPUT = ROOT / "src" / "meshwright" / "search" / "published.csv"
COLUMNS = (
    *("model", "chip", "num_chips", "gpus_per_node", "stack", "precision", "seq_len", "gbs"),
    *("layout", "step_s", "by", "source"),
)
_FILE = re.compile(r"^([A-Za-z0-9][\w-]*/[\w.-]+) ([\w./+-]+\.\w+)@([0-9a-f]{7,40})")
"""`owner/name path@commit`, which a link can be made of."""


def main() -> int:
    """Read the tables, write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    flags = parser.parse_args()
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in flags.tables:
        table = read_table_file(path)
        if not isinstance(table, TruthTable):
            continue
        for run in runs_of(table):
            name = run["stack"].partition("@")[0]
            key = (run["model"], run["chip"], name, run["precision"])
            if key not in best or standing(run) > standing(best[key]):
                best[key] = run
    with flags.output.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        out.writeheader()
        out.writerows(best[key] for key in sorted(best))
    print(f"{flags.output.name}: {len(best)} runs", file=sys.stderr)
    return 0


def standing(run: Mapping[str, Any]) -> tuple[tuple[int, ...], float]:
    """Newer releases first, then more tokens a second and chip."""
    release = tuple(map(int, re.findall(r"\d+", run["stack"].partition("@")[2])))
    tokens = run["gbs"] * run["seq_len"] / float(run["step_s"]) / run["num_chips"]
    return release, tokens


def runs_of(table: TruthTable) -> Iterator[dict[str, Any]]:
    """Yield the runs of a table that a user of `plan` can ask for by names alone."""
    for row in table.rows:
        stack, measured_s = named_stack(row, table=table.name), step_time_of(table.name, row)
        if not stack or measured_s is None:
            continue
        case = read_row(row, source=table.name)
        if not isinstance(case, Case) or case.machines.mixed or case.task != "pretrain":
            continue
        if case.workload.lora_rank or not row.get("model", ""):
            continue
        try:
            problem, quote = priced(row, case, stack=stack)
        except (MeshwrightError, ValueError):
            continue
        if not isinstance(problem.request.model, str) or quote.verdict == "no":
            continue  # dims have no name, and what we take for impossible is no example
        given = row.get("gpus_per_node", "")
        fields = asked_of(row, case.layout, case.model)
        if quote.layout.layers_per_stage is not None:
            fields["layers_per_stage"] = quote.layout.layers_per_stage
        run = {
            "model": problem.setting.model.name,
            "chip": case.machines.pools[0][0],
            "num_chips": case.machines.num_chips,
            "gpus_per_node": int(float(given)) if given else "",
            "stack": stack,
            "precision": case.workload.precision,
            "seq_len": case.workload.seq_len,
            "gbs": case.layout.gbs,
            "layout": words_of(fields),
            "step_s": f"{measured_s:.6g}",
            "by": row.get("measured_by", ""),
            "source": source_of(row.get("provenance", "")),
        }
        if price_run(run_of({name: str(cell) for name, cell in run.items()})) is not None:
            yield run


def words_of(fields: Mapping[str, Any]) -> str:
    """Write the fields of a layout that the row names as `--layout` takes them."""
    named = Layout(**fields).words().split(",")
    return ",".join(part for part in named if part.partition("=")[0] in fields)


def source_of(provenance: str) -> str:
    """Return a link where the provenance names a file of a repository, else its own words."""
    found = _FILE.match(provenance)
    if found is None:
        return provenance
    repository, path, commit = found.groups()
    line = re.search(r" line (\d+)", provenance)
    place = f"#L{line[1]}" if line else ""
    return f"https://github.com/{repository}/blob/{commit}/{path}{place}"


if __name__ == "__main__":
    sys.exit(main())
