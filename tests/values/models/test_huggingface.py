"""Published configs give the shapes of the table; anything else gives one clear line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.values.models.hf_configs import CONFIGS

from meshwright.platforms.given import read_hf_config
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.hf_readers import READERS
from meshwright.values.models.huggingface import from_hf_config, hf_reading
from meshwright.values.models.params import model_params

LLAMA = CONFIGS["llama3-8b"]

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-2, 40)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["M*-", "ME", "gated-x"])
)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config_gives_the_preset(name: str) -> None:
    preset = find_model(name)
    spec = from_hf_config(CONFIGS[name], name=preset.name)
    assert spec == preset
    assert model_params(spec) == model_params(preset)


def test_text_part_of_a_model_of_several_media_is_said() -> None:
    reading = hf_reading(CONFIGS["gemma3-27b"], name="gemma")
    assert reading.notes == ("gemma: only the language model is read; vision_config is left out",)
    assert hf_reading(LLAMA, name="llama").notes == ()
    wrapped = {"model_type": "mistral3", "text_config": CONFIGS["mistral-7b-v0.3"]}
    assert hf_reading(wrapped, name="w").notes == (
        "w: only the language model is read; the wrapper around it is left out",
    )


def test_flat_config_with_a_vision_tower() -> None:
    config = CONFIGS["qwen1.5-14b"] | {"model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}
    reading = hf_reading(config, name="vl")
    assert reading.spec == replace(find_model("qwen1.5-14b"), name="vl")
    assert "vision_config is left out" in reading.notes[0]


def test_details_that_no_cost_hangs_on_are_read_for_exports() -> None:
    plain = LLAMA | {"rms_norm_eps": 1e-5, "rope_theta": 250000, "hidden_act": "silu"}
    assert hf_reading(plain, name="x").details == {
        "norm_eps": 1e-5,
        "activation": "silu",
        "rope_base": 250000.0,
    }
    stretched = hf_reading(
        plain | {"rope_scaling": {"rope_type": "llama3", "factor": 32.0}}, name="x"
    )
    assert (stretched.details["rope_scaling"], stretched.notes) == (32.0, ())
    yarn = hf_reading(plain | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, name="x")
    assert "rope_scaling" not in yarn.details
    assert yarn.notes == (
        "x: rope_scaling of type yarn is left out: exports rotate by rope_theta alone",
    )
    newer = LLAMA | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e9, "partial_rotary_factor": 0.5}
    }
    assert hf_reading(newer, name="x").details == {"rope_base": 1e9, "rope_share": 0.5}
    deepseek = {
        "topk_method": "noaux_tc",
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
    }
    routing = {
        "router_score": "sigmoid",
        "router_balance": "bias",
        "routed_scale": 2.5,
        "router_groups": 8,
        "router_top_groups": 4,
    }
    assert hf_reading(CONFIGS["deepseek-v3"] | deepseek, name="x").details == routing
    assert hf_reading(CONFIGS["llama4-maverick"], name="x").details == {"router_score": "sigmoid"}
    with pytest.raises(ConfigError, match="rope_theta='big': expected a positive number"):
        hf_reading(LLAMA | {"rope_theta": "big"}, name="x")


GRANITE = {
    "hidden_size": 1536,
    "intermediate_size": 512,
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}
SMOL = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
}
OLMOE = {
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
}


def published(kind: str, dims: str, **more: Any) -> dict[str, Any]:
    """A config by its layers, hidden size, feed-forward, heads, heads of keys and values, and
    vocabulary."""
    keys = (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    )
    return {"model_type": kind, **dict(zip(keys, map(int, dims.split()), strict=True)), **more}


DEEPSEEK_EXPERTS = {
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}
SIXTEENTH = {
    "head_dim": 128,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "moe_intermediate_size": 1408,
}
A13B = {
    "num_experts": 64,
    "moe_topk": [8] * 32,
    "moe_intermediate_size": [3072] * 32,
    "num_shared_expert": [1] * 32,
}
ERNIE = {
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}
MINICPM3 = {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}


@pytest.mark.parametrize(
    ("config", "billions", "near"),
    [
        (published("apertus", "32 4096 21504 32 8 131072"), 8.05, 0.01),
        (published("arcee", "36 2560 18432 20 4 128004", head_dim=128), 4.6, 0.05),
        (published("bailing_moe", "28 2048 5632 16 4 126464", **SIXTEENTH), 16.8, 0.05),
        (
            {
                "model_type": "codegen",
                "n_embd": 2560,
                "n_head": 32,
                "n_layer": 32,
                "n_positions": 2048,
                "vocab_size": 51200,
            },
            2.78,
            0.01,
        ),
        (
            published(
                "deepseek",
                "28 2048 10944 16 16 102400",
                **DEEPSEEK_EXPERTS,
                moe_intermediate_size=1408,
            ),
            16.4,
            0.05,
        ),
        (
            published(
                "dots1",
                "62 4096 10944 32 32 152064",
                **(DEEPSEEK_EXPERTS | {"n_routed_experts": 128}),
                moe_intermediate_size=1408,
            ),
            142,
            1,
        ),
        (published("ernie4_5", "18 1024 3072 16 2 103424", head_dim=128), 0.36, 0.01),
        (published("ernie4_5_moe", "28 2560 12288 20 4 103424", **ERNIE), 21.8, 0.05),
        (
            published("exaone", "32 4096 14336 32 8 102400")
            | {
                "num_hidden_layers": None,
                "num_layers": 32,
            },
            7.82,
            0.01,
        ),
        (published("exaone4", "64 5120 27392 40 8 102400", head_dim=128), 32, 0.05),
        (
            published(
                "hunyuan_v1_moe",
                "32 4096 3072 32 8 128167",
                tie_word_embeddings=True,
                use_mixed_mlp_moe=True,
                **A13B,
            ),
            80.4,
            0.05,
        ),
        (published("internlm3", "48 4096 10240 32 2 128512", head_dim=128), 8.8, 0.05),
        (published("minicpm", "40 2304 5760 36 36 122753"), 2.72, 0.01),
        (published("minicpm3", "62 2560 6400 40 40 73448", **MINICPM3), 4.07, 0.01),
        (published("ministral3", "34 4096 14336 32 8 131072", head_dim=128), 8.49, 0.01),
        (published("olmo3", "32 4096 11008 32 32 100278"), 7.3, 0.01),
    ],
)
def test_families_of_other_makers_count_what_their_cards_say(
    config: dict[str, Any], billions: float, near: float
) -> None:
    """Counts of the model cards, as far as these say digits."""
    assert model_params(from_hf_config(config, name="x")).total / 1e9 == pytest.approx(
        billions, abs=near
    )


def test_numbers_of_experts_that_differ_between_layers_are_refused() -> None:
    config = published("hunyuan_v1_moe", "32 4096 3072 32 8 128167", **A13B, use_mixed_mlp_moe=True)
    with pytest.raises(
        ConfigError, match=r"moe_topk=\[8, 4.*expected one value, or the same for each of 32 layers"
    ):
        from_hf_config(config | {"moe_topk": [8, 4] * 16}, name="x")


def test_a_wrapper_within_a_wrapper() -> None:
    text = CONFIGS["qwen3-30b-a3b"] | {"model_type": "qwen3_omni_moe_text"}
    config = {
        "model_type": "qwen3_omni_moe",
        "thinker_config": {"model_type": "qwen3_omni_moe_thinker", "text_config": text},
    }
    assert from_hf_config(config, name="x") == replace(find_model("qwen3-30b-a3b"), name="x")


def test_the_indexer_of_sparse_attention_is_said_to_be_left_out() -> None:
    config = CONFIGS["deepseek-v3"] | {
        "model_type": "deepseek_v32",
        "index_topk": 2048,
        "index_n_heads": 64,
        "index_head_dim": 128,
    }
    reading = hf_reading(config, name="x")
    assert reading.spec == replace(find_model("deepseek-v3"), name="x")
    assert (
        "x: attention is priced in full: the indexer that chooses 2048 tokens for each, and its"
        " weights, are left out" in reading.notes
    )


def test_scales_and_activations_that_no_export_writes_are_said() -> None:
    capped = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    assert hf_reading(LLAMA | capped, name="x").notes == (
        (
            "x: left out, as exports have no words and times hardly hang on them:"
            " attn_logit_softcapping, final_logit_softcapping"
        ),
    )
    gemma = hf_reading(CONFIGS["gemma2-9b"] | capped, name="g")
    assert gemma.notes == ()
    assert (gemma.details["score_cap"], gemma.details["logit_cap"]) == (50.0, 30.0)
    assert "activation xielu" in hf_reading(LLAMA | {"hidden_act": "xielu"}, name="x").notes[0]
    assert (
        hf_reading(
            LLAMA | {"hidden_act": "silu", "logits_scaling": 1.0, "scale_emb": 1}, name="x"
        ).notes
        == ()
    )


@pytest.mark.parametrize(
    "kind",
    [
        "qwen3_next",
        "kimi_linear",
        "falcon_h1",
        "jamba",
        "minimax_m1",
        "mllama_text_model",
        "gemma3n",
    ],
)
def test_layers_that_no_shape_holds_are_refused_by_what_they_are(kind: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^x: a model of model_type {kind} has .*which are not modelled$"
    ):
        from_hf_config(LLAMA | {"model_type": kind}, name="x")


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        # Of each layer 2 * 1536**2 + 2 * 1536 * 512 + 40 * 3 * 1536 * 512 + 1536 * 40 + norms, and
        # one embedding: 3.30 (3B-A800M).
        (
            GRANITE
            | {
                "model_type": "granitemoe",
                "num_local_experts": 40,
                "num_experts_per_tok": 8,
                "vocab_size": 49155,
            },
            3.299,
        ),
        (SMOL | {"model_type": "smollm3", "vocab_size": 128256}, 3.075),
        (
            OLMOE
            | {
                "model_type": "olmoe",
                "num_experts": 64,
                "num_experts_per_tok": 8,
                "vocab_size": 50304,
            },
            6.919,
        ),
    ],
)
def test_published_counts_of_models_without_a_preset(
    config: dict[str, Any], billions: float
) -> None:
    """Counts of the model cards: Granite 3.0 3B-A800M, SmolLM3-3B, OLMoE-1B-7B."""
    assert model_params(from_hf_config(config, name="x")).total / 1e9 == pytest.approx(
        billions, abs=6e-4
    )


def test_embedding_of_another_width_is_said() -> None:
    config = {
        "model_type": "opt",
        "ffn_dim": 4096,
        "hidden_size": 1024,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
    }
    reading = hf_reading(
        config | {"num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512},
        name="opt-350m",
    )
    assert reading.spec == find_model("opt-350m")
    assert "width 512" in reading.notes[0]


def test_layer_types_say_where_windows_are() -> None:
    config = CONFIGS["gemma2-9b"] | {
        "num_hidden_layers": 12,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    }
    assert from_hf_config(config, name="g").global_every == 6
    assert (
        from_hf_config(config | {"layer_types": ["sliding_attention"] * 12}, name="g").global_every
        == 0
    )
    assert (
        from_hf_config(config | {"layer_types": ["full_attention"] * 12}, name="g").window is None
    )
    mostly = hf_reading(
        config | {"layer_types": ["full_attention"] * 9 + ["sliding_attention"] * 3}, name="g"
    )
    assert mostly.notes == ("g: 9 of 12 layers see the whole sequence, the shape takes 6",)
    with pytest.raises(ConfigError, match="12 layers"):
        from_hf_config(config | {"layer_types": ["full_attention"]}, name="g")


def test_windows_of_qwen2_are_off_unless_switched_on() -> None:
    config = CONFIGS["qwen1.5-14b"] | {"sliding_window": 4096}
    assert from_hf_config(config, name="q").window is None
    assert from_hf_config(config | {"use_sliding_window": True}, name="q").window == 4096


def test_a_list_of_blocks_is_as_good_as_a_pattern() -> None:
    pattern = CONFIGS["nemotron-3-super"]
    kinds = {"M": "mamba", "E": "moe", "*": "attention"}
    blocks = {
        "hybrid_override_pattern": None,
        "layers_block_type": [kinds[letter] for letter in pattern["hybrid_override_pattern"]],
    }
    assert from_hf_config(pattern | blocks, name="n") == from_hf_config(pattern, name="n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "lama"},
            "'lama' is no known model_type of a Hugging Face config; did you mean 'llama'.*in x",
        ),
        ({"model_type": None}, "x: missing model_type"),
        ({"model_type": 3}, "model_type=3: expected a text"),
        (
            {"hidden_size": None, "vocab_size": None},
            r"x \(model_type llama\): missing hidden_size, vocab_size$",
        ),
        ({"hidden_size": "4096"}, "hidden_size='4096': expected a whole number"),
        ({"hidden_size": 4096.5}, "hidden_size=4096.5: expected a whole number"),
        ({"hidden_size": True}, "hidden_size=True: expected a whole number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1: expected a whole number from 1"),
        ({"vocab_size": 10**30}, "vocab_size=10+: expected a whole number from 1 to 100000000"),
        ({"num_key_value_heads": 5}, "num_heads=32 is not divisible by num_kv_heads=5"),
        (
            {"num_attention_heads": 30, "num_key_value_heads": 30},
            "30 heads do not divide hidden size 4096",
        ),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes': expected true or false"),
        ({"text_config": [1]}, r"text_config=\[1\]: expected an object"),
    ],
)
def test_messages(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf_config(LLAMA | change, name="x")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixtral-8x7b", {"num_local_experts": None}, "missing num_local_experts"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "top_k=9 is more than num_experts=8"),
        (
            "deepseek-v3",
            {"v_head_dim": None, "kv_lora_rank": None},
            "missing kv_lora_rank, v_head_dim",
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": [5]}, r"mlp_only_layers=\[5\]: only leading layers"),
        (
            "nemotron-h-8b",
            {"hybrid_override_pattern": "M-"},
            "the layer pattern has 2 layers, num_hidden_layers=52",
        ),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M?"}, r"layer of kind '\?'"),
        (
            "nemotron-h-8b",
            {"num_hidden_layers": 2, "hybrid_override_pattern": "-E"},
            "mixes dense and expert",
        ),
        ("nemotron-h-8b", {"hybrid_override_pattern": None}, "missing hybrid_override_pattern"),
        ("gpt2-xl", {"n_layer": None}, r"missing n_layer \(or num_hidden_layers\)"),
        ("gpt-neo-2.7b", {"attention_types": [[["local"], 0]]}, "attention_types: times=0"),
        ("gpt-neo-2.7b", {"attention_types": [["local"]]}, "attention_types"),
        (
            "mpt-7b",
            {"expansion_ratio": float("inf")},
            "expansion_ratio=inf: expected a positive number",
        ),
    ],
)
def test_messages_of_special_readers(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf_config(CONFIGS[name] | change, name="x")


def test_every_reader_is_tried_on_nothing() -> None:
    for kind in READERS:
        with pytest.raises(ConfigError, match="missing"):
            from_hf_config({"model_type": kind}, name="x")


def test_reading_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "llama3-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert (
        read_hf_config(folder).spec
        == read_hf_config(folder / "config.json").spec
        == find_model("llama3-8b")
    )
    assert read_hf_config(folder, name="mine").spec.name == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b" 2}', r"config.json: no JSON at line 2, column 6"),
        (b"", "no JSON at line 1, column 1"),
        (b"\xff\xfe{}", "config.json: no JSON"),
        (b"[" * 100_000, "config.json: no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "config.json: no JSON"),
        (b"[1, 2]", "expected a config with keys and values, got list"),
        (b"{}", "missing model_type"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_hf_config(file)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        read_hf_config(tmp_path)


def test_unknown_kind_is_named() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"'roberta' is no known model_type.*by its dims: `meshwright plan layers=32",
    ):
        from_hf_config(LLAMA | {"model_type": "roberta"}, name="x")


def read_or_complain(config: Any) -> None:
    try:
        spec = from_hf_config(config, name="any")
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert model_params(spec).total > 0
        assert spec.segments


@given(anything | st.dictionaries(st.text(max_size=6), anything, max_size=4))
def test_any_value_is_read_or_refused(config: Any) -> None:
    read_or_complain(config)


@settings(max_examples=400)
@given(st.data())
def test_any_change_of_a_real_config_is_read_or_refused(data: st.DataObject) -> None:
    config = dict(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3, unique=True)):
        config[key] = data.draw(anything)
    if data.draw(st.booleans()):
        config["model_type"] = data.draw(st.sampled_from(sorted(READERS)))
    read_or_complain(config)


def test_the_factor_of_rotations_is_read_and_the_clamp_goes_with_the_model() -> None:
    given = CONFIGS["gpt-oss-120b"]
    told = from_hf_config({**given, "rope_scaling": {"rope_type": "linear"}}, name="plain")
    spec = from_hf_config(given, name="gpt-oss")
    assert (spec.rotation_has_factor, told.rotation_has_factor) == (True, False)
    assert spec.moe is not None
    assert spec.moe.clamps_gate
    mixtral = find_model("mixtral-8x7b")
    assert mixtral.moe is not None
    assert not mixtral.moe.clamps_gate
    assert not replace(mixtral, attention_sinks=True).rotation_has_factor
