"""The catalogue: chips and links by name, from `values/hardware/chips.csv` and
`values/hardware/links.csv`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Host, Link, Node
from meshwright.values.units import GB, GBIT, GIB, KIB, MIB, MICROSECOND, TERA

__all__ = [
    "CHIP_UNITS",
    "HOST_UNITS",
    "LINK_UNITS",
    "ChipRow",
    "LinkRow",
    "chip_rows",
    "chips",
    "default_node",
    "find_chip",
    "find_device",
    "find_link",
    "find_row",
    "host_of",
    "host_sources",
    "link_rows",
    "network_link",
    "node_of",
]

Row = Mapping[str, str]
CHIP_UNITS: Mapping[str, tuple[str, float]] = {
    # Makers sell HBM by the binary size: a board of "192 GB" shows 191.98 GiB to a process.
    "nominal_gb": ("nominal_bytes", GIB),
    "usable_gib": ("usable_bytes", GIB),
    "memory_gb_per_s": ("memory_bytes_per_s", GB),
    **{
        f"{kind}_tflops": (f"{kind}_flops_per_s", TERA)
        for kind in ("bf16", "fp16", "tf32", "fp32", "fp8", "fp4")
    },
    "launch_us": ("launch_s", MICROSECOND),
    "ramp_us": ("ramp_s", MICROSECOND),
    "gemm_workspace_mib": ("gemm_workspace_bytes", MIB),
    "bytes_in_flight_kib": ("bytes_in_flight", KIB),
    "host_gb_per_s": ("host_bytes_per_s", GB),
}
"""People's word for a field of Chip, the field, and the unit; the words are the columns of
`values/hardware/chips.csv`, or fields of `chip_details.csv`, which has what is known of few chips;
they may stand in a cluster file."""
HOST_UNITS: Mapping[str, tuple[str, float]] = {
    "memory_gib": ("memory_bytes", GIB),
    "memory_gb_per_s": ("memory_bytes_per_s", GB),
    "nvme_gib": ("nvme_bytes", GIB),
    "nvme_gb_per_s": ("nvme_bytes_per_s", GB),
}
"""The same for Host."""
LINK_UNITS: Mapping[str, tuple[str, float]] = {
    "gb_per_s": ("bytes_per_s", GB),
    "latency_us": ("latency_s", MICROSECOND),
    "setup_us": ("setup_s", MICROSECOND),
    "half_message_kib": ("half_message_bytes", 1024.0),
}
"""The same for Link and `values/hardware/links.csv`."""

_MAKERS = "nvidiageforce nvidia geforce tesla amdinstinct amd intel huawei google aws baidu"
"""As they stand before a chip's name, the longer first."""
_EMPTY = f"{_MAKERS} quadro instinct habana ascend tpu vf gpu core tensor generation edition"
"""Words that tell no chip from another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChipRow:
    """One chip, the server it is sold in, and what the catalogue says of both."""

    chip: Chip
    aliases: tuple[str, ...]
    chips_per_node: int
    domain_size: int
    domain_link: str
    """A name of `values/hardware/links.csv`."""
    network: str
    """A name of `values/hardware/links.csv`, per chip."""
    cells: Row
    """The row as written: sources, choices, notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRow:
    """One link, its family (`domain`, or a kind of network), and what the catalogue says of it."""

    link: Link
    family: str
    cells: Row


def find_chip(name: str) -> Chip:
    """Return the chip of this name or alias, whatever its case; else UnknownNameError."""
    return find_row(name).chip


def chips() -> tuple[Chip, ...]:
    """Return every chip of the catalogue, in its order."""
    return tuple(row.chip for row in chip_rows())


_HOSTS = "values/hardware/hosts.csv"


def default_node(
    name: str, *, gpus_per_node: int | None = None, network_gbps: float | None = None
) -> Node:
    """Return the server that this chip is sold in; `network_gbps` is per chip."""
    return node_of(find_row(name), gpus_per_node=gpus_per_node, network_gbps=network_gbps)


