"""Collectives on paper: 400e9 bytes/s and 2 us a step in the domain, 40e9 bytes/s and 5 us a step
outside (tests/cost/cases.py).

A rank's own share is copied at twice the domain's rate, 800e9 bytes/s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost.cases import FAST, NODE, POOL, RACK, SLOW

from meshwright.cost.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    beside_compute_s,
    dispatch_s,
    group_of,
    point_to_point_s,
    reduce_scatter_s,
)
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Pool
from meshwright.values.hardware.tables import Collective, collective_seconds

powers = st.integers(0, 10).map(lambda power: 2**power)
SILENT = Pool(
    node=replace(
        NODE,
        domain_link=replace(FAST, latency_s=0.0, setup_s=0.0, half_message_bytes=0.0),
        network_link=replace(SLOW, latency_s=0.0, setup_s=0.0, half_message_bytes=0.0),
    ),
    num_chips=4096,
)
"""Links without latency."""


def one(array: object) -> float:
    return float(np.asarray(array).item())


def test_all_gather_in_one_node() -> None:
    """Each of 8 receives 7/8 of 8e9 bytes and copies 1/8; 10 us set-up and 7 steps of 2 us."""
    group = group_of(8, 1, POOL)
    assert one(all_gather_s(group, np.array(8e9))) == pytest.approx(
        7e9 / 400e9 + 1e9 / 800e9 + 10e-6 + 7 * 2e-6, rel=1e-12
    )
    assert one(reduce_scatter_s(group, np.array(8e9))) == one(all_gather_s(group, np.array(8e9)))


def test_all_reduce_in_one_node() -> None:
    """A reduce-scatter and an all-gather in one kernel: set-up once, the own share copied once."""
    assert one(all_reduce_s(group_of(8, 1, POOL), np.array(8e9))) == pytest.approx(
        14e9 / 400e9 + 1e9 / 800e9 + 10e-6 + 2 * 14e-6, rel=1e-12
    )


def test_a_ring_over_nodes_crosses_with_every_nic() -> None:
    """32 ranks in 4 nodes: 8 NICs of 40e9 carry 320e9 bytes/s, less than the domain; 28 steps
    inside, 3 between nodes."""
    group = group_of(32, 1, POOL)
    assert one(group.ring_bytes_per_s) == pytest.approx(320e9)
    assert one(all_gather_s(group, np.array(32e9))) == pytest.approx(
        31e9 / 320e9 + 1e9 / 800e9 + 20e-6 + 28 * 2e-6 + 3 * 5e-6, rel=1e-12
    )


def test_an_all_reduce_over_nodes_climbs_a_tree() -> None:
    """7 steps inside, log2(4) = 2 between nodes: 14 + 10 us, up and down, and 20 of set-up."""
    assert one(all_reduce_s(group_of(32, 1, POOL), np.array(32e9))) == pytest.approx(
        62e9 / 320e9 + 1e9 / 800e9 + 20e-6 + 2 * 24e-6, rel=1e-12
    )


def test_data_parallel_ranks_of_whole_nodes_have_one_nic_each() -> None:
    """tp = 8 puts the 4 ranks of a dp group on 4 nodes: 40e9 bytes/s, 3 steps of 5 us."""
    group = group_of(4, 8, POOL)
    assert one(group.local) == 1
    assert one(all_gather_s(group, np.array(4e9))) == pytest.approx(
        3e9 / 40e9 + 1e9 / 800e9 + 20e-6 + 3 * 5e-6, rel=1e-12
    )


def test_two_ranks_a_node_have_two_nics() -> None:
    group = group_of(8, 4, POOL)
    assert one(group.local) == 2
    assert one(group.ring_bytes_per_s) == pytest.approx(80e9)


def test_a_rack_is_one_domain() -> None:
    """72 chips in trays of 4 (NVL72): no NIC at work, 71 steps of 2 us; the 73rd rank leaves the
    rack."""
    group = group_of(72, 1, RACK)
    assert one(all_gather_s(group, np.array(72e9))) == pytest.approx(
        71e9 / 400e9 + 1e9 / 800e9 + 10e-6 + 71 * 2e-6, rel=1e-12
    )
    assert one(group_of(8, 8, RACK).local) == 8  # and so are tp = 8 by dp = 8
    assert one(group_of(144, 1, RACK).local) == 72
    assert one(group_of(144, 1, RACK).ring_bytes_per_s) == pytest.approx(
        400e9
    )  # 72 NICs would carry more than the domain


def test_oversubscription_slows_only_what_leaves_the_domain() -> None:
    pool = replace(POOL, oversubscription=2.0)
    assert one(group_of(8, 1, pool).ring_bytes_per_s) == pytest.approx(400e9)
    assert one(group_of(4, 8, pool).ring_bytes_per_s) == pytest.approx(20e9)


def test_a_short_message_has_a_short_ramp() -> None:
    """8 x 40e3 bytes among 8: a step takes 1 us and 40e3 / 400e9 = 0.1 us more, where half a
    message would take 1 us."""
    steps = 10e-6 + 7 * 1.1e-6
    assert one(all_gather_s(group_of(8, 1, POOL), np.array(320e3))) == pytest.approx(
        280e3 / 400e9 + 40e3 / 800e9 + steps
    )


def test_an_exchange_waits_for_all_peers_at_once() -> None:
    """64 bytes to 8 or to 72 ranks of a domain: one set-up and one step."""
    for size in (8, 72):
        assert one(all_to_all_s(group_of(size, 1, RACK), np.array(64.0))) == pytest.approx(
            11e-6, rel=1e-3
        )


def test_slow_links_copy_as_fast_as_memory_lets_them() -> None:
    """At 4e9 bytes/s on the link a rank's own half goes at 200e9."""
    slow = replace(
        POOL, node=replace(NODE, domain_link=replace(SILENT.node.domain_link, bytes_per_s=5e9))
    )
    assert one(all_gather_s(group_of(2, 1, slow), np.array(8e9))) == pytest.approx(
        4e9 / 4e9 + 4e9 / 200e9
    )


