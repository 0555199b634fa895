"""What a request leaves open follows the chips."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.search.problem import resolve
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError


def asked(cluster: str, **given: object) -> PlanRequest:
    return resolve(
        PlanRequest.of(
            {"model": "llama2-7b", "cluster": cluster, "seq_len": 2048, "gbs": 64, **given}
        )
    ).request


@pytest.mark.parametrize(
    ("cluster", "stack", "precision", "attention"),
    [
        ("h100:8", "megatron-bridge", "bf16", "flash"),
        (
            "v100-32:8",
            "megatron-bridge",
            "fp16",
            "fused-softmax",
        ),  # Volta: no bf16 units (its data sheet), no flash attention
        ("t4:8", "megatron-bridge", "fp16", "fused-softmax"),
        ("mi300x:8", "primus", "bf16", "flash"),
        ("gaudi2:8", "megatron", "bf16", "flash"),
        ("tpu-v5p:8", "maxtext", "bf16", "flash"),
        ("ascend-910b3:8", "mindspeed", "bf16", "flash"),
        ("trainium2:16", "neuron", "bf16", "fused-softmax"),  # flash from 4,097 tokens on
    ],
)
def test_open_choices_follow_the_chip(
    cluster: str, stack: str, precision: str, attention: str
) -> None:
    found = asked(cluster)
    assert (found.stack, found.precision, found.attention) == (stack, precision, attention)


def test_torch_has_an_attention_without_scores_on_older_chips() -> None:
    assert asked("v100-32:8", stack="fsdp").attention == "flash"


def test_the_number_format_is_one_of_the_software() -> None:
    assert asked("v100-32:8", stack="torchtitan").precision == "fp32"
    assert asked("t4:8", stack="nanotron").precision == "fp32"


def test_tokens_are_dealt_as_the_software_s_own_benchmarks_deal_them() -> None:
    """NeMo AutoModel's recipes set fake_balanced_gate (examples/llm_benchmark); dense models have
    no routing to speak of."""
    asked_of = {"stack": "nemo-automodel", "model": "qwen3-30b-a3b"}
    assert asked("h100:8", **asked_of).routing == "in-turn"
    assert asked("h100:8", **asked_of, routing="balanced").routing == "balanced"
    assert asked("h100:8", stack="nemo-automodel").routing == "balanced"
    assert asked("h100:8", model="qwen3-30b-a3b").routing == "balanced"


def test_what_is_said_stays() -> None:
    found = asked("v100-32:8", precision="fp32", attention="unfused", stack="deepspeed")
    assert (found.precision, found.attention, found.stack) == ("fp32", "unfused", "deepspeed")


def test_several_kinds_take_what_all_have() -> None:
    found = plan(model="llama2-7b", cluster="a100:8,v100-32:8", seq_len=2048, gbs=64, top=1).request
    assert (found.precision, found.attention) == ("fp16", "fused-softmax")
    assert found.stack == "megatron-bridge"
    unlike = plan(model="llama2-7b", cluster="h100:8,mi300x:8", seq_len=2048, gbs=64, top=1).request
    assert unlike.stack == "megatron"  # of two makers


@pytest.mark.parametrize(
    ("cluster", "given", "message"),
    [
        (
            "v100-32:8",
            {"precision": "bf16"},
            "v100-32 has no bf16 matrix unit; precision may be fp32, tf32, fp16",
        ),
        (
            "h100:8",
            {"precision": "fp8", "stack": "nanotron"},
            "precision=fp8: stack nanotron has fp32, bf16",
        ),
        (
            "tpu-v5p:8",
            {"stack": "megatron"},
            "stack megatron does not run on tpu-v5p; --stack maxtext or fsdp",
        ),
    ],
)
def test_what_a_chip_has_not_is_refused(
    cluster: str, given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(cluster, **given)
