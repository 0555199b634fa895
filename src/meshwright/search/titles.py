"""Each term of an estimate in words, and what it waits for: the table `search/terms.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from meshwright.values.data import package_rows
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

Unit = Literal[
    "matrix units",
    "device memory",
    "host memory",
    "host",
    "slowest stage",
    "pipeline",
    "software",
]
Bound = Literal[Unit, "tp link", "cp link", "ep link", "dp link", "pp link"]
"""What a term of the step's time waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One term: its name for people, one line on what it is, what it waits for."""

    title: str
    what: str
    bound: Bound


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """One term of memory."""

    title: str
    short: str
    """Heading of a narrow column."""
    what: str


_ROWS = package_rows("search/terms.csv")
TIME_READINGS: Mapping[str, Reading] = {
    row["term"]: Reading(title=row["title"], what=row["what"], bound=cast("Bound", row["bound"]))
    for row in _ROWS
    if row["of"] == "time"
}
"""One row per term of `cost.step.TIME_TERMS`."""
MEMORY_READINGS: Mapping[str, MemoryReading] = {
    row["term"]: MemoryReading(title=row["title"], short=row["short"], what=row["what"])
    for row in _ROWS
    if row["of"] == "memory"
}
"""One row per term of `cost.memory.MEMORY_TERMS`."""


def bound_words(bound: Bound, layout: Layout, pool: Pool) -> str:
    """Name the unit or the link that a term waits for."""
    if bound.endswith(" link"):
        return link_words(bound, layout, pool)
    fixed: dict[Bound, str] = {
        "matrix units": f"{pool.node.chip.name} matrix units",
        "device memory": f"{pool.node.chip.name} memory bandwidth",
        "host memory": f"link between {pool.node.chip.name} and its host's memory",
        "host": "host: launch of kernels",
        "slowest stage": f"slowest of {layout.pp} stages",
        "pipeline": (
            f"schedule: pp={layout.pp}, vpp={layout.vpp}, {layout.num_microbatches} micro batches"
        ),
        "software": "host",
    }
    return fixed[bound]


def link_words(bound: Bound, layout: Layout, pool: Pool) -> str:
    """Name the link of a group, and whether the group leaves the fast domain: also where it does so
    only if domains are filled one after another, and the group does not divide them."""
    size, stride = _group(bound, layout)
    node = pool.node
    span = size * stride
    if span <= node.domain_size:
        within = f"{node.domain_link.name}: {size} ranks within a domain of {node.domain_size}"
        if span == 1 or node.domain_size % span == 0 or pool.num_chips <= node.domain_size:
            return within
        used = node.domain_size // span * span
        return f"{within}, of which the job must take {used}, or groups straddle two domains"
    return (
        f"{node.network_link.name}: {size} ranks, {stride} apart, over"
        f" {-(-size * stride // node.domain_size)} domains"
    )


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
