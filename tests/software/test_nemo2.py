from __future__ import annotations

import ast
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
from meshwright.software.nemo2.export import NEMO2, recipe
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack
from meshwright.values.text import read_yaml, write_yaml


def nemo_plan(
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
    load_dir="/old",
    train_steps=5000,
    seed=7,
)
GOLDEN = {
    "dense": lambda: nemo_plan(settings=SETTINGS),
    "experts": lambda: nemo_plan("mixtral-8x7b", "h100:128", "tp=2,ep=8,etp=1,pp=4,vpp=2,mbs=1"),
    "latent": lambda: nemo_plan(
        "deepseek-v3",
        "h100:256",
        "tp=2,ep=16,etp=1,pp=8,mbs=1,layers_per_stage=8+8+8+8+8+8+8+5",
        gbs=512,
        seq_len=4096,
    ),
    "long-context": lambda: nemo_plan(
        "llama3.1-8b", "h100:16", "cp=8,mbs=1,recompute=full", seq_len=131072, gbs=16
    ),
    "fp8-fsdp": lambda: nemo_plan(
        "nemotron4-15b", "h100:64", "mbs=1,sharding=zero3", precision="fp8"
    ),
}


def test_exchange_of_context_is_a_field_of_the_model() -> None:
    """MegatronStrategy has no such argument; GPTConfig, a TransformerConfig, has it."""
    plan = nemo_plan(layout="cp=2,mbs=1")
    plan = replace(plan, work=replace(plan.work, cp_comm_type="all_gather"))
    tree = read_yaml(export_plan(plan, target=NEMO2).files[1].text, what="recipe")
    assert tree["model"]["config"]["cp_comm_type"] == "all_gather"
    assert "cp_comm_type" not in tree["trainer"]["strategy"]
    check_round_trip(plan, target=NEMO2, source=NEMO2_SOURCE, file=1)
    levels = nemo_plan(layout="cp=16,mbs=1")
    levels = replace(levels, work=replace(levels.work, cp_comm_type="a2a+p2p"))
    with pytest.raises(CannotExpress, match=r"a2a\+p2p"):
        export_plan(levels, target=NEMO2)


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    exported = export_plan(GOLDEN[case](), target=NEMO2)
    check_golden(exported, case)
    ast.parse(exported.files[0].text)


@pytest.mark.parametrize(
    ("model", "layout", "config"),
    [
        (
            "t5-2.8b",
            "tp=2,mbs=4",
            {"encoder_num_layers": 24, "seq_length_dec": 128, "max_position_embeddings": 512},
        ),
        ("mt5-390m", "mbs=4", {"encoder_num_layers": 12, "vocab_size": 250112}),
        ("bert-4b", "tp=2,pp=2,mbs=4", {"bert_binary_head": True, "add_pooler": True}),
    ],
)
def test_t5_and_bert_come_back_as_they_were_written(
    model: str, layout: str, config: dict[str, Any]
) -> None:
    plan = nemo_plan(model, "h100:16", layout, seq_len=512, gbs=512)
    exported = export_plan(plan, target=NEMO2)
    ast.parse(exported.files[0].text)
    values = read_yaml(exported.files[1].text, what="yaml")
    assert config.items() <= values["model"]["config"].items()
    assert values["data"].get("seq_length_dec") == values["model"]["config"].get("seq_length_dec")
    read = import_text(exported.files[1].text, source=NEMO2_SOURCE)
    assert replace(read.model, name=model) == plan.model and not read.passed_through
    assert all(read.layout[axis] == getattr(plan.layout, axis) for axis in ("tp", "pp", "mbs"))


@pytest.mark.parametrize(
    ("model", "layout", "said"),
    [
        ("t5-2.8b", "pp=2,mbs=1", "layout.pp=2"),
        ("t5-v1.1-xl", "mbs=1", "model.positions=relative"),
        ("bert-4b", "cp=2,mbs=1", "layout.cp=2"),
    ],
)
def test_what_t5_and_bert_cannot_be_there(model: str, layout: str, said: str) -> None:
    with pytest.raises(CannotExpress, match=said):
        export_plan(nemo_plan(model, "h100:16", layout, seq_len=512, gbs=512), target=NEMO2)


