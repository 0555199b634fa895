"""From rows of tables, and from runs told in words, to what is predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from meshwright.cost.operators import HALF
from meshwright.platforms.given import load_cluster
from meshwright.runs.measured.blanks import Tiers, choices_of_row
from meshwright.runs.measured.cells import (
    Cells,
    Placement,
    Rule,
    TruthTable,
    UnansweredError,
    framework_words,
    read_notes,
    read_rules,
    stack_changes_of_row,
    switches_of_row,
    without_measurements,
)
from meshwright.runs.measured.layouts import axes_of_row, layout_of_row
from meshwright.runs.measured.machines import (
    WHERE_SHORT,
    Machines,
    machines_of_row,
    seq_len_of_row,
    stage_chips,
    workload_of_row,
)
from meshwright.runs.measured.models import model_of_row
from meshwright.runs.measured.untold import assumptions_of_row, words_of
from meshwright.search.problem import model_of
from meshwright.search.rules.check import complete_layout
from meshwright.search.rules.rule import RuleCase
from meshwright.search.started import recipe_span
from meshwright.software.described import Described, MemoryFigure, MemoryKind, StackChanges
from meshwright.trust.calibration import Calibration
from meshwright.trust.intervals import Assumption, Kind, kind_of
from meshwright.trust.untold import TOGETHER, Apart
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.recipes import RECIPES_OF, Task, is_known, other_models, releases
from meshwright.values.stack import find_stack
from meshwright.values.switches import beginnings, release_key
from meshwright.values.workload import AttentionKernel, Precision, Workload

__all__ = ["Case", "Given", "Unanswerable", "case_of", "read_row", "read_table"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run to predict."""

    source: str
    row_id: str
    model: ModelSpec
    machines: Machines
    placement: Placement
    """Per stage, the chips that hold it."""
    workload: Workload
    stack_name: str
    stack_changes: StackChanges
    """Fields of the stack that the row says are different."""
    layout: Layout
    memory: MemoryFigure
    """Which figure of its memory the row tells."""
    schedule_name: str
    """As the row names it; `layout.schedule` is the nearest that can be priced."""
    choices: Tiers = ()
    """Layouts that the row leaves open; `layout` is the software's usual one."""
    calibration: Calibration | None = None
    """Of the chip and the software of this run."""
    task: Task = "pretrain"
    """Which recipe of the software's release starts it."""
    switches: tuple[str, ...] | None = None
    """What the row says that the software was told; None: as its own configurations."""
    model_assumed: str = ""
    """What had to be taken for granted of the model, a line for people."""
    assumptions: tuple[Assumption, ...] = ()
    """What the row leaves untold of layout and workload."""
    taken: str = ""
    """What was taken for it as it would not fit otherwise, a line for people."""
    apart: Apart = TOGETHER
    """How far that is from what the row tells."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """All that was not told and what was taken for it, lines for people."""
        said = words_of(self.assumptions, self.layout, self.workload)
        return tuple(line for line in (self.model_assumed, *said, self.taken) if line)

    @property
    def kind(self) -> Kind:
        """Which published runs say how far off a prediction may be."""
        chip, stack = self.machines.nodes[0].chip, find_stack(self.stack_name)
        kind = kind_of(model=self.model, chip=chip, stack=stack, work=self.workload)
        return replace(kind, generation="mixed") if self.machines.mixed else kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Unanswerable:
    """A row that does not describe a run that can be predicted."""

    source: str
    row_id: str
    reason: str


def read_table(table: TruthTable) -> list[Case | Unanswerable]:
    """Return one case, or the reason why there is none, for every row."""
    return [read_row(row, source=table.name) for row in table.rows]


def read_row(row: Mapping[str, str], *, source: str = "") -> Case | Unanswerable:
    """Return the run that a row describes, or why it can't be told, measured columns aside."""
    cells = Cells(without_measurements(row))
    row_id = cells.text("row_id") or ""
    try:
        return _case(cells, source=source, row_id=row_id)
    except ConfigError as error:
        return Unanswerable(source=source, row_id=row_id, reason=str(error))


_REINFORCEMENT = r"(?<![a-z])(?:grpo|ppo|rlhf)(?![a-z])"
"""Names of methods whose runs generate text between their steps: most of their memory is an
inference engine's."""


