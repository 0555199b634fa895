"""Parameters of each rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost.cases import LLAMA, MOE, STACK

from meshwright.cost.stages import place_stages
from meshwright.cost.weights import StageParams, largest_matrix_share, layer_params, stage_params
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack


def of_stages(model: ModelSpec, *, stack: Stack = STACK, **layout: Any) -> StageParams:
    layouts = Layouts.of([Layout(gbs=1024, **layout)])
    return stage_params(model, stack, layouts, place_stages(layouts, model, which="all"))


@pytest.mark.parametrize(
    ("name", "pipelines"),
    [
        ("llama3-8b", (1, 2, 4, 32)),
        ("llama3.2-1b", (1, 4)),
        ("mixtral-8x7b", (1, 8)),
        ("deepseek-v2-lite", (1, 3, 9, 27)),
        ("gemma3-4b", (1, 2)),
        ("nemotron-h-8b", (1, 4)),
        ("qwen2-7b", (1, 7)),
        ("gpt-oss-20b", (1, 6)),
        ("mistral-7b", (1, 16)),
        ("llama4-maverick", (1, 8)),
    ],
)
def test_stages_sum_to_the_model(name: str, pipelines: tuple[int, ...]) -> None:
    """And a second copy of a tied table, which the last stage needs for the head."""
    model = find_model(name)
    for pp in pipelines:
        copy = model.vocab * model.hidden if model.tied and pp > 1 else 0
        assert of_stages(model, pp=pp).total.sum() == pytest.approx(
            model_params(model).total + copy, rel=1e-12
        )


def test_mixtral_is_46_7_billion() -> None:
    assert of_stages(find_model("mixtral-8x7b")).total.sum() == 46_702_792_704


def test_llama_stages_on_paper() -> None:
    """Four layers of attention 2 h (16 + 4) 64, feed-forward 3 h 3072 and two norms; a table at
    each end and the last norm."""
    layer = 2 * 1024 * (16 + 4) * 64 + 3 * 1024 * 3072 + 2 * 1024
    table = 32000 * 1024
    assert of_stages(LLAMA, pp=2).dense.tolist() == [[2 * layer + table, 2 * layer + table + 1024]]
    assert of_stages(LLAMA).dense.tolist() == [[4 * layer + 2 * table + 1024]]
    assert of_stages(LLAMA).expert.tolist() == [[0]]


def test_tensor_parallelism_cuts_matrices_and_copies_norms() -> None:
    matrices = 2 * 1024 * (16 + 4) * 64 + 3 * 1024 * 3072
    assert of_stages(LLAMA, tp=4).dense.tolist() == [
        [4 * (matrices / 4 + 2 * 1024) + 2 * 32000 * 1024 / 4 + 1024]
    ]


def test_padding_is_stored() -> None:
    """32000 to a multiple of 128 * 16: 32768."""
    padded = of_stages(LLAMA, tp=16, stack=replace(STACK, vocab_multiple=128)).total.sum()
    assert padded - of_stages(LLAMA, tp=16).total.sum() == 2 * 768 * 1024 / 16


def test_experts_split_over_ep_and_etp() -> None:
    """8 experts of 3 h 512 in each of 4 layers; ep = 4 holds two, etp = 2 a half of each; tp alone
    does not cut them."""
    experts = 4 * 8 * 3 * 1024 * 512
    assert of_stages(MOE).expert.tolist() == [[experts]]
    assert of_stages(MOE, ep=4, dp=4).expert.tolist() == [[experts / 4]]
    assert of_stages(MOE, ep=4, dp=4, tp=2, etp=2, sp=True).expert.tolist() == [[experts / 8]]
    assert of_stages(MOE, ep=4, dp=4, tp=2, etp=1, sp=True).expert.tolist() == [[experts / 4]]
    dense, expert = layer_params(MOE, MOE.segments[0], Layouts.of([Layout(ep=8, dp=8, gbs=8)]))
    assert expert.tolist() == [3 * 1024 * 512]
    assert dense.tolist() == [
        2 * 1024 * 20 * 64 + 2 * 1024 + 1024 * 8 + 3 * 1024 * 256
    ]  # attention, norms, router, shared expert


def test_dense_first_layers_have_no_experts() -> None:
    """DeepSeek-V2-Lite, 27 stages: the first has the dense layer."""
    params = of_stages(find_model("deepseek-v2-lite"), pp=27)
    assert params.expert[0, 0] == 0
    assert np.all(params.expert[0, 1:] == 64 * 3 * 2048 * 1408)


def test_positions_lie_with_the_embedding() -> None:
    learned = replace(LLAMA, positions="learned", max_positions=2048)
    extra = of_stages(learned, pp=2).total - of_stages(LLAMA, pp=2).total
    assert extra.tolist() == [[2048 * 1024, 0]]


@settings(max_examples=50)
@given(
    name=st.sampled_from(
        [
            "llama3-8b",
            "mixtral-8x7b",
            "deepseek-v2-lite",
            "gpt3-5b",
            "t5-2.8b",
            "bert-large",
            "nemotron-h-8b",
        ]
    ),
    power=st.integers(0, 3),
    pp=st.sampled_from([1, 2, 3, 4]),
    multiple=st.sampled_from([1, 128]),
)
def test_more_tensor_parallelism_never_adds_weights(
    name: str, power: int, pp: int, multiple: int
) -> None:
    model, stack = find_model(name), replace(STACK, vocab_multiple=multiple)
    less, more = (
        of_stages(model, stack=stack, tp=tp, pp=pp).total for tp in (2**power, 2 ** (power + 1))
    )
    assert np.all(more <= less)
    assert np.all(more > 0)


def test_the_largest_matrix_of_a_layer() -> None:
    """Llama 3 8B: 4096 * 14336 of 218.1 million; Mixtral's eight experts are one tensor, a third of
    nearly all of a layer."""
    dense = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert largest_matrix_share(find_model("llama3-8b")) == pytest.approx(4096 * 14336 / dense)
    mixture = dense + 7 * 3 * 4096 * 14336 + 8 * 4096
    assert largest_matrix_share(find_model("mixtral-8x7b")) == pytest.approx(
        8 * 4096 * 14336 / mixture
    )


def test_multi_token_prediction_has_an_embedding_of_its_own() -> None:
    """Behind the first stage it looks tokens up again; a tied head on the same stage is that table
    already."""
    table, own = 32000 * 1024, 3 * 1024 + 2 * 1024**2
    for tied in (False, True):
        plain, predicts = replace(LLAMA, tied=tied), replace(LLAMA, tied=tied, mtp_layers=1)
        layer = of_stages(plain).dense.sum() - of_stages(replace(plain, num_layers=3)).dense.sum()
        assert of_stages(predicts).dense.sum() - of_stages(plain).dense.sum() == layer + own
        more = (of_stages(predicts, pp=2).dense - of_stages(plain, pp=2).dense).tolist()
        assert more == [[0, layer + own + (0 if tied else table)]]


def test_multi_token_prediction_in_a_chunk_of_its_own() -> None:
    """Four stages, of which the third predicts and the fourth has the head; of two chunks each the
    third stage's second."""
    table, own = 32000 * 1024, 3 * 1024 + 2 * 1024**2
    model = replace(LLAMA, mtp_layers=1)
    layer = of_stages(LLAMA).dense.sum() - of_stages(replace(LLAMA, num_layers=3)).dense.sum()
    alone = of_stages(model, pp=4, layers_per_stage=(2, 2, 0, 0)).dense.tolist()
    assert alone == [[2 * layer + table, 2 * layer, layer + own + table, table + 1024]]
    folded = of_stages(model, pp=3, vpp=2, layers_per_stage=(1, 1, 1, 1, 0, 0)).dense.tolist()
    assert folded == [[2 * layer + table, layer + layer + own + table, layer + table + 1024]]
