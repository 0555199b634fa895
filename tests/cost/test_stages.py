"""Layers and micro batches of each stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cost.cases import LLAMA, MOE

from meshwright.cost.chunks import even_chunks, folded, held_layers
from meshwright.cost.schedules import FORWARD, FULL, OPEN, PAIR, WGRAD, Pipeline, orders
from meshwright.cost.simulate import simulate
from meshwright.cost.stages import (
    SETTLED_AFTER,
    even_stage_layers,
    place_stages,
    segment_layers,
)
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec, MoeSpec


def split(total: int, pp: int, vpp: int = 1) -> list[int]:
    return [
        int(n)
        for n in even_stage_layers(np.arange(pp), total=total, pp=np.array(pp), vpp=np.array(vpp))
    ]


def in_flight(**layout: Any) -> list[float]:
    model = replace(LLAMA, num_layers=16)
    return [
        float(n)
        for n in place_stages(Layouts.of([Layout(**layout)]), model, which="all").in_flight[0]
    ]


def test_even_splits_on_paper() -> None:
    assert split(80, 16) == [5] * 16
    assert split(80, 16, 2) == [5] * 16  # 32 chunks: 16 of 3, 16 of 2
    assert split(80, 8, 5) == [10] * 8
    assert split(32, 1) == [32]


def test_the_rest_goes_to_the_last_stages_but_one() -> None:
    assert split(126, 16) == [
        7,
        *[8] * 14,
        7,
    ]  # Llama 3 405B, arXiv:2407.21783 section 3.3.2: one layer less on the first and the last
    assert split(61, 16) == [3, 3, *[4] * 13, 3]
    assert split(3, 2) == [2, 1]
    assert split(9, 4, 2) == [2, 2, 3, 2]
    assert split(13, 4, 2) == [3, 3, 4, 3]


@given(pp=st.integers(1, 64), vpp=st.integers(1, 8), extra=st.integers(0, 512))
def test_splits_lose_no_layer_and_are_even(pp: int, vpp: int, extra: int) -> None:
    layers = split(pp * vpp + extra, pp, vpp)
    assert sum(layers) == pp * vpp + extra
    assert max(layers) - min(layers) <= 1
    assert layers[-1] == min(layers)


def test_one_f_one_b_holds_fewer_further_down() -> None:
    """arXiv:2104.04473, section 2.2.1: at most pp, less one per stage; never more than there
    are."""
    assert in_flight(pp=4, gbs=8) == [4, 3, 2, 1]
    assert in_flight(pp=4, gbs=2) == [2, 2, 2, 1]
    assert in_flight(gbs=8) == [1]


def test_interleaving_holds_more() -> None:
    """Warm-up of 2 (pp - s - 1) + (vpp - 1) pp chunks and the one in work: 11, 9, 7, 5 chunks of
    half a stage."""
    assert in_flight(pp=4, vpp=2, gbs=8) == [5.5, 4.5, 3.5, 2.5]
    assert in_flight(pp=4, vpp=4, gbs=4) == [4, 4, 3.75, 3.25]  # 19, 17, 15, 13, of 16 at most


def test_gpipe_holds_all() -> None:
    assert in_flight(pp=4, gbs=8, schedule="gpipe") == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("pp", "vpp", "micro"), [(4, 1, 8), (4, 1, 2), (8, 1, 32), (4, 2, 8), (4, 4, 16), (8, 2, 16)]
)
def test_the_simulation_holds_as_many(pp: int, vpp: int, micro: int) -> None:
    chunks = pp * vpp
    pipeline = Pipeline(
        schedule="1f1b" if vpp == 1 else "interleaved",
        pp=pp,
        vpp=vpp,
        num_microbatches=micro,
        forward_s=[1.0] * chunks,
        backward_s=[2.0] * chunks,
        wgrad_s=[0.0] * chunks,
        link_s=0.0,
        p2p="overlapped",
    )
    assert [peak / vpp for peak in simulate(pipeline).peak_in_flight] == in_flight(
        pp=pp, vpp=vpp, gbs=micro
    )


def held_one_by_one(sizes: list[int], pp: int, stage: int, micro: int) -> int:
    """Run a stage's passes in order and count the layers that it holds after each forward pass."""
    own = sizes[stage::pp]
    vpp = len(own)
    rounds = range(0, micro, pp)
    forward = [chunk for _ in rounds for chunk in range(vpp) for _ in range(pp)]
    backward = [chunk for _ in rounds for chunk in reversed(range(vpp)) for _ in range(pp)]
    ahead = min(2 * (pp - stage - 1) + (vpp - 1) * pp + 1, len(forward))
    now = most = sum(own[chunk] for chunk in forward[:ahead])
    for new, done in zip(forward[ahead:], backward, strict=False):
        now += own[new] - own[done]
        most = max(most, now)
    return most


