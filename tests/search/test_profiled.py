from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.values.hardware.profiles import H100, ON_CPU, ON_H100, PROCESSOR

from meshwright.search.link_rates import local_pool, profiled_pool
from meshwright.search.problem import Files, resolve
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.hardware.profile import Profile, Sample, Series

RATE = 300e9
SIZES = tuple(float(2**power) for power in range(16, 31, 2))


def all_reduce(*counts: int, rate: float = RATE) -> Series:
    """Large messages pass at `rate`; each takes 20 us per rank besides."""
    samples = tuple(
        Sample(
            point=(float(ranks), size),
            seconds=2e-5 * ranks + 2 * (ranks - 1) / ranks * size / rate,
            repeats=20,
        )
        for ranks in counts
        for size in SIZES
    )
    return Series(
        name="collective/all_reduce",
        dims=("ranks", "bytes"),
        axes=(tuple(map(float, counts)), SIZES),
        samples=samples,
    )


def with_links(profile: Profile, *counts: int, rate: float = RATE) -> Profile:
    return replace(profile, series=(*profile.series, all_reduce(*counts, rate=rate)))


def test_measured_collectives_give_the_links_rate() -> None:
    pool = profiled_pool(with_links(ON_H100, 2, 4, 8), parse_cluster("h100:64").pools[0])
    link = pool.node.domain_link
    own_share = 1 + 1 / 16 / 1.75  # of eight ranks, copied at twice the link's rate
    assert math.isclose(link.bytes_per_s * link.efficiency, RATE * own_share, rel_tol=0.02)
    assert pool.node.network_link == parse_cluster("h100:64").pools[0].node.network_link
    assert pool.node.chip.tables is not None and "domain_link" in pool.node.chip.tables.measured


def test_ranks_on_several_hosts_give_the_networks_rate() -> None:
    pool = profiled_pool(with_links(ON_H100, 16, rate=160e9), parse_cluster("h100:64").pools[0])
    assert pool.node.chip.tables is not None and pool.node.chip.tables.measured >= {"network_link"}
    link = pool.node.network_link
    assert math.isclose(
        8 * link.bytes_per_s * link.efficiency, 160e9, rel_tol=0.05
    )  # eight NICs carry one ring


def test_the_profiled_machine_is_a_cluster() -> None:
    gpus = local_pool(ON_H100)
    assert (gpus.num_chips, gpus.node.chips_per_node, gpus.node.chip.name) == (8, 8, "h100")
    assert local_pool(ON_H100, num_chips=64).num_chips == 64
    processor = local_pool(with_links(ON_CPU, 2, 4))
    assert (
        processor.num_chips,
        processor.node.chips_per_node,
        processor.node.chip.usable_bytes,
    ) == (1, 4, PROCESSOR.usable_bytes)


def test_a_card_that_the_catalogue_lacks_is_planned_for_by_its_profile() -> None:
    unknown = replace(ON_H100, machine=replace(H100, device_name="Maker Card 9", num_devices=4))
    pool = local_pool(unknown)
    assert (pool.num_chips, pool.node.chips_per_node, pool.node.chip.name) == (4, 4, "Maker Card 9")
    with pytest.raises(
        ConfigError, match="Maker Card 9, cluster of h100: the catalogue has no such chip"
    ):
        profiled_pool(unknown, parse_cluster("h100:8").pools[0])


def test_a_request_for_local_takes_the_machine_of_the_profile() -> None:
    fields = {"model": "llama3-8b", "seq_len": 8192, "gbs": 64, "profile": "here.npz"}
    for cluster, chips in (("local", 8), ("local:64", 64)):
        assert (
            resolve(
                PlanRequest.of({**fields, "cluster": cluster}), files=Files(profile=ON_H100)
            ).num_chips
            == chips
        )
    with pytest.raises(ConfigError, match="count 0 of local: expected 1"):
        resolve(PlanRequest.of({**fields, "cluster": "local:0"}), files=Files(profile=ON_H100))
    with pytest.raises(ConfigError, match="gpus_per_node has no effect with cluster local"):
        resolve(
            PlanRequest.of({**fields, "cluster": "local", "gpus_per_node": 4}),
            files=Files(profile=ON_H100),
        )
    with pytest.raises(ConfigError, match=r"profile='here\.npz' was not read"):
        resolve(PlanRequest.of({**fields, "cluster": "h100:8"}))
