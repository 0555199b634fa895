"""What each term of an estimate is, what bounds it on a given machine, and what it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.values.hardware.catalogue import Row, chip_rows, link_rows
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Link, Pool
from meshwright.values.layout import Layout
from meshwright.values.stack import Stack, figure_source
from meshwright.values.workload import Workload

__all__ = [
    "MEMORY_READINGS",
    "TIME_READINGS",
    "Bound",
    "Constant",
    "MemoryReading",
    "Provenance",
    "Reading",
    "bound_words",
    "link_words",
    "provenance",
]

Unit = Literal["matrix units", "device memory", "host", "slowest stage", "pipeline", "software"]
Bound = Literal[Unit, "tp link", "cp link", "ep link", "dp link", "pp link"]
"""What a term of the step's time waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One term: its name for people, one line on what it is, what it waits for, where its formula
    and its constants are."""

    title: str
    what: str
    bound: Bound
    formula: str
    """Module and function under `meshwright`."""
    constants: tuple[str, ...] = ()
    """Fields of the chip, the links and the stack that scale it, such as
    `chip.matmul_efficiency`."""


TIME_READINGS: Mapping[str, Reading] = {
    "matmul": Reading(
        title="matrix products",
        what="linear layers: forward, gradients of inputs and of weights",
        bound="matrix units",
        formula="cost.kernels.gemm_s",
        constants=(
            "chip.sustained_share",
            "chip.matmul_efficiency",
            "chip.fp8_matmul_efficiency",
            "chip.ramp_s",
        ),
    ),
    "attention": Reading(
        title="attention core",
        what="scores and values, or a state-space scan, forward and backward",
        bound="matrix units",
        formula="cost.attention.attention_parts",
        constants=(
            "chip.attention_forward_efficiency",
            "chip.attention_backward_efficiency",
            "chip.flash2_share",
        ),
    ),
    "pointwise": Reading(
        title="element-wise",
        what="norms, residuals, rotary, activations: bytes in and out",
        bound="device memory",
        formula="cost.operators.passes",
        constants=("chip.memory_efficiency", "chip.ramp_s", "stack.pointwise_fused"),
    ),
    "launch": Reading(
        title="kernel launches",
        what="the host queues kernels more slowly than the chip runs them",
        bound="host",
        formula="cost.layer.price_layer",
        constants=("chip.launch_s", "stack.launch_hidden", "stack.kernels_per_layer_scale"),
    ),
    "tp_comm": Reading(
        title="tensor-parallel",
        what="activations summed over tp, where not hidden behind products",
        bound="tp link",
        formula="cost.operators.tensor_exchange",
        constants=("link.efficiency", "link.latency_s", "stack.tp_overlap"),
    ),
    "cp_comm": Reading(
        title="context-parallel",
        what="keys and values passed round cp, where not hidden behind attention",
        bound="cp link",
        formula="cost.attention.attention_parts",
        constants=("link.efficiency", "link.latency_s", "stack.cp_overlap"),
    ),
    "ep_comm": Reading(
        title="expert-parallel",
        what="tokens sent to their experts and back",
        bound="ep link",
        formula="cost.feedforward.moe_parts",
        constants=("link.efficiency", "link.latency_s", "stack.ep_overlap"),
    ),
    "recompute": Reading(
        title="recompute",
        what="forward work done again in the backward pass to save memory",
        bound="matrix units",
        formula="cost.layer.redo_of",
        constants=("chip.matmul_efficiency", "stack.recompute_stops_early"),
    ),
    "head": Reading(
        title="embedding and head",
        what="embedding, output head and loss, spread over the stages",
        bound="matrix units",
        formula="cost.ends.price_ends",
        constants=("chip.matmul_efficiency", "chip.memory_efficiency", "stack.vocab_multiple"),
    ),
    "fsdp_comm": Reading(
        title="sharded weights",
        what="weights gathered and gradients scattered per layer, where not hidden",
        bound="dp link",
        formula="cost.step.price",
        constants=("link.efficiency", "link.latency_s", "stack.fsdp_overlap"),
    ),
    "imbalance": Reading(
        title="stage imbalance",
        what="the slowest stage's time beyond the mean one's: layers, embedding, head",
        bound="slowest stage",
        formula="cost.step.price",
    ),
    "bubble": Reading(
        title="pipeline bubble",
        what="stages idle while the pipeline fills and drains",
        bound="pipeline",
        formula="cost.pipeline.pipeline_s",
    ),
    "pp_comm": Reading(
        title="pipeline messages",
        what="activations and gradients between stages, where not hidden",
        bound="pp link",
        formula="cost.collectives.point_to_point_s",
        constants=("link.efficiency", "link.latency_s", "stack.p2p", "stack.p2p_scattered"),
    ),
    "dp_comm": Reading(
        title="data-parallel",
        what="gradients summed, weights gathered once a step, where not hidden",
        bound="dp link",
        formula="cost.step.price",
        constants=("link.efficiency", "link.latency_s", "stack.dp_overlap", "stack.reduce_bytes"),
    ),
    "optimizer": Reading(
        title="optimizer",
        what="Adam and the passes over gradients: bytes in and out",
        bound="device memory",
        formula="cost.step.price",
        constants=("chip.memory_efficiency",),
    ),
    "overhead": Reading(
        title="overhead",
        what="host work once a step: data, logging, bookkeeping",
        bound="software",
        formula="cost.step.price",
        constants=("stack.step_overhead_s",),
    ),
}
"""One row per term of `cost.step.TIME_TERMS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """One term of memory."""

    title: str
    short: str
    """Heading of a narrow column."""
    what: str
    formula: str
    constants: tuple[str, ...] = ()


def _memory(
    title: str, short: str, what: str, *constants: str, formula: str = "cost.memory.price_memory"
) -> MemoryReading:
    return MemoryReading(title=title, short=short, what=what, formula=formula, constants=constants)


MEMORY_READINGS: Mapping[str, MemoryReading] = {
    "weights": _memory("weights", "weight", "the copy that computes"),
    "gradients": _memory(
        "gradients",
        "grad",
        "those that are there at the fullest moment",
        "stack.gradient_bytes",
        "stack.transient_gradient_bytes",
    ),
    "optimizer": _memory(
        "optimizer",
        "optim",
        "fp32 weights, Adam's two moments; temporaries of a step that is the peak",
        "stack.step_bytes",
    ),
    "activations": _memory(
        "activations",
        "activ",
        "kept for the backward pass by the micro batches in flight",
        formula="cost.memory.activation_bytes",
    ),
    "recompute_workspace": _memory(
        "workspace",
        "work",
        "temporaries of the layer at work",
        formula="cost.memory.activation_bytes",
    ),
    "logits": _memory(
        "logits",
        "logits",
        "logits and loss of one micro batch",
        "stack.logits_bytes",
        formula="cost.ends.price_ends",
    ),
    "communication": _memory(
        "communication", "comm", "buffers of messages and gathered weights", "stack.reduce_bytes"
    ),
    "libraries": _memory(
        "libraries",
        "libs",
        "workspaces of matrix products",
        "chip.gemm_workspace_bytes",
        "stack.library_workspaces",
    ),
    "slack": _memory(
        "slack", "slack", "reserved by the allocator, not in use", "stack.fragmentation_frac"
    ),
    "context": _memory(
        "context",
        "ctx",
        "driver context, libraries, communicators",
        "stack.context_bytes",
        formula="cost.communicators.communicator_bytes",
    ),
}
"""One row per term of `cost.memory.MEMORY_TERMS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A number that a term was scaled with."""

    name: str
    value: float | str | bool | None
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What a term stands on."""

    formula: str
    constants: tuple[Constant, ...]


