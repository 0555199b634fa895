from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.software.examples import training_plan
from tests.software.frameworks import check_golden, expressible, plans, run_loader, write_exports

from meshwright.software.accelerate.export import ACCELERATE
from meshwright.software.contract import ExportTarget, export_plan
from meshwright.software.deepspeed.export import DEEPSPEED
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import CannotExpress
from meshwright.values.models.huggingface import from_hf_config
from meshwright.values.text import read_yaml


def flat_plan(
    model: Any = "llama3-8b",
    cluster: str = "h100:64",
    layout: str = "mbs=1,sharding=zero3",
    **given: Any,
) -> TrainingPlan:
    return training_plan(
        model, cluster, layout, **{"stack": "accelerate", "seq_len": 4096, **given}
    )


def zero_plan(*args: Any, **given: Any) -> TrainingPlan:
    return flat_plan(*args, **{"stack": "deepspeed", **given})


SETTINGS = TrainingSettings(
    data=(Dataset(path="/data/web"),),
    tokenizer="/tok",
    save_dir="/out",
    load_dir="/out/checkpoint-5",
    train_steps=500,
    clip_gradient=0.5,
)
GOLDEN: dict[str, tuple[ExportTarget, Any]] = {
    "dense": (DEEPSPEED, lambda: zero_plan(settings=SETTINGS)),
    "recompute": (
        DEEPSPEED,
        lambda: zero_plan(
            "qwen3-8b", layout="mbs=2,sharding=zero2,recompute=full", precision="fp16"
        ),
    ),
    "experts": (DEEPSPEED, lambda: zero_plan("mixtral-8x7b", layout="mbs=1,sharding=zero3")),
    "fsdp": (ACCELERATE, lambda: flat_plan(settings=SETTINGS)),
    "replicas": (
        ACCELERATE,
        lambda: flat_plan("qwen2-7b", layout="mbs=1,sharding=hybrid,shard_size=8,recompute=full"),
    ),
    "long-context": (
        ACCELERATE,
        lambda: flat_plan(
            "llama3.1-8b", "h100:16", "cp=8,mbs=1,sharding=zero3", seq_len=131072, gbs=16
        ),
    ),
    "plain": (ACCELERATE, lambda: flat_plan("llama3.2-1b", "h100:8", "mbs=1,sharding=none")),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    target, plan = GOLDEN[case]
    exported = export_plan(plan(), target=target)
    check_golden(exported, case)
    for file in exported.files:
        if file.name.endswith(".py"):
            ast.parse(file.text)


@pytest.mark.parametrize("target", [DEEPSPEED, ACCELERATE], ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"layout": "tp=2,mbs=1,sharding=zero3"}, "tp=2", "tp=1"),
        ({"layout": "pp=2,mbs=1,sharding=none"}, "no pipeline", "pp=1"),
        ({"model": "mixtral-8x7b", "layout": "ep=8,mbs=1,sharding=zero3"}, "ep=8", "ep=1"),
        ({"model": "gpt3-5b", "seq_len": 2048}, "model.gated=False", "model.gated=True"),
        ({"model": "deepseek-v2-lite"}, "latent attention", "model.mla=None"),
        ({"model": "mistral-7b"}, "model.window=4096", "model.window=None"),
        ({"precision": "fp8", "stack": "fsdp"}, "precision=fp8", "precision=bf16"),
        (
            {"settings": TrainingSettings(decay_style="inverse-square-root")},
            "decay_style",
            "decay_style=cosine",
        ),
        (
            {"settings": TrainingSettings(data=(Dataset(path="/a"), Dataset(path="/b")))},
            "2 datasets",
            "data=/a",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    target: ExportTarget, changed: dict[str, Any], reason: str, nearest: str
) -> None:
    plan = (
        zero_plan(**changed) if target is DEEPSPEED else flat_plan(**{"stack": "fsdp", **changed})
    )
    with pytest.raises(CannotExpress) as caught:
        export_plan(plan, target=target)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


