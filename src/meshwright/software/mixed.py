"""A plan over several kinds of chips for one training software: all ranks share one command, and
nodes are in the order of stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.problem import details_of
from meshwright.search.request import Shared
from meshwright.software.contract import Exported, ExportedFile, ExportTarget, export_plan
from meshwright.software.plan import TrainingPlan, canonical_layout
from meshwright.software.settings import ModelDetails, TrainingSettings
from meshwright.values.errors import CannotExpress
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.mixed_layout import MixedLayout, StageLayout

__all__ = ["MIXED_TARGETS", "SAME_STAGES", "export_mixed"]

SAME_STAGES: tuple[Shared, ...] = ("tp", "recompute")
"""What `--same` holds for all stages where such a plan is to be written."""
MIXED_TARGETS = ("megatron-lm",)
"""Ranks of a stage follow each other there, tp innermost and pp outermost (Megatron-Core,
parallel_state.py: tp-cp-ep-dp-pp)."""
_STRICT = "set -euo pipefail\n"


def export_mixed(
    layout: MixedLayout,
    problem: MixedProblem,
    *,
    target: ExportTarget,
    settings: TrainingSettings | None = None,
) -> Exported:
    """Write a plan whose stages differ in chip and layers alone, with the order in which nodes take
    part.

    CannotExpress says what the software has one value for, and where stages do not end with a node.
    """
    _require_expressible(layout, problem, target)
    plans = [
        _plan_on(problem.parts[pool].setting.pool, layout, problem, settings or TrainingSettings())
        for pool in layout.pools
    ]
    found = [export_plan(plan, target=target) for plan in plans]
    chips = [plan.pool.node.chip.name for plan in plans]
    for chip, other in zip(chips[1:], found[1:], strict=True):
        _require_same(found[0], other, chips=(chips[0], chip), target=target)
    if len(found) == 1:
        return found[0]
    order = _order(layout, problem)
    whole = max(found, key=lambda one: len(one.environment))
    files = tuple(replace(file, text=_with_order(file, order)) for file in whole.files)
    return replace(whole, files=files, notes=(*whole.notes, *_notes(order)))


def _require_expressible(layout: MixedLayout, problem: MixedProblem, target: ExportTarget) -> None:
    if target.name not in MIXED_TARGETS:
        reason = "stages on several kinds of chips are written for megatron-lm alone"
        raise CannotExpress(target.name, reason, nearest="--to megatron-lm")
    first = layout.stages[0]
    names = [
        field.name for field in fields(StageLayout) if field.name not in ("pool", "chip", "layers")
    ]
    unlike = [name for name in names if len({getattr(stage, name) for stage in layout.stages}) > 1]
    if unlike:
        pins = " ".join(
            f"--set {name}={getattr(first, name)}"
            for name in unlike
            if name in ("tp", "recompute", "mbs", "dp")
        )
        reason = f"stages differ in {', '.join(unlike)}, for which it has one value for all ranks"
        nearest = f"that of {pins or '--same tp --same recompute'}"
        raise CannotExpress(target.name, reason, nearest=nearest)
    pools = [problem.cluster.pools[pool] for pool in layout.pools]
    for name, values in (
        ("vendor", [p.node.chip.vendor for p in pools]),
        ("chips per node", [p.node.chips_per_node for p in pools]),
    ):
        if len(set(values)) > 1:
            words = " and ".join(dict.fromkeys(map(str, values)))
            reason = f"its kinds of chips differ in {name}, {words}"
            raise CannotExpress(target.name, reason, nearest="kinds that share it")
    for chip, used, node in _runs(layout, problem) if len(pools) > 1 else ():
        if used % node:
            reason = (
                f"stages that follow each other use {used} {chip}, no whole nodes of {node}, and a"
                " node would hold stages of two kinds"
            )
            raise CannotExpress(target.name, reason, nearest="a tp or dp that fills nodes")


_FOR_ALL = frozenset({"UB_SKIPMC"})
"""Variables that one kind of chip needs and the others start with as well: overlapped products then
go by CUDA IPC everywhere."""


def _plan_on(
    pool: Pool, layout: MixedLayout, problem: MixedProblem, settings: TrainingSettings
) -> TrainingPlan:
    """The plan as if all its chips were of one of its kinds."""
    setting = problem.parts[0].setting
    return TrainingPlan(
        model=setting.model,
        cluster=Cluster(pools=(replace(pool, num_chips=layout.num_chips),)),
        work=replace(setting.work, gbs=layout.gbs),
        stack=setting.stack,
        layout=canonical_layout(layout.row(0), setting.model),
        settings=settings,
        details=ModelDetails.of(details_of(problem.request.model)),
        megatron_version=problem.request.megatron_version,
    )


def _require_same(
    one: Exported, other: Exported, *, chips: tuple[str, str], target: ExportTarget
) -> None:
    """Refuse where the kinds of chips would be started with unlike words."""
    unlike = sorted({*one.command} ^ {*other.command})
    here, there = (
        {(var.name, var.value) for var in exported.environment if var.name not in _FOR_ALL}
        for exported in (one, other)
    )
    unlike += [f"{name}={value}" for name, value in sorted(here ^ there)]
    if unlike or one.command != other.command:
        reason = (
            f"{chips[0]} and {chips[1]} want unlike words ({', '.join(unlike)}), and all ranks"
            " share one command"
        )
        raise CannotExpress(target.name, reason, nearest="a plan on either alone")


def _order(layout: MixedLayout, problem: MixedProblem) -> tuple[tuple[str, int, int], ...]:
    """Chip, first node and number of nodes of each run of stages on one kind, in the order of the
    pipeline."""
    found, first = [], 0
    for chip, used, node in _runs(layout, problem):
        found.append((chip, first, used // node))
        first += used // node
    return tuple(found)


def _runs(layout: MixedLayout, problem: MixedProblem) -> Iterator[tuple[str, int, int]]:
    """Chip, chips in use and chips of a node of each run of stages on one kind; all stages have as
    many chips."""
    each = layout.num_chips // layout.pp
    for number, stages in layout.runs:
        node = problem.cluster.pools[number].node
        yield node.chip.name, stages * each, node.chips_per_node


def _with_order(file: ExportedFile, order: tuple[tuple[str, int, int], ...]) -> str:
    """A script that says where its node is in the order, and warns on a node with other chips."""
    assert _STRICT in file.text, "a script of Megatron-LM begins strictly"
    branches = [
        f"if (( node_rank < {first + nodes} )); then wanted={chip.split('-')[0]}"
        for chip, first, nodes in order[:-1]
    ]
    lines = [
        *(f"# {line}" for line in _notes(order)),
        'node_rank="${NODE_RANK:-0}"',
        *(branch if i == 0 else f"el{branch}" for i, branch in enumerate(branches)),
        f"else wanted={order[-1][0].split('-')[0]}; fi",
        "if command -v nvidia-smi >/dev/null; then",
        "    gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader)",
        '    if ! grep -qiw -- "$wanted" <<<"$gpus"; then',
        (
            '        echo "warning: node $node_rank has no $wanted, for which the stages of its'
            ' ranks are cut; order the nodes by kind" >&2'
        ),
        "    fi",
        "fi",
    ]
    head, tail = file.text.split(_STRICT, 1)
    return f"{head}{_STRICT}\n" + "\n".join(lines) + f"\n\n{tail}"


def _notes(order: tuple[tuple[str, int, int], ...]) -> tuple[str, ...]:
    spans = [f"{_span(first, nodes)} on {chip}" for chip, first, nodes in order]
    return (f"order of the nodes: NODE_RANK {', '.join(spans)}; MASTER_ADDR is node 0",)


def _span(first: int, nodes: int) -> str:
    return str(first) if nodes == 1 else f"{first} to {first + nodes - 1}"