@pytest.mark.parametrize("chip", ["a100-80", "h100", "h200", "b200", "gb200", "gb300"])
def test_large_messages_take_what_was_measured(chip: str) -> None:
    """Gathers, scatters and reductions of 128 MiB and more between 2 and 4 chips: the shipped
    tables' times within 15 %."""
    pool = Pool(node=default_node(chip), num_chips=8)
    for name, operation in (
        ("all_gather", all_gather_s),
        ("reduce_scatter", reduce_scatter_s),
        ("all_reduce", all_reduce_s),
    ):
        for ranks, size in ((2, 2.0**27), (2, 2.0**29), (4, 2.0**27), (4, 2.0**29)):
            measured = collective_seconds(
                chip, op=cast("Collective", name), ranks=ranks, buffer_bytes=size
            )
            assert measured is not None
            assert one(operation(group_of(ranks, 1, pool), np.array(size))) == pytest.approx(
                one(measured.seconds), rel=0.15
            )


def test_a_full_mesh_gives_a_pair_one_link_of_seven() -> None:
    mesh = replace(POOL, node=replace(NODE, domain_link=replace(FAST, pairwise_share=1 / 7)))
    assert [one(group_of(size, 1, mesh).ring_bytes_per_s) for size in (2, 4, 8)] == pytest.approx(
        [400e9 / 7, 3 * 400e9 / 7, 400e9]
    )


def test_two_cards_under_a_switch_reach_more_than_four() -> None:
    """500e9 bytes/s: a pair at 0.9 of it, in a ring that leaves the server too, larger groups at
    0.8."""
    pairs = replace(POOL, node=replace(NODE, domain_link=replace(FAST, pair_efficiency=0.9)))
    assert [one(group_of(size, 1, pairs).ring_bytes_per_s) for size in (2, 4, 8)] == pytest.approx(
        [450e9, 400e9, 400e9]
    )
    assert one(group_of(4, 4, pairs).local_bytes_per_s) == pytest.approx(450e9)