@pytest.mark.parametrize(
    ("target", "layout", "reason", "nearest"),
    [
        (DEEPSPEED, "cp=2,mbs=1,sharding=zero3", "Ulysses", "cp=1"),
        (DEEPSPEED, "mbs=1,sharding=hybrid,shard_size=8", "MiCS", "sharding=zero3"),
        (ACCELERATE, "mbs=1,sharding=none,recompute=full", "FSDP2 only", "sharding=zero2"),
    ],
)
def test_each_refuses_what_only_the_other_has(
    target: ExportTarget, layout: str, reason: str, nearest: str
) -> None:
    plan = zero_plan(layout=layout) if target is DEEPSPEED else flat_plan(layout=layout)
    with pytest.raises(CannotExpress) as caught:
        export_plan(plan, target=target)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


def test_the_batch_is_written_as_its_parts() -> None:
    # 128 sequences over 64 chips, one at a time: two rounds of accumulation
    words = json.loads(export_plan(zero_plan(), target=DEEPSPEED).files[0].text)
    assert (
        words["train_batch_size"],
        words["train_micro_batch_size_per_gpu"],
        words["gradient_accumulation_steps"],
    ) == (128, 1, 2)
    assert export_plan(zero_plan(), target=DEEPSPEED).command[-2:] == (
        "--deepspeed",
        "ds_config.json",
    )
    mesh = read_yaml(
        export_plan(GOLDEN["replicas"][1](), target=ACCELERATE).files[0].text, what="yaml"
    )["parallelism_config"]
    assert (
        mesh["parallelism_config_dp_replicate_size"],
        mesh["parallelism_config_dp_shard_size"],
    ) == (8, 8)


@given(
    plans(
        models=(
            "llama3-8b",
            "llama3.1-8b",
            "qwen2-7b",
            "qwen3-8b",
            "qwen3-30b-a3b",
            "mixtral-8x7b",
            "llama3.2-1b",
        ),
        stack="deepspeed",
        shardings=("none", "zero1", "zero2", "zero3"),
        recomputes=("", "recompute=full"),
    )
)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_the_models_config_is_read_back_by_our_own_reader(plan: TrainingPlan) -> None:
    chips, old = plan.cluster.num_chips, plan.layout
    flat = replace(
        old,
        tp=1,
        sp=False,
        cp=1,
        pp=1,
        vpp=1,
        ep=1,
        etp=None,
        layers_per_stage=None,
        dp=chips,
        gbs=old.mbs * chips,
    )
    exported = expressible(
        replace(plan, layout=flat, work=replace(plan.work, gbs=flat.gbs)), DEEPSPEED
    )
    found = from_hf_config(json.loads(exported.files[1].text), name=plan.model.name)
    assert found == plan.model


def many_plans(stack: str) -> list[tuple[str, TrainingPlan]]:
    models = (
        "llama2-7b",
        "llama3-8b",
        "llama3.1-8b",
        "llama3.1-70b",
        "qwen2-7b",
        "qwen3-0.6b",
        "qwen3-8b",
        "qwen3-32b",
        "qwen3-30b-a3b",
        "mixtral-8x7b",
    )
    layouts = {
        "deepspeed": (
            "mbs=1,sharding=zero3",
            "mbs=2,sharding=zero2",
            "mbs=1,sharding=zero1,recompute=full",
            "mbs=1,sharding=none",
        ),
        "accelerate": (
            "mbs=1,sharding=zero3",
            "mbs=2,sharding=zero2,recompute=full",
            "mbs=1,sharding=hybrid,shard_size=8",
            "cp=2,mbs=1,sharding=zero3",
        ),
    }[stack]
    return [
        (f"{model}-{number}", flat_plan(model, layout=layout, stack=stack, gbs=256))
        for model in models
        for number, layout in enumerate(layouts)
    ]


@pytest.mark.parametrize(
    ("target", "script"),
    [(DEEPSPEED, "deepspeed_json.py"), (ACCELERATE, "accelerate_yaml.py")],
    ids=["deepspeed", "accelerate"],
)
def test_their_own_loaders_take_the_exports(
    target: ExportTarget, script: str, tmp_path: Path
) -> None:
    assert write_exports(many_plans(target.stacks[0]), target, tmp_path) >= 40
    run_loader(
        script, tmp_path, variable="MESHWRIGHT_HF", what="accelerate, deepspeed and transformers"
    )
