"""Published layouts as `plan` prices them: by the software's name, its release, and no more."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import step_time_of
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import Case, read_row
from meshwright.search.problem import Files, Problem, ask, dims_of, model_of, resolve
from meshwright.search.quote import Quote, quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.request import PlanRequest
from meshwright.search.rules.experts import usable_modules
from meshwright.search.rules.software import stack_rules
from meshwright.trust.intervals import Fits
from meshwright.values.errors import MeshwrightError
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.hardware.parse import find_server
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import find_stack
from meshwright.values.switches import known_words

__all__ = [
    "Line",
    "PlanPath",
    "PlanPriced",
    "asked_of",
    "named_stack",
    "options_of",
    "plan_path",
    "plan_paths",
    "priced",
    "server_of",
    "stack_lines",
]

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPriced:
    """One run that ran: what it took, and what two commands say of it."""

    row_id: str
    measured_s: float
    plan_s: float
    """By the software's name and release alone."""
    options_s: float
    """With what options of `plan` say of the rest of the row: see `options_of`."""
    predict_s: float
    """By everything that its row says."""
    verdict: Fits
    """Of `plan`."""
    inside: bool
    """Whether the measured time lies in the interval that `plan` prints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPath:
    """The runs of one table."""

    runs: tuple[PlanPriced, ...]
    refused: tuple[tuple[str, str], ...]
    """(row, reason) of those that `plan` does not price, though their software is one of ours."""

    @property
    def plan_error(self) -> float | None:
        """Mean of |priced / measured - 1|; None without runs."""
        return _error((run.plan_s, run.measured_s) for run in self.runs)

    @property
    def options_error(self) -> float | None:
        """The same with the options that the rows name."""
        return _error((run.options_s, run.measured_s) for run in self.runs)

    @property
    def predict_error(self) -> float | None:
        """The same of what `predict` says of the same runs."""
        return _error((run.predict_s, run.measured_s) for run in self.runs)

    @property
    def inside_frac(self) -> float | None:
        """Share of measured times within their interval."""
        return statistics.fmean(run.inside for run in self.runs) if self.runs else None

    @property
    def said_no(self) -> int:
        """Runs that ran and are said not to fit."""
        return sum(run.verdict == "no" for run in self.runs)


def _error(pairs: Iterable[tuple[float, float]]) -> float | None:
    errors = [abs(priced / measured - 1.0) for priced, measured in pairs]
    return statistics.fmean(errors) if errors else None


def plan_path(table: TruthTable) -> PlanPath:
    """Price the pre-training runs of a table whose software is one of ours, on chips of one kind,
    and that `predict` answers."""
    timed: list[tuple[Row, Case, float]] = []
    for row in table.rows:
        case, measured_s = read_row(row, source=table.name), step_time_of(table.name, row)
        if measured_s is not None and isinstance(case, Case) and _is_asked(row, case, table.name):
            timed.append((row, case, measured_s))
    answers = predict_rows([case for _, case, _ in timed]).predictions
    predicted = {p.row_id: p.step_s for p in answers}
    runs, refused = [], []
    for described, case, measured_s in timed:
        if case.row_id not in predicted:
            continue
        try:
            stack = named_stack(described, table=table.name) or ""
            problem, quote = priced(described, case, stack=stack)
            options = options_of(described, case, stack=stack)
            told = priced(described, case, stack=stack, **options)[1] if options else quote
        except (MeshwrightError, ValueError) as error:
            refused.append((case.row_id, str(error)))
            continue
        low, high = problem.setting.intervals(quote).step_s
        runs.append(
            PlanPriced(
                row_id=case.row_id,
                measured_s=measured_s,
                plan_s=quote.step_s,
                options_s=told.step_s,
                predict_s=predicted[case.row_id],
                verdict=quote.verdict,
                inside=low <= measured_s <= high,
            )
        )
    return PlanPath(runs=tuple(runs), refused=tuple(refused))


def plan_paths(tables: Iterable[TruthTable]) -> dict[str, PlanPath]:
    """Return the runs of every table that has some on a software of ours."""
    found = {table.name: plan_path(table) for table in tables}
    return {name: path for name, path in found.items() if path.runs}


def _is_asked(row: Row, case: Case, table: str) -> bool:
    """Whether it is a run that a user of `plan` can ask for."""
    trains_all = case.task == "pretrain" and not case.workload.lora_rank
    return trains_all and not case.machines.mixed and named_stack(row, table=table) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of `plan_stacks.csv`."""

    table: re.Pattern[str]
    framework: re.Pattern[str]
    stack: str
    """Its name, `@row` behind it where the row names the release."""
    server: str
    """On which the study is known to have run, as `--cluster` names it; empty: not known."""