@given(
    pp=st.sampled_from([2, 3, 4, 8]),
    vpp=st.integers(2, 5),
    rounds=st.integers(1, 5),
    data=st.data(),
)
def test_unlike_chunks_are_held_as_their_turns_come(
    pp: int, vpp: int, rounds: int, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=pp * vpp, max_size=pp * vpp))
    found = held_layers(tuple(sizes), pp, rounds * pp)
    assert list(found) == [held_one_by_one(sizes, pp, stage, rounds * pp) for stage in range(pp)]
    assert held_layers(tuple(sizes), pp, SETTLED_AFTER * pp) == held_layers(
        tuple(sizes), pp, 9 * pp
    )


def test_a_chunk_of_the_head_alone_leaves_the_other_chunk_in_flight() -> None:
    """Six layers on 4 x 2 chunks, the first and the last empty: the last stage holds five of its
    one layer, not half as many."""
    model = replace(LLAMA, num_layers=6)
    layout = Layout(pp=4, vpp=2, gbs=8, layers_per_stage=(0, 1, 1, 1, 1, 1, 1, 0))
    stages = place_stages(Layouts.of([layout]), model, which="all")
    assert stages.layers.tolist() == [[1, 2, 2, 1]]
    assert stages.in_flight.tolist() == [[4.0, 4.5, 3.5, 5.0]]  # of 4, 9, 7 and 5 layers


def test_multi_token_prediction_is_held_with_its_chunk() -> None:
    """Its layer lies in the last chunk, or before the head's: a stage holds what one layer more in
    that chunk would be."""
    model = replace(LLAMA, num_layers=8, mtp_layers=1)
    for split, sizes in (
        (None, [1, 1, 1, 1, 1, 1, 1, 2]),
        ((1, 1, 1, 2, 1, 2, 0, 0), [1, 1, 1, 2, 1, 2, 1, 0]),
    ):
        stages = place_stages(
            Layouts.of([Layout(pp=4, vpp=2, gbs=8, layers_per_stage=split)]), model, which="all"
        )
        held = [held_one_by_one(sizes, 4, stage, 8) for stage in range(4)]
        assert (stages.in_flight * (stages.layers + stages.mtp)).tolist() == [
            [pytest.approx(layers) for layers in held]
        ]


def test_layers_left_over_are_held_as_their_chunks_are() -> None:
    """18 layers on 4 x 2 chunks of two: two more lie in the first chunks of the second and third
    stage."""
    model = replace(LLAMA, num_layers=18)
    stages = place_stages(Layouts.of([Layout(pp=4, vpp=2, gbs=8)]), model, which="all")
    held = [held_one_by_one([2, 3, 3, 2, 2, 2, 2, 2], 4, stage, 8) for stage in range(4)]
    assert (stages.in_flight * stages.layers).tolist() == [
        [pytest.approx(layers) for layers in held]
    ]


def test_representatives_are_ends_and_fullest() -> None:
    model = replace(LLAMA, num_layers=61)
    stages = place_stages(Layouts.of([Layout(pp=16, gbs=16), Layout(pp=1, gbs=16)]), model)
    assert stages.index.tolist() == [[0, 1, 2, 15], [0, 0, 0, 0]]
    assert stages.layers.tolist() == [[3, 3, 4, 3], [61] * 4]
    assert stages.first.tolist() == [[True, False, False, False], [True] * 4]