def test_script_and_yaml_name_the_same_targets_and_sizes() -> None:
    exported = export_plan(GOLDEN["dense"](), target=NEMO2)
    strategy = read_yaml(exported.files[1].text, what="yaml")["trainer"]["strategy"]
    calls = [
        node
        for node in ast.walk(ast.parse(exported.files[0].text))
        if isinstance(node, ast.Call) and node.args
    ]
    [script] = [call for call in calls if getattr(call.args[0], "id", "") == "MegatronStrategy"]
    plainly = {
        word.arg: word.value.value
        for word in script.keywords
        if isinstance(word.value, ast.Constant)
    }
    assert plainly == {key: value for key, value in strategy.items() if key in plainly}
    assert (plainly["tensor_model_parallel_size"], plainly["pipeline_model_parallel_size"]) == (
        2,
        2,
    )


@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"precision": "fp32"}, "precision=fp32", "precision=bf16"),
        (
            {"model": "t5-v1.1-xl", "layout": "tp=2,mbs=1", "seq_len": 512},
            "model.positions=relative",
            "--to nemo1",
        ),
        (
            {"settings": TrainingSettings(decay_style="linear")},
            "decay_style=linear",
            "decay_style=cosine",
        ),
        (
            {"settings": TrainingSettings(tokenizer="/t", tokenizer_kind="tiktoken")},
            "tiktoken",
            "tokenizer_kind=huggingface",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    changed: dict[str, Any], reason: str, nearest: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        export_plan(nemo_plan(**changed), target=NEMO2)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


@given(
    plans(
        models=(
            "llama3-8b",
            "llama3.1-8b",
            "gpt3-5b",
            "qwen2-7b",
            "qwen3-30b-a3b",
            "mixtral-8x7b",
            "deepseek-v2-lite",
            "deepseek-v3",
            "nemotron4-15b",
        ),
        stack="megatron-bridge",
        shardings=("none", "zero1", "zero2", "zero3"),
        recomputes=("", "recompute=full", "recompute=selective,recompute_modules=layernorm+mlp"),
        data=(Dataset(path="/data/web"),),
    )
)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_a_plan_is_read_back_from_yaml(plan: TrainingPlan) -> None:
    expressible(plan, NEMO2)
    check_round_trip(plan, target=NEMO2, source=NEMO2_SOURCE, file=1)


def test_data_tokenizer_and_folders_are_read_back() -> None:
    check_round_trip(GOLDEN["dense"](), target=NEMO2, source=NEMO2_SOURCE, file=1)


PUBLISHED = """
_target_: nemo.collections.llm.api.pretrain
_partial_: true
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config: {_target_: nemo.collections.llm.gpt.model.llama.Llama31Config70B}
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  devices: 8
  num_nodes: 32
  max_steps: 100
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 4
    virtual_pipeline_model_parallel_size: 5
    context_parallel_size: 2
    sequence_parallel: true
    ddp: {overlap_grad_reduce: true, use_distributed_optimizer: true}
  plugins: {precision: bf16-mixed, fp8: hybrid, fp8_recipe: delayed, grad_reduce_in_fp32: false}
data: {seq_length: 8192, global_batch_size: 512, micro_batch_size: 1}
optim:
  config: {lr: 3.0e-4}
  lr_scheduler: {warmup_steps: 2000, min_lr: 3.0e-5}
"""


def test_a_recipe_of_nemos_own_is_read() -> None:
    found = import_text(PUBLISHED, source=NEMO2_SOURCE)
    assert (found.model.name, found.num_chips, found.work.precision, found.work.gbs) == (
        "llama3.1-70b",
        256,
        "fp8",
        512,
    )
    assert {
        key: found.layout[key] for key in ("tp", "pp", "vpp", "cp", "sp", "sharding", "mbs")
    } == {**{"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "sp": True, "sharding": "zero1", "mbs": 1}}
    assert found.stack == "nemo"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("MixtralConfig8x7B", "mixtral-8x7b"),
        ("GPTConfig5B", "gpt3-5b"),
        ("Llama3Config8B", "llama3-8b"),
        ("Qwen3Config30B_A3B", "qwen3-30b-a3b"),
    ],
)
def test_models_are_known_by_their_configuration_classes(name: str, model: str) -> None:
    found = import_text(PUBLISHED.replace("Llama31Config70B", name), source=NEMO2_SOURCE)
    assert found.model.name == model


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Llama31Config70B", "Somebodys", "its dims are not in the file"),
        ("fp8_recipe: delayed", "fp8_recipe: magic", "fp8_recipe=magic"),
        (
            "precision: bf16-mixed, fp8: hybrid, fp8_recipe: delayed",
            "precision: int4",
            "precision=int4",
        ),
        ("devices: 8", "devices: auto", "expected a whole number"),
    ],
)
def test_a_recipe_that_no_plan_describes_is_refused_in_one_line(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        import_text(PUBLISHED.replace(old, new), source=NEMO2_SOURCE)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="_target_:\n model{}[]-1a|&*", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        import_text(text, source=NEMO2_SOURCE)


def test_nemos_own_classes_take_the_exports(tmp_path: Path) -> None:
    assert write_exports(megatron_plans("megatron-bridge"), NEMO2, tmp_path) >= 40
    run_loader("nemo2.py", tmp_path, variable="MESHWRIGHT_NEMO2", what=NEMO2.versions)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        # Classes of NeMo 2.5 (nemo/collections/llm/__init__.py) and their models.
        ("qwen2.Qwen2Config500M", "qwen2-0.5b"),
        ("qwen2.Qwen2Config1P5B", "qwen2-1.5b"),
        ("qwen2.Qwen25Config1P5B", "qwen2.5-1.5b"),
        ("qwen3.Qwen3Config600M", "qwen3-0.6b"),
        ("qwen3.Qwen3Config1P7B", "qwen3-1.7b"),
        ("qwen3.Qwen3Config30B_A3B", "qwen3-30b-a3b"),
        ("deepseek.DeepSeekV2Config", "deepseek-v2"),
        ("deepseek.DeepSeekV3Config", "deepseek-v3"),
        ("phi3mini.Phi3ConfigMini", "phi3-mini"),
        ("llama.Llama31Config405B", "llama3.1-405b"),
        ("llama.CodeLlamaConfig34B", "codellama-34b"),
        ("mistral.MistralNeMoConfig12B", "mistral-nemo-12b"),
        ("nemotron.Nemotron4Config340B", "nemotron4-340b"),
        ("base.GPTConfig126M", "gpt3-126m"),
    ],
)
def test_classes_are_the_models_of_their_names(name: str, model: str) -> None:
    tree = {
        "model": {"config": {"_target_": f"nemo.collections.llm.gpt.model.{name}"}},
        "trainer": {"devices": 8, "num_nodes": 1},
        "data": {"seq_length": 2048, "micro_batch_size": 1, "global_batch_size": 8},
    }
    assert NEMO2_SOURCE.read(write_yaml(tree)).model == find_model(model)