def bound_words(bound: Bound, layout: Layout, pool: Pool) -> str:
    """Name the unit or the link that a term waits for."""
    if bound.endswith(" link"):
        return link_words(bound, layout, pool)
    fixed: dict[Bound, str] = {
        "matrix units": f"{pool.node.chip.name} matrix units",
        "device memory": f"{pool.node.chip.name} memory bandwidth",
        "host": "host: launch of kernels",
        "slowest stage": f"slowest of {layout.pp} stages",
        "pipeline": (
            f"schedule: pp={layout.pp}, vpp={layout.vpp}, {layout.num_microbatches} micro batches"
        ),
        "software": "host",
    }
    return fixed[bound]


def link_words(bound: Bound, layout: Layout, pool: Pool) -> str:
    """Name the link of a group, and whether the group leaves the fast domain."""
    size, stride = _group(bound, layout)
    node = pool.node
    if _inside(bound, layout, pool):
        return f"{node.domain_link.name}: {size} ranks within a domain of {node.domain_size}"
    return (
        f"{node.network_link.name}: {size} ranks, {stride} apart, over"
        f" {-(-size * stride // node.domain_size)} domains"
    )


def _inside(bound: Bound, layout: Layout, pool: Pool) -> bool:
    size, stride = _group(bound, layout)
    return size * stride <= pool.node.domain_size


