"""Words of published configs: DeepSeek-V3, Llama 3.1, gpt-oss, Kimi K2.5 and K3, Qwen3-VL."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.hf_checkpoint import checkpoint_of, context_of
from meshwright.values.models.huggingface import hf_reading
from meshwright.values.models.spec import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({}, None),
        # The factor of Llama 3.1's stretching is in the length already, YaRN's is not.
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                },
            },
            163840,
        ),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 0}}, 4096),
        ({"text_config": {"max_position_embeddings": 262144}}, 262144),
        ({"max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default"}}, 262144),
        ({"max_position_embeddings": -1}, None),
    ],
)
def test_the_longest_sequence(config: dict[str, Any], tokens: int | None) -> None:
    assert context_of(config) == tokens


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"text_config": {"dtype": "float32"}, "dtype": None}, "fp32"),
        ({}, None),
        (
            {
                "torch_dtype": "bfloat16",
                "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            },
            "fp8-blockwise",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "fp8"),
        (
            {
                "text_config": {
                    "quantization_config": {
                        "quant_method": "compressed-tensors",
                        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
                    }
                }
            },
            "int4",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "mxfp4-pack-quantized",
                }
            },
            "mxfp4",
        ),
        ({"dtype": "bfloat16", "quantization_config": {"quant_method": "hqq"}}, None),
    ],
)
def test_the_type_of_the_weights(config: dict[str, Any], weights: str | None) -> None:
    assert checkpoint_of(config) == weights


def test_a_reading_has_both_and_its_shape_is_the_same() -> None:
    plain = hf_reading(LLAMA, name="plain").spec
    told = hf_reading(
        LLAMA | {"max_position_embeddings": 4096, "torch_dtype": "float16"}, name="plain"
    ).spec
    assert (plain.context_tokens, plain.checkpoint) == (None, None)
    assert (told.context_tokens, told.checkpoint) == (4096, "fp16")
    assert plain == told


def test_the_catalogue_has_what_configs_say() -> None:
    found = {name: find_model(name) for name in ("llama3.1-8b", "deepseek-r1", "gpt-oss-120b")}
    assert [(one.context_tokens, one.checkpoint) for one in found.values()] == [
        (131072, "bf16"),
        (163840, "fp8-blockwise"),
        (131072, "mxfp4"),
    ]
    assert find_model("gpt3-126m").longest_tokens == 2048


def test_an_unknown_type_of_weights_is_refused() -> None:
    dims = {"num_layers": 2, "hidden": 64, "ffn": 64, "num_heads": 2, "num_kv_heads": 2}
    with pytest.raises(ConfigError, match="checkpoint=fp6: expected one of fp32"):
        ModelSpec(name="x", head_dim=32, vocab=100, checkpoint="fp6", **dims)  # type: ignore[arg-type]
