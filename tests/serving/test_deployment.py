from __future__ import annotations

import pytest

from meshwright.serving.engine import (
    QUANTISATIONS,
    Quantisation,
    Worker,
    check_worker,
    engine_names,
    find_engine,
    quantisation,
)
from meshwright.values.errors import ConfigError, LayoutError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model, model_from_dims


def test_axes_multiply_to_the_chips() -> None:
    worker = Worker(tp=2, pp=3, ep=4, attention_dp=4)
    assert (worker.stage_chips, worker.chips, worker.expert_tp) == (8, 24, 2)
    assert worker.name == "tp=2,pp=3,ep=4,attention_dp=4"
    assert Worker().name == "tp=1"


def test_axes_that_do_not_divide_are_refused_with_those_that_do() -> None:
    with pytest.raises(LayoutError, match="ep=3 does not divide"):
        Worker(tp=4, ep=3)
    with pytest.raises(
        LayoutError, match="num_heads=64 is not divisible by tp=3; tp may be 1, 2, 4, 8"
    ):
        check_worker(Worker(tp=3), find_model("llama3.1-70b"))
    ten_key_heads = model_from_dims(
        num_layers=40, hidden=5120, num_heads=40, num_kv_heads=10, ffn=17920, vocab=32064
    )
    with pytest.raises(
        LayoutError,
        match=(
            r"num_kv_heads=10 neither divides tp=4 nor is divisible by it; tp may be 1, 2, 5, 10,"
            r" 20, 40$"
        ),
    ):
        check_worker(Worker(tp=4), ten_key_heads)
    check_worker(Worker(tp=2), ten_key_heads)
    check_worker(Worker(tp=16), find_model("llama3.1-70b"))  # 8 key heads, each on two chips
    with pytest.raises(LayoutError, match="ffn=1001 is not divisible by tp=2"):
        check_worker(
            Worker(tp=2),
            model_from_dims(num_layers=2, hidden=256, num_heads=4, ffn=1001, vocab=100),
        )
    with pytest.raises(LayoutError, match="has no experts"):
        check_worker(Worker(tp=2, attention_dp=2), find_model("llama3.1-70b"))
    with pytest.raises(ConfigError, match="tp=0: expected 1 or more"):
        Worker(tp=0)


def test_engines_are_found_by_the_names_that_tables_use() -> None:
    assert find_engine("TensorRT-LLM").name == "trtllm"
    assert find_engine("FasterTransformer").name == find_engine("ft").name == "fastertransformer"
    assert set(engine_names()) == {"vllm", "sglang", "trtllm", "fastertransformer", "transformers"}
    with pytest.raises(ConfigError, match="did you mean 'vllm'"):
        find_engine("vlm")


def test_quantised_experts_leave_attention_in_16_bits() -> None:
    assert quantisation("nvfp4", find_model("deepseek-v3")).attention == "bf16"
    assert quantisation("nvfp4", find_model("llama3.1-70b")).attention == "nvfp4"
    assert quantisation("mxfp4", find_model("gpt-oss-120b")).linear == "bf16"
    with pytest.raises(ConfigError, match="experts only"):
        quantisation("mxfp4", find_model("llama3.1-70b"))
    with pytest.raises(ConfigError, match="is no known quantisation"):
        quantisation("fp7", find_model("llama3.1-70b"))


def test_a_chip_without_the_unit_is_refused() -> None:
    model = find_model("llama3.1-70b")
    quantisation("int4", model).check(find_chip("a100-80"))
    with pytest.raises(ConfigError, match="a100-80 has no fp8 matrix unit"):
        quantisation("fp8", model).check(find_chip("a100-80"))
    assert all(Quantisation.bytes_of(weights) > 0 for weights in QUANTISATIONS)