@cache
def stack_lines() -> tuple[Line, ...]:
    """Return which stack the runs of each table and software are priced as."""
    path = Path(__file__).with_name("plan_stacks.csv")
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(
            Line(
                table=re.compile(line["table"]),
                framework=re.compile(line["framework"], re.IGNORECASE),
                stack=line["stack"],
                server=line["server"],
            )
            for line in csv.DictReader(lines)
        )


def _names(line: Line, row: Row, *, table: str) -> bool:
    named = line.framework.search(row.get("framework", ""))
    return bool(line.table.fullmatch(table) and named)


_GRAPHS: dict[float | str, str] = {1.0: "full_iteration", 0.5: "attn", 0.2: "moe_router"}
"""What `cuda_graphs` is called by the share of launches that graphs remove."""


def options_of(row: Row, case: Case, *, stack: str) -> dict[str, Any]:
    """Return what a user of `plan` says by its options of a row that names it: kernels of attention
    and norms, how tokens spread over experts, what the software is told, and its graphs."""
    found: dict[str, Any] = {}
    if row.get("attention_kernel", ""):
        found["attention"] = case.workload.attention
    if not case.workload.fused_norm:
        found["fused_norm"] = False
    if case.model.moe is not None and case.workload.routing == "typical":
        found["routing"] = "typical"
    if case.switches is not None and known_words(find_stack(stack).name):
        found["switches"] = list(case.switches)
    graphs = next((_GRAPHS.get(v) for k, v in case.stack_changes if k == "launch_hidden"), None)
    if graphs and find_stack(stack).family == "megatron":
        found["cuda_graphs"] = graphs
    return found


def server_of(row: Row, *, table: str) -> str:
    """Return the server, by its name in `--cluster`, on which a study is known to have run; empty
    where it is not."""
    found = (line for line in stack_lines() if _names(line, row, table=table))
    return next(found).server


def named_stack(row: Row, *, table: str) -> str | None:
    """Return the software as a user names it, `@` its release where the row has one; None where it
    is none of ours."""
    found = (line.stack for line in stack_lines() if _names(line, row, table=table))
    name = next(found, None)
    if name is None or not name.endswith("@row"):
        return name
    released = re.search(r"[0-9]+\.[0-9]+(?:\.(?:RC)?[0-9]+)*", row.get("release", ""))
    return name.replace("@row", f"@{released[0]}" if released else "")


def asked_of(row: Row, layout: Layout, model: ModelSpec) -> dict[str, Any]:
    """Return the fields of the row's layout that the row itself names; the others are left to
    `plan`."""
    fields: dict[str, Any] = {"mbs": layout.mbs}
    fields |= {
        name: getattr(layout, name)
        for name in ("tp", "cp", "pp", "vpp", "ep")
        if getattr(layout, name) > 1
    }
    if row.get("sp", "") and layout.tp > 1:
        fields["sp"] = layout.sp
    if layout.ep > 1:
        fields["etp"] = layout.expert_tp
    if row.get("zero", ""):
        fields["sharding"] = layout.sharding
        if layout.shard_size is not None:
            fields["shard_size"] = layout.shard_size
    if row.get("recompute", ""):
        fields |= _recompute_of(layout, model)
    if layout.schedule != "1f1b":
        fields["schedule"] = layout.schedule
    if layout.layers_per_stage is not None:
        fields["layers_per_stage"] = layout.layers_per_stage
    return fields


