from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.memory import MEMORY_TERMS
from meshwright.cost.step import TIME_TERMS
from meshwright.trust.calibration import (
    FACTORS,
    Calibration,
    Fitted,
    LinkRates,
    Misses,
    apply_calibration,
    layers_key,
    measured_share,
)
from meshwright.trust.calibration_file import calibration_to_yaml, parse_calibration
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack

NVLINK = LinkRates(
    level="domain",
    name="nvlink4",
    bytes_per_s=480e9,
    latency_s=2e-6,
    setup_s=1e-5,
    half_message_bytes=2e6,
    source="all_reduce_perf",
)
SMALL = Calibration(
    chip="h100",
    stack="megatron",
    runs=("a: 1 s",),
    factors=(
        Fitted(name="compute", value=0.9, prior_width=0.2, width=0.1),
        Fitted(name="host", value=1.5, prior_width=0.5, width=0.5),
        Fitted(name="constant", value=2.0, prior_width=0.5, width=0.25),
    ),
    links=(NVLINK,),
    step_time=Misses(runs=1, before_frac=0.1, after_frac=0.01, left_out_frac=None, spread=0.05),
)


def test_values_change_and_nothing_else() -> None:
    pool, stack = parse_cluster("h100:16").pools[0], find_stack("megatron")
    found = apply_calibration(SMALL, pool=pool, stack=stack)
    chip, link = found.pool.node.chip, found.pool.node.domain_link
    assert chip == replace(pool.node.chip, launch_s=1.5 * pool.node.chip.launch_s)
    assert link.bytes_per_s * link.efficiency == pytest.approx(480e9)
    assert (link.latency_s, link.setup_s) == (2e-6, 1e-5)
    assert found.pool.node.network_link == pool.node.network_link
    assert found.pool.num_chips == 16
    assert found.stack.factors.compute == 0.9
    assert found.stack.factors.tensor == 1.0
    assert found.stack.step_overhead_s == pytest.approx(1.5 * stack.step_overhead_s)
    assert found.stack.context_bytes == pytest.approx(2.0 * stack.context_bytes)


LLAMA, LARGER, MIXTRAL = (find_model(name) for name in ("llama3-8b", "llama3-70b", "mixtral-8x7b"))


def test_another_model_takes_half_of_what_the_runs_of_one_say() -> None:
    known = Fitted(name="compute", value=1.21, prior_width=0.2, width=0.0)
    one = replace(SMALL, factors=(known,), models=(layers_key(LLAMA),))
    other = one.for_model(LARGER)
    assert other.value("compute") == pytest.approx(1.1)  # the root: half of the logarithm
    assert other.measured_frac("compute") == pytest.approx(0.25)
    assert other.step_time is None and other.links == one.links
    assert "runs of another model" in other.words()
    three = replace(one, models=("a", "b", "c")).for_model(LARGER)
    assert three.value("compute") == pytest.approx(1.21**0.75)
    assert three.measured_frac("compute") == pytest.approx(0.375)


def test_the_same_layers_take_all_of_it() -> None:
    known = replace(SMALL, models=(layers_key(LLAMA),))
    assert known.for_model(LLAMA) is known
    assert known.for_model(replace(LLAMA, num_layers=4, name="cut")) is known
    assert SMALL.for_model(LLAMA) is SMALL  # a file that does not say what ran
    assert layers_key(MIXTRAL) != layers_key(replace(MIXTRAL, moe=None))


def test_an_empty_calibration_changes_nothing() -> None:
    pool, stack = parse_cluster("h100:16").pools[0], find_stack("megatron")
    found = apply_calibration(Calibration(chip="h100", stack="megatron"), pool=pool, stack=stack)
    assert (found.pool, found.stack) == (pool, stack)


