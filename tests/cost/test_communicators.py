"""Communicators' buffers on paper: 544 MiB for two members, 688 for more, 288 a member where a
switch reduces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.cost.cases import CHIP, POOL, RACK, STACK

from meshwright.cost.weights import communicator_bytes
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.stack import Stack
from meshwright.values.units import MIB

WIRED = replace(STACK, context_bytes=1.0, in_switch_reductions=False)
SWITCHED = replace(WIRED, in_switch_reductions=True)
FLEX = replace(WIRED, dispatcher="flex")
"""Exchanges of experts without NCCL."""


def on(generation: str, *, vendor: str = "NVIDIA", pool: Pool = POOL) -> Pool:
    return replace(
        pool, node=replace(pool.node, chip=replace(CHIP, vendor=vendor, generation=generation))
    )


def mib(stack: Stack = WIRED, *, pool: Pool = POOL, **layout: Any) -> float:
    return (
        float(
            communicator_bytes(Layouts.of([Layout(gbs=1024, **layout)]), pool=pool, stack=stack)[
                0, 0
            ]
        )
        / MIB
    )


def test_an_axis_has_a_communicator_and_megatron_one_of_all_ranks() -> None:
    assert mib() == 0
    assert mib(dp=2) == 544 + 544
    assert mib(tp=4, pp=2) == 688 + 544 + 688
    assert mib(tp=2, cp=2, pp=2, dp=2) == 3 * 544 + 688 + 688, "dp * cp is one group of 4"
    assert mib(FLEX, ep=4, dp=4) == 3 * 688


def test_an_all_to_all_connects_each_pair_in_a_domain() -> None:
    """8 H100: 3.28 GB, 447 MiB for each of 7 peers; larger groups and domains are not known to take
    more, and ranks of tensor-parallel experts lie between the peers."""
    hopper = on("hopper")

    def connections(pool: Pool, **layout: int) -> float:
        return mib(WIRED, pool=pool, **layout) - mib(FLEX, pool=pool, **layout)

    assert connections(hopper, ep=8, dp=8) == 7 * 447
    assert pytest.approx(3.28e9, rel=1e-3) == 7 * 447 * MIB
    assert connections(hopper, ep=2, dp=8) == 447
    assert connections(hopper, ep=64, dp=64) == 7 * 447
    assert connections(on("hopper", pool=RACK), ep=64, dp=64) == 7 * 447
    assert connections(hopper, tp=4, etp=4, ep=8, dp=8) == 447
    assert connections(on("cdna3", vendor="AMD"), ep=8, dp=8) == 7 * 112
    assert connections(hopper, dp=8) == 0


def test_a_stage_holds_as_much_however_many_follow() -> None:
    """Stages of unlike chips are priced before their number is known."""
    hopper = on("hopper")
    for stack in (WIRED, SWITCHED, replace(SWITCHED, family="fsdp")):
        assert len({mib(stack, pool=hopper, tp=2, pp=pp) for pp in (2, 3, 4, 16)}) == 1
    assert mib(pp=2) == 544 + 688


def test_fully_sharded_replicas_are_all_the_ranks_there_are() -> None:
    """A mesh of one dimension uses the group of all ranks."""
    fsdp = replace(WIRED, family="fsdp")
    assert mib(fsdp, dp=8, sharding="zero3") == 688
    assert mib(fsdp, dp=4, tp=2, sharding="zero3") == 688 + 544 + 688


def test_switches_that_reduce_keep_a_buffer_for_each_member() -> None:
    """tp and all ranks share the board of 8; the two replicas on other boards have no third member
    to reduce with."""
    hopper = on("hopper")
    assert (
        mib(WIRED, pool=hopper, tp=8, dp=2)
        == mib(SWITCHED, pool=on("ampere"), tp=8, dp=2)
        == 688 + 544 + 688
    )
    assert mib(SWITCHED, pool=hopper, tp=8, dp=2) == 688 + 544 + 688 + 288 * (8 + 8)
    assert mib(SWITCHED, pool=hopper, tp=2, dp=4) == 544 + 688 + 688 + 288 * (4 + 8)
    assert mib(replace(SWITCHED, dispatcher="flex"), pool=hopper, ep=8, dp=8) == 3 * 688 + 288 * (
        8 + 8
    ), "an all-to-all reduces nothing"
    four = replace(hopper, node=replace(hopper.node, chips_per_node=4, domain_size=4))
    assert mib(SWITCHED, pool=four, tp=4, dp=2) == mib(WIRED, pool=four, tp=4, dp=2), (
        "four chips are wired to each other"
    )
    rack = on("blackwell", pool=RACK)
    assert mib(SWITCHED, pool=rack, tp=8, dp=9) == 3 * 688 + 288 * (8 + 8 + 8), (
        "members beyond a board of 8 are not counted"
    )


@pytest.mark.parametrize(
    ("vendor", "each"), [("Huawei", 400), ("Google", 0), ("AWS", 0), ("AMD", 688)]
)
def test_other_libraries(vendor: str, each: int) -> None:
    assert mib(SWITCHED, pool=on("hopper", vendor=vendor), tp=4) == 2 * each


def test_no_context_no_communicators() -> None:
    """Software that keeps nothing outside its allocator, and processors."""
    assert mib(replace(WIRED, context_bytes=0.0), tp=8) == 0
    assert mib(WIRED.on_processors(), tp=8) == 0


def test_columns_equal_single_layouts() -> None:
    several = [Layout(gbs=64, tp=2, dp=4), Layout(gbs=64, pp=8), Layout(gbs=64, cp=4, tp=2)]
    together = communicator_bytes(Layouts.of(several), pool=on("hopper"), stack=SWITCHED)
    alone = [
        float(communicator_bytes(Layouts.of([one]), pool=on("hopper"), stack=SWITCHED)[0, 0])
        for one in several
    ]
    assert together[:, 0].tolist() == alone