@given(
    prefix=st.integers(1, 6),
    rest=st.integers(1, 120),
    pp=st.integers(2, 40),
    vpp=st.integers(1, 4),
    explicit=st.booleans(),
)
@example(
    prefix=3, rest=58, pp=32, vpp=1, explicit=False
)  # stages of 1, 1, 2, ...: the third holds the last dense layer, the fourth two with experts
@example(prefix=3, rest=58, pp=32, vpp=1, explicit=True)
def test_the_stage_with_most_layers_behind_the_prefix_is_among_the_representatives(
    prefix: int, rest: int, pp: int, vpp: int, explicit: bool
) -> None:
    """What a stage of layers with experts holds at most is never missed: DeepSeek-V3 on 32 stages
    was, by a half."""
    total = prefix + rest
    if pp * vpp > total:
        return
    model = replace(
        MOE,
        num_layers=total,
        moe=MoeSpec(num_experts=8, top_k=2, expert_ffn=64, first_dense_layers=prefix),
    )
    sizes = tuple(
        int(n)
        for n in even_stage_layers(np.arange(pp), total=total, pp=np.array(pp), vpp=np.array(vpp))
    )
    layouts = Layouts.of(
        [Layout(pp=pp, vpp=vpp, gbs=pp, layers_per_stage=sizes if explicit and vpp == 1 else None)]
    )
    few, every = place_stages(layouts, model), place_stages(layouts, model, which="all")
    behind = every.layers[0] - every.prefix_layers[0]
    assert (few.layers[0] - few.prefix_layers[0])[:-1].max() >= behind[:-1].max() - (vpp > 1)


def test_all_stages_repeat_the_last_of_a_shorter_pipeline() -> None:
    stages = place_stages(
        Layouts.of([Layout(pp=2, gbs=8), Layout(pp=4, gbs=8)]),
        replace(LLAMA, num_layers=8),
        which="all",
    )
    assert stages.index.tolist() == [[0, 1, 1, 1], [0, 1, 2, 3]]
    assert stages.real.tolist() == [[True, True, False, False], [True] * 4]
    assert (stages.layers * stages.real).sum(axis=1).tolist() == [8, 8]


def test_explicit_splits_by_stage_and_by_chunk() -> None:
    model = replace(LLAMA, num_layers=8)
    by_stage = Layout(pp=4, gbs=8, layers_per_stage=(1, 3, 3, 1))
    by_chunk = Layout(
        pp=2, vpp=2, gbs=8, layers_per_stage=(1, 2, 3, 2)
    )  # chunks 0 and 2 lie on stage 0
    assert place_stages(Layouts.of([by_stage]), model, which="all").layers.tolist() == [
        [1, 3, 3, 1]
    ]
    assert place_stages(Layouts.of([by_chunk]), model, which="all").layers.tolist() == [[4, 4]]
    mixed = place_stages(Layouts.of([by_stage, Layout(pp=2, gbs=8)]), model)
    assert mixed.layers.tolist() == [[1, 3, 3, 1], [4, 4, 4, 4]]


def test_dense_first_layers_lie_in_front() -> None:
    """16 layers, 3 dense: two stages of a pipeline of 8; of 4 chunks of 4 the first."""
    model = replace(
        MOE,
        num_layers=16,
        moe=MoeSpec(num_experts=8, top_k=2, expert_ffn=512, first_dense_layers=3),
    )

    def prefix(**layout: Any) -> list[float]:
        return [
            float(n)
            for n in place_stages(
                Layouts.of([Layout(gbs=8, **layout)]), model, which="all"
            ).prefix_layers[0]
        ]

    assert prefix(pp=8) == [2, 1, 0, 0, 0, 0, 0, 0]
    assert prefix(pp=4) == [3, 0, 0, 0]
    assert prefix(pp=2, vpp=2) == [3, 0]
    assert prefix(pp=2, vpp=8) == [
        2,
        1,
    ]  # chunks of one: layers 0 and 2 on stage 0, layer 1 on stage 1
    assert prefix(pp=4, layers_per_stage=(1, 5, 5, 5)) == [1, 2, 0, 0]
    assert prefix(pp=2, vpp=2, layers_per_stage=(1, 1, 7, 7)) == [2, 1]


