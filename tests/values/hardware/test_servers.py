"""Servers by name: each is one of the catalogue's chips with a network, and counts servers, not
chips."""

from __future__ import annotations

import pytest

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import chip_rows
from meshwright.values.hardware.parse import Server, find_server, parse_cluster, servers
from meshwright.values.units import GBIT


@pytest.mark.parametrize("server", servers(), ids=lambda server: server.name)
def test_every_server_is_made_of_known_parts(server: Server) -> None:
    node = server.node
    assert node.chip.name == server.chip
    assert server.chips % node.chips_per_node == 0
    assert node.network_link.name == server.network
    assert server.source


def test_no_name_means_two_things() -> None:
    names = [name.lower() for server in servers() for name in (server.name, *server.aliases)]
    assert len(names) == len(set(names))
    assert not {row.chip.name for row in chip_rows()} & set(names)


@pytest.mark.parametrize(
    ("text", "chips", "per_node", "domain", "gbps"),
    [
        ("p5.48xlarge:4", "h100:32", 8, 8, 400),
        ("P4D:2", "a100-40:16", 8, 8, 50),
        ("Standard_ND96isr_H100_v5:8", "h100:64", 8, 8, 400),
        ("a3-megagpu-8g:1", "h100:8", 8, 8, 200),
        ("g5.12xlarge:3", "a10g:12", 4, 4, 10),
        ("dgx-gb200:2", "gb200:144", 4, 72, 400),
    ],
)
def test_servers_are_counted_whole(
    text: str, chips: str, per_node: int, domain: int, gbps: float
) -> None:
    cluster = parse_cluster(text)
    node = cluster.pools[0].node
    assert cluster.name == chips
    assert (node.chips_per_node, node.domain_size) == (per_node, domain)
    assert node.network_link.bytes_per_s == pytest.approx(gbps * GBIT)


def test_servers_and_chips_mix() -> None:
    assert parse_cluster("p4d.24xlarge:2,h100:8").name == "a100-40:16,h100:8"


def test_a_server_says_its_own_size() -> None:
    assert parse_cluster("p5.48xlarge:1", gpus_per_node=8).num_chips == 8
    with pytest.raises(
        ConfigError, match=r"p5\.48xlarge holds 8 x h100 a node; leave gpus_per_node out"
    ):
        parse_cluster("p5.48xlarge:1", gpus_per_node=4)


def test_a_slip_is_answered_with_the_nearest() -> None:
    assert find_server("p5.48xlarg") is None
    with pytest.raises(UnknownNameError, match=r"did you mean 'p5\.48xlarge'"):
        parse_cluster("p5.48xlarg:2")
