"""What memory is counted with is what the written files switch on."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from tests.software.examples import training_plan

from meshwright.software.accelerate.export import ACCELERATE
from meshwright.software.contract import Exported, ExportTarget, export_plan, import_text
from meshwright.software.deepspeed.export import DEEPSPEED
from meshwright.software.megatron_bridge.export import MEGATRON_BRIDGE
from meshwright.software.megatron_bridge.read import BRIDGE_SOURCE
from meshwright.software.megatron_lm.export import MEGATRON_LM, split_words
from meshwright.software.megatron_lm.read import MEGATRON_LM_SOURCE
from meshwright.software.nanotron.export import NANOTRON
from meshwright.software.nemo2.export import NEMO2
from meshwright.software.pai_megatron_patch.export import PAI
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import TrainingSettings
from meshwright.software.torchtitan.export import TORCHTITAN
from meshwright.values.errors import CannotExpress
from meshwright.values.text import read_yaml

CORE = {
    "megatron-lm": MEGATRON_LM,
    "pai-megatron-patch": PAI,
    "megatron-bridge": MEGATRON_BRIDGE,
    "nemo2": NEMO2,
}
CASES = [(name, stack) for name, target in CORE.items() for stack in target.stacks]


def plan_of(stack: str, **given: Any) -> TrainingPlan:
    return training_plan(
        "llama3-8b",
        "h100:64",
        "tp=2,mbs=1",
        **{"stack": stack, "megatron_version": "0.18", **given},
    )


def switched(exported: Exported, target: ExportTarget) -> dict[str, Any]:
    """Return what the files say of gradients, loss and weights, in one form for all targets."""
    variables = {variable.name: variable.value for variable in exported.environment}
    if target in (MEGATRON_LM, PAI):
        words = split_words(exported.command[1:])
        fused = "--cross-entropy-loss-fusion" in words
        loss = words.get("--cross-entropy-fusion-impl", ("native",))[0] if fused else None
        wide = (
            "--fp16" not in words or "--accumulate-allreduce-grads-in-fp32" in words
        )  # in bf16 the sums are fp32 unless said otherwise
        narrow, half = "--fp8-param-gather" in words, "--grad-reduce-in-bf16" in words or not wide
    elif target is MEGATRON_BRIDGE:
        values = read_yaml(exported.files[1].text, what="yaml")
        model, precision = values["model"], values["mixed_precision"]
        loss = (
            model.get("cross_entropy_fusion_impl") if model["cross_entropy_loss_fusion"] else None
        )
        narrow, half = precision["fp8_param_gather"], not precision["grad_reduce_in_fp32"]
    else:
        values = read_yaml(exported.files[1].text, what="yaml")
        model, precision = values["model"]["config"], values["trainer"]["plugins"]
        loss = (
            model.get("cross_entropy_fusion_impl") if model["cross_entropy_loss_fusion"] else None
        )
        narrow, half = (
            precision.get("fp8_param_gather", False),
            not precision["grad_reduce_in_fp32"],
        )
    return {
        "loss": loss,
        "narrow": narrow,
        "half": half,
        "switch": variables.get("NCCL_NVLS_ENABLE") != "0",
    }


@pytest.mark.parametrize(("name", "stack"), CASES)
@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp16"])
def test_memory_is_counted_with_what_is_written(name: str, stack: str, precision: str) -> None:
    """Gradients of two bytes, a loss without fp32 logits, weights without a second copy and no
    buffers of switches: each is written."""
    plan = plan_of(
        stack,
        precision=precision,
        settings=TrainingSettings(tokenizer="/tok", tokenizer_kind="huggingface"),
    )
    found = switched(export_plan(plan, target=CORE[name]), CORE[name])
    counted = plan.stack.in_precision(plan.work.precision)
    assert found["half"] == (counted.gradient_bytes == 2)
    assert found["loss"] == {0.0: "te", 8.0: "native", 4.0: None}[counted.logits_bytes]
    assert found["narrow"] == (precision == "fp8" and counted.narrow_weight_copies == 0)
    assert found["switch"] == counted.in_switch_reductions


def test_half_precision_without_bf16_has_the_plain_loss() -> None:
    """The fused loss of Megatron-Core hands back bf16 gradients."""
    words = split_words(
        export_plan(plan_of("megatron", precision="fp16"), target=MEGATRON_LM).command[1:]
    )
    assert "--cross-entropy-loss-fusion" not in words
    assert plan_of("megatron").stack.in_precision("fp16").logits_bytes == 4


def test_a_core_that_refuses_the_loss_gets_its_own_and_says_so() -> None:
    exported = export_plan(plan_of("nemo", megatron_version="0.19"), target=MEGATRON_LM)
    words = split_words(exported.command[1:])
    assert ("--cross-entropy-loss-fusion" in words, "--cross-entropy-fusion-impl" in words) == (
        True,
        False,
    )
    assert any(
        "Transformer Engine's loss, which keeps 8 bytes a logit less" in note
        for note in exported.notes
    )
    assert not any(
        "Transformer Engine's loss" in note
        for note in export_plan(plan_of("nemo"), target=MEGATRON_LM).notes
    )


def test_a_script_without_the_fused_loss_is_told_that_an_export_adds_it() -> None:
    text = export_plan(plan_of("megatron"), target=MEGATRON_LM).files[0].text
    assert import_text(text, source=MEGATRON_LM_SOURCE).warnings == ()
    [warning] = import_text(
        text.replace("    --cross-entropy-loss-fusion\n", ""), source=MEGATRON_LM_SOURCE
    ).warnings
    assert (
        "--cross-entropy-loss-fusion is off: the file's layout is priced without it; stack megatron"
        " counts on it" in warning
    )
    other = text.replace(
        "--cross-entropy-loss-fusion", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    )
    assert import_text(other, source=MEGATRON_LM_SOURCE).passed_through == (
        "--cross-entropy-fusion-impl",
        "te",
    )


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
    calls = [
        node for node in ast.walk(ast.parse(exported.files[0].text)) if isinstance(node, ast.Call)
    ]
    [compile_] = [
        call
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "CompileConfig"
    ]
    values = {word.arg: ast.literal_eval(word.value) for word in compile_.keywords}
    assert values == {"enable": compiled, "components": ["model", "loss"]}
    assert plan.stack.pointwise_fused is compiled
    variables = {variable.name for variable in exported.environment}
    assert plan.stack.in_switch_reductions
    assert "NCCL_NVLS_ENABLE" not in variables


def flat_plan(target: ExportTarget, layout: str, **given: Any) -> TrainingPlan:
    return training_plan(
        "llama3-8b", "h100:64", layout, **{"stack": target.stacks[0], "seq_len": 4096, **given}
    )


LLAMA3_8B_LAYER = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_deepspeed_is_told_what_memory_counts(precision: str, sharding: str) -> None:
    """Gradients add up in the type of compute; buckets are as large as counted; with stage 3 two
    layers are gathered at a time."""
    plan = flat_plan(DEEPSPEED, f"mbs=1,sharding={sharding},recompute=full", precision=precision)
    exported, counted = export_plan(plan, target=DEEPSPEED), plan.stack
    words = json.loads(exported.files[0].text)
    zero = words["zero_optimization"]
    assert words["data_types"] == {"grad_accum_dtype": precision}
    assert counted.gradient_bytes == counted.reduce_bytes == 2
    assert (zero["contiguous_gradients"], zero["overlap_comm"], counted.bucket_copies) == (
        True,
        True,
        2,
    )
    assert zero["reduce_bucket_size"] * 2 == counted.bucket_bytes
    live = [zero.get(f"stage3_{name}") for name in ("prefetch_bucket_size", "max_live_parameters")]
    assert live == ([LLAMA3_8B_LAYER, 2 * LLAMA3_8B_LAYER] if sharding == "zero3" else [None, None])
    assert "--gradient_checkpointing" in exported.command
    assert exported.command[exported.command.index("--optim") + 1] == "adamw_torch_fused"
    assert (counted.master_bytes, counted.moment_bytes) == (4, 8)


@pytest.mark.parametrize("sharding", ["none", "zero2", "zero3"])
def test_accelerate_runs_as_memory_counts(sharding: str) -> None:
    """Its FSDP reduces in the type of compute, over fp32 shards, and once a step; DDP reduces fp32
    gradients out of copies."""
    plan = flat_plan(ACCELERATE, f"mbs=1,sharding={sharding}")
    exported, counted = export_plan(plan, target=ACCELERATE), plan.stack
    words = read_yaml(exported.files[0].text, what="yaml")
    assert words["mixed_precision"] == "bf16"
    assert json.loads(exported.files[1].text)["torch_dtype"] == "float32"
    assert "fsdp_mixed_precision_policy" not in words.get("fsdp_config", {})
    assert "--accelerator_config" not in exported.files[2].text
    assert (counted.gradient_bytes, counted.reduce_bytes, counted.replicated_reduce_bytes) == (
        4,
        2,
        4,
    )
    assert (counted.reduction_deferred, counted.transient_gradient_bytes) == (True, 4)
    assert "'--optim',\n    'adamw_torch_fused'" in exported.files[2].text
    assert counted.step_bytes == 0
    if sharding != "none":
        assert words["fsdp_config"]["fsdp_reshard_after_forward"] == (sharding == "zero3")


def test_nanotron_runs_as_memory_counts() -> None:
    """fp32 sums beside bf16 gradients, inputs gathered anew in the backward pass, a fused
    optimizer, buffers of switches."""
    plan = flat_plan(NANOTRON, "tp=2,mbs=1")
    exported, counted = export_plan(plan, target=NANOTRON), plan.stack
    words = read_yaml(exported.files[0].text, what="yaml")
    assert words["optimizer"]["accumulate_grad_in_fp32"]
    assert (counted.gradient_bytes, counted.transient_gradient_bytes) == (4, 2)
    assert words["parallelism"]["tp_recompute_allgather"]
    assert words["optimizer"]["optimizer_factory"]["torch_adam_is_fused"]
    assert counted.step_bytes == 0
    assert words["model"]["dtype"] == "bfloat16"
    assert counted.in_switch_reductions
    assert "NCCL_NVLS_ENABLE" not in {variable.name for variable in exported.environment}
    with pytest.raises(CannotExpress, match="precision=fp32"):
        export_plan(flat_plan(NANOTRON, "tp=2,mbs=1", precision="fp32"), target=NANOTRON)
    assert counted.zero1_shards == "states-over-dp"
    stages = [
        read_yaml(
            export_plan(flat_plan(NANOTRON, f"tp=2,cp={cp},mbs=1,sharding=zero1"), target=NANOTRON)
            .files[0]
            .text,
            what="yaml",
        )
        for cp in (16, 32)
    ]
    assert [words["optimizer"]["zero_stage"] for words in stages] == [1, 0]


@pytest.mark.parametrize(
    ("target", "other"), [(DEEPSPEED, "fsdp"), (ACCELERATE, "fsdp"), (NANOTRON, "megatron")]
)
def test_a_plan_of_another_stack_is_told_what_memory_differs(
    target: ExportTarget, other: str
) -> None:
    axes = "tp=2,mbs=1" if target is NANOTRON else "mbs=1,sharding=zero3"
    [note] = [
        note
        for note in export_plan(flat_plan(target, axes, stack=other), target=target).notes
        if "counts memory with" in note
    ]
    assert f"stack {other}" in note
    assert f"--stack {target.stacks[0]} predicts" in note
    assert not any(
        "counts memory" in note
        for note in export_plan(flat_plan(target, axes), target=target).notes
    )
