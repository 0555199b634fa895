"""The chips of a row, their nodes, and which stage runs on which."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.accuracy.cells import Cells, UnansweredError
from meshwright.accuracy.notes import Placement
from meshwright.hardware.catalogue import default_node, find_chip
from meshwright.hardware.cluster import Node
from meshwright.hardware.parse import parse_chip_mix

__all__ = ["Machines", "machines_of_row", "stage_chips"]

_RATES = (
    (r"(?P<nics>\d+)\s*x\s*(?P<gbit>\d+(?:\.\d+)?)\s*gb/?p?s", "node"),
    (r"(?:inter|node-node)[^,;]*?(?P<gbit>\d+(?:\.\d+)?)\s*gb/?p?s", "node"),
    (r"(?P<gbit>\d+(?:\.\d+)?)\s*gb/?p?s(?:[^,;]*)(?:per node|node-node)", "node"),
    (r"(?P<gbit>\d+(?:\.\d+)?)\s*gb/?p?s", "chip"),
)
"""How a network's rate is written; one without "per node" is one NIC per chip, as in today's servers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Chips by kind, in the order of the ranks."""

    pools: tuple[tuple[str, int], ...]
    """(catalogue name, count)."""
    nodes: tuple[Node, ...]
    """One per pool."""

    @property
    def num_chips(self) -> int:
        """Chips of all pools."""
        return sum(count for _, count in self.pools)

    @property
    def mixed(self) -> bool:
        """Whether there are several kinds."""
        return len({name for name, _ in self.pools}) > 1


def machines_of_row(cells: Cells, *, num_chips: int) -> Machines:
    """Return the row's chips; a kind without a count shares what the others leave."""
    text = cells.text("gpu")
    if text is None:
        raise UnansweredError("gpu: blank")
    pools = _counted(parse_chip_mix(text), num_chips)
    per_node = cells.count("gpus_per_node")
    rate = _network_gbps(cells, per_node or 8) if len(pools) == 1 else None
    nodes = tuple(default_node(name, gpus_per_node=per_node, network_gbps=rate) for name, _ in pools)
    return Machines(pools=pools, nodes=nodes)


def _counted(mix: list[tuple[str, int | None]], num_chips: int) -> tuple[tuple[str, int], ...]:
    if len(mix) == 1:
        return ((mix[0][0], num_chips),)
    blank = sum(1 for _, count in mix if count is None)
    rest = num_chips - sum(count or 0 for _, count in mix)
    if rest < 0 or rest % (blank or 1) or (rest and not blank):
        raise UnansweredError("gpu: the counts of the mix do not sum to num_gpus")
    return tuple((name, count if count is not None else rest // blank) for name, count in mix)


def _network_gbps(cells: Cells, per_node: int) -> float | None:
    """Gb/s per chip where the row says it; a rate that two kinds of node share ambiguously is left to the catalogue."""
    text = cells.words("interconnect")
    for pattern, unit in _RATES:
        found = re.search(pattern, text)
        if found is None or "name both" in text or "dcn" in text:
            continue
        rate = float(found["gbit"]) * int(found.groupdict().get("nics") or 1)
        per_chip = rate / per_node if unit == "node" and "per gpu" not in text else rate
        return per_chip if 0.01 <= per_chip <= 1e5 else None
    return None


def stage_chips(machines: Machines, placement: Placement | None, *, pp: int) -> Placement:
    """Which chips hold each stage: as the row says, else the pools in order, a stage's share at a time."""
    if placement is not None:
        known = tuple(tuple((find_chip(name).name, count) for name, count in stage) for stage in placement)
        if len(known) == pp and sum(count for stage in known for _, count in stage) == machines.num_chips:
            return known
    if machines.num_chips % pp:
        raise UnansweredError("num_gpus: not divisible by pp")
    ranks = [name for name, count in machines.pools for _ in range(count)]
    width = len(ranks) // pp
    return tuple(_runs(ranks[stage * width : (stage + 1) * width]) for stage in range(pp))


def _runs(names: list[str]) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for name in names:
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1] + 1)
        else:
            found.append((name, 1))
    return tuple(found)
