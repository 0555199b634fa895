"""How our best layouts compare with those that NVIDIA ships, both priced by our model.

    python benchmarks/expert_layouts.py [--only WORDS] [-o docs/expert_layouts.md]

Reads `expert_layouts.csv` of the folder MESHWRIGHT_TRUTH, else of truth beside the
repository. Each row is priced with the model, chips, batch and precision that it names; our best is
searched for the same. No run is measured here: what agrees may still be wrong, and what differs is
a hint at the model, the search or the recipe.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.runs.measured.rows import Case, Unanswerable, read_row
from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import search_space
from meshwright.search.problem import Problem, dims_of, resolve
from meshwright.search.rank import fits_of, ranked_plans
from meshwright.search.refine import Repriced, reprice, shortlists
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan
from meshwright.search.rules.check import explicit_layers
from meshwright.search.space import Rejections, make_space
from meshwright.search.titles import (
    TIME_READINGS,
)
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.stack import find_stack
from meshwright.values.units import GIB

CLOSE = 0.03
"""Share of the step within which two layouts are called equal."""
AXES = ("tp", "cp", "pp", "vpp", "ep", "mbs", "sharding", "recompute")
COUNTS = AXES[:-2]
OF_NAME = 0.3
"""Share by which a model's parameters may differ from the billions in its name."""
TERMS_SHOWN = 2

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One row."""

    name: str
    kind: str
    """Few words; rows are counted by them."""
    detail: str = ""
    ratio: float | None = None
    """Their step over ours."""
    used_share: float | None = None
    """Memory of theirs over what a process sees, predicted."""
    offloads: bool = False
    """Whether theirs moves activations to the host."""
    theirs: Layout | None = None
    ours: Layout | None = None


def truth() -> Path:
    """Return the folder of the tables."""
    return Path(os.environ.get("MESHWRIGHT_TRUTH") or Path(__file__).resolve().parents[1] / "truth")


@cache
def usual_sequences() -> dict[tuple[str, str], str]:
    """Sequence lengths by model and task of the published runs of these recipes, which the recipes'
    tables leave out."""
    with (truth() / "megatron_bridge.csv").open(encoding="utf-8") as handle:
        counts = Counter(
            (row["model"], row["task"], row["seq_len"]) for row in csv.DictReader(handle)
        )
    return {(model, task): seq for (model, task, seq), _ in reversed(counts.most_common())}


def published_row(row: Row) -> dict[str, str]:
    """Return the row in the columns of published runs."""
    task = {"pre_train": "pretrain", "finetune": "sft"}.get(row["task"], row["task"])
    notes = [
        f"{flag}={row[name]}"
        for name, flag in (("etp", "expert-tensor-parallel-size"), ("pp_layout", PATTERN))
        if row[name]
    ]
    notes.append(
        "one fewer layer in first and last stage"
    )  # where that comes out even: embedding and loss count as layers
    same = {
        name: row[name]
        for name in (
            "gpu",
            "num_gpus",
            "gpus_per_node",
            "tp",
            "pp",
            "vpp",
            "cp",
            "ep",
            "mbs",
            "gbs",
        )
    }
    nemo = row["source"].startswith("nemo")
    return {
        **same,
        "model": (
            row["model"].replace("-vl-", "-")
        ),  # of a model that also sees, the part that reads
        "row_id": "expert",
        "task": task,
        "seq_len": (
            row["seq_len"]
            or usual_sequences().get((row["model"].replace("llama31", "llama3.1"), task), "")
        ),
        "precision": (
            row["precision"]
            .replace("fp8_mx", "mxfp8")
            .replace("fp8_cs", "fp8")
            .replace("fp8_sc", "fp8-blockwise")
        ),
        "zero": "fsdp" if row["fsdp"] == "1" else "",
        "framework": "NeMo 2.0 (Megatron-Core)" if nemo else "Megatron-Bridge / Megatron-Core + TE",
        "release": f"NeMo container {row['container']}" if row["container"] and not nemo else "",
        "notes": "; ".join(notes),
        **recompute_cells(row),
    }


PATTERN = "pipeline-model-parallel-layout"


def recompute_cells(row: Row) -> dict[str, str]:
    """Return the two columns that say what is recomputed and which graphs are captured."""
    graphs = {
        "transformer_engine": "cuda graph transformer_engine:['attn']",
        "full_iteration": "cuda graph full_iteration",
    }
    graph = graphs.get(row["cuda_graph"], "")
    if row["recompute_modules"]:
        return {
            "recompute": "selective",
            "recompute_detail": f"modules {row['recompute_modules']}; {graph}",
        }
    if row["recompute_num_layers"] not in ("", "0"):
        return {
            "recompute": "full",
            "recompute_detail": f"recompute_num_layers={row['recompute_num_layers']}; {graph}",
        }
    return {"recompute": "none", "recompute_detail": graph}


def problem_of(case: Case) -> Problem:
    """Return what is searched: the case without its layout."""
    [(chip, count)] = case.machines.pools
    node, work = case.machines.nodes[0], case.workload
    request = PlanRequest.of(
        {
            "model": dims_of(case.model),
            "cluster": f"{chip}:{count}",
            "gpus_per_node": node.chips_per_node,
            "seq_len": work.seq_len,
            "gbs": case.layout.gbs,
            "precision": work.precision,
            "top": 1,
        }
    )
    problem = resolve(request)
    changes: dict[str, Any] = dict(case.stack_changes)
    setting = problem.setting
    stack, pool = replace(find_stack(case.stack_name), **changes), replace(setting.pool, node=node)
    return replace(
        problem, setting=replace(setting, model=case.model, work=work, stack=stack, pool=pool)
    )


_best: dict[Any, Plan | None] = {}


def best_plan(problem: Problem) -> Plan | None:
    """Return our best, searched once for all rows that ask the same; None where nothing fits."""
    setting = problem.setting
    key = (setting.model, setting.pool, setting.work, setting.stack)
    if key not in _best:
        rejections = Rejections()
        harvest = search_space(
            problem, make_space(problem, axes_of(problem), rejections), rejections
        )
        plans = ranked_plans(problem, harvest.fitting, harvest.at_risk).plans
        _best[key] = plans[0] if plans else None
    return _best[key]


def compare(row: Row) -> Outcome:
    """Price one row and our best for it."""
    name = " ".join(row[key] for key in ("model", "task", "gpu", "num_gpus", "precision", "gbs"))
    case = read_row(published_row(row))
    if isinstance(case, Unanswerable):
        return Outcome(name=name, kind="not described well enough", detail=case.reason)
    if not named_well(case):
        return Outcome(
            name=name,
            kind="not described well enough",
            detail="model: not known, and no dims given",
        )
    try:
        problem = problem_of(case)
        layout = explicit_layers(case.layout, case.model)
        broken = problem.setting.broken_rules(layout)
        ours = best_plan(problem)
    except ConfigError as error:
        return Outcome(name=name, kind="refused", detail=str(error), theirs=case.layout)
    if ours is None:
        return Outcome(name=name, kind="nothing fits by our memory", theirs=layout)
    if broken:
        return Outcome(
            name=name,
            kind="theirs breaks a rule of ours",
            detail=broken[0].message,
            theirs=layout,
            ours=ours.layout,
        )
    return judged(row, name, problem, cheapest(problem, layout), ours)


def named_well(case: Case) -> bool:
    """Whether the model that was read is of the size in its name."""
    billions = re.search(r"(?<![\dx.])(\d+(?:\.\d+)?)b(?![a-z])", case.model.name)  # not of 8x7b
    return (
        billions is None
        or abs(model_params(case.model).total / 1e9 / float(billions[1]) - 1) < OF_NAME
    )


def cheapest(problem: Problem, layout: Layout) -> Repriced:
    """Price a layout; where its recipe leaves the split of layers open, with the best split that is
    tried."""
    [tried] = shortlists(problem, [[layout]])
    return min(reprice(problem, tried), key=lambda priced: priced.step_s)


def judged(row: Row, name: str, problem: Problem, theirs: Repriced, ours: Plan) -> Outcome:
    """Say how the two compare, and why."""
    ratio, fits = theirs.step_s / ours.step_s, fits_of(problem, theirs.peak_bytes)
    used, offloads = (
        theirs.peak_bytes / problem.setting.limit_bytes,
        row["cpu_offloading_num_layers"] not in ("", "0"),
    )
    memory = f"{theirs.peak_bytes / GIB:.0f} of {problem.setting.limit_bytes / GIB:.0f} GiB"
    if abs(ratio - 1) <= CLOSE:
        kind, detail = "within 3 %", "" if fits == "yes" else f"{fits}: {memory}"
    elif ratio > 1:
        uneven = (
            problem.setting.model.total_layers % (theirs.layout.pp * theirs.layout.vpp) > 0
            and not row["pp_layout"]
        )
        kind, detail = (
            f"theirs slower: {largest_term(theirs, ours, unknown_split=uneven)}",
            slower_words(theirs, ours),
        )
    elif fits == "yes":
        kind, detail = (
            "theirs faster, and fits",
            f"outside of what is searched: {differences(theirs.layout, ours.layout)}",
        )
    else:
        offload = ", offloads activations" if offloads else ""
        kind, detail = (
            f"theirs faster, {'does not fit' if fits == 'no' else 'at risk'} by our memory",
            memory + offload,
        )
    layouts = {"theirs": theirs.layout, "ours": ours.layout}
    return Outcome(
        name=name,
        kind=kind,
        detail=detail,
        ratio=ratio,
        used_share=used,
        offloads=offloads,
        **layouts,
    )


def gains(theirs: Repriced, ours: Plan) -> list[tuple[str, float]]:
    """Terms by how much longer theirs are, as a share of our step, largest first."""
    changes = [
        (term, (theirs.time_s[term] - ours.time_s[term]) / ours.step_s) for term in ours.time_s
    ]
    return sorted(changes, key=lambda change: -change[1])


def largest_term(theirs: Repriced, ours: Plan, *, unknown_split: bool) -> str:
    """The term that makes theirs slower; an imbalance may be ours, where the recipe computes a
    split that its table lacks."""
    term = gains(theirs, ours)[0][0]
    lacking = (
        ", their split of layers is not in the table"
        if term == "imbalance" and unknown_split
        else ""
    )
    return f"{TIME_READINGS[term].title}{lacking}"


def slower_words(theirs: Repriced, ours: Plan) -> str:
    """Say which terms cost theirs what."""
    shown = gains(theirs, ours)[:TERMS_SHOWN]
    words = ", ".join(
        f"{TIME_READINGS[term].title} {share:+.1%}" for term, share in shown if share > CLOSE / 10
    )
    return f"{words}; ours: {differences(ours.layout, theirs.layout)}"


def differences(one: Layout, other: Layout) -> str:
    """The axes of one where it differs from the other."""
    words = (
        f"{axis}={axis_value(one, axis)}"
        for axis in AXES
        if axis_value(one, axis) != axis_value(other, axis)
    )
    return " ".join(words) or "the same axes"


def axis_value(layout: Layout, axis: str) -> str:
    """An axis in a word."""
    value = getattr(layout, axis)
    return "+".join(layout.recompute_modules) if value == "selective" else str(value)


def leanings(outcomes: Iterable[Outcome]) -> list[str]:
    """Say, for each axis, how often ours is larger and how often smaller."""
    pairs = [(o.ours, o.theirs) for o in outcomes if o.ours is not None and o.theirs is not None]
    lines = []
    for axis in COUNTS:
        larger = sum(getattr(ours, axis) > getattr(theirs, axis) for ours, theirs in pairs)
        smaller = sum(getattr(ours, axis) < getattr(theirs, axis) for ours, theirs in pairs)
        lines.append(f"| {axis} | {larger} | {len(pairs) - larger - smaller} | {smaller} |")
    return lines


def page(outcomes: Sequence[Outcome]) -> str:
    """Return the page."""
    counts = Counter(o.kind for o in outcomes)
    priced = [o for o in outcomes if o.ratio is not None]
    close, reasoned = (
        counts["within 3 %"],
        sum(o.ratio is not None or o.kind.startswith("theirs") for o in outcomes),
    )
    lines = [
        "# NVIDIA's layouts and ours",
        "",
        (
            f"Written by `benchmarks/expert_layouts.py` on {datetime.now(UTC):%Y-%m-%d}, on a"
            f" machine of {os.cpu_count()} cores."
        ),
        "",
        (
            "The layouts that NVIDIA ships for a model, chip, batch and precision (Megatron-Bridge"
            " and NeMo 2.0 recipes), and the best that"
        ),
        "`meshwright plan` finds for the same, both priced by our model. Nothing is measured here.",
        "",
        (
            f"{len(outcomes)} rows, {len(priced)} of them priced; {close} of these"
            f" ({close / max(1, len(priced)):.0%}) within 3 % of our best; for {reasoned - close}"
            f" more the reason is shown ({reasoned / max(1, len(outcomes)):.0%} of all rows in"
            " total)."
        ),
        "",
        "| outcome | rows |",
        "| --- | ---: |",
        *(f"| {kind} | {count} |" for kind, count in counts.most_common()),
        "",
        "How often our axes are larger, the same and smaller:",
        "",
        "| axis | larger | same | smaller |",
        "| --- | ---: | ---: | ---: |",
        *leanings(outcomes),
        "",
        *unfitting(outcomes),
        "",
        (
            "| model, task, chip, chips, precision, batch | theirs | ours | their step / ours |"
            " outcome |"
        ),
        "| --- | --- | --- | ---: | --- |",
        *(line(o) for o in outcomes),
    ]
    return "\n".join(lines) + "\n"


def unfitting(outcomes: Iterable[Outcome]) -> list[str]:
    """List their layouts that do not fit by our memory: they run, so our memory is too high or the
    table lacks what saves it."""
    found = [o for o in outcomes if o.used_share is not None and o.used_share > 1]
    rows = [
        f"| {o.name} | {'' if o.theirs is None else short(o.theirs)} | {o.used_share:.2f} |"
        f" {'yes' if o.offloads else ''} |"
        for o in found
    ]
    heading = [
        "| row | theirs | predicted / seen by a process | offloads |",
        "| --- | --- | ---: | --- |",
    ]
    return [
        f"{len(found)} of their layouts need more memory by our model than a chip has:",
        "",
        *heading,
        *rows,
    ]


def line(o: Outcome) -> str:
    """One row of the long table."""
    layouts = [("" if layout is None else short(layout)) for layout in (o.theirs, o.ours)]
    ratio = "" if o.ratio is None else f"{o.ratio:.3f}"
    words = o.kind + (f": {o.detail}" if o.detail else "")
    return f"| {o.name} | {layouts[0]} | {layouts[1]} | {ratio} | {words.replace('|', '/')} |"


def short(layout: Layout) -> str:
    """The axes that differ from 1 or none."""
    return (
        " ".join(
            f"{axis}={axis_value(layout, axis)}"
            for axis in AXES
            if axis_value(layout, axis) not in ("1", "none", "zero1")
        )
        or "data parallel"
    )


def main() -> None:
    """Print the summary and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words that a row's name must hold")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(__file__).resolve().parent.parent / "docs" / "expert_layouts.md",
    )
    given = parser.parse_args()
    with (truth() / "expert_layouts.csv").open(encoding="utf-8") as handle:
        rows = [
            row
            for row in csv.DictReader(handle)
            if all(w in " ".join(row.values()) for w in given.only.split())
        ]
    rows.sort(
        key=lambda row: (row["model"], row["gpu"], row["num_gpus"], row["gbs"], row["precision"])
    )
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(compare, rows, chunksize=8))
    text = page(outcomes)
    given.output.write_text(text, encoding="utf-8")
    print(text.partition("| model, task")[0])


if __name__ == "__main__":
    main()