@pytest.mark.parametrize(
    ("cluster", "stack", "words"),
    [("b200:8", "megatron", "h100 on b200"), ("h100:8", "fsdp", "stack megatron")],
)
def test_another_chip_or_software_is_refused(cluster: str, stack: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        apply_calibration(SMALL, pool=parse_cluster(cluster).pools[0], stack=find_stack(stack))


def test_words_name_what_moved() -> None:
    assert (
        SMALL.words()
        == "calibrated on 1 run with megatron on h100: compute x0.9, constant x2, nvlink4 480 GB/s"
    )


def test_measured_share_is_weighted_by_terms() -> None:
    assert measured_share(
        SMALL, {"matmul": 3.0, "tp_comm": 1.0, "bubble": 5.0}, of="time"
    ) == pytest.approx(0.75 * 0.75)
    assert measured_share(SMALL, {"context": 1.0, "weights": 1.0}, of="memory") == pytest.approx(
        0.375
    )
    assert measured_share(SMALL, {"bubble": 1.0}, of="time") == 0.0


def test_every_term_has_a_factor_or_waits() -> None:
    full = tuple(Fitted(name=name, value=1.0, prior_width=1.0, width=0.0) for name in FACTORS)
    all_known = replace(SMALL, factors=full)
    assert measured_share(all_known, dict.fromkeys(TIME_TERMS, 1.0), of="time") == 1.0
    assert measured_share(all_known, dict.fromkeys(MEMORY_TERMS, 1.0), of="memory") == 1.0
    told = {term for term in TIME_TERMS if measured_share(all_known, {term: 1.0}, of="time") == 1.0}
    assert set(TIME_TERMS) - told == {"imbalance", "bubble"}
    assert all(measured_share(all_known, {term: 1.0}, of="memory") == 1.0 for term in MEMORY_TERMS)


positive = st.floats(min_value=1e-9, max_value=1e15)
values = st.floats(min_value=0.05, max_value=20.0)
words = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=30)


@st.composite
def fitted(draw: st.DrawFn) -> tuple[Fitted, ...]:
    names = draw(st.lists(st.sampled_from(FACTORS), unique=True))
    found = []
    for name in names:
        prior = draw(st.floats(min_value=1e-3, max_value=5.0))
        width = draw(st.floats(min_value=0.0, max_value=prior))
        found.append(Fitted(name=name, value=draw(values), prior_width=prior, width=width))
    return tuple(found)


misses = st.builds(
    Misses,
    runs=st.integers(1, 1000),
    before_frac=positive,
    after_frac=positive,
    left_out_frac=st.none() | positive,
    spread=positive,
)
links = st.builds(
    LinkRates,
    level=st.sampled_from(["domain", "network"]),
    name=words,
    bytes_per_s=positive,
    latency_s=st.floats(0, 1),
    setup_s=st.floats(0, 1),
    half_message_bytes=st.floats(0, 1e9),
    source=words,
)
calibrations = st.builds(
    Calibration,
    chip=words,
    stack=words,
    runs=st.lists(words, max_size=3).map(tuple),
    factors=fitted(),
    links=st.lists(links, unique_by=lambda rates: rates.level, max_size=2).map(tuple),
    step_time=st.none() | misses,
    peak_memory=st.none() | misses,
    version=words,
)


@given(calibrations)
def test_the_file_reads_back_to_the_same_calibration(calibration: Calibration) -> None:
    assert parse_calibration(calibration_to_yaml(calibration)) == calibration


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- 1", "no calibration"),
        ("{", "no YAML"),
        ("calibration: 2\nchip: h100\nstack: megatron", "calibration: input should be 1"),
        ("calibration: 1\nchip: h100", "stack: field required"),
        (
            (
                "calibration: 1\nchip: h100\nstack: m\nfactors: {comput: {value: 1.0, prior_width:"
                " 1.0, width: 0.1}}"
            ),
            "'compute'",
        ),
        (
            (
                "calibration: 1\nchip: h100\nstack: m\nfactors: {compute: {value: 99.0,"
                " prior_width: 1.0, width: 0.1}}"
            ),
            "0.05 to 20",
        ),
        (
            (
                "calibration: 1\nchip: h100\nstack: m\nfactors: {compute: {value: 1.0, prior_width:"
                " 0.1, width: 0.2}}"
            ),
            "0 to its prior_width",
        ),
        ("calibration: 1\nchip: h100\nstack: m\nlinks: {rack: {}}", "links.rack"),
        ("calibration: 1\nchip: h100\nstack: m\nsecret: 1", "secret: extra inputs"),
    ],
)
def test_a_broken_file_is_one_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_calibration(text, source="mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_calibration_of_a_software_is_of_each_of_its_releases_not_the_other_way() -> None:
    plain = Calibration(chip="h100", stack="megatron-bridge")
    assert plain.is_of_stack("megatron-bridge@26.02")
    one = Calibration(chip="h100", stack="megatron-bridge@26.02")
    pool = parse_cluster("h100:8").pools[0]
    assert apply_calibration(one, pool=pool, stack=find_stack("megatron-bridge@26.02")).pool == pool
    for other in ("megatron-bridge@26.04", "megatron-bridge", "megatron"):
        assert not one.is_of_stack(other)
        with pytest.raises(ConfigError, match=r"calibration of stack megatron-bridge@26.02 for"):
            apply_calibration(one, pool=pool, stack=find_stack(other))
