"""What memory is counted with is what the written files switch on."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from tests.exports.examples import training_plan

from meshwright.exports import Exported, TrainingPlan, TrainingSettings, export_plan, import_text
from meshwright.exports.bridge import BRIDGE_SOURCE, MEGATRON_BRIDGE
from meshwright.exports.megatron_lm import MEGATRON_LM, MEGATRON_LM_SOURCE
from meshwright.exports.megatron_lm._write import split_words
from meshwright.exports.nemo2 import NEMO2
from meshwright.exports.pai import PAI
from meshwright.exports.target import ExportTarget
from meshwright.exports.titan import TORCHTITAN
from meshwright.yaml_text import read_yaml

CORE = {"megatron-lm": MEGATRON_LM, "pai-megatron-patch": PAI, "megatron-bridge": MEGATRON_BRIDGE, "nemo2": NEMO2}
CASES = [(name, stack) for name, target in CORE.items() for stack in target.stacks]


def plan_of(stack: str, **given: Any) -> TrainingPlan:
    return training_plan("llama3-8b", "h100:64", "tp=2,mbs=1", **{"stack": stack, "megatron_version": "0.18", **given})


def switched(exported: Exported, target: ExportTarget) -> dict[str, Any]:
    """Return what the files say of gradients, loss and weights, in one form for all targets."""
    variables = {variable.name: variable.value for variable in exported.environment}
    if target in (MEGATRON_LM, PAI):
        words = split_words(exported.command[1:])
        fused = "--cross-entropy-loss-fusion" in words
        loss = words.get("--cross-entropy-fusion-impl", ("native",))[0] if fused else None
        narrow, half = "--fp8-param-gather" in words, "--grad-reduce-in-bf16" in words
    elif target is MEGATRON_BRIDGE:
        values = read_yaml(exported.files[1].text, what="yaml")
        model, precision = values["model"], values["mixed_precision"]
        loss = model.get("cross_entropy_fusion_impl") if model["cross_entropy_loss_fusion"] else None
        narrow, half = precision["fp8_param_gather"], not precision["grad_reduce_in_fp32"]
    else:
        values = read_yaml(exported.files[1].text, what="yaml")
        model, precision = values["model"]["config"], values["trainer"]["plugins"]
        loss = model.get("cross_entropy_fusion_impl") if model["cross_entropy_loss_fusion"] else None
        narrow, half = precision.get("fp8_param_gather", False), not precision["grad_reduce_in_fp32"]
    return {"loss": loss, "narrow": narrow, "half": half, "switch": variables.get("NCCL_NVLS_ENABLE") != "0"}


@pytest.mark.parametrize(("name", "stack"), CASES)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_memory_is_counted_with_what_is_written(name: str, stack: str, precision: str) -> None:
    """Gradients of two bytes, a loss without fp32 logits, weights without a second copy and no buffers of switches: each is written."""
    plan = plan_of(stack, precision=precision, settings=TrainingSettings(tokenizer="/tok", tokenizer_kind="huggingface"))
    found = switched(export_plan(plan, target=CORE[name]), CORE[name])
    counted = plan.stack
    assert found["half"] == (counted.gradient_bytes == 2)
    assert found["loss"] == {0.0: "te", 8.0: "native", 4.0: None}[counted.logits_bytes]
    assert found["narrow"] == (precision == "fp8" and counted.narrow_weight_copies == 0)
    assert found["switch"] == counted.in_switch_reductions


def test_half_precision_without_bf16_has_the_plain_loss() -> None:
    """The fused loss of Megatron-Core hands back bf16 gradients."""
    words = split_words(export_plan(plan_of("megatron", precision="fp16"), target=MEGATRON_LM).command[1:])
    assert "--cross-entropy-loss-fusion" not in words
    assert plan_of("megatron").stack.in_precision("fp16").logits_bytes == 4


def test_a_core_that_refuses_the_loss_gets_its_own_and_says_so() -> None:
    exported = export_plan(plan_of("nemo", megatron_version="0.19"), target=MEGATRON_LM)
    words = split_words(exported.command[1:])
    assert ("--cross-entropy-loss-fusion" in words, "--cross-entropy-fusion-impl" in words) == (True, False)
    assert any("Transformer Engine's loss, which keeps 8 bytes a logit less" in note for note in exported.notes)
    assert not any("Transformer Engine's loss" in note for note in export_plan(plan_of("nemo"), target=MEGATRON_LM).notes)


def test_a_script_without_the_fused_loss_is_told_that_an_export_adds_it() -> None:
    text = export_plan(plan_of("megatron"), target=MEGATRON_LM).files[0].text
    assert import_text(text, source=MEGATRON_LM_SOURCE).warnings == ()
    [warning] = import_text(text.replace("    --cross-entropy-loss-fusion\n", ""), source=MEGATRON_LM_SOURCE).warnings
    assert "--cross-entropy-loss-fusion is not given; stack megatron counts on it" in warning
    other = text.replace("--cross-entropy-loss-fusion", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te")
    assert import_text(other, source=MEGATRON_LM_SOURCE).passed_through == ("--cross-entropy-fusion-impl", "te")


def test_gradients_follow_the_mixed_precision_of_bridge() -> None:
    """Its setup writes grad_reduce_in_fp32 over the one of `ddp`: a named recipe sums in fp32."""
    text = export_plan(plan_of("nemo"), target=MEGATRON_BRIDGE).files[1].text
    assert import_text(text, source=BRIDGE_SOURCE).stack == "nemo"
    start, end = text.index("mixed_precision:"), text.index("dataset:")
    named = f"{text[:start]}mixed_precision: bf16_mixed\n{text[end:]}"
    assert "grad_reduce_in_fp32: false" in named
    assert import_text(named, source=BRIDGE_SOURCE).stack == "megatron"


@pytest.mark.parametrize(("stack", "compiled"), [("torchtitan", True), ("fsdp", False)])
def test_torchtitan_compiles_where_memory_counts_on_it(stack: str, compiled: bool) -> None:
    plan = training_plan("llama3-8b", "h100:64", "mbs=1,sharding=zero3", stack=stack)
    exported = export_plan(plan, target=TORCHTITAN)
    calls = [node for node in ast.walk(ast.parse(exported.files[0].text)) if isinstance(node, ast.Call)]
    [compile_] = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "CompileConfig"]
    values = {word.arg: ast.literal_eval(word.value) for word in compile_.keywords}
    assert values == {"enable": compiled, "components": ["model", "loss"]}
    assert plan.stack.pointwise_fused is compiled
    variables = {variable.name for variable in exported.environment}
    assert plan.stack.in_switch_reductions
    assert "NCCL_NVLS_ENABLE" not in variables