def _recompute_of(layout: Layout, model: ModelSpec) -> dict[str, Any]:
    """Modules that the model has; and block recompute of a chunk's layers at most, which
    Megatron-Core takes larger numbers for."""
    fields: dict[str, Any] = {"recompute": layout.recompute}
    if layout.recompute == "selective":
        known = usable_modules(model, layout.recompute_modules)
        return {**fields, "recompute_modules": tuple(known)} if known else {"recompute": "none"}
    chunk = -(-model.total_layers // (layout.pp * layout.vpp))
    if layout.recompute == "full" and layout.recompute_layers is not None:
        fields["recompute_method"] = layout.recompute_method
        fields["recompute_layers"] = min(layout.recompute_layers, chunk)
    return fields


def priced(row: Row, case: Case, *, stack: str, **options: Any) -> tuple[Problem, Quote]:
    """Return the row's run as `explain` prices it, with more fields of the request;
    MeshwrightError where it is refused.

    The chips are those of a cluster file where the row describes how they are linked or the study
    is known to have run on a server that is sold, else a kind and a count. A micro-batch that the
    row leaves open is the fastest that fits, as `plan` finds it.
    """
    [(chip, _)] = case.machines.pools
    node = case.machines.nodes[0]
    server = find_server(server_of(row, table=case.source))
    linked = row.get("interconnect", "") or server is not None
    pool = Pool(node=server.node if server else node, num_chips=case.machines.num_chips)
    files = Files(cluster=Cluster(pools=(pool,)) if linked else None)
    problem = resolve(
        PlanRequest.of(
            {
                "model": _model_words(row, case),
                "cluster": f"{chip}:{case.machines.num_chips}",
                "seq_len": case.workload.seq_len,
                "gbs": case.layout.gbs,
                "precision": case.workload.precision,
                "stack": stack,
                "gpus_per_node": int(float(row.get("gpus_per_node", "")))
                if row.get("gpus_per_node", "") and not server
                else None,
                **options,
            }
        ),
        files=files,
    )
    fields = asked_of(row, case.layout, case.model)
    if row.get("mbs", "") or row.get("ga", ""):
        return problem, _quoted(fields, problem)
    return problem, _fastest(fields, problem)


def _fastest(fields: dict[str, Any], problem: Problem) -> Quote:
    """The layout with the micro-batch that is fastest of those that the rules allow and that fit;
    the error of the smallest where none is allowed."""
    found: list[Quote] = []
    for size in (1, 2, 4, 8, 16):
        try:
            found.append(_quoted({**fields, "mbs": size}, problem))
        except (MeshwrightError, ValueError):
            if size == 16 and not found:
                raise
    fitting = [quote for quote in found if quote.fits] or found[:1]
    return min(fitting, key=lambda quote: quote.step_s)


def _quoted(fields: dict[str, Any], problem: Problem) -> Quote:
    """The layout of these fields as `explain` prices it."""
    try:
        asked = ask(fields, problem)
    except MeshwrightError as error:  # the message names the uneven split that works
        split = re.search(r"layers_per_stage=([\d+]+)", str(error))
        own = stack_rules(problem.setting.stack).splits == "cost"  # as its newest release cuts
        if split is None or ("layers_per_stage" in fields and not own):
            raise
        layers = tuple(int(part) for part in split[1].split("+"))
        asked = ask({**fields, "layers_per_stage": layers}, problem)
    [quote] = requote(quotes([asked.layout], setting_of(problem)), problem)
    if not math.isfinite(quote.step_s):
        raise ValueError("no finite time")
    return quote


def _model_words(row: Row, case: Case) -> str | dict[str, Any]:
    """The model's name where the catalogue has it so, else the dims that the row gives."""
    try:
        named = model_of(row["model"])
    except MeshwrightError:
        return dims_of(case.model)
    same = replace(named, name="", max_positions=0) == replace(case.model, name="", max_positions=0)
    return row["model"] if same else dims_of(case.model)
