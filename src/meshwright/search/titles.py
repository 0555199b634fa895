"""What each term of an estimate is in words, and what it waits for on a given machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout

__all__ = [
    "MEMORY_READINGS",
    "TIME_READINGS",
    "Bound",
    "MemoryReading",
    "Reading",
    "bound_words",
    "link_words",
]

Unit = Literal["matrix units", "device memory", "host", "slowest stage", "pipeline", "software"]
Bound = Literal[Unit, "tp link", "cp link", "ep link", "dp link", "pp link"]
"""What a term of the step's time waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One term: its name for people, one line on what it is, what it waits for."""

    title: str
    what: str
    bound: Bound


TIME_READINGS: Mapping[str, Reading] = {
    "matmul": Reading(
        title="matrix products",
        what="linear layers: forward, gradients of inputs and of weights",
        bound="matrix units",
    ),
    "attention": Reading(
        title="attention core",
        what="scores and values, or a state-space scan, forward and backward",
        bound="matrix units",
    ),
    "pointwise": Reading(
        title="element-wise",
        what="norms, residuals, rotary, activations: bytes in and out",
        bound="device memory",
    ),
    "launch": Reading(
        title="kernel launches",
        what="the host queues kernels more slowly than the chip runs them",
        bound="host",
    ),
    "tp_comm": Reading(
        title="tensor-parallel",
        what="activations summed over tp, where not hidden behind products",
        bound="tp link",
    ),
    "cp_comm": Reading(
        title="context-parallel",
        what="keys and values passed round cp, where not hidden behind attention",
        bound="cp link",
    ),
    "ep_comm": Reading(
        title="expert-parallel",
        what="tokens sent to their experts and back",
        bound="ep link",
    ),
    "recompute": Reading(
        title="recompute",
        what="forward work done again in the backward pass to save memory",
        bound="matrix units",
    ),
    "head": Reading(
        title="embedding and head",
        what="embedding, output head and loss, spread over the stages",
        bound="matrix units",
    ),
    "fsdp_comm": Reading(
        title="sharded weights",
        what="weights gathered and gradients scattered per layer, where not hidden",
        bound="dp link",
    ),
    "imbalance": Reading(
        title="stage imbalance",
        what="the slowest stage's time beyond the mean one's: layers, embedding, head",
        bound="slowest stage",
    ),
    "bubble": Reading(
        title="pipeline bubble",
        what="stages idle while the pipeline fills and drains",
        bound="pipeline",
    ),
    "pp_comm": Reading(
        title="pipeline messages",
        what="activations and gradients between stages, where not hidden",
        bound="pp link",
    ),
    "dp_comm": Reading(
        title="data-parallel",
        what="gradients summed, weights gathered once a step, where not hidden",
        bound="dp link",
    ),
    "optimizer": Reading(
        title="optimizer",
        what="Adam and the passes over gradients: bytes in and out",
        bound="device memory",
    ),
    "overhead": Reading(
        title="overhead",
        what="host work once a step: data, logging, bookkeeping",
        bound="software",
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


def _memory(title: str, short: str, what: str) -> MemoryReading:
    return MemoryReading(title=title, short=short, what=what)


MEMORY_READINGS: Mapping[str, MemoryReading] = {
    "weights": _memory("weights", "weight", "the copy that computes"),
    "gradients": _memory(
        "gradients",
        "grad",
        "those that are there at the fullest moment",
    ),
    "optimizer": _memory(
        "optimizer",
        "optim",
        "fp32 weights, Adam's two moments; temporaries of a step that is the peak",
    ),
    "activations": _memory(
        "activations",
        "activ",
        "kept for the backward pass by the micro batches in flight",
    ),
    "recompute_workspace": _memory(
        "workspace",
        "work",
        "temporaries of the layer at work",
    ),
    "logits": _memory(
        "logits",
        "logits",
        "logits and loss of one micro batch",
    ),
    "communication": _memory("communication", "comm", "buffers of messages and gathered weights"),
    "libraries": _memory(
        "libraries",
        "libs",
        "workspaces of matrix products",
    ),
    "slack": _memory("slack", "slack", "reserved by the allocator, not in use"),
    "context": _memory(
        "context",
        "ctx",
        "driver context, libraries, communicators",
    ),
}
"""One row per term of `cost.memory.MEMORY_TERMS`."""


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
