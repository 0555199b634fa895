"""What a log says of its run, what the user adds, and the case that both together make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from meshwright.platforms.given import load_cluster
from meshwright.runs.measured.machines import Machines, stage_chips
from meshwright.runs.measured.rows import Case
from meshwright.search.problem import model_of
from meshwright.search.rules.check import complete_layout
from meshwright.search.rules.rule import RuleCase
from meshwright.software.described import Described
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import parse_layout
from meshwright.values.stack import find_stack
from meshwright.values.workload import AttentionKernel, Precision, Workload

__all__ = [
    "Given",
    "case_of",
]


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
    "model": "--model",
    "cluster": "--cluster",
    "stack": "--stack",
    "seq_len": "--seq",
    "gbs": "--gbs",
    "layout": "--layout",
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
    try:
        rules = RuleCase(model=model, work=work, num_chips=pool.num_chips, stack=stack)
        layout = complete_layout(fields, rules)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    if layout.num_chips != pool.num_chips or layout.gbs % (layout.mbs * layout.dp):
        raise ConfigError(
            f"{source}: {layout.words()} does not fill {pool.num_chips} chips with a batch of"
            f" {layout.gbs}; see --layout"
        )
    machines = Machines(pools=((pool.node.chip.name, pool.num_chips),), nodes=(pool.node,))
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
    cluster = (
        f"{described.chip}:{described.num_chips}"
        if described.chip and described.num_chips
        else None
    )
    filled = replace(
        given,
        model=given.model if given.model is not None else described.model,
        cluster=_counted(given.cluster, described.num_chips) or cluster,
        stack=given.stack or described.stack,
        seq_len=given.seq_len or described.seq_len,
        gbs=given.gbs or described.gbs,
    )
    told = {
        **{name: getattr(filled, name) for name in _FLAGS},
        "layout": filled.layout or described.layout,
    }
    missing = [flag for name, flag in _FLAGS.items() if told[name] is None]
    if missing:
        raise ConfigError(
            f"{source}: the log does not say all of its run; give {', '.join(missing)}"
        )
    return filled


def _counted(cluster: str | None, num_chips: int | None) -> str | None:
    """A cluster without a count, `h100`, has the log's."""
    if (
        cluster is None
        or num_chips is None
        or ":" in cluster
        or cluster.lower().endswith((".yaml", ".yml"))
    ):
        return cluster
    return f"{cluster}:{num_chips}"


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