def _case(cells: Cells, *, source: str, row_id: str) -> Case:
    if cells.match("model", _REINFORCEMENT):
        raise UnansweredError("model: reinforcement learning, which is not predicted")
    notes = read_notes(cells)
    framework = _framework(cells)
    seq_len = seq_len_of_row(cells, notes, framework)
    axes = axes_of_row(cells, notes)
    machines = machines_of_row(cells, num_chips=axes.num_chips, usual_network=framework["network"])
    model, model_assumed = model_of_row(cells, notes, seq_len=seq_len)
    chip = machines.nodes[0].chip
    framework = _settled(framework, model, chip)
    layout = layout_of_row(cells, notes, framework, model, axes, seq_len=seq_len)
    return Case(
        source=source,
        row_id=row_id,
        model=model,
        machines=machines,
        placement=stage_chips(machines, notes.placement, pp=layout.pp),
        workload=workload_of_row(cells, notes, framework, chip, seq_len=seq_len, gbs=layout.gbs),
        stack_name=_stack_name(cells, framework, chip),
        switches=() if framework["switches"] else switches_of_row(cells, framework["stack"]),
        task=_task(cells),
        stack_changes=stack_changes_of_row(cells),
        layout=layout,
        memory=_memory(cells),
        schedule_name=_schedule_name(cells),
        choices=choices_of_row(
            cells, framework, layout, model=model, node_size=machines.nodes[0].chips_per_node
        ),
        model_assumed=model_assumed,
        assumptions=assumptions_of_row(cells, layout),
    )


def _framework(cells: Cells) -> Rule:
    rule = read_rules("frameworks").first(framework_words(cells))
    if rule is None:
        raise UnansweredError("framework: not known")
    return rule


def _stack_name(cells: Cells, framework: Rule, chip: Chip) -> str:
    """The software, and the release of it that the row names, where that has recipes for the
    chip."""
    name = framework["stack"]
    if name == CHECKED_FROM:
        return CHECKED if _compares_collectives(cells) else name
    if name != RECIPES_OF:
        return _with_release(name, cells.words("release"))
    release = re.search(r"[0-9]+\.[0-9]+(?:\.[0-9]+)*", cells.words("release"))
    if release is None:
        return name
    if not is_known(release[0]):
        return f"{name}@{releases()[-1]}"
    return f"{name}@{release[0]}" if other_models(release=release[0], gpu=chip.name) else "nemo"


CHECKED_FROM, CHECKED = "nanotron", "nanotron-checked"
"""The software whose published jobs timed collectives before they trained, and the same where the
members of a group compare what they send."""
_START_OF_JOB = re.compile(
    r"nccl bench gb/s at job start ar/ag/rs=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)"
)
"""Bus bandwidths of an all-reduce, an all-gather and a reduce-scatter of 1 GiB among all ranks of a
job (measure_bandwidth of nanotron's trainer, branch nouamane/bench2)."""
_TOLD_FROM_RANKS = 32
"""Fewer ranks compare while 1 GiB is still on its way, so that the times are alike either way."""


def _compares_collectives(cells: Cells) -> bool:
    """Whether the members of a group compare what they send before each collective, as torch does
    under TORCH_DISTRIBUTED_DEBUG=DETAIL: then none of three kinds takes less than the comparison,
    which costs the host the same for each. Where the job's own test does not tell, pipelines over
    several servers do, as those of the published sweep."""
    ranks = cells.count("num_gpus") or 1
    told = _START_OF_JOB.search(cells.words("notes"))
    if told is None or ranks < _TOLD_FROM_RANKS:
        return (cells.count("pp") or 1) > 1 and ranks > (cells.count("gpus_per_node") or 8)
    passes = (2.0, 1.0, 1.0)
    share = (ranks - 1) / ranks * 2**30 / 1e9
    least_s = min(
        kind * share / float(rate) for kind, rate in zip(passes, told.groups(), strict=True)
    )
    return least_s > _COMPARED * find_stack(CHECKED).collective_check_s * ranks


_COMPARED = 0.75
"""Of the comparison's usual time, what shows that there is one: jobs on one network differ so
much. Without it 32 ranks took half of that, 512 a twelfth."""


def _with_release(name: str, said: str) -> str:
    """A software and its release, where the row's begins with one and its configurations are
    known; the newest that is known of a later one."""
    found = re.match(r"v?[0-9]+(?:\.(?:rc)?[0-9]+)+", said)
    if found is None or not beginnings(name):
        return name
    wanted, newest = release_key(found[0]), recipe_span(name)[-1]
    later = wanted > release_key(newest)[: len(wanted)]
    return f"{name}@{newest if later else found[0]}"


def _task(cells: Cells) -> Task:
    task = cells.words("task")
    return "lora" if "lora" in task else "sft" if "sft" in task else "pretrain"


_ROOM_FOR_WEIGHTS = 0.8
"""Share of a chip up to which half-precision weights that are not trained are held whole: some
activations need a place too."""


