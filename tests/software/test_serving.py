from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.serving.engine import Worker, find_engine
from meshwright.serving.settings import Settings
from meshwright.software.serving import (
    ServedWorker,
    check_keys,
    check_words,
    engine_command,
    engine_options,
    engine_version,
    engines,
)
from meshwright.values.errors import CannotExpress, ConfigError, LayoutError, UnknownNameError
from meshwright.values.models.catalogue import named_model


def served(engine: str, **changes: Any) -> ServedWorker:
    values: dict[str, Any] = {
        **{
            "model": named_model("llama3.1-70b"),
            "path": "meta-llama/Llama-3.1-70B",
            "engine": find_engine(engine),
            "worker": Worker(tp=4),
        },
        **{"weights": "bf16", "cache": "bf16", "max_len": 5000, "max_sequences": 64, **changes},
    }
    return ServedWorker(**values)


def moe(engine: str, **axes: int) -> ServedWorker:
    return served(
        engine,
        model=named_model("deepseek-v3"),
        worker=Worker(**axes),
        weights="fp8-blockwise",
        cache="bf16",
    )


def words(asked: ServedWorker) -> str:
    return " ".join(engine_command(asked).words)


def test_vllm() -> None:
    assert (
        words(served("vllm"))
        == "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4 --dtype bfloat16"
        " --kv-cache-dtype bfloat16 --max-model-len 5000 --max-num-seqs 64"
        " --max-num-batched-tokens 8192 --gpu-memory-utilization 0.9 --port 8000"
    )
    assert "--quantization fp8 --kv-cache-dtype fp8" in words(
        served("vllm", weights="fp8", cache="fp8")
    )
    assert "--pipeline-parallel-size 2" in words(served("vllm", worker=Worker(tp=4, pp=2)))


def test_settings_in_each_engines_words() -> None:
    on = Settings(graphs=True, chunked_prefill=True, prefix_caching=True)
    off = Settings(graphs=False, chunked_prefill=False, prefix_caching=False)
    said = words(served("vllm", settings=off))
    assert "--enforce-eager --no-enable-chunked-prefill --no-enable-prefix-caching" in said
    said = words(served("vllm", settings=on))
    assert "--enforce-eager" not in said
    assert "--enable-chunked-prefill --enable-prefix-caching" in said
    said = words(served("sglang", settings=off))
    assert "--chunked-prefill-size -1 --disable-decode-cuda-graph --disable-radix-cache" in said
    assert "disable" not in words(served("sglang", settings=on))
    config = engine_command(served("trtllm", settings=off)).config or {}
    assert config["cuda_graph_config"] is None
    assert config["enable_chunked_prefill"] is False
    assert config["kv_cache_config"]["enable_block_reuse"] is False
    config = engine_command(served("trtllm", settings=on)).config or {}
    assert config["cuda_graph_config"]["max_batch_size"] == 64
    assert config["enable_chunked_prefill"] and config["kv_cache_config"]["enable_block_reuse"]


def test_settings_in_the_words_of_our_own_server() -> None:
    asked = served(
        "transformers",
        settings=Settings(batched_tokens=512, graphs=False, prefix_caching=True),
    )
    assert "--max-batched-tokens 512 --graphs off --prefix-caching on" in words(asked)
    with pytest.raises(CannotExpress, match="chunked_prefill=off: its scheduler cuts every prompt"):
        words(served("transformers", settings=Settings(chunked_prefill=False)))


def test_vllm_needs_room_for_its_sequences_and_for_whole_prompts() -> None:
    small = replace(find_engine("vllm"), chunk_tokens=32)
    with pytest.raises(CannotExpress, match="32 tokens of an iteration for 64 sequences"):
        words(replace(served("vllm"), engine=small))
    small = replace(find_engine("vllm"), chunk_tokens=2048)
    with pytest.raises(CannotExpress, match="2048 tokens of an iteration for whole requests of 50"):
        told = served("vllm", settings=Settings(chunked_prefill=False))
        words(replace(told, engine=small))


def test_vllm_spreads_experts_over_all_chips_or_none() -> None:
    spread = words(moe("vllm", tp=1, attention_dp=8, ep=8))
    assert "--tensor-parallel-size 1 --data-parallel-size 8 --enable-expert-parallel" in spread
    with pytest.raises(
        CannotExpress, match="ep=2 on 8 chips: experts are whole on one chip each, or cut over all"
    ):
        engine_command(moe("vllm", tp=8, ep=2))


def test_drafted_tokens_in_each_engines_words() -> None:
    """As vLLM's recipes, SGLang's page on DeepSeek and TensorRT-LLM's blog on R1's latency write
    three tokens of the model's own layers."""
    asked = {
        "model": named_model("deepseek-v3"),
        "worker": Worker(tp=8, ep=8),
        "weights": "fp8-blockwise",
        "drafted": 3,
    }
    assert '--speculative-config {"method": "mtp", "num_speculative_tokens": 3}' in words(
        served("vllm", **asked)
    )
    sglang = (
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
        " --speculative-num-draft-tokens 4"
    )
    assert sglang in words(served("sglang", **asked))
    config = engine_command(served("trtllm", **asked | {"cache": "fp8"})).config
    assert config is not None and config["speculative_config"] == {
        "decoding_type": "MTP",
        "num_nextn_predict_layers": 3,
    }
    with pytest.raises(
        ConfigError, match=r"llama3\.1-70b has no layers for multi-token prediction"
    ):
        served("vllm", drafted=3)


