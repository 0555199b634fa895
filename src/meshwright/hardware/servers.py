"""Servers by the names that clouds and makers sell them under: `p5.48xlarge`, `a3-megagpu-8g`,
`dgx-h100`, from `presets/servers.csv`."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from meshwright.hardware.catalogue import default_node, find_link
from meshwright.hardware.cluster import Node

__all__ = ["Server", "find_server", "servers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """One kind of server: its chips and the network of each."""

    name: str
    aliases: tuple[str, ...]
    chip: str
    """A name of `presets/chips.csv`."""
    chips: int
    """In one unit as it is sold; a rack counts all of its trays."""
    network: str
    """A name of `presets/links.csv`, or one with another rate; per chip."""
    source: str

    @property
    def node(self) -> Node:
        """The node that the chips sit in: a rack's are its trays."""
        usual = default_node(self.chip)
        sized = (
            usual
            if self.chips > usual.chips_per_node and self.chips <= usual.domain_size
            else default_node(self.chip, gpus_per_node=self.chips)
        )
        return replace(sized, network_link=find_link(self.network))


def find_server(name: str) -> Server | None:
    """Return the server of this name or alias, whatever its case and punctuation; None where there
    is none."""
    return _by_key().get(_key(name))


@cache
def servers() -> tuple[Server, ...]:
    """Return every row of `presets/servers.csv`."""
    text = (files("meshwright") / "presets" / "servers.csv").read_text(encoding="utf-8")
    return tuple(
        Server(
            name=cells["server"],
            aliases=tuple(alias for alias in cells["aliases"].split("|") if alias),
            chip=cells["chip"],
            chips=int(cells["chips"]),
            network=cells["network"],
            source=cells["source"],
        )
        for cells in csv.DictReader(text.splitlines())
    )


@cache
def _by_key() -> dict[str, Server]:
    return {_key(name): server for server in servers() for name in (server.name, *server.aliases)}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
