from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import (
    chips,
    default_node,
    find_chip,
    find_link,
    link_rows,
)
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Cluster, Link, Node, Pool
from meshwright.values.hardware.cluster_file import cluster_to_yaml, read_cluster
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.units import GB, GIB, TERA

DOCS = Path(__file__).resolve().parents[3] / "docs" / "hardware.md"

REFUSED = {
    "pools: [{chip: h100, cout: 3}]": (
        "c.yaml: pools[0].count: missing; pools[0].cout: no field 'cout'; did you mean 'count'?"
    ),
    "pools: [{chip: h100, count: 0}]": (
        "c.yaml: pools[0].count=0: input should be greater than or equal to 1"
    ),
    "pools: [{chip: h100, count: many}]": (
        "c.yaml: pools[0].count='many': input should be a valid integer, unable to parse string as"
        " an integer"
    ),
    "pools: [{chip: h100, count: true}]": (
        "c.yaml: pools[0].count=True: value error, expected a number, not yes or no"
    ),
    "pools: []": "c.yaml: pools=[]: list should have at least 1 item after validation, not 0",
    "poools: 3": "c.yaml: pools: missing; poools: no field 'poools'; did you mean 'pools'?",
    "": "c.yaml: the file: None: expected a mapping with the keys pools, chips, links, pool_link",
    "pools:\n  - chip: [\n": (
        "c.yaml: line 3, column 1: expected the node content, but found '<stream end>'"
    ),
    "pools: []\npools: []": "c.yaml: line 2, column 1: the key 'pools' occurs twice",
    "pools: [{chip: h1000, count: 8}]": (
        "c.yaml: 'h1000' is no known chip; did you mean 'h100' or 'h800' or 'h200'?"
    ),
    "pools: [{chip: h100, count: 8, network: ib400}]": (
        "c.yaml: 'ib400' is no known link; did you mean 'ib-400' or 'ib-800' or 'ib-200'?"
    ),
    "pools: [{chip: h100, count: 8, network: -4}]": (
        "c.yaml: network_gbps=-4: expected a positive number of Gb/s per chip such as 400"
    ),
    "pools: [{chip: h100, count: 8, network: {like: ib-400, efficiency: 3}}]": (
        "c.yaml: link ib-400: efficiency=3.0: expected a share in (0, 1]"
    ),
    "pools: [{chip: h100, count: 8, network: {like: ib-400, gb_per_s: 3, bytes_per_s: 3}}]": (
        "c.yaml: pools[0].network: gb_per_s and bytes_per_s say the same thing; give one of them"
    ),
    "pools: [{chip: {name: x}, count: 8}]": (
        "c.yaml: pools[0].chip: vendor, nominal_bytes, usable_bytes, memory_bytes_per_s missing; "
        "give them, or say which known one it is `like`"
    ),
    "pools: [{chip: {name: x, vendor: y, nominal_gb: 8, usable_gib: 8, memory_gb_per_s: 9}, count: 8}]": (  # noqa: E501
        "c.yaml: pools[0]: chip 'x' is like none in the catalogue, so say gpus_per_node,"
        " domain_link, network too"
    ),
    "pools: [{chip: {like: h100, bf16_tflops: .nan}, count: 8}]": (
        "c.yaml: pools[0].chip.bf16_tflops=nan: input should be a finite number"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster(text, source="c.yaml")
    assert str(caught.value) == REFUSED[text]


def test_the_short_form_and_the_file_agree() -> None:
    file = "pools: [{chip: a800, count: 128}, {chip: H800-80GB, count: 160}]"
    assert read_cluster(file) == parse_cluster("a800:128,h800:160")
    assert read_cluster(file, gpus_per_node=4) == parse_cluster(
        "a800:128,h800:160", gpus_per_node=4
    )
    with pytest.raises(
        ConfigError,
        match=r"pools\[0\]\.gpus_per_node=8, but gpus_per_node=4 was asked for; drop one of them",
    ):
        read_cluster("pools: [{chip: h100, count: 8, gpus_per_node: 8}]", gpus_per_node=4)


def test_the_example_of_the_documentation() -> None:
    example = DOCS.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    cluster = read_cluster(example)
    old, new = cluster.pools
    assert (old.node.chip.name, old.num_chips, old.node.domain_size) == ("a100-80", 96, 4)
    assert old.node.network_link == find_link("ib-100")
    assert new.node.chip == replace(
        find_chip("h100"),
        name="h100-capped",
        tdp_w=500.0,
        memory_efficiency=0.8,
        sustained_share=new.node.chip.sustained_share,
    )
    assert new.node.chip.sustained_share == pytest.approx(
        find_chip("h100-96").sustained_share, abs=0.001
    )  # a part of 500 W
    assert new.node.network_link == replace(find_link("ib-400"), name="busy-ib", efficiency=0.7)
    assert new.oversubscription == 2
    assert cluster.pool_link == find_link("roce-100")


def test_a_chip_and_links_of_ones_own() -> None:
    text = """
    chips:
      asic: {vendor: us, nominal_gb: 64, usable_gib: 63, memory_gb_per_s: 2000, bf16_tflops: 400}
    links:
      wire: {gb_per_s: 100, latency_us: 2}
      slow-wire: {like: wire, efficiency: 0.5}
    pools: [{chip: asic, count: 32, gpus_per_node: 16, domain_link: wire, network: slow-wire}]
    """
    (pool,) = read_cluster(text).pools
    assert pool.node.chip == Chip(
        name="asic",
        vendor="us",
        nominal_bytes=64 * GIB,
        usable_bytes=63 * GIB,
        memory_bytes_per_s=2000 * GB,
        bf16_flops_per_s=400 * TERA,
    )
    assert pool.node.domain_link == Link(name="wire", bytes_per_s=100 * GB, latency_s=2e-6)
    assert pool.node.network_link == Link(
        name="slow-wire", bytes_per_s=100 * GB, latency_s=2e-6, efficiency=0.5
    )
    assert (pool.node.chips_per_node, pool.node.domain_size) == (16, 16)


def test_a_network_in_gbps_keeps_the_chips_family() -> None:
    (pool,) = read_cluster("pools: [{chip: mi300x, count: 8, network: 200}]").pools
    assert pool.node.network_link == find_link("roce-200")


def test_a_written_cluster_is_short_where_the_catalogue_knows_it() -> None:
    assert (
        cluster_to_yaml(parse_cluster("h100:256"))
        == "pools:\n- chip: h100\n  count: 256\n  gpus_per_node: 8\n  domain_size: 8\n"
        "  domain_link: nvlink4\n  network: ib-400\n  oversubscription: 1.0\n"
    )


positive = st.floats(min_value=1e-3, max_value=1e18, allow_nan=False)
share = st.floats(min_value=1e-6, max_value=1.0)
names = st.text(min_size=1, max_size=12)
own_links = st.builds(
    Link,
    name=names,
    bytes_per_s=positive,
    latency_s=st.floats(0, 1),
    setup_s=st.floats(0, 1),
    efficiency=share,
    half_message_bytes=st.floats(0, 1e9),
    pairwise_share=share,
    pair_efficiency=st.none() | share,
    full_rate_chips=st.none() | st.floats(1, 1e6),
    shared_adapter=st.booleans(),
    maps_peers=st.booleans(),
)
own_chips = st.builds(
    Chip,
    name=names,
    vendor=names,
    nominal_bytes=positive,
    usable_bytes=positive,
    memory_bytes_per_s=positive,
    bf16_flops_per_s=st.none() | positive,
    fp8_flops_per_s=st.none() | positive,
    matmul_efficiency=share,
    fp8_matmul_efficiency=st.none() | share,
    launch_s=st.floats(0, 1),
    tdp_w=st.none() | positive,
    notes=st.text(max_size=20),
)
links = st.sampled_from([row.link for row in link_rows()]) | own_links
any_chip = st.sampled_from(chips()) | own_chips
nodes = st.builds(
    Node,
    chip=any_chip,
    chips_per_node=st.integers(1, 64),
    domain_size=st.integers(1, 9216),
    domain_link=links,
    network_link=links,
)
pools = st.builds(
    Pool, node=nodes, num_chips=st.integers(1, 2**30), oversubscription=st.floats(1, 100)
)
clusters = st.builds(
    Cluster, pools=st.lists(pools, min_size=1, max_size=3).map(tuple), pool_link=st.none() | links
)


@given(clusters)
def test_a_written_cluster_is_read_back_to_the_last_digit(cluster: Cluster) -> None:
    assert read_cluster(cluster_to_yaml(cluster)) == cluster


@pytest.mark.parametrize(
    "notes", ["\x85", "\u2028", "昇腾", "yes", "1e3", " a ", "a\nb", "#", "null"]
)
def test_any_words_are_written_and_read_back(notes: str) -> None:
    node = replace(default_node("h100"), chip=replace(find_chip("h100"), notes=notes))
    cluster = Cluster(pools=(Pool(node=node, num_chips=8),))
    assert read_cluster(cluster_to_yaml(cluster)) == cluster


@pytest.mark.parametrize("chip", chips(), ids=lambda chip: chip.name)
def test_every_chip_is_written_and_read_back(chip: Chip) -> None:
    changed = replace(chip, tdp_w=123.0)
    for node in (default_node(chip.name), replace(default_node(chip.name), chip=changed)):
        cluster = Cluster(pools=(Pool(node=node, num_chips=3),))
        assert read_cluster(cluster_to_yaml(cluster)) == cluster


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["h100", "ib-400", "nvlink4", "like"])
)
keys = st.sampled_from(
    [
        "pools",
        "chips",
        "links",
        "pool_link",
        "chip",
        "count",
        "network",
        "domain_link",
        "like",
        "name",
        "gb_per_s",
    ]
) | st.text(max_size=4)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keys, documents) | documents)
def test_any_document_is_read_or_refused(document: Any) -> None:
    with contextlib.suppress(ConfigError):
        read_cluster(yaml.safe_dump(document, allow_unicode=True))


