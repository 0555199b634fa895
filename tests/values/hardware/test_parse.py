from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import chips
from meshwright.values.hardware.parse import parse_chip_mix, parse_cluster

FORM = "expected KIND:COUNT[,KIND:COUNT...] such as h100:256 or a800:128,h800:160"
REFUSED = {
    "": f"cluster '': {FORM}",
    "h100": f"cluster 'h100': {FORM}; how many, as in h100:8?",
    ":3": f"cluster ':3': {FORM}",
    "h100:8,": f"cluster 'h100:8,': {FORM}",
    "h100:": "cluster 'h100:': count '' of h100: expected a whole number of chips such as h100:256",
    "h100:many": (
        "cluster 'h100:many': count 'many' of h100: expected a whole number of chips such as"
        " h100:256"
    ),
    "h100:-8": (
        "cluster 'h100:-8': count '-8' of h100: expected a whole number of chips such as h100:256"
    ),
    "h100:1.5": (
        "cluster 'h100:1.5': count '1.5' of h100: expected a whole number of chips such as h100:256"
    ),
    "h100:0": "cluster 'h100:0': count 0 of h100: expected 1 to 1073741824 chips",
    "h100:99999999999": (
        "cluster 'h100:99999999999': count 99999999999 of h100: expected 1 to 1073741824 chips"
    ),
    "h100:8,H100-SXM:8": (
        "cluster 'h100:8,H100-SXM:8': h100 is named twice; give it once with the sum of its chips"
    ),
    "h1000:8": "'h1000' is no known chip; did you mean 'h100' or 'h800' or 'h200'?",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    assert str(caught.value) == REFUSED[text]


def test_one_and_several_pools() -> None:
    assert parse_cluster("h100:256").num_chips == 256
    mixed = parse_cluster(" a800:128 , H800-80GB:160 ")
    assert mixed.name == "a800:128,h800:160"
    assert [pool.node.chips_per_node for pool in mixed.pools] == [8, 8]
    assert [
        pool.node.chips_per_node
        for pool in parse_cluster("a800:128,h800:160", gpus_per_node=4).pools
    ] == [4, 4]


@pytest.mark.parametrize("count", [1, 3, 12, 1_000, 1_048_576, 1_048_577, 2**30])
def test_any_count_is_a_cluster(count: int) -> None:
    assert parse_cluster(f"h100:{count}").num_chips == count


@given(
    st.lists(
        st.tuples(st.sampled_from([chip.name for chip in chips()]), st.integers(1, 2**30)),
        min_size=1,
        unique_by=lambda pair: pair[0],
    )
)
def test_name_is_read_back(pools: list[tuple[str, int]]) -> None:
    text = ",".join(f"{name}:{count}" for name, count in pools)
    cluster = parse_cluster(text)
    assert cluster.name == text
    assert parse_cluster(cluster.name) == cluster


@given(st.text(max_size=60) | st.from_regex(r"[ah]?[0-9]{0,3}00[:,x]*[-0-9:,.e]*", fullmatch=True))
def test_only_config_errors_escape(text: str) -> None:
    for read in (parse_cluster, parse_chip_mix):
        with contextlib.suppress(ConfigError):
            read(text)


def test_mixes_of_measurement_tables() -> None:
    assert parse_chip_mix("V100-16GBx12+T4x4") == [("v100-16", 12), ("t4", 4)]
    assert parse_chip_mix("RTX-2080x16+RTX-3090x8+Titan-RTXx8") == [
        ("rtx-2080ti", 16),
        ("rtx-3090", 8),
        ("titan-rtx", 8),
    ]
    assert parse_chip_mix("RTX-3090:2;Titan-RTX:2") == [("rtx-3090", 2), ("titan-rtx", 2)]
    assert parse_chip_mix("H100-96GB-HBM2e(500W)") == [("h100-96", None)]
    assert parse_chip_mix("MI355X") == [("mi355x", None)]


def test_a_file_is_read_outside() -> None:
    with pytest.raises(ConfigError, match=r"'mine\.YAML' was not read; ask meshwright\.api"):
        parse_cluster("mine.YAML")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("256xh100", "did you mean h100:256?"),
        ("p5.48xlarge x 4", "did you mean p5.48xlarge:4?"),
        ("h100", "how many, as in h100:8?"),
        ("nonsense", "or a800:128,h800:160"),
    ],
)
def test_a_cluster_without_its_colon_is_told_how_it_is_written(text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as found:
        parse_cluster(text)
    assert str(found.value).endswith(hint)


def test_a_number_in_a_name_is_no_count() -> None:
    """`x` between name and count is its own word or touches both; `Max 1550` is one name, of no
    known chip."""
    assert parse_chip_mix("V100-16GBx12+T4 x 4; H100 x8") == [
        ("v100-16", 12),
        ("t4", 4),
        ("h100", 8),
    ]
    with pytest.raises(UnknownNameError, match="'Max 1550' is no known chip"):
        parse_chip_mix("Max 1550")