def test_sglang() -> None:
    assert (
        words(served("sglang"))
        == "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B --tp-size 4"
        " --dtype bfloat16 --kv-cache-dtype bf16 --context-length 5000 --max-running-requests 64"
        " --chunked-prefill-size 8192 --mem-fraction-static 0.88 --port 8000"
    )
    assert "--tp-size 8 --attn-dp-size 8 --ep-size 8" in words(
        moe("sglang", tp=1, attention_dp=8, ep=8)
    )
    assert "--max-running-requests 512" in words(
        moe("sglang", tp=1, attention_dp=8, ep=8)
    )  # 64 of each of 8 groups


def test_tensorrt_llm_has_a_file_for_what_has_no_flag() -> None:
    command = engine_command(served("trtllm", weights="fp8", cache="fp8"))
    assert (
        " ".join(command.words)
        == "trtllm-serve meta-llama/Llama-3.1-70B --backend pytorch --tp_size 4 --max_batch_size 64"
        " --max_seq_len 5000 --max_num_tokens 8192 --port 8000 --extra_llm_api_options"
        " extra_llm_api_options.yaml"
    )
    assert command.config == {
        "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.95},
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 64},
    }
    assert command.notes == (
        "meta-llama/Llama-3.1-70B must be a checkpoint that holds fp8 weights",
    )
    half = engine_command(served("trtllm")).config
    assert (
        half is not None
        and half["dtype"] == "bfloat16"
        and half["kv_cache_config"]["dtype"] == "auto"
    )
    spread = engine_command(replace(moe("trtllm", tp=1, attention_dp=8, ep=8), cache="fp8"))
    assert spread.config is not None and spread.config["enable_attention_dp"] is True
    assert "--tp_size 8 --ep_size 8" in " ".join(spread.words)


def test_transformers_is_split_by_torchrun() -> None:
    tiny = {"model": named_model("tiny-llama"), "path": "config.json"}
    assert (
        words(served("transformers", worker=Worker(tp=2), **tiny))
        == "python3 -m torch.distributed.run --standalone --nproc-per-node=2 -m"
        " meshwright.trainer.serving config.json --port 8000 --dtype bf16 --max-model-len 5000"
        " --max-num-seqs 64"
    )
    assert words(served("transformers", worker=Worker(), **tiny)).startswith(
        "python3 -m meshwright.trainer.serving config.json"
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("vllm", {"weights": "int4"}), "int4 weights: several formats of checkpoints hold such"),
        (("sglang", {"weights": "int8"}), "int8 weights"),
        (("vllm", {"weights": "fp8", "cache": "int8"}), "a int8 cache beside fp8 weights"),
        (
            ("trtllm", {"weights": "fp8", "cache": "bf16"}),
            "a bf16 cache beside fp8 weights; the nearest plan that it takes: cache=fp8",
        ),
        (("transformers", {"weights": "fp8", "cache": "fp8"}), "both are fp32, bf16 or fp16"),
        (("transformers", {"worker": Worker(tp=2, pp=2)}), "its plans split tensors alone"),
        (("transformers", {"worker": Worker(tp=16)}), "tp=16 does not divide num_kv_heads=8"),
        (("fastertransformer", {}), "engine that can be started"),
    ],
)
def test_what_an_engine_has_no_words_for_is_refused(
    asked: tuple[str, dict[str, Any]], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        engine_command(served(asked[0], **asked[1]))
    assert says in str(error.value)


def test_a_layout_that_no_engine_can_cut_is_refused() -> None:
    with pytest.raises(LayoutError, match="num_heads=64 is not divisible by tp=3"):
        served("vllm", worker=Worker(tp=3))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_users_words_are_checked(engine: str) -> None:
    with pytest.raises(UnknownNameError, match=r"--enforce-eagerly"):
        engine_command(served(engine, extra=("--enforce-eagerly",)))


def test_words_and_values_are_those_of_the_named_version() -> None:
    check_words(
        [
            "--enforce-eager",
            "--kv-cache-dtype=fp8",
            "--no-enable-prefix-caching",
            "--max-num-seqs",
            "-1",
        ],
        engines=("vllm",),
    )
    with pytest.raises(
        ConfigError, match=r"vllm 0\.32\.0: --kv-cache-dtype fp7: expected one of auto, float16"
    ):
        check_words(["--kv-cache-dtype", "fp7"], engines=("vllm",))
    with pytest.raises(UnknownNameError, match="did you mean 'kv_cache_config"):
        check_keys({"kv_cache_config": {"dtyp": "fp8"}}, engine="trtllm-yaml")
    check_words(
        ["--disaggregation-mode", "prefill", "--tensor-parallel-size", "2"],
        engines=("dynamo.vllm", "vllm"),
    )


def test_the_table_has_each_engine_in_one_version_with_its_source() -> None:
    for engine in [name for name in engines() if name != "transformers"] + [
        "trtllm-yaml",
        "dynamo.vllm",
        "dynamo.sglang",
        "dynamo.trtllm",
    ]:
        options = engine_options(engine).values()
        assert {option.version for option in options} == {engine_version(engine)}
        assert all(option.source for option in options)
    # Read off the sources by hand: names that engines have had for years.
    assert {"--tensor-parallel-size", "-tp", "--max-num-seqs", "--port"} <= set(
        engine_options("vllm")
    )
    assert {"--tp-size", "--mem-fraction-static", "--disaggregation-mode"} <= set(
        engine_options("sglang")
    )