def _group(bound: Bound, layout: Layout) -> tuple[int, int]:
    """Ranks of a group and the distance between them under Megatron's rank order."""
    groups: dict[Bound, tuple[int, int]] = {
        "tp link": (layout.tp, 1),
        "cp link": (layout.cp, layout.tp),
        "ep link": (layout.ep, layout.expert_tp),
        "dp link": (layout.dp * layout.cp, layout.tp),
        "pp link": (layout.pp, layout.tp * layout.cp * layout.dp),
    }
    return groups[bound]


def provenance(
    reading: Reading | MemoryReading, *, layout: Layout, pool: Pool, work: Workload, stack: Stack
) -> Provenance:
    """Return the formula and the constants of a term, with values and sources."""
    inside = (
        isinstance(reading, Reading)
        and reading.bound.endswith(" link")
        and _inside(reading.bound, layout, pool)
    )
    link = pool.node.domain_link if inside else pool.node.network_link
    owners: dict[str, Chip | Link | Stack] = {"chip": pool.node.chip, "stack": stack, "link": link}
    found = []
    for name in reading.constants:
        owner, _, field = name.partition(".")
        value = getattr(owners[owner], field)
        if value is not None and _counts(field, work, stack):
            label = f"{link.name}.{field}" if owner == "link" else name
            found.append(Constant(name=label, value=value, source=_source(owners[owner], field)))
    return Provenance(formula=reading.formula, constants=tuple(found))


def _counts(field: str, work: Workload, stack: Stack) -> bool:
    """Whether a constant that belongs to one precision or one kernel matters here."""
    if field == "fp8_matmul_efficiency":
        return "fp8" in work.precision
    return (
        field != "flash2_share" or stack.attention_library == "flash2" or work.attention == "flash1"
    )


_SOURCE_COLUMNS = {
    "sustained_share": "sustained_source",
    "matmul_efficiency": "matmul_source",
    "fp8_matmul_efficiency": "matmul_source",
    "attention_forward_efficiency": "attention_source",
    "attention_backward_efficiency": "attention_source",
    "flash2_share": "attention_source",
    "memory_efficiency": "memory_efficiency_source",
    "launch_s": "launch_source",
    "ramp_s": "launch_source",
    "efficiency": "efficiency_source",
    "latency_s": "latency_source",
}
"""Column of the catalogue that holds a constant's source."""


def _source(owner: Chip | Link | Stack, field: str) -> str:
    """Return where a constant comes from; what is not in the catalogue is the user's own."""
    if isinstance(owner, Stack):
        source = figure_source(owner.name, field) or owner.source
        return f"stack {owner.name}: {source}" if source else f"stack {owner.name}"
    known: dict[str, Row] = (
        {row.chip.name: row.cells for row in chip_rows()} if isinstance(owner, Chip) else {}
    )
    known |= {row.link.name: row.cells for row in link_rows()} if isinstance(owner, Link) else {}
    cells = known.get(owner.name, {})
    return (
        cells.get(_SOURCE_COLUMNS.get(field, "source"), "")
        or cells.get("source", "")
        or "given by the user"
    )