def node_of(
    row: ChipRow, *, gpus_per_node: int | None = None, network_gbps: float | None = None
) -> Node:
    """Return the server of a row, with another number of chips or another network where given."""
    if gpus_per_node is not None and gpus_per_node < 1:
        raise ConfigError(
            f"gpus_per_node={gpus_per_node}: expected a positive number such as"
            f" {row.chips_per_node}"
        )
    chips_per_node = gpus_per_node or row.chips_per_node
    network = find_link(row.network)
    if network_gbps is not None:
        network = network_link(network_gbps, family=_link_row(row.network).family)
    return Node(
        chip=row.chip,
        chips_per_node=chips_per_node,
        domain_size=_domain_size(row, chips_per_node),
        domain_link=find_link(row.domain_link),
        network_link=network,
        host=host_of(row.chip.name),
    )


def host_of(chip: str) -> Host:
    """Return the host that a chip of the catalogue is sold in, or put into."""
    rows = package_rows(_HOSTS)
    named = next((row for row in rows if chip in row["chips"].split()), None)
    return _host(named or next(row for row in rows if row["host"] == "server"))


def host_sources(host: Host) -> dict[str, str]:
    """Return where the figures of a host of the catalogue come from, by field."""
    rows = package_rows(_HOSTS)
    cells: Row = next((row for row in rows if _host(row) == host), {})
    return {
        field.name: cells[f"{field.name.partition('_')[0]}_source"]
        for field in fields(Host)
        if cells
    }


def _host(cells: Row) -> Host:
    return Host(
        memory_bytes=float(cells["memory_gib"]) * GIB,
        memory_bytes_per_s=float(cells["memory_gb_per_s"]) * GB,
        nvme_bytes=float(cells["nvme_gb"]) * GB,
        nvme_bytes_per_s=float(cells["nvme_gb_per_s"]) * GB,
    )


def _domain_size(row: ChipRow, chips_per_node: int) -> int:
    """A domain that is the box follows its size; a part of it does not grow, a rack does not
    shrink."""
    if row.domain_size == row.chips_per_node:
        return chips_per_node
    if row.domain_size < row.chips_per_node:
        return min(row.domain_size, chips_per_node)
    return max(row.domain_size, chips_per_node)


def find_link(name: str) -> Link:
    """Return the link of this name: a domain link (`nvlink4`) or a network (`ib-400`); a network
    may have any rate (`roce-320`)."""
    return _link_row(name).link


def network_link(gbps: float, *, family: str = "ib") -> Link:
    """Return a network of this rate per chip, with the latencies of its family's nearest rate. What
    it reaches lies on the line between the family's rates around it, so that a faster network is
    never slower; beyond them it is the share of the last."""
    families = {row.family for row in link_rows()} - {"domain"}
    if family not in families:
        raise UnknownNameError("network family", family, families)
    of_family = [row for row in link_rows() if row.family == family]
    if not 0 < gbps < float("inf"):
        raise ConfigError(
            f"network_gbps={gbps}: expected a positive number of Gb/s per chip such as 400"
        )
    rate = gbps * GBIT
    nearest = min(of_family, key=lambda row: abs(row.link.bytes_per_s - rate)).link
    if nearest.bytes_per_s == rate:
        return nearest
    share = _share_at(of_family, rate)
    return replace(nearest, name=f"{family}-{gbps:g}", bytes_per_s=rate, efficiency=share)


def _share_at(of_family: Sequence[LinkRow], rate: float) -> float:
    """Share of a rate between those of a family that collectives reach."""
    known = sorted((row.link.bytes_per_s, row.link.efficiency) for row in of_family)
    low, below = max((each for each in known if each[0] <= rate), default=known[0])
    high, above = min((each for each in known if each[0] >= rate), default=known[-1])
    if below == above:
        return below
    return (low * below * (high - rate) + high * above * (rate - low)) / (high - low) / rate


