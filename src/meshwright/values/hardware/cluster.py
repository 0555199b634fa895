"""Links, nodes, pools of nodes, clusters."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import SHARE, Chip, require_limits

__all__ = ["MOST_CHIPS", "Cluster", "Host", "Link", "Node", "Pool"]


_LINK_LIMITS = {
    "efficiency pairwise_share pair_efficiency": SHARE,
    "bytes_per_s": "a positive number",
    "latency_s setup_s half_message_bytes": "0 or more",
    "full_rate_chips": "1 or more",
}


MOST_CHIPS = 2**40
"""Of a pool or a node: beyond any cluster, and a count of 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A network link as seen by one chip, one direction."""

    name: str
    bytes_per_s: float
    """Peak payload rate of one chip, one direction."""
    latency_s: float
    """Time of an empty message between two chips, software included: one step of a ring."""
    setup_s: float = 0.0
    """Time that every collective costs once, whatever its size and its ranks."""
    efficiency: float = 0.8
    """Reached share of the peak for large messages, in (0, 1]."""
    half_message_bytes: float = 2**20
    """Message per rank at which half of the reached peak is seen."""
    pairwise_share: float = 1.0
    """Share of `bytes_per_s` that a pair of chips reaches (1 behind a switch, 1/7 in a mesh of
    8)."""
    pair_efficiency: float | None = None
    """Reached share of the peak where two chips alone exchange; None is as `efficiency`."""
    full_rate_chips: float | None = None
    """Chips of a server that reach `efficiency` at once; more share what these reach, as copies
    through one host memory do. None is all."""
    shared_adapter: bool = False
    """Whether a server's chips share one adapter; `bytes_per_s` is a chip's part."""
    maps_peers: bool = True
    """Whether software overlaps exchanges with products through buffers that it maps into its
    peers' memory; not over PCIe."""

    def __post_init__(self) -> None:
        require_limits(f"link {self.name}", self, _LINK_LIMITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What a server has beside its chips, which they share; `values/hardware/hosts.csv` has the
    figures of each kind with their sources."""

    memory_bytes: float
    """What training may use of its main memory."""
    memory_bytes_per_s: float
    """Peak of all its memory channels."""
    nvme_bytes: float
    """Of its NVMe drives, what is free for training."""
    nvme_bytes_per_s: float
    """All drives together, the slower of reading and writing."""

    def __post_init__(self) -> None:
        require_limits("host", self, {" ".join(self.__slots__): "a positive number"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A server and the fast domain that its chips share."""

    chip: Chip
    chips_per_node: int
    domain_size: int
    """Chips that `domain_link` joins: the node (8), more (72 in NVL72), or less (2 in bridges)."""
    domain_link: Link
    """NVLink, xGMI, HCCS, ICI or PCIe."""
    network_link: Link
    """The NIC, per chip."""
    host: Host | None = None
    """Its main memory and drives; None where nobody said, and then nothing waits there."""

    def __post_init__(self) -> None:
        for field in ("chips_per_node", "domain_size"):
            if not 1 <= getattr(self, field) <= MOST_CHIPS:
                raise ConfigError(
                    f"{field}={getattr(self, field)}: expected a positive number, at most"
                    f" {MOST_CHIPS:,}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Nodes of one kind."""

    node: Node
    num_chips: int
    oversubscription: float = 1.0
    """How many times the NICs' sum exceeds what the spine carries (1 is full bisection)."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_chips <= MOST_CHIPS:
            raise ConfigError(
                f"{self.node.chip.name}: num_chips={self.num_chips}: expected a positive number, at"
                f" most {MOST_CHIPS:,}"
            )
        if not 1 <= self.oversubscription < float("inf"):
            raise ConfigError(f"oversubscription={self.oversubscription}: expected 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """One or several pools, and the link between them."""

    pools: tuple[Pool, ...]
    pool_link: Link | None = None
    """Between pools, per chip; None is the slower pool's network."""

    def __post_init__(self) -> None:
        if not self.pools:
            raise ConfigError("a cluster needs at least one pool of chips")

    @property
    def num_chips(self) -> int:
        """Chips of all pools."""
        return sum(pool.num_chips for pool in self.pools)

    @property
    def name(self) -> str:
        """The short form, `h100:256` or `a800:128,h800:160`."""
        return ",".join(f"{pool.node.chip.name}:{pool.num_chips}" for pool in self.pools)
