"""Counts by hand, and what holds for any model."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from tests.values.models.strategies import specs

from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import Params, block_params, head_params, model_params
from meshwright.values.models.spec import Block, MlaSpec, ModelSpec, MoeSpec

PLAIN = ModelSpec(
    name="plain", num_layers=2, hidden=8, ffn=16, num_heads=4, num_kv_heads=2, head_dim=2, vocab=100
)


def total_of_blocks(model: ModelSpec) -> float:
    return sum(
        segment.num_layers * count * block_params(model, block).total
        for segment in model.segments
        for block, count in segment.blocks
    )


def test_llama_layer_by_hand() -> None:
    attention = 8 * (4 + 2 + 2) * 2 + 8 * 8  # queries, keys and values, and the projection out
    params = model_params(PLAIN)
    assert params.attention == 2 * attention == 2 * 192
    assert params.mlp == 2 * 3 * 8 * 16
    assert params.norms == 2 * 2 * 8 + 8
    assert params.embedding == params.head == 800
    assert params.total == 384 + 768 + 40 + 1600


def test_gpt3_175b_by_hand() -> None:
    h, layers = 12288, 96
    params = model_params(find_model("gpt3-175b"))
    assert (
        params.layers == layers * (12 * h * h + 13 * h) + 2 * h
    )  # arXiv:2104.04473 section 5.1 counts a layer so
    assert params.total == params.layers + 50257 * h + 2048 * h
    assert params.head == 0


def test_t5_small_by_hand() -> None:
    attention, mlp = 4 * 512 * 512, 2 * 512 * 2048
    encoder = 6 * (attention + mlp + 2 * 512)
    decoder = 6 * (2 * attention + mlp + 3 * 512)
    relative = 2 * 32 * 8
    assert (
        model_params(find_model("t5-small")).total
        == 32128 * 512 + encoder + decoder + 2 * 512 + relative
        == 60_506_624
    )


def test_bert_base_by_hand() -> None:
    h = 768
    layers = 12 * (12 * h * h + 13 * h)
    embeddings = (30522 + 512 + 2) * h + 2 * h
    heads = (h * h + h + 2 * h + 30522) + (h * h + h) + (2 * h + 2)
    assert model_params(find_model("bert-base")).total == layers + embeddings + heads == 110_106_428


def test_mixture_of_experts_by_hand() -> None:
    model = replace(PLAIN, moe=MoeSpec(num_experts=8, top_k=2, expert_ffn=32, shared_ffn=16))
    params = model_params(model)
    assert params.experts == 2 * 8 * 3 * 8 * 32
    assert params.inactive_experts == params.experts * 6 // 8
    assert params.router == 2 * 8 * 8
    assert params.mlp == 2 * 3 * 8 * 16


def test_deepseek_v3_by_hand() -> None:
    query = 7168 * 1536 + 1536 + 1536 * 128 * 192
    keys = 7168 * (512 + 64) + 512 + 512 * 128 * 256
    attention = query + keys + 128 * 128 * 7168
    expert = 3 * 7168 * 2048
    params = model_params(find_model("deepseek-v3"))
    assert params.attention == 61 * attention
    assert params.experts == 58 * 256 * expert
    assert params.mlp == 3 * 3 * 7168 * 18432 + 58 * expert
    assert params.router == 58 * 256 * 7168
    assert params.active == pytest.approx(
        37.6e9, rel=0.005
    )  # 37 B in arXiv:2412.19437, where the embedding is left out


def test_latent_attention_without_query_compression() -> None:
    mla = MlaSpec(
        kv_lora_rank=4, q_lora_rank=None, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=2
    )
    assert model_params(replace(PLAIN, mla=mla)).attention == 2 * (
        8 * 4 * 3 + 8 * 5 + 4 + 4 * 4 * 4 + 4 * 2 * 8
    )


def test_norms_of_a_parallel_block() -> None:
    shared = replace(PLAIN, parallel_block=True, norms_per_layer=1)
    assert model_params(shared).norms == 2 * 8 + 8
    assert block_params(shared, Block(kind="mlp")).replicated == 0
    assert model_params(replace(shared, norms_per_layer=2)).norms == model_params(PLAIN).norms


def test_latent_experts() -> None:
    model = replace(
        PLAIN, gated=False, moe=MoeSpec(num_experts=4, top_k=1, expert_ffn=32, latent_dim=4)
    )
    params = model_params(model)
    assert params.experts == 2 * 4 * 2 * 4 * 32
    assert params.router == 2 * (8 * 4 + 2 * 8 * 4)


def test_layers_for_multi_token_prediction_are_apart() -> None:
    model = replace(PLAIN, mtp_layers=1)
    layer = model_params(PLAIN).layers - 8
    assert model_params(model).total == model_params(PLAIN).total
    assert model_params(model).mtp == layer // 2 + 2 * 8 * 8 + 3 * 8


@given(specs())
def test_parts_sum_to_the_total(model: ModelSpec) -> None:
    params = model_params(model)
    apart = {"mtp", "inactive_experts"}
    assert params.total == sum(
        getattr(params, field.name) for field in fields(Params) if field.name not in apart
    )
    assert all(getattr(params, field.name) >= 0 for field in fields(Params))


@given(specs())
def test_blocks_embedding_and_head_make_the_total(model: ModelSpec) -> None:
    params = model_params(model)
    final_norms = (
        model.hidden
        * (2 if model.norm == "layernorm" else 1)
        * (2 if model.family == "encoder-decoder" else 1)
    )
    rest = params.embedding + params.positions + head_params(model) + final_norms
    assert params.total == pytest.approx(
        total_of_blocks(model) + rest, abs=8
    )  # each of the parts is rounded once


@given(specs())
def test_active_is_no_more_than_the_total(model: ModelSpec) -> None:
    params = model_params(model)
    assert 0 < params.active <= params.total
    assert (params.active < params.total) == (params.inactive_experts > 0)


@given(specs())
def test_wider_vocabulary_adds_its_rows(model: ModelSpec) -> None:
    rows = 1 if model.tied else 2
    bias = int(model.mlm_head)
    more = replace(model, vocab=model.vocab + 10)
    assert model_params(more).total - model_params(model).total == 10 * (rows * model.hidden + bias)