def test_an_encoder_comes_first() -> None:
    model: ModelSpec = find_model("t5-small")  # 6 and 6
    stages = place_stages(Layouts.of([Layout(pp=4, gbs=8)]), model, which="all")
    assert stages.prefix_layers.tolist() == [[3, 3, 0, 0]]
    assert stages.layers.tolist() == [[3, 3, 3, 3]]


def test_prefix_is_whole_on_any_number_of_stages() -> None:
    """61 layers of which 3 are dense: however the stages are cut, 3 dense layers lie on them, the
    last has one more behind."""
    model = find_model("deepseek-v3")
    for pp, vpp in ((1, 1), (4, 1), (16, 1), (32, 1), (60, 1), (4, 4), (8, 3)):
        stages = place_stages(Layouts.of([Layout(pp=pp, vpp=vpp, gbs=pp)]), model, which="all")
        dense, experts, ahead = (float(count.sum()) for count in segment_layers(model, stages))
        assert (dense, experts, ahead) == (3, 58, 1)


def test_layers_per_stage_are_dealt_to_chunks() -> None:
    """8 layers, 3 dense, 2 stages of 2 chunks: model order is 0 1 | 2 3 | 4 5 | 6 7, so stage 0 has
    dense layers 0 and 1, stage 1 has 2."""
    assert MOE.moe is not None
    model = replace(MOE, num_layers=8, moe=replace(MOE.moe, first_dense_layers=3))
    for split_of in (None, (4, 4), (2, 2, 2, 2)):
        stages = place_stages(
            Layouts.of([Layout(pp=2, vpp=2, gbs=4, layers_per_stage=split_of)]), model, which="all"
        )
        assert stages.prefix_layers.tolist() == [[2, 1]]


@pytest.mark.parametrize(("pp", "micro"), [(2, 4), (4, 8), (4, 20), (8, 60)])
def test_a_v_holds_what_its_order_says(pp: int, micro: int) -> None:
    """Forwards bring a chunk's layers, its backward (or the weight gradients put off) frees them;
    chunks of unlike sizes, with a layer of multi-token prediction in the last."""
    sizes = tuple(3 + (chunk * 5) % 4 for chunk in range(2 * pp))
    found = folded(sizes, prefix=0, mtp=1)
    own = (*sizes[:-1], sizes[-1] + 1)
    for stage, order in enumerate(
        orders("dualpipev", pp=pp, vpp=2, num_microbatches=micro, group=micro)
    ):
        held = most = 0
        for op in order.tolist():
            kind, chunk = divmod(op // micro, 2 * pp)
            held += own[chunk] * (int(kind in (FORWARD, OPEN)) - int(kind in (WGRAD, FULL, PAIR)))
            most = max(most, held)
        layers = own[stage] + own[2 * pp - 1 - stage]
        assert found.in_flight[stage] * layers == pytest.approx(most)


def test_a_v_ends_where_it_begins() -> None:
    """Of 8 chunks in a V the first stage holds the first and the last, with the head."""
    rows = Layouts.of(
        [Layout(pp=4, vpp=2, schedule="zero-bubble", layers_per_stage=(1, 2, 3, 4, 5, 6, 7, 4))]
    )
    stages = place_stages(rows, find_model("llama3-8b"), which="all")
    assert stages.layers[0].tolist() == [5, 9, 9, 9]
    assert stages.first[0].tolist() == stages.last[0].tolist() == [True, False, False, False]
    assert even_chunks(32, 4, 2) == (4,) * 8
