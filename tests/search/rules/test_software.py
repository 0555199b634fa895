"""What a training software runs where nobody says."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.search.problem import ask, resolve
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


@pytest.mark.parametrize(
    ("stack", "layout", "recompute", "modules", "sp"),
    [
        ("megatron", "tp=2,mbs=1", "none", (), True),
        ("megatron-legacy", "tp=2,mbs=1", "full", (), True),  # arXiv:1909.08053, section 4
        ("megatron-deepspeed", "tp=2,mbs=1", "none", (), False),
        ("maxtext", "mbs=1", "full", (), False),  # configs/base.yml: remat_policy
        ("torchtitan", "tp=2,mbs=1", "selective", ("ops",), True),
        ("torchtitan", "tp=2,mbs=1,recompute=none,sp=0", "none", (), False),
        (
            "megatron-legacy",
            "tp=2,mbs=1,recompute_modules=core_attn",
            "selective",
            ("core_attn",),
            True,
        ),
        # as plans are printed: what such a layout leaves out is off
        ("megatron-legacy", "tp=2,sp=1,dp=32,mbs=1,gbs=64", "none", (), True),
    ],
)
def test_a_layout_is_filled_in_as_the_software_s_own_configurations(
    stack: str, layout: str, recompute: str, modules: tuple[str, ...], sp: bool
) -> None:
    request = PlanRequest(
        model="llama2-7b", cluster="a100-80:64", stack=stack, seq_len=4096, gbs=64
    )
    found = ask(layout, resolve(request)).layout
    assert (found.recompute, found.recompute_modules, found.sp) == (recompute, modules, sp)


def test_automodel_recomputes_where_a_model_would_not_fit_otherwise() -> None:
    """llama3-70b on 8 H100: 70.6e9 parameters at 8 bytes, with gradients and states, take 65.7
    of 79 GiB a GPU."""
    asked: dict[str, Any] = {"stack": "nemo-automodel", "seq_len": 4096, "gbs": 64}
    small = resolve(PlanRequest(model="llama3-8b", cluster="h100:8", **asked))
    large = resolve(PlanRequest(model="llama3-70b", cluster="h100:8", **asked))
    assert ask("mbs=1", small).layout.recompute == "none"
    assert ask("mbs=1", large).layout.recompute == "full"
    assert ask("mbs=1,recompute=none", large).layout.recompute == "none"