@given(
    st.fixed_dictionaries(
        {"chip": documents, "count": scalars},
        optional={"network": documents, "domain_link": documents, "gpus_per_node": scalars},
    )
)
def test_any_pool_is_read_or_refused(pool: Any) -> None:
    with contextlib.suppress(ConfigError):
        read_cluster(yaml.safe_dump({"pools": [pool]}, allow_unicode=True))


@given(st.text(alphabet="pools:chi[]{}-&*!?|>%@ \n\t'\"#,0123.xX<", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        read_cluster(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "a: &x [*x]",
        "2001-99-99",
        "!!python/object:os.system {}",
        "\x00",
        "? [a]\n: 1",
        "1" * 5000,
        "pools: &p [*p]",
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_cluster(text)


def test_numbers_that_yaml_takes_for_text_are_numbers() -> None:
    (pool,) = read_cluster(
        "pools: [{chip: h100, count: 8, network: {name: n, bytes_per_s: 5e10, latency_s: 4e-6}}]"
    ).pools
    assert pool.node.network_link.bytes_per_s == 5e10
    assert math.isclose(pool.node.network_link.latency_s, 4e-6)


def test_a_host_is_told_by_what_differs() -> None:
    text = "pools: [{chip: rtx-4090, count: 2, host: {memory_gib: 256, nvme_gb_per_s: 14}}]"
    host = read_cluster(text).pools[0].node.host
    usual = default_node("rtx-4090").host
    assert host is not None
    assert usual is not None
    assert (host.memory_bytes, host.nvme_bytes_per_s) == (256 * 2**30, 14e9)
    assert host.memory_bytes_per_s == usual.memory_bytes_per_s == 83.2e9
    none = read_cluster("pools: [{chip: h100, count: 8, host: none}]")
    assert none.pools[0].node.host is None
    with pytest.raises(ConfigError, match="memory_gb"):
        read_cluster("pools: [{chip: h100, count: 8, host: {memory_gb: 64}}]")


def test_a_share_that_measured_products_do_not_read_is_refused() -> None:
    def cluster(like: str, field: str) -> str:
        return f"chips: {{mine: {{like: {like}, {field}: 0.4}}}}\npools: [{{chip: mine, count: 8}}]"

    with pytest.raises(ConfigError, match=r"matmul_efficiency=0.4: no effect.*sustained"):
        read_cluster(cluster("h100", "matmul_efficiency"))
    with pytest.raises(ConfigError, match="fp8_matmul_efficiency"):
        read_cluster(cluster("h800", "fp8_matmul_efficiency"))
    read_cluster(cluster("h100", "sustained_share"))
    read_cluster(cluster("mi300x", "matmul_efficiency"))