def test_checkpoints_are_the_ten_best_by_validation_loss() -> None:
    said = replace(SETTINGS, eval_steps=32, eval_interval=100)
    checkpoint = recipe(completed(nemo_plan(settings=said)))["log"]["ckpt"]
    assert (checkpoint["monitor"], checkpoint["mode"], checkpoint["save_top_k"]) == (
        *("val_loss", "min"),
        10,
    )
    assert checkpoint["filename"] == "{model_name}--{val_loss:.2f}-{step}-{consumed_samples}"
    assert checkpoint["save_last"] is True
    without = recipe(completed(nemo_plan(settings=replace(said, eval_steps=0))))
    assert "monitor" not in without["log"]["ckpt"]


def test_a_release_before_the_split_has_even_stages() -> None:
    for release, uneven in (("v2.3.0", False), ("v2.4.0", True), ("", True)):
        plan = nemo_plan(cluster="h100:24", layout="pp=3,mbs=1,layers_per_stage=11+11+10", gbs=64)
        plan = replace(plan, stack=replace(find_stack("nemo"), release=release))
        plan = completed(plan)
        if uneven:
            assert "pipeline_model_parallel_layout" in recipe(plan)["trainer"]["strategy"]
            continue
        with pytest.raises(
            CannotExpress, match=r"NeMo v2\.3\.0 has no pipeline_model_parallel_layout"
        ):
            recipe(plan)
