"""Current families by their published configs: what our reader builds, against published counts and
against what Hugging Face transformers makes of the same config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model, find_preset
from meshwright.values.models.huggingface import from_hf_config, hf_reading
from meshwright.values.models.params import model_params
from meshwright.values.models.said_size import wrong_size

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("current_configs.json").read_text(encoding="utf-8")
)
NOT_IN_TRANSFORMERS = {
    "kimi-k3": "its code is with its weights",
    "minimax-m3": "the class is of another form of the config, checked by its defaults below",
    "mistral-small-4-119b": "the class has no language model of its own",
}
LEFT_OUT = {"deepseek-v3.2": 0.0013, "glm5.3-744b-a40b": 0.0003}
"""Indexers of sparse attention: 61 * (1536 * 8192 + 7168 * 192) of 671.9 B; of GLM-5.3 on every
fourth layer alone."""


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config_gives_the_preset(name: str) -> None:
    assert from_hf_config(CONFIGS[name], name=name) == find_model(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_the_published_ones(name: str) -> None:
    preset = find_preset(name)
    found = model_params(preset.spec).total
    assert found == pytest.approx(preset.published_params, rel=0.04)
    assert wrong_size(preset.spec) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in NOT_IN_TRANSFORMERS])
def test_parameters_are_those_that_transformers_makes(name: str) -> None:
    config = CONFIGS[name].get("text_config", CONFIGS[name])
    found = model_params(from_hf_config(CONFIGS[name], name=name)).total
    assert found == pytest.approx(_made(config), rel=LEFT_OUT.get(name, 2e-5) * 1.02)


@pytest.mark.slow
def test_minimax_m3_by_the_defaults_of_its_class() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = "minimax_m3_vl_text"
    config = {**CONFIG_MAPPING[kind]().to_dict(), "model_type": kind}
    assert model_params(from_hf_config(config, name="m")).total == _made(config)


def _made(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers makes of a config, without memory for them."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {key: value for key, value in config.items() if key != "model_type"}
    values.setdefault("tie_word_embeddings", False)
    made = CONFIG_MAPPING[config["model_type"]](**values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    model.tie_weights()
    return sum(weight.numel() for weight in model.parameters())


def test_delta_nets_by_hand() -> None:
    """Qwen3.5 27B: 48 of 64 layers with 16 key heads and 48 value heads of 128."""
    spec = find_model("qwen3.5-27b")
    params = model_params(spec)
    hidden, keys, values, heads = 5120, 16 * 128, 48 * 128, 48
    projected = hidden * (2 * keys + 2 * values + 2 * heads)  # q, k, v, gate; write, decay
    conv, small = 4 * (2 * keys + values), 2 * heads + 128
    assert params.delta == 48 * (projected + conv + small + values * hidden)
    # 24 heads of 256 and as many gates, 4 key-value heads, norms of a head
    attention = hidden * (2 * 24 + 2 * 4) * 256 + 24 * 256 * hidden + 2 * 256
    assert params.attention == 16 * attention
    assert params.mtp == attention + 3 * hidden * 17408 + 2 * hidden * hidden + 5 * hidden


def test_kimi_delta_attention_by_hand() -> None:
    """Kimi Linear 48B: 21 of 27 layers with 32 heads of 128, gates through 128."""
    spec = find_model("kimi-linear-48b-a3b")
    assert spec.delta is not None and spec.delta.num_layers == 21
    hidden, width, heads, dim = 2304, 32 * 128, 32, 128
    gates = 2 * (hidden * dim + dim * width)  # decay and output
    small = heads + width + dim  # log of the decay, its bias, norm
    layer = 4 * hidden * width + gates + hidden * heads + 3 * 4 * width + small
    assert model_params(spec).delta == 21 * layer


def test_heads_of_gemma_4_by_hand() -> None:
    """Gemma 4 31B: 10 of 60 layers see all, with 4 heads of 512 whose values are the keys."""
    hidden = 5376
    local = hidden * (32 + 2 * 16) * 256 + 32 * 256 * hidden + 2 * 256
    whole = hidden * (32 + 4) * 512 + 32 * 512 * hidden + 2 * 512
    assert model_params(find_model("gemma4-31b")).attention == 50 * local + 10 * whole


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hc_mult": 4}, "hc_mult: residuals in several streams"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers: keys and values that layers share"),
        ({"swa_num_attention_heads": 8}, "swa_num_attention_heads: other heads in layers with"),
        ({"layer_types": ["linear_attention"] * 32}, "layers of 'linear_attention'"),
        ({"linear_num_value_heads": 8}, "linear_num_value_heads: layers of linear attention"),
    ],
)
def test_keys_that_change_shapes_are_refused(config: dict[str, Any], words: str) -> None:
    llama = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    }
    assert hf_reading(llama, name="x").notes == ()
    with pytest.raises(ConfigError, match=words):
        hf_reading(llama | config, name="x")
    off = dict.fromkeys(config)
    assert hf_reading(llama | off, name="x").notes == ()


def test_keys_that_no_reader_knows_are_said() -> None:
    config = CONFIGS["smollm3-3b"] | {"warp_layers": 3, "warp_dim": 7, "warp_off": False}
    notes = hf_reading(config, name="x").notes
    assert "x: no reader knows warp_layers, warp_dim: left out" in notes
    said = [note for name in CONFIGS for note in hf_reading(CONFIGS[name], name=name).notes]
    unknown = [note for note in said if "no reader knows" in note]
    assert unknown == ["minimax-m3: no reader knows num_mtp_modules: left out"]


@pytest.mark.parametrize("kind", ["deepseek_v4", "mimo_v2_flash", "nemotron-nas", "step3p7"])
def test_families_without_a_shape_are_refused_by_what_they_are(kind: str) -> None:
    with pytest.raises(ConfigError, match="which are not modelled"):
        hf_reading({"model_type": kind, "hidden_size": 4096}, name="x")


def test_gemmas_with_embeddings_of_each_layer_are_refused() -> None:
    config = CONFIGS["gemma4-31b"]
    text = config["text_config"]
    for change in ({"hidden_size_per_layer_input": 256}, {"num_kv_shared_layers": 18}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            hf_reading(config | {"text_config": text | change}, name="x")