@cache
def chip_rows() -> tuple[ChipRow, ...]:
    """Return every row of `values/hardware/chips.csv`."""
    rows = {cells["chip"]: cells for cells in package_rows("values/hardware/chips.csv")}
    return tuple(_chip_row(cells, rows) for cells in rows.values())


@cache
def link_rows() -> tuple[LinkRow, ...]:
    """Return every row of `values/hardware/links.csv`."""
    return tuple(
        LinkRow(link=_link(cells), family=cells["family"], cells=MappingProxyType(cells))
        for cells in package_rows("values/hardware/links.csv")
    )


def _key(name: str) -> str:
    """Name without case, signs and maker: `NVIDIA A100-SXM4-80GB` meets `a100_sxm4_80gb`."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    for maker in _MAKERS.split():
        if key.startswith(maker) and key != maker:
            return key.removeprefix(maker)
    return key


@cache
def _rows_by_key() -> dict[str, ChipRow]:
    return {_key(name): row for row in chip_rows() for name in (*row.aliases, row.chip.name)}


@cache
def _links_by_key() -> dict[str, LinkRow]:
    return {row.link.name: row for row in link_rows()}


def find_row(name: str) -> ChipRow:
    """Return the row of a chip: its server, sources and choices; else UnknownNameError."""
    row = _rows_by_key().get(_key(name)) or _row_of_words(name)
    if row is None:
        raise UnknownNameError("chip", name, [row.chip.name for row in chip_rows()])
    return row


def find_device(name: str) -> Chip | None:
    """Return the chip of a device's name as drivers spell it, `NVIDIA A100-SXM4-80GB`, of another
    size if need be; None if unknown."""
    words = re.sub(r"^(NVIDIA|Tesla|AMD Instinct|AMD) ", "", name).replace("-", " ").split()
    by_key, first = _rows_by_key(), words[0] if words else ""
    row = by_key.get(_key(name)) or _row_of_words(name) or by_key.get(_key(first))
    return None if row is None else row.chip


@cache
def _row_of_words(name: str) -> ChipRow | None:
    """The chip that a longer name describes, `H100 SXM5 80GB HBM3`: its words in any order, its
    memory and its form not contradicted."""
    asked = _words(name)
    found = [
        row
        for row in chip_rows()
        if any(_words(alias).model == asked.model for alias in (*row.aliases, row.chip.name))
    ]
    fitting = [row for row in found if _is_of(row, asked)]
    plain = _rows_by_key().get(asked.model)
    return plain if plain in fitting else fitting[0] if fitting else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """A device's name taken apart."""

    model: str
    gb: float | None
    form: str | None


@cache
def _words(name: str) -> _Words:
    empty = ("", *_EMPTY.split())
    model, sizes, forms = "", list[float](), list[str]()
    for word in re.split(r"[^a-z0-9.]+", name.lower()):
        if size := re.fullmatch(r"(\d{1,4})(?:g|gb|gib)", word):
            sizes.append(float(size[1]))
        elif form := re.fullmatch(r"(sxm|oam|pcie|nvl)\d?", word):
            forms.append(form[1])
        elif word not in empty and not re.fullmatch(r"hbm\d?e?|gddr\d?x?", word):
            model += word
    return _Words(model=model, gb=(*sizes, None)[0], form=(*forms, None)[0])


def _is_of(row: ChipRow, asked: _Words) -> bool:
    """Whether the row has the memory and the form that a name asks for."""
    form = row.cells["form"].lower()
    named = any(_words(alias).form == asked.form for alias in row.aliases)
    sized = (
        asked.gb is None
        or asked.gb == float(row.cells["nominal_gb"])
        or any(_words(alias).gb == asked.gb for alias in row.aliases)
    )
    return sized and (asked.form is None or asked.form in form or named)


