"""What a training software runs where nobody says."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.search.problem import resolve
from meshwright.search.request import PlanRequest
from meshwright.search.rules.software import usual_attention
from meshwright.values.stack import find_stack


@pytest.mark.parametrize(
    ("stack", "cluster", "seq_len", "kernel"),
    [
        ("megatron", "h100:8", 4096, "flash"),
        ("megatron-legacy", "a100-80:8", 2048, "fused-softmax"),
        ("megatron-deepspeed", "a100-80:8", 2048, "fused-softmax"),
        ("llm-foundry", "a100-40:8", 2048, "flash1"),
        ("neuron", "trainium1:16", 4096, "fused-softmax"),
        ("neuron", "trainium1:16", 8192, "flash"),
        ("megatron", "v100-32:8", 2048, "fused-softmax"),
        ("fsdp", "v100-32:8", 2048, "flash"),
    ],
)
def test_a_plan_takes_the_software_s_own_attention(
    stack: str, cluster: str, seq_len: int, kernel: str
) -> None:
    asked: dict[str, Any] = {"model": "llama2-7b", "seq_len": seq_len, "gbs": 64}
    request = PlanRequest(cluster=cluster, stack=stack, **asked)
    assert resolve(request).setting.work.attention == kernel
    named = PlanRequest(cluster=cluster, stack=stack, attention="unfused", **asked)
    assert resolve(named).setting.work.attention == "unfused"


def test_words_of_a_run_stand_before_the_software_s_own() -> None:
    stack = find_stack("megatron-deepspeed")
    told = usual_attention(stack, seq_len=2048, has_flash=True, kernels="unfused")
    assert told == "unfused"