def test_cards_of_one_host_memory_share_what_four_reach() -> None:
    """8 chips of a server share what 4 reach, in groups of any size; 2 chips alone have all of it,
    as has a pair that copies directly."""
    shared = replace(POOL, node=replace(NODE, domain_link=replace(FAST, full_rate_chips=4.0)))
    assert [one(group_of(size, 1, shared).ring_bytes_per_s) for size in (2, 4, 8)] == pytest.approx(
        [200e9] * 3
    )
    assert one(group_of(2, 1, replace(shared, num_chips=2)).ring_bytes_per_s) == pytest.approx(
        400e9
    )
    direct = replace(
        shared,
        node=replace(NODE, domain_link=replace(shared.node.domain_link, pair_efficiency=0.8)),
    )
    assert [one(group_of(size, 1, direct).ring_bytes_per_s) for size in (2, 4)] == pytest.approx(
        [400e9, 200e9]
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("size", [2.0**20, 2.0**22, 2.0**24])
def test_cards_on_pcie_take_what_was_measured(ranks: int, size: float) -> None:
    """RTX PRO 6000: gathers and reductions of 1 to 16 MiB within 25 % of the shipped tables, none
    of them bound by a message's ramp."""
    pool = Pool(node=default_node("rtx-pro-6000"), num_chips=8)
    for name, operation in (("all_gather", all_gather_s), ("all_reduce", all_reduce_s)):
        measured = collective_seconds(
            "rtx-pro-6000", op=cast("Collective", name), ranks=ranks, buffer_bytes=size
        )
        assert measured is not None
        assert one(operation(group_of(ranks, 1, pool), np.array(size))) == pytest.approx(
            one(measured.seconds), rel=0.25
        )


def test_all_to_all_uses_both_links_at_once() -> None:
    """Of 16e9 bytes to 16 ranks on 2 nodes, 7e9 stay in the domain and 8e9 leave it over a NIC at
    0.7 of its rate, which takes longer."""
    assert one(all_to_all_s(group_of(16, 1, SILENT), np.array(16e9))) == pytest.approx(8e9 / 28e9)
    assert one(all_to_all_s(group_of(8, 1, SILENT), np.array(8e9))) == pytest.approx(
        7e9 / 400e9 + 1e9 / 800e9
    )
    assert one(all_to_all_s(group_of(16, 1, POOL), np.array(16e9))) > 8e9 / 40e9


def test_a_dispatched_token_crosses_the_network_once_per_node() -> None:
    """8 choices among 32 ranks on 4 nodes reach 4 (1 - (3/4)^8) = 3.5995 nodes, of which 3/4 are
    others: 2.6997 copies over the NIC."""
    time = one(dispatch_s(group_of(32, 1, SILENT), np.array(1e9), 8))
    assert time == pytest.approx(4 * (1 - 0.75**8) * 0.75 * 1e9 / 40e9)
    assert one(all_to_all_s(group_of(32, 1, SILENT), np.array(8e9))) == pytest.approx(
        6e9 / 28e9
    )  # six of eight copies leave the node


def test_a_dispatched_token_reaches_a_rank_once() -> None:
    """2 choices among 8 ranks of a node fall on 8 (1 - (7/8)^2) = 1.875 of them, of which 7/8 are
    others."""
    assert one(dispatch_s(group_of(8, 1, SILENT), np.array(1e9), 2)) == pytest.approx(
        1.875 * 7 / 8 * 1e9 / 400e9
    )


def test_neighbouring_choices_reach_few_ranks() -> None:
    """8 choices in turn, of 4 experts a rank: 2 ranks of one node; of 16 a rank: one rank. 16
    choices of 1 a rank: 16 ranks, 2 nodes."""
    near = one(dispatch_s(group_of(32, 1, SILENT), np.array(1e9), 8, neighbours=np.array(4.0)))
    assert near == pytest.approx(max(2 * 7 / 8 * 1e9 / 400e9, 0.75 * 1e9 / 40e9))
    assert one(
        dispatch_s(group_of(8, 1, SILENT), np.array(1e9), 8, neighbours=np.array(16.0))
    ) == pytest.approx(7 / 8 * 1e9 / 400e9)
    assert one(
        dispatch_s(group_of(32, 1, SILENT), np.array(1e9), 16, neighbours=np.array(1.0))
    ) == pytest.approx(2 * 0.75 * 1e9 / 40e9)


@settings(max_examples=50)
@given(size=powers, stride=powers, payload=st.floats(1, 1e12), copies=st.integers(1, 32))
def test_dispatch_never_sends_more_than_a_copy_per_choice(
    size: int, stride: int, payload: float, copies: int
) -> None:
    group = group_of(size, stride, SILENT)
    once = one(dispatch_s(group, np.array(payload), copies))
    assert 0 <= once <= one(all_to_all_s(group, np.array(payload * copies))) * (1 + 1e-9)


def test_a_hidden_exchange_slows_compute() -> None:
    """3 s beside 2 s of compute: 1 s is left, and 2 s slow compute by 0.189 of that; nothing hides
    behind nothing."""
    assert beside_compute_s(np.array([3.0, 1.0, 3.0]), np.array([2.0, 2.0, 0.0])) == pytest.approx(
        [1.378, 0.189, 3.0]
    )


def test_point_to_point_within_and_across_domains() -> None:
    def message(size: float, distance: float, span: float) -> float:
        return one(
            point_to_point_s(
                POOL, message_bytes=np.array(size), distance=np.array(distance), span=np.array(span)
            )
        )

    assert message(4e9, 4, 8) == pytest.approx(1e-6 + 4e9 / 400e9)  # tp = 4, pp = 2: one node
    assert message(4e9, 8, 16) == pytest.approx(4e-6 + 4e9 / 40e9)  # tp = 8, pp = 2: two
    assert message(4e9, 4, 16) == pytest.approx(
        4e-6 + 4e9 / 40e9
    )  # tp = 4, pp = 4: the slowest boundary counts


def test_few_senders_have_a_servers_one_adapter_to_themselves() -> None:
    """Of 8 chips that share an adapter, 2 senders have 4 times a chip's part of it each."""
    pool = replace(POOL, node=replace(NODE, network_link=replace(SLOW, shared_adapter=True)))

    def message(distance: float) -> float:
        return one(
            point_to_point_s(
                pool, message_bytes=np.array(4e9), distance=np.array(distance), span=np.array(64.0)
            )
        )

    assert [message(2), message(8), message(16)] == pytest.approx(
        [4e-6 + 4e9 / 160e9, 4e-6 + 4e9 / 40e9, 4e-6 + 4e9 / 40e9]
    )


def test_one_rank_has_nobody_to_talk_to() -> None:
    group = group_of(1, 1, POOL)
    assert [
        one(f(group, np.array(1e9)))
        for f in (all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s)
    ] == [0, 0, 0, 0]
    assert one(dispatch_s(group, np.array(1e9), 8)) == 0


@settings(max_examples=50)
@given(pairs=st.lists(st.tuples(powers, powers), min_size=1, max_size=6), size=st.floats(1, 1e12))
def test_a_column_of_groups_is_each_alone(pairs: list[tuple[int, int]], size: float) -> None:
    sizes, strides = (np.array(axis) for axis in zip(*pairs, strict=True))
    for operation in (all_gather_s, all_reduce_s, all_to_all_s):
        column = operation(group_of(sizes, strides, POOL), np.full(len(pairs), size))
        assert column.tolist() == [
            one(operation(group_of(*pair, POOL), np.array(size))) for pair in pairs
        ]


@settings(max_examples=50)
@given(size=powers, stride=powers, payload=st.floats(0, 1e12))
def test_sizes_of_collectives_are_in_order(size: int, stride: int, payload: float) -> None:
    """More bytes never take less; an all-reduce is never shorter than its gather's bytes, nor
    longer than two gathers."""

    def times(group: Group, amount: float) -> tuple[float, float, float]:
        gather, reduce, exchange = (
            one(f(group, np.array(amount))) for f in (all_gather_s, all_reduce_s, all_to_all_s)
        )
        return gather, reduce, exchange

    group = group_of(size, stride, POOL)
    small, large = times(group, payload), times(group, 2 * payload)
    assert all(0 <= s <= la < np.inf for s, la in zip(small, large, strict=True))
    assert small[1] <= 2 * small[0] * (1 + 1e-12)
    assert 1 <= one(group.local) <= max(size, 1)
