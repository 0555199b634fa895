from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.software.examples import training_plan
from tests.software.frameworks import (
    check_golden,
    check_round_trip,
    expressible,
    megatron_plans,
    plans,
    run_loader,
    write_exports,
)

from meshwright.software.contract import export_plan, import_text
from meshwright.software.megatron_bridge.export import MEGATRON_BRIDGE
from meshwright.software.megatron_bridge.read import BRIDGE_SOURCE
from meshwright.software.megatron_core.layout import read_split
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.text import read_yaml


def bridge_plan(
    model: Any = "llama3-8b",
    cluster: str = "h100:64",
    layout: str = "tp=2,pp=2,mbs=1",
    **given: Any,
) -> TrainingPlan:
    return training_plan(model, cluster, layout, **{"stack": "megatron-bridge", **given})


SETTINGS = TrainingSettings(
    data=(Dataset(path="/data/web"), Dataset(path="/data/code", weight=0.5)),
    tokenizer="/tok/llama3",
    save_dir="/out",
    load_dir="/out",
    train_tokens=10**11,
    adam_beta2=0.98,
)
_FOUR_NORMS = {
    "name": "glm4-like",
    "num_layers": 8,
    "hidden": 1024,
    "ffn": 4096,
    "num_heads": 8,
    "num_kv_heads": 2,
    "vocab": 32000,
} | {
    "norms_per_layer": 4,
    "head_dim": 128,
}
GOLDEN = {
    "dense": lambda: bridge_plan(settings=SETTINGS),
    "experts": lambda: bridge_plan("mixtral-8x7b", "h100:128", "tp=2,ep=8,etp=1,pp=4,vpp=2,mbs=1"),
    "latent": lambda: bridge_plan(
        "deepseek-v3",
        "h100:256",
        "tp=2,ep=16,etp=1,pp=8,mbs=1,layers_per_stage=8+8+8+8+8+8+8+5",
        gbs=512,
        seq_len=4096,
    ),
    "long-context": lambda: bridge_plan(
        "llama3.1-8b", "h100:16", "cp=8,mbs=1,recompute=full", seq_len=131072, gbs=16
    ),
    "learned-positions": lambda: bridge_plan(
        "gpt3-5b", "a100-80:16", "tp=2,mbs=2", seq_len=2048, precision="fp16", stack="megatron"
    ),
    "gemma2": lambda: bridge_plan("gemma2-27b", "h100:64", "tp=4,pp=2,mbs=1"),
    "gemma3": lambda: bridge_plan("gemma3-27b", "h100:64", "tp=4,cp=2,mbs=1", seq_len=32768),
    "sinks": lambda: bridge_plan("gpt-oss-20b", "h100:32", "ep=8,cp=2,mbs=1", gbs=64),
    "fp8-fsdp": lambda: bridge_plan(
        "llama3-70b",
        "h100:64",
        "mbs=1,sharding=zero3,recompute=selective,recompute_modules=mlp",
        precision="fp8",
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=MEGATRON_BRIDGE), case)


def test_words_and_yaml_say_the_same() -> None:
    exported = export_plan(bridge_plan(settings=SETTINGS), target=MEGATRON_BRIDGE)
    values = read_yaml(exported.files[1].text, what="yaml")
    words = dict(line.split("=", 1) for line in exported.files[2].text.splitlines())
    assert (
        len(words)
        == sum(len(section) for name, section in values.items() if name != "mixed_precision") + 1
    )
    assert words["++mixed_precision"].startswith(
        '{_target_:"megatron.bridge.training.mixed_precision.MixedPrecisionConfig",bf16:true,'
    )
    assert (words["model.tensor_model_parallel_size"], words["checkpoint.save"]) == (
        "2",
        '"/out"',
    )