def _link_row(name: str) -> LinkRow:
    by_key = _links_by_key()
    row = by_key.get(name.lower())
    if row is not None:
        return row
    match = re.fullmatch(r"([a-z]+)-([0-9]+(?:\.[0-9]+)?)", name.lower())
    families = {known.family for known in by_key.values()} - {"domain"}
    if match is None or match[1] not in families:
        raise UnknownNameError("link", name, by_key)
    return LinkRow(link=network_link(float(match[2]), family=match[1]), family=match[1], cells={})


def _number(cells: Row, column: str) -> float | None:
    return float(cells[column]) if cells[column] else None


def _in_base_units(cells: Row, units: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """Fields of the columns in people's units; a blank cell says nothing."""
    return {
        field: float(cells[column]) * unit
        for column, (field, unit) in units.items()
        if cells[column]
    }


def _plain(cells: Row, names: str) -> dict[str, Any]:
    """Fields that have a column of their own name; a blank cell says nothing."""
    return {name: float(cells[name]) for name in names.split() if cells[name]}


def _chip_row(cells: Row, rows: Mapping[str, Row]) -> ChipRow:
    return ChipRow(
        chip=_chip(cells, rows),
        aliases=tuple(alias for alias in cells["aliases"].split("|") if alias),
        chips_per_node=int(cells["chips_per_node"]),
        domain_size=int(cells["domain_size"]),
        domain_link=cells["domain_link"],
        network=cells["network"],
        cells=MappingProxyType(dict(cells)),
    )


@cache
def _details() -> Mapping[str, Row]:
    """What is known of few chips, by chip and field."""
    found: dict[str, dict[str, str]] = {}
    for row in package_rows("values/hardware/chip_details.csv"):
        found.setdefault(row["chip"], {})[row["field"]] = row["value"]
    return found


_DETAILS = ("host_gb_per_s", "matrix_width")
"""Fields of `chip_details.csv`."""


def _chip(cells: Row, rows: Mapping[str, Row]) -> Chip:
    words: dict[str, Any] = {
        name: cells[name] for name in ("vendor", "generation", "confidence", "source", "notes")
    }
    cells = {**cells, **dict.fromkeys(_DETAILS, ""), **_details().get(cells["chip"], {})}
    return Chip(
        name=cells["chip"],
        **words,
        **_in_base_units(cells, CHIP_UNITS),
        **_plain(
            cells,
            "kin_speed sustained_share narrow_sustained_share attention_forward_efficiency"
            " attention_backward_efficiency flash2_share memory_efficiency multiprocessors"
            " matrix_width tdp_w usd_per_hour",
        ),
        matmul_efficiency=_matmul_efficiency(cells, rows),
        matmul_efficiency_source=cells["matmul_source"],
        fp8_matmul_efficiency=_fp8_matmul_efficiency(cells),
    )


def _matmul_efficiency(cells: Row, rows: Mapping[str, Row]) -> float:
    """Reached over peak; a chip that nobody measured takes the share of its row's kin."""
    reached = _number(cells, "matmul_tflops")
    if reached is None:
        return _matmul_efficiency(rows[cells["matmul_kin"]], rows)
    return reached / float(cells["bf16_tflops"] or cells["fp16_tflops"])


def _fp8_matmul_efficiency(cells: Row) -> float | None:
    reached = _number(cells, "fp8_matmul_tflops")
    return None if reached is None else reached / float(cells["fp8_tflops"])


_SHARED_FAMILIES = ("tcp", "dcn")
"""Networks of one adapter a server, as the sources of `values/hardware/servers.csv` give them."""


_PCIE = "pcie"
"""How names of links begin over which Transformer Engine maps no user buffers (it wants NVLink)."""


def _link(cells: Row) -> Link:
    return Link(
        name=cells["link"],
        **_in_base_units(cells, LINK_UNITS),
        **_plain(cells, "efficiency pairwise_share pair_efficiency full_rate_chips"),
        shared_adapter=cells["family"] in _SHARED_FAMILIES,
        maps_peers=not cells["link"].startswith(_PCIE),
    )
