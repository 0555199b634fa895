"""The chips of a row, their nodes, and which stage runs on which."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meshwright.accuracy.cells import Cells, UnansweredError
from meshwright.accuracy.notes import Placement
from meshwright.errors import UnknownNameError
from meshwright.hardware.catalogue import default_node, find_chip, find_link, network_link
from meshwright.hardware.cluster import Node
from meshwright.hardware.parse import parse_chip_mix
from meshwright.hardware.servers import Server, servers
from meshwright.units import GBIT

__all__ = ["Machines", "machines_of_row", "stage_chips"]

_RATE = r"(?P<gbit>\d{1,6}(?:\.\d{1,3})?)\s*(?:Gb/s|Gbps|Gbit/s)"
_RATES = (
    (rf"(?P<nics>\d{{1,3}})\s*x\s*{_RATE}", "node"),
    (rf"(?:inter|node-node)\b[^,;]*?{_RATE}", "node"),
    (rf"{_RATE}[^,;]*(?:per node|node-node)", "node"),
    (_RATE, "chip"),
)
"""How a network's rate is written; one without "per node" is one NIC per chip, as in today's
servers."""


_FAMILIES = (
    ("efa", r"\bEFA\b"),
    ("roce", r"\bRoCE"),
    ("ib", r"\b(?:InfiniBand|IB|[EHNX]DR)\b"),
    ("slingshot", r"\bSlingshot"),
    ("tcp", r"\b(?:TCP|Ethernet|[GT]bE)\b"),
)
"""Kinds of networks by the words for them, the first that is found."""


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


def machines_of_row(cells: Cells, *, num_chips: int, usual_network: str = "") -> Machines:
    """Return the row's chips; a kind without a count shares what the others leave.

    `usual_network` names the link between the nodes where the row says nothing of it.
    """
    text = cells.text("gpu")
    if text is None:
        raise UnansweredError("gpu: blank")
    pools = _counted(_mix(text, cells.number("gpu_mem_gb")), num_chips)
    return Machines(
        pools=pools, nodes=tuple(_node(cells, name, num_chips, usual_network) for name, _ in pools)
    )


def _node(cells: Cells, chip: str, num_chips: int, usual_network: str) -> Node:
    per_node = cells.count("gpus_per_node")
    rate = _network_gbps(cells, chip, per_node or default_node(chip).chips_per_node)
    node = default_node(chip, gpus_per_node=per_node, network_gbps=rate)
    family = _network_family(cells, chip)
    if family is not None and rate is not None:
        node = replace(node, network_link=network_link(rate, family=family))
    if usual_network and not cells.words("interconnect"):
        node = replace(node, network_link=find_link(usual_network))
    domain = _domain_chips(cells, num_chips)
    return replace(node, domain_size=domain) if domain is not None else node


def _mix(text: str, memory_gb: float | None) -> list[tuple[str, int | None]]:
    """Chips and counts; the memory column tells an A100 of 40 GB from one of 80, and remarks in
    brackets may be passed over."""
    plain = re.sub(r"\s*\([^)]*\)", "", text)
    sized = (
        [f"{plain}-{memory_gb:g}GB"]
        if memory_gb and f"{memory_gb:g}" not in plain and "+" not in plain
        else []
    )
    for name in (*sized, text, plain):
        try:
            return parse_chip_mix(name)
        except UnknownNameError:
            continue
    return parse_chip_mix(text)


def _counted(mix: list[tuple[str, int | None]], num_chips: int) -> tuple[tuple[str, int], ...]:
    if len(mix) == 1:
        return ((mix[0][0], num_chips),)
    blank = sum(1 for _, count in mix if count is None)
    rest = num_chips - sum(count or 0 for _, count in mix)
    if rest < 0 or rest % (blank or 1) or (rest and not blank):
        raise UnansweredError("gpu: the counts of the mix do not sum to num_gpus")
    return tuple((name, count if count is not None else rest // blank) for name, count in mix)


def _network_gbps(cells: Cells, chip: str, per_node: int) -> float | None:
    """Gb/s per chip where the row says it for this kind of chip; where it is ambiguous the
    catalogue's stays."""
    text = cells.text("interconnect") or ""
    by_server = _rates_by_server(text)
    if by_server:
        rates = [rate for family, rate in by_server.items() if _is_in(chip, family)]
        return rates[0] / per_node if rates else None
    if re.search(r"names? both|DCN", text):
        return None
    for pattern, unit in _RATES:
        found = re.search(pattern, text)
        if found is not None:
            rate = float(found["gbit"]) * int(found.groupdict().get("nics") or 1)
            shared = unit == "node" or _is_of_server(rate, text, chip)
            return (rate / per_node if shared and "per GPU" not in text else rate) or None
    return None


LARGEST_ADAPTER = 800.0
"""Gb/s of the fastest network adapter that is sold (InfiniBand XDR): a larger figure without a word
is a server's."""


def _is_of_server(rate: float, text: str, chip: str) -> bool:
    """Whether a rate without "per node" is a server's: of kernel sockets, which have one adapter;
    of EFA, whose figures AWS gives for whole instances, where it is more than this chip's usual;
    and of any kind where no adapter is so fast.
    """
    family = _worded_family(text)
    usual = default_node(chip).network_link.bytes_per_s / GBIT
    return family == "tcp" or (family == "efa" and rate > usual) or rate > LARGEST_ADAPTER


def _rates_by_server(text: str) -> dict[str, float]:
    """Gb/s by family of servers, as `50 Gb/s g4dn` says it."""
    return {
        family: float(rate) for rate, family in re.findall(rf"{_RATE}\s+([a-z]\d\w{{0,4}})\b", text)
    }


def _network_family(cells: Cells, chip: str) -> str | None:
    """Kind of network (`tcp`): that of the servers of a named kind which hold this chip, else the
    one that the row's words are for."""
    text = cells.text("interconnect") or ""
    named = [family for family in _rates_by_server(text) if _is_in(chip, family)]
    found = {server.network.partition("-")[0] for family in named for server in _servers_of(family)}
    return min(found) if len(found) == 1 else _worded_family(text)


def _worded_family(text: str) -> str | None:
    return next(
        (family for family, words in _FAMILIES if re.search(words, text, re.IGNORECASE)), None
    )


def _servers_of(family: str) -> list[Server]:
    return [server for server in servers() if server.name.partition(".")[0] == family]


def _is_in(chip: str, family: str) -> bool:
    """Whether servers of a family, `p3` or `g4dn`, hold this kind of chip, of whatever memory."""
    return chip.partition("-")[0] in {
        server.chip.partition("-")[0] for server in _servers_of(family)
    }


def _domain_chips(cells: Cells, num_chips: int) -> int | None:
    """Chips of one slice of a torus, beyond which the data-centre network begins."""
    inside = cells.match("interconnect", r"inside a slice of (\d{1,6}) chips")
    if inside is not None:
        return max(1, int(inside[1]))
    slices = cells.match("interconnect", r"ICI; (\d{1,4}) slice")
    return max(1, num_chips // max(1, int(slices[1]))) if slices is not None else None


def stage_chips(machines: Machines, placement: Placement | None, *, pp: int) -> Placement:
    """Which chips hold each stage: as the row says, else the pools in order, a stage's share at a
    time."""
    if placement is not None:
        known = tuple(
            tuple((find_chip(name).name, count) for name, count in stage) for stage in placement
        )
        if (
            len(known) == pp
            and sum(count for stage in known for _, count in stage) == machines.num_chips
        ):
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
