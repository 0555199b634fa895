"""The short form of a cluster: `h100:256`, `a800:128,h800:160`, or servers: `p5.48xlarge:32`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import chips, default_node, find_chip, find_link
from meshwright.values.hardware.cluster import Cluster, Node, Pool

__all__ = [
    "LOCAL",
    "MAX_CHIPS",
    "Server",
    "find_server",
    "is_cluster_file",
    "parse_chip_mix",
    "parse_cluster",
    "parse_count",
    "servers",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """One kind of server: its chips and the network of each."""

    name: str
    aliases: tuple[str, ...]
    chip: str
    """A name of `values/hardware/chips.csv`."""
    chips: int
    """In one unit as it is sold; a rack counts all of its trays."""
    network: str
    """A name of `values/hardware/links.csv`, or one with another rate; per chip."""
    source: str

    @property
    def node(self) -> Node:
        """The node that the chips sit in: a rack's are its trays."""
        node = default_node(self.chip)
        if not node.chips_per_node < self.chips <= node.domain_size:
            node = default_node(self.chip, gpus_per_node=self.chips)
        return replace(node, network_link=find_link(self.network))


def find_server(name: str) -> Server | None:
    """Return the server of this name or alias, whatever its case; None where there is none."""
    return _by_key().get(_key(name))


@cache
def servers() -> tuple[Server, ...]:
    """Return every row of `values/hardware/servers.csv`."""
    return tuple(
        Server(
            name=cells["server"],
            aliases=tuple(alias for alias in cells["aliases"].split("|") if alias),
            chip=cells["chip"],
            chips=int(cells["chips"]),
            network=cells["network"],
            source=cells["source"],
        )
        for cells in package_rows("values/hardware/servers.csv")
    )


@cache
def _by_key() -> dict[str, Server]:
    return {_key(name): server for server in servers() for name in (server.name, *server.aliases)}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


MAX_CHIPS = 2**30
"""Above this a count is taken for a slip of the keyboard; the largest clusters have 2**20."""

LOCAL = "local"
"""This machine, in place of a cluster."""
_FORM = "expected KIND:COUNT[,KIND:COUNT...] such as h100:256 or a800:128,h800:160"


def is_cluster_file(text: str) -> bool:
    """Return whether a cluster is told by a YAML file; `platforms.given` reads it."""
    return text.lower().endswith((".yaml", ".yml"))


def parse_cluster(text: str, *, gpus_per_node: int | None = None) -> Cluster:
    """Read the short form. Any count is accepted: a count that does not fill its last node is a
    cluster with one node partly used."""
    if is_cluster_file(text):
        raise ConfigError(
            f"cluster {text!r} was not read; ask meshwright.api, or give its content:"
            f" meshwright.platforms.given.load_cluster({text!r})"
        )
    pools: list[Pool] = []
    for part in text.split(","):
        pool = _pool(part.strip(), text=text, gpus_per_node=gpus_per_node)
        name = pool.node.chip.name
        if any(name == known.node.chip.name for known in pools):
            raise ConfigError(
                f"cluster {text!r}: {name} is named twice; give it once with the sum of its chips"
            )
        pools.append(pool)
    return Cluster(pools=tuple(pools))


def _pool(part: str, *, text: str, gpus_per_node: int | None) -> Pool:
    kind, colon, count = part.rpartition(":")
    if not part or not colon or not kind.strip():
        raise ConfigError(f"cluster {text!r}: {_FORM}{_turned(part)}")
    kind, count = kind.strip(), count.strip()
    if kind.lower() == LOCAL:
        advice = (
            "write it alone, add --profile FILE for a number of its chips, or name chips, such as"
            " h100:8"
        )
        raise ConfigError(f"cluster {text!r}: {LOCAL} is this machine with all it holds; {advice}")
    server = find_server(kind)
    if server is None and kind.isdecimal() and (advice := _turned(part)):
        raise ConfigError(f"cluster {text!r}: {_FORM}{advice}")
    if server is None:
        return Pool(
            node=_node(kind, gpus_per_node=gpus_per_node),
            num_chips=parse_count(count, kind=kind, text=text),
        )
    if gpus_per_node not in (None, server.node.chips_per_node):
        held = f"{server.name} holds {server.node.chips_per_node} x {server.chip} a node"
        raise ConfigError(
            f"cluster {text!r}: gpus_per_node={gpus_per_node}, but {held}; leave gpus_per_node out"
        )
    return Pool(node=server.node, num_chips=server.chips * parse_count(count, kind=kind, text=text))


def _turned(part: str) -> str:
    """What `256xh100`, `8h100`, `256 h100`, `h100-8` or `h100` alone should have been, where it is
    known."""
    if _is_known(part):
        return f"; how many, as in {part}:8?"
    for form in (
        r"(?P<count>\d+)\s*[x*:\s]?\s*(?P<kind>.+)",
        r"(?P<kind>.+?)\s*[x*=\s-]\s*(?P<count>\d+)",
    ):
        found = re.fullmatch(form, part, flags=re.ASCII)
        if found is not None and _is_known(found["kind"]):
            return f"; did you mean {found['kind']}:{found['count']}?"
    return ""


def _is_known(kind: str) -> bool:
    return find_server(kind) is not None or kind.lower() in (chip.name for chip in chips())


def _node(kind: str, *, gpus_per_node: int | None) -> Node:
    try:
        return default_node(kind, gpus_per_node=gpus_per_node)
    except UnknownNameError:
        raise UnknownNameError(
            "chip", kind, [*(chip.name for chip in chips()), *(server.name for server in servers())]
        ) from None


def parse_count(digits: str, *, kind: str, text: str = "") -> int:
    """Read the count of `h100:256`; `text` is the whole form for the message."""
    text = text or f"{kind}:{digits}"
    if not re.fullmatch(r"[0-9][0-9_]{0,18}", digits, flags=re.ASCII):
        raise ConfigError(
            f"cluster {text!r}: count {digits!r} of {kind}: expected a whole number of chips such"
            f" as {kind}:256"
        )
    count = int(digits.replace("_", ""))
    if not 1 <= count <= MAX_CHIPS:
        raise ConfigError(
            f"cluster {text!r}: count {count} of {kind}: expected 1 to {MAX_CHIPS} chips"
        )
    return count


def parse_chip_mix(text: str) -> list[tuple[str, int | None]]:
    """Read a mix as measurement tables write it, `V100-16GBx12+T4x4` or `RTX-3090:2;T4:2`: chip
    names with counts, None where not said."""
    return [_mixed(part.strip()) for part in re.split(r"[+;]", text)]


def _mixed(part: str) -> tuple[str, int | None]:
    match = re.fullmatch(
        r"(.+?)(?:\s*[:*]\s*|\s+x\s*|x)([0-9]{1,10})", part
    )  # no count in `Max 1550`
    if match is not None:
        return find_chip(match[1]).name, int(match[2])
    return find_chip(part).name, None
