#!/usr/bin/env python3
"""How far off is what a user of `plan` gets: published layouts by the software's name alone.

    benchmarks/plan_path.py TABLE.csv STACK

Model, chips, sequence, batch, number format and layout come from each row, the software from STACK;
nothing else of the row is told. STACK may end in @RELEASE, or be `megatron-bridge@row` for the
release that each row names. 2026-11-23, two cores, 3 to 10 s of CPU a table:

    megatron_bridge as megatron-bridge:     131 runs, mean error 14.8 %, 9 said not to fit
    megatron_bridge as megatron-bridge@row: 131 runs, mean error 8.3 %, 3 said not to fit
    llm_foundry as llm-foundry:             155 runs, mean error 5.0 %, 1 said not to fit
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from meshwright.api import problem_of
from meshwright.search.problem import ask
from meshwright.search.quote import Quote, quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.request import PlanRequest
from meshwright.values.errors import MeshwrightError

Row = Mapping[str, str]
PRECISIONS = {
    "fp8-cs": "fp8",
    "fp8-mx": "mxfp8",
    "fp8-rowwise": "fp8",
    "fp8-tensorwise": "fp8",
    "fp8-subchannel(blockwise)": "fp8-blockwise",
}
SHARDINGS = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3", "fsdp": "zero3"}
MODULES = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts")


def layout_words(row: Row) -> str:
    """Return the row's layout as `--layout` takes it."""
    axes = {
        name: row[name] for name in ("tp", "cp", "pp", "vpp", "ep") if row[name] not in ("", "1")
    }
    words = [*(f"{name}={size}" for name, size in axes.items()), f"mbs={row['mbs'] or 1}"]
    if row["sp"] in ("0", "1") and "tp" in axes:
        words.append(f"sp={row['sp']}")
    if "ep" in axes:
        words.append("etp=1")
    if row["zero"] in SHARDINGS:
        words.append(f"sharding={SHARDINGS[row['zero']]}")
    if row["recompute"] in ("full", "selective"):
        words.append(f"recompute={row['recompute']}")
        listed = row["recompute_detail"].partition(";")[0]
        named = [word for word in re.findall(r"[a-z_]+", listed) if word in MODULES]
        if row["recompute"] == "selective" and named:
            words.append(f"recompute_modules={'+'.join(dict.fromkeys(named))}")
    return ",".join(words)


def priced(row: Row, stack: str) -> Quote:
    """Return the row's run as `explain` prices it."""
    released = re.search(r"[0-9]+\.[0-9]+(?:\.[0-9]+)*", row["release"])
    request = PlanRequest.of(
        {
            "model": row["model"],
            "cluster": f"{row['gpu'].partition('(')[0]}:{row['num_gpus']}",
            "seq_len": int(row["seq_len"]),
            "gbs": int(row["gbs"]),
            "precision": PRECISIONS.get(row["precision"], row["precision"]),
            "stack": stack.replace("@row", f"@{released[0]}" if released else ""),
        }
    )
    problem, words = problem_of(request), layout_words(row)
    try:
        asked = ask(words, problem)
    except MeshwrightError as error:  # the message names the uneven split that works
        split = re.search(r"layers_per_stage=[\d+]+", str(error))
        if split is None:
            raise
        asked = ask(f"{words},{split[0]}", problem)
    [quote] = requote(quotes([asked.layout], setting_of(problem)), problem)
    return quote


def main() -> None:
    """Price the rows of one table, and print how far off they are."""
    path, stack = Path(sys.argv[1]), sys.argv[2]
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["step_time_s"] and row["gbs"]]
    rows = [row for row in rows if row["oom"] != "1" and row["task"].startswith("pretrain")]
    found: list[tuple[float, str]] = []
    refused: list[str] = []
    for row in rows:
        try:
            quote = priced(row, stack)
        except (MeshwrightError, ValueError) as error:
            refused.append(f"{row['row_id']}: {str(error)[:90]}")
            continue
        found.append((abs(quote.step_s / float(row["step_time_s"]) - 1), quote.verdict))
    if not found:
        sys.exit(f"{path}: no row is priced; {refused[:1]}")
    errors = [error for error, _ in found]
    print(
        f"{path.stem} as {stack}: {len(found)} of {len(rows)} runs, mean error"
        f" {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%},"
        f" {sum(verdict == 'no' for _, verdict in found)} said not to fit"
    )
    for line in refused:
        print(f"  not priced: {line}")


if __name__ == "__main__":
    main()