@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"precision": "tf32"}, "precision=tf32", "precision=bf16"),
        (
            {"model": "gemma2-9b", "layout": "cp=2,mbs=1"},
            "Gemma 2 refuses context parallelism",
            "cp=1",
        ),
        (
            {"model": _FOUR_NORMS, "layout": "mbs=1"},
            "activation=silu with norms_per_layer=4",
            "details.activation=gelu",
        ),
        (
            {"model": "t5-2.8b", "layout": "tp=2,mbs=1", "seq_len": 512},
            "encoder-decoder",
            "--to megatron-lm",
        ),
        ({"model": "gpt3-5b", "seq_len": 1024}, "max_positions=2048", "seq_len=2048"),
        ({"model": "bloom-7b1", "layout": "tp=2,mbs=1"}, "positions=alibi", "positions=rope"),
        (
            {"settings": TrainingSettings(decay_style="warmup-stable-decay")},
            "decay_style",
            "decay_style=cosine",
        ),
        (
            {"settings": TrainingSettings(tokenizer="/t", tokenizer_kind="bert-wordpiece")},
            "bert-wordpiece",
            "tokenizer_kind=huggingface",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    changed: dict[str, Any], reason: str, nearest: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        export_plan(bridge_plan(**changed), target=MEGATRON_BRIDGE)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


def test_the_split_of_a_pipeline_is_read_as_megatron_core_reads_it() -> None:
    assert read_split("Et*3|(tt|)*3t*4mL", what="x") == (3, 2, 2, 2, 4)
    assert read_split("E|t*7,|t*8|L", what="x") == (0, 7, 8, 0)
    with pytest.raises(ConfigError, match="expected E, t, m and L"):
        read_split("Et*3|x", what="x")


@given(
    plans(
        models=(
            "llama3-8b",
            "gpt3-5b",
            "qwen2-7b",
            "qwen3-30b-a3b",
            "mixtral-8x7b",
            "deepseek-v2-lite",
            "deepseek-v3",
            "mistral-7b",
            "nemotron4-15b",
            "gemma2-9b",
            "gemma3-12b",
            "gpt-oss-20b",
        ),
        stack="megatron-bridge",
        shardings=("none", "zero1", "zero2", "zero3"),
        recomputes=(
            "",
            "recompute=full",
            "recompute=full,recompute_method=block,recompute_layers=2",
            "recompute=selective,recompute_modules=layernorm+mlp",
            "recompute=selective,recompute_modules=core_attn",
        ),
    )
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_a_plan_is_read_back_from_yaml(plan: TrainingPlan) -> None:
    expressible(plan, MEGATRON_BRIDGE)
    check_round_trip(plan, target=MEGATRON_BRIDGE, source=BRIDGE_SOURCE, file=1)


def test_context_of_windows_is_exchanged_by_all_to_alls() -> None:
    plan = bridge_plan("mistral-7b", "h100:16", "cp=2,mbs=1")
    assert "cp_comm_type: a2a" in export_plan(plan, target=MEGATRON_BRIDGE).files[1].text
    check_round_trip(plan, target=MEGATRON_BRIDGE, source=BRIDGE_SOURCE, file=1)
    said = bridge_plan(layout="cp=2,mbs=1")
    said = replace(said, work=replace(said.work, cp_comm_type="all_gather"))
    assert "cp_comm_type: all_gather" in export_plan(said, target=MEGATRON_BRIDGE).files[1].text
    check_round_trip(said, target=MEGATRON_BRIDGE, source=BRIDGE_SOURCE, file=1)


def test_data_tokenizer_and_folders_are_read_back() -> None:
    counted = replace(SETTINGS, train_tokens=None, train_steps=1000)
    check_round_trip(
        bridge_plan(settings=counted), target=MEGATRON_BRIDGE, source=BRIDGE_SOURCE, file=1
    )


def test_experts_without_a_width_have_the_feed_forwards() -> None:
    """Megatron-Core's moe_ffn_hidden_size is ffn_hidden_size where it is not given."""
    exported = export_plan(bridge_plan("mixtral-8x7b"), target=MEGATRON_BRIDGE)
    lines = exported.files[1].text.splitlines(keepends=True)
    text = "".join(line for line in lines if "moe_ffn_hidden_size" not in line)
    moe = import_text(text, source=BRIDGE_SOURCE).model.moe
    assert moe is not None
    assert moe.expert_ffn == 14336


def test_unknown_words_are_passed_through_and_listed() -> None:
    text = (
        export_plan(bridge_plan(), target=MEGATRON_BRIDGE).files[1].text
        + "profiling:\n  use_nsys_profiler: true\n"
    )
    found = import_text(text, source=BRIDGE_SOURCE)
    assert found.passed_through == ("profiling.use_nsys_profiler=true",)
    assert found.settings.extra == found.passed_through


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_layers: 32", "num_layerz: 32", "num_layers is not given"),
        ("bf16: true", "bf16: false", "bf16_mixed"),
        ("hidden_size: 4096", "hidden_size: wide", "expected a whole number"),
        ("hidden_dropout: 0.0", "hidden_dropout: 0.1", "differ"),
        ("model:", "model: [", "no YAML"),
        (
            "position_embedding_type: rope",
            "position_embedding_type: magic",
            "position_embedding_type=magic",
        ),
    ],
)
def test_yaml_that_no_plan_describes_is_refused_in_one_line(
    old: str, new: str, message: str
) -> None:
    text = export_plan(bridge_plan(), target=MEGATRON_BRIDGE).files[1].text
    with pytest.raises(ConfigError, match=message) as caught:
        import_text(text.replace(old, new), source=BRIDGE_SOURCE)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="model:\n train_{}[]-1a|&*", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        import_text(text, source=BRIDGE_SOURCE)


def test_details_are_written_as_they_are_given() -> None:
    details = ModelDetails(
        aux_loss=0.5, router_score="sigmoid", router_balance="bias", routed_scale=2.0
    )
    exported = export_plan(
        bridge_plan("mixtral-8x7b", layout="ep=8,mbs=1", details=details), target=MEGATRON_BRIDGE
    )
    model = read_yaml(exported.files[1].text, what="yaml")["model"]
    assert model["moe_aux_loss_coeff"] == 0.5
    assert model["moe_router_topk_scaling_factor"] == 2.0
    assert (model["moe_router_score_function"], model["moe_router_enable_expert_bias"]) == (
        "sigmoid",
        True,
    )


def test_megatron_bridges_own_configuration_takes_the_exports(tmp_path: Path) -> None:
    plans_of_families = [(case, GOLDEN[case]()) for case in ("gemma2", "gemma3", "sinks")]
    assert (
        write_exports(
            [*megatron_plans("megatron-bridge"), *plans_of_families], MEGATRON_BRIDGE, tmp_path
        )
        >= 43
    )
    run_loader(
        "megatron_bridge.py",
        tmp_path,
        variable="MESHWRIGHT_MEGATRON_BRIDGE",
        what=MEGATRON_BRIDGE.versions,
    )
