"""What a profile says of the embedded trainer, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.values.hardware.profiles import PROCESSOR, line, profile

from meshwright.cost.collectives import all_reduce_s, all_to_all_s, group_of, point_to_point_s
from meshwright.cost.feedforward import mlp_parts
from meshwright.cost.kernels import (
    cold_launch_s,
    host_ends_s,
    host_layer_s,
    host_sharded_s,
    host_step_s,
    kind_of_activations,
    own_s,
)
from meshwright.cost.once import data_exchange_s, gathered_bytes, shard_copies_s
from meshwright.cost.operators import Site, as_measured
from meshwright.cost.stages import Shapes
from meshwright.cost.step import price
from meshwright.search.link_rates import local_pool
from meshwright.values.hardware.cluster import Pool
from meshwright.values.hardware.profile import Profile, Sample, Series
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import Block
from meshwright.values.stack import find_stack
from meshwright.values.workload import Workload

MS = 1e-3
HOST_MS = {
    "plain": 1.0,
    "sharded": 1.5,
    "tensor": 5.0,
    "sequence": 6.0,
    "context": 1.5,
    "ends": 0.5,
    "ends_tensor": 2.0,
}
"""Forward; backward twice that."""


def collective(name: str, *pairs: tuple[float, float]) -> Series:
    samples = tuple(
        Sample(point=(2.0, size), seconds=seconds, repeats=9) for size, seconds in pairs
    )
    return Series(
        name=f"collective/{name}",
        dims=("ranks", "bytes"),
        axes=((2.0,), tuple(size for size, _ in pairs)),
        samples=samples,
    )


def found() -> Profile:
    plain = profile(PROCESSOR, "fp32")
    ways = (("", 1), ("_backward", 2))
    host = [
        line(f"host/{name}{way}", "layers", (1.0, ms * MS * times))
        for name, ms in HOST_MS.items()
        for way, times in ways
    ]
    host += [
        line(f"host/routed{way}", "experts", (2.0, 2 * MS * times), (8.0, 4 * MS * times))
        for way, times in ways
    ]
    host.append(line("launch/cold", "operations", (1.0, 20e-6)))
    step = line("host/step", "layers", (1.0, 2 * MS), (4.0, 4 * MS))
    names = ("swiglu", "residual", "rotary")
    pointwise = [
        line(f"{name}{way}/fp32", "elements", (1e3, times * 1e-6), (1e9, times * 1.0))
        for name in names
        for way, times in ways
    ]
    links = [
        collective("all_reduce", (4.0, 1e-4), (4e6, 1e-4), (4e9, 0.1)),
        collective("all_to_all", (4.0, 2e-4), (4e9, 2e-4)),
        collective("point_to_point", (4.0, 5e-5), (4e9, 5e-5)),
    ]
    return replace(plain, series=(*plain.series, *host, step, *pointwise, *links))


@pytest.fixture(scope="module")
def pool() -> Pool:
    return local_pool(found(), num_chips=2)


def shapes(**changes: float) -> Shapes:
    given = {
        "tp": 1.0,
        "sp": 0.0,
        "cp": 1.0,
        "ep": 1.0,
        "etp": 1.0,
        "mbs": 1.0,
        "unchunked": 0.0,
    } | changes
    return Shapes(**{name: np.array([value]) for name, value in given.items()})


@pytest.mark.parametrize(
    ("changes", "experts", "ms"),
    [
        ({}, None, 1.0),
        ({"tp": 2.0}, None, 5.0),
        ({"tp": 2.0, "sp": 1.0}, None, 6.0),
        ({"cp": 2.0}, None, 1.5),
        ({"tp": 2.0, "cp": 2.0}, None, 5.5),
        ({"cp": 2.0}, 2.0, 2.5),
        ({}, 8.0, 4.0),
        ({"cp": 2.0}, 4.0, 0.5 + 8.0**0.5),
    ],
)
def test_a_layers_host_time_is_the_sum_of_what_its_axes_add(
    changes: dict[str, float], experts: float | None, ms: float, pool: Pool
) -> None:
    """2 ms with two experts, 4 ms with eight; between them by the logarithms: 8 ** 0.5 ms with
    four."""
    chip, held = pool.node.chip, None if experts is None else np.array([experts])
    assert host_layer_s(chip, shapes(**changes), experts=held, way="") == pytest.approx([ms * MS])
    assert host_layer_s(chip, shapes(**changes), experts=held, way="_backward") == pytest.approx(
        [2 * ms * MS]
    )


def test_host_time_of_ends_shards_and_steps(pool: Pool) -> None:
    chip = pool.node.chip
    assert host_ends_s(chip, shapes(tp=2.0), "") == pytest.approx([2.0 * MS])
    assert host_ends_s(chip, shapes(), "_backward") == pytest.approx([1.0 * MS])
    assert host_sharded_s(chip, "") == pytest.approx(0.5 * MS)
    assert host_step_s(chip, np.array([1.0, 2.0, 4.0])) == pytest.approx(
        [2 * MS, np.sqrt(8.0) * MS, 4 * MS]
    )


def test_without_a_profile_nothing_is_known() -> None:
    chip = replace(local_pool(profile(PROCESSOR, "fp32")).node.chip)
    assert own_s(chip, "host/plain", 1.0) is None
    assert host_layer_s(chip, shapes(), experts=None, way="") is None
    assert cold_launch_s(chip) == chip.launch_s
    assert host_ends_s(chip, shapes(), "") is None and host_sharded_s(chip, "") == 0.0
    assert [kind_of_activations(precision) for precision in ("tf32", "fp16", "fp8")] == [
        "fp32",
        "fp16",
        "bf16",
    ]
    assert [gathered_bytes(precision) for precision in ("fp32", "tf32", "bf16", "fp8")] == [
        4.0,
        4.0,
        2.0,
        2.0,
    ]


def test_collectives_of_processors_are_those_measured(pool: Pool) -> None:
    group = group_of(np.array([1.0, 2.0]), 1.0, pool)
    assert all_reduce_s(group, np.array([4e6, 4e6])) == pytest.approx([0.0, 1e-4])
    assert all_reduce_s(group, np.array([4e9, 4e9]))[1] == pytest.approx(0.1)
    assert all_to_all_s(group, np.array([0.0, 1e6]))[1] == pytest.approx(2e-4)
    assert point_to_point_s(
        pool, message_bytes=np.array([1e6]), distance=np.array([1.0]), span=np.array([2.0])
    ) == pytest.approx([5e-5])


@pytest.mark.parametrize(("stack", "is_measured"), [("embedded", True), ("fsdp", False)])
def test_activations_are_those_measured(stack: str, is_measured: bool, pool: Pool) -> None:
    """4 samples of 64 tokens, 688 wide, a nanosecond an element forward and two backward."""
    work = Workload(seq_len=64, gbs=8, precision="fp32")
    site = Site(
        model=find_model("tiny-llama"),
        work=work,
        stack=find_stack(stack),
        pool=pool,
        shapes=shapes(mbs=4.0),
    )
    (part,) = (
        part
        for part in mlp_parts(site, Block(kind="mlp"))
        if part.name == "feed-forward activation"
    )
    assert (part.forward_s == pytest.approx([4 * 64 * 688e-9])) == is_measured
    assert (part.backward_s == pytest.approx([2 * 4 * 64 * 688e-9])) == is_measured
    assert as_measured(site, part, ("unknown", 1.0, (1.0,))) == part  # what the profile lacks stays


def terms(pool: Pool, **layout: Any) -> dict[str, float]:
    row = Layouts.of([Layout(**{"gbs": 8, "mbs": 4, **layout})])
    work, stack = (
        Workload(seq_len=64, gbs=8, precision="fp32"),
        find_stack("embedded").on_processors(),
    )
    priced = price(row, model=find_model("tiny-llama"), pool=pool, work=work, stack=stack)
    return {name: float(seconds[0]) for name, seconds in priced.time.items()}


def test_what_a_step_shows_of_the_host(pool: Pool) -> None:
    """Four layers, one micro batch of 4 on each of two ranks, 20 us a launch: 4 * (1 + 2) ms less a
    launch for each of some 60 kernels."""
    alone = terms(pool, dp=2, sharding="none")
    assert 0.5 * 12 * MS < alone["launch"] < 12 * MS - 4 * 20 * 20e-6
    assert alone["overhead"] == pytest.approx(4 * MS)
    assert terms(pool, dp=2, sharding="zero3")["fsdp_comm"] > 4 * 1.5 * MS
    assert terms(pool, tp=2, mbs=8)["launch"] > 4 * alone["launch"]


def test_tokens_are_swapped_for_heads_around_attention(pool: Pool) -> None:
    """cp = 2 by all-to-all: four exchanges of 0.2 ms forward and backward in each of four layers
    and one micro batch, and their copies."""
    cut = terms(pool, cp=2, mbs=8)
    assert 4 * 8 * 2e-4 < cut["cp_comm"] < 2 * 4 * 8 * 2e-4
    whole = terms(pool, dp=2, sharding="none")
    assert cut["attention"] == pytest.approx(
        whole["attention"], rel=0.01
    )  # as much work: half the heads of whole sequences, twice the samples


def test_on_processors_nothing_overlaps_and_no_context_is_held() -> None:
    stack = find_stack("torchtitan").on_processors()
    assert (
        stack.dp_overlap,
        stack.fsdp_overlap,
        stack.context_bytes,
        stack.fragmentation_frac,
    ) == (0.0, 0.0, 0.0, 0.0)
    assert stack.gradient_bytes == find_stack("torchtitan").gradient_bytes


def test_copies_around_gathers_and_scatters(pool: Pool) -> None:
    """A million bytes among 1, 2 and 4 ranks: gathers copy 2, 3 and 2.5 million, scatters 6, 3.5
    and 2.75."""
    chip, ranks = pool.node.chip, np.array([1, 2, 4])
    bytes_per_s = chip.memory_bytes_per_s * chip.memory_efficiency
    assert shard_copies_s(chip, np.full(3, 1e6), ranks, "gather") * bytes_per_s == pytest.approx(
        [2e6, 3e6, 2.5e6]
    )
    assert shard_copies_s(chip, np.full(3, 1e6), ranks, "scatter") * bytes_per_s == pytest.approx(
        [6e6, 3.5e6, 2.75e6]
    )


def test_fully_shard_has_a_collective_for_each_layer_and_the_ends(pool: Pool) -> None:
    """Whole buckets would take one all-reduce of 0.1 ms; four layers and the ends take five."""
    row, stack = (
        Layouts.of([Layout(dp=2, sharding="none", mbs=4, gbs=8)]),
        find_stack("embedded").on_processors(),
    )
    one, five = (
        data_exchange_s(
            row, np.array([1e5]), np.zeros(1), pool=pool, stack=stack, precision="fp32", units=units
        )
        for units in (1.0, 5.0)
    )
    assert np.concatenate((one[0], five[0])) == pytest.approx([1e-4, 5e-4])


def test_zero3_gathers_and_scatters_the_ends_too(pool: Pool) -> None:
    """Embedding and head of the tiny Llama: twice 2048 * 256 weights of 4 bytes. Host 1.5 and 3 ms
    against 1 and 2 of a layer that gathers nothing, copies 3 + 3 + 3.5 passes over their bytes."""
    whole, shared = terms(pool, dp=2, sharding="none"), terms(pool, dp=2, sharding="zero3")
    chip = pool.node.chip
    copies = 9.5 * 2 * 2048 * 256 * 4 / (chip.memory_bytes_per_s * chip.memory_efficiency)
    assert shared["head"] - whole["head"] > 1.5 * MS + copies