def _settled(framework: Rule, model: ModelSpec, chip: Chip) -> Rule:
    """The software's habits, its sharding settled where it depends on whether a chip holds the
    whole model."""
    if framework["sharding"] != WHERE_SHORT:
        return framework
    held = HALF * model_params(model).total <= _ROOM_FOR_WEIGHTS * chip.usable_bytes
    sharding = "none" if held else framework["fsdp"]
    return replace(framework, fields={**framework.fields, "sharding": sharding})


def _memory(cells: Cells) -> MemoryFigure:
    told = cells.words("mem_def")
    rule = next(
        rule
        for rule in read_rules("memory_words").rules  # the last one matches everything
        if rule.pattern.search(told) and cells.match("framework", rule["by"])
    )
    rank = cast("Literal['max', 'first', 'last']", rule["rank"])
    return MemoryFigure(kind=cast("MemoryKind", rule["kind"]), rank=rank)


def _schedule_name(cells: Cells) -> str:
    named = cells.match("framework", r"schedule=([\w-]{1,40})")
    return named[1] if named else "1f1b"


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What the user says of a run; it goes before what the log says."""

    model: str | Mapping[str, Any] | None = None
    cluster: str | None = None
    gpus_per_node: int | None = None
    stack: str | None = None
    seq_len: int | None = None
    gbs: int | None = None
    precision: str | None = None
    layout: str | None = None

    def __post_init__(self) -> None:
        for name in ("seq_len", "gbs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: expected 1 or more")


_FLAGS = {
    **{name: f"--{name}" for name in ("model", "cluster", "stack")},
    **{"seq_len": "--seq", "gbs": "--gbs", "layout": "--layout"},
}


def case_of(described: Described, given: Given, *, source: str) -> Case:
    """Return the run; ConfigError says what neither the log nor the user tells."""
    given = _filled(described, given, source=source)
    assert given.model is not None and given.seq_len is not None and given.gbs is not None
    model, pool = model_of(given.model), _pool(described, given, source=source)
    stack = find_stack(given.stack or "megatron")
    work = Workload(
        seq_len=given.seq_len,
        gbs=given.gbs,
        precision=cast("Precision", given.precision or described.precision),
        attention=cast("AttentionKernel", described.attention),
        dropout=described.dropout,
    )
    fields = {**(described.layout or {}), **(parse_layout(given.layout) if given.layout else {})}
    chips = pool.num_chips
    try:
        case = RuleCase(model=model, work=work, num_chips=chips, stack=stack)
        layout = complete_layout(fields, case)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    if layout.num_chips != chips or layout.gbs % (layout.mbs * layout.dp):
        raise ConfigError(
            f"{source}: {layout.words()} does not fill {chips} chips with a batch of"
            f" {layout.gbs}; see --layout"
        )
    machines = Machines.of(pool)
    return Case(
        source=source,
        row_id="",
        model=model,
        machines=machines,
        placement=stage_chips(machines, None, pp=layout.pp),
        workload=work,
        stack_name=stack.name,
        stack_changes=described.stack_changes if stack.name == described.stack else (),
        layout=layout,
        memory=described.memory,
        schedule_name=layout.schedule,
    )


def _filled(described: Described, given: Given, *, source: str) -> Given:
    """Fill what the user leaves open from the log."""
    cluster = _counted(given.cluster, described.num_chips)
    if not cluster and described.chip and described.num_chips:
        cluster = f"{described.chip}:{described.num_chips}"
    filled = replace(
        given,
        model=given.model if given.model is not None else described.model,
        cluster=cluster or None,
        stack=given.stack or described.stack,
        seq_len=given.seq_len or described.seq_len,
        gbs=given.gbs or described.gbs,
    )
    told = {name: getattr(filled, name) for name in _FLAGS}
    told["layout"] = filled.layout or described.layout
    if missing := [flag for name, flag in _FLAGS.items() if told[name] is None]:
        raise ConfigError(
            f"{source}: the log does not say all of its run; give {', '.join(missing)}"
        )
    return filled


def _counted(cluster: str | None, num_chips: int | None) -> str | None:
    """A cluster without a count, `h100`, has the log's."""
    if cluster is None or num_chips is None or ":" in cluster:
        return cluster
    return cluster if cluster.lower().endswith((".yaml", ".yml")) else f"{cluster}:{num_chips}"


def _pool(described: Described, given: Given, *, source: str) -> Pool:
    assert given.cluster is not None
    cluster = load_cluster(given.cluster, gpus_per_node=given.gpus_per_node)
    if len(cluster.pools) != 1:
        raise ConfigError(f"cluster {cluster.name}: calibrate takes one kind of chip")
    pool = cluster.pools[0]
    if described.num_chips is not None and described.num_chips != pool.num_chips:
        raise ConfigError(
            f"{source}: the log says {described.num_chips} chips, --cluster {given.cluster} says"
            f" {pool.num_chips}"
        )
    return pool
