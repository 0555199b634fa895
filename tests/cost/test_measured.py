"""What a profile says of the embedded trainer, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.hardware.profiles import PROCESSOR, line, profile

from meshwright.cost.collectives import all_reduce_s, all_to_all_s, group_of, point_to_point_s
from meshwright.cost.feedforward import mlp_parts
from meshwright.cost.measured import host_ends_s, host_layer_s, host_sharded_s, host_step_s, kind_of_activations, own_s
from meshwright.cost.once import gathered_bytes
from meshwright.cost.operators import Site, as_measured
from meshwright.cost.shapes import Shapes
from meshwright.cost.step import price
from meshwright.hardware.cluster import Pool
from meshwright.hardware.profile import Profile, Sample, Series
from meshwright.layout import Layout, Layouts
from meshwright.models.presets import find_model
from meshwright.models.spec import Block
from meshwright.search.profiled import local_pool
from meshwright.stack import find_stack
from meshwright.workload import Workload

MS = 1e-3
HOST_MS = {"plain": 1.0, "sharded": 1.5, "tensor": 5.0, "sequence": 6.0, "context": 1.5, "experts": 2.0, "ends": 0.5, "ends_tensor": 2.0}
"""Forward; backward twice that."""


def collective(name: str, *pairs: tuple[float, float]) -> Series:
    samples = tuple(Sample(point=(2.0, size), seconds=seconds, repeats=9) for size, seconds in pairs)
    return Series(name=f"collective/{name}", dims=("ranks", "bytes"), axes=((2.0,), tuple(size for size, _ in pairs)), samples=samples)


def found() -> Profile:
    plain = profile(PROCESSOR, "fp32")
    ways = (("", 1), ("_backward", 2))
    host = [line(f"host/{name}{way}", "layers", (1.0, ms * MS * times)) for name, ms in HOST_MS.items() for way, times in ways]
    step = line("host/step", "layers", (1.0, 2 * MS), (4.0, 4 * MS))
    names = ("swiglu", "residual", "rotary")
    pointwise = [line(f"{name}{way}/fp32", "elements", (1e3, times * 1e-6), (1e9, times * 1.0)) for name in names for way, times in ways]
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
    given = {"tp": 1.0, "sp": 0.0, "cp": 1.0, "ep": 1.0, "etp": 1.0, "mbs": 1.0, "pipelined": 0.0, "unchunked": 0.0} | changes
    return Shapes(**{name: np.array([value]) for name, value in given.items()})


@pytest.mark.parametrize(
    ("changes", "experts", "ms"),
    [
        ({}, False, 1.0),
        ({"tp": 2.0}, False, 5.0),
        ({"tp": 2.0, "sp": 1.0}, False, 6.0),
        ({"cp": 2.0}, False, 1.5),
        ({"tp": 2.0, "cp": 2.0}, False, 5.5),
        ({"cp": 2.0}, True, 2.5),
    ],
)
def test_a_layers_host_time_is_the_sum_of_what_its_axes_add(changes: dict[str, float], experts: bool, ms: float, pool: Pool) -> None:
    chip = pool.node.chip
    assert host_layer_s(chip, shapes(**changes), experts=experts, way="") == pytest.approx([ms * MS])
    assert host_layer_s(chip, shapes(**changes), experts=experts, way="_backward") == pytest.approx([2 * ms * MS])


def test_host_time_of_ends_shards_and_steps(pool: Pool) -> None:
    chip = pool.node.chip
    assert host_ends_s(chip, shapes(tp=2.0), "") == pytest.approx([2.0 * MS])
    assert host_ends_s(chip, shapes(), "_backward") == pytest.approx([1.0 * MS])
    assert host_sharded_s(chip, "") == pytest.approx(0.5 * MS)
    assert host_step_s(chip, np.array([1.0, 2.0, 4.0])) == pytest.approx([2 * MS, np.sqrt(8.0) * MS, 4 * MS])


def test_without_a_profile_nothing_is_known() -> None:
    chip = replace(local_pool(profile(PROCESSOR, "fp32")).node.chip)
    assert own_s(chip, "host/plain", 1.0) is None
    assert host_layer_s(chip, shapes(), experts=False, way="") is None
    assert host_ends_s(chip, shapes(), "") is None and host_sharded_s(chip, "") == 0.0
    assert [kind_of_activations(precision) for precision in ("tf32", "fp16", "fp8")] == ["fp32", "fp16", "bf16"]
    assert [gathered_bytes(precision) for precision in ("fp32", "tf32", "bf16", "fp8")] == [4.0, 4.0, 2.0, 2.0]


def test_collectives_of_processors_are_those_measured(pool: Pool) -> None:
    group = group_of(np.array([1.0, 2.0]), 1.0, pool)
    assert all_reduce_s(group, np.array([4e6, 4e6])) == pytest.approx([0.0, 1e-4])
    assert all_reduce_s(group, np.array([4e9, 4e9]))[1] == pytest.approx(0.1)
    assert all_to_all_s(group, np.array([0.0, 1e6]))[1] == pytest.approx(2e-4)
    assert point_to_point_s(pool, message_bytes=np.array([1e6]), distance=np.array([1.0]), span=np.array([2.0])) == pytest.approx([5e-5])


@pytest.mark.parametrize(("stack", "is_measured"), [("embedded", True), ("fsdp", False)])
def test_activations_are_those_measured(stack: str, is_measured: bool, pool: Pool) -> None:
    """4 samples of 64 tokens, 688 wide, a nanosecond an element forward and two backward."""
    work = Workload(seq_len=64, gbs=8, precision="fp32")
    site = Site(model=find_model("tiny-llama"), work=work, stack=find_stack(stack), pool=pool, shapes=shapes(mbs=4.0))
    (part,) = (part for part in mlp_parts(site, Block(kind="mlp")) if part.name == "feed-forward activation")
    assert (part.forward_s == pytest.approx([4 * 64 * 688e-9])) == is_measured
    assert (part.backward_s == pytest.approx([2 * 4 * 64 * 688e-9])) == is_measured
    assert as_measured(site, part, ("unknown", 1.0, (1.0,))) == part  # what the profile lacks stays


def terms(pool: Pool, **layout: Any) -> dict[str, float]:
    row = Layouts.of([Layout(**{"gbs": 8, "mbs": 4, **layout})])
    work, stack = Workload(seq_len=64, gbs=8, precision="fp32"), find_stack("embedded").on_processors()
    priced = price(row, model=find_model("tiny-llama"), pool=pool, work=work, stack=stack)
    return {name: float(seconds[0]) for name, seconds in priced.time.items()}


def test_what_a_step_shows_of_the_host(pool: Pool) -> None:
    """Four layers, one micro batch of 4 on each of two ranks, 5 us a launch: 4 * (1 + 2) ms less a launch for each of their kernels."""
    alone = terms(pool, dp=2, sharding="none")
    assert 0.9 * 12 * MS < alone["launch"] < 12 * MS
    assert alone["overhead"] == pytest.approx(4 * MS)
    assert terms(pool, dp=2, sharding="zero3")["fsdp_comm"] > 4 * 1.5 * MS
    assert terms(pool, tp=2, mbs=8)["launch"] > 4 * alone["launch"]


def test_tokens_are_swapped_for_heads_around_attention(pool: Pool) -> None:
    """cp = 2 by all-to-all: four exchanges of 0.2 ms forward and backward in each of four layers and one micro batch, and their copies."""
    cut = terms(pool, cp=2, mbs=8)
    assert 4 * 8 * 2e-4 < cut["cp_comm"] < 2 * 4 * 8 * 2e-4
    whole = terms(pool, dp=2, sharding="none")
    assert cut["attention"] == pytest.approx(
        whole["attention"], rel=0.01
    )  # as much work: half the heads of whole sequences, twice the samples


def test_on_processors_nothing_overlaps_and_no_context_is_held() -> None:
    stack = find_stack("torchtitan").on_processors()
    assert (stack.dp_overlap, stack.fsdp_overlap, stack.context_bytes, stack.fragmentation_frac) == (0.0, 0.0, 0.0, 0.0)
    assert stack.gradient_bytes == find_stack("torchtitan").gradient_bytes
