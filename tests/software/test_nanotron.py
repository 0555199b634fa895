from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.software.examples import training_plan
from tests.software.frameworks import (
    check_golden,
    check_round_trip,
    expressible,
    plans,
    run_loader,
    write_exports,
)

from meshwright.software.contract import export_plan, import_text
from meshwright.software.nanotron.export import NANOTRON
from meshwright.software.nanotron.mend import NANOTRON_SOURCE
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError


def nano_plan(
    model: Any = "llama3-8b", cluster: str = "h100:64", layout: str = "tp=2,mbs=1", **given: Any
) -> TrainingPlan:
    return training_plan(model, cluster, layout, **{"stack": "nanotron", "seq_len": 4096, **given})


SETTINGS = TrainingSettings(
    data=(Dataset(path="/data/web"), Dataset(path="/data/code", weight=0.5)),
    tokenizer="/tok",
    save_dir="/out",
    load_dir="/old",
    train_steps=500,
)
GOLDEN = {
    "dense": lambda: nano_plan(settings=SETTINGS),
    "pipeline": lambda: nano_plan(
        "llama2-7b", layout="tp=2,pp=4,mbs=1,schedule=gpipe,recompute=full"
    ),
    "long-context": lambda: nano_plan(
        "qwen2-7b", "h100:16", "tp=2,cp=8,mbs=1", seq_len=131072, gbs=16
    ),
    "plain-tensor-parallel": lambda: nano_plan("llama2-7b", layout="tp=8,sp=0,mbs=2,sharding=none"),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=NANOTRON), case)


@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"layout": "pp=2,mbs=1", "stack": "megatron"}, "cuts by cost", "layers_per_stage=18+14"),
        ({"layout": "pp=2,vpp=2,mbs=1", "stack": "megatron"}, "one chunk a stage", "vpp=1"),
        (
            {
                "layout": "tp=2,mbs=1,recompute=selective,recompute_modules=core_attn",
                "stack": "megatron",
            },
            "every layer or none",
            "recompute=full",
        ),
        (
            {"layout": "mbs=1,sharding=zero3", "stack": "megatron"},
            "sharding=zero3",
            "sharding=zero1",
        ),
        ({"layout": "tp=16,mbs=1", "stack": "megatron"}, "does not copy", "tp=8"),
        ({"model": "mixtral-8x7b"}, "no rank for expert parallelism", "model.moe=None"),
        ({"model": "gpt3-5b", "seq_len": 2048}, "model.gated=False", "model.gated=True"),
        ({"model": "qwen3-8b"}, "qk_norm=True", "qk_norm=False"),
        ({"model": "llama3.1-8b"}, "rope_scaling=8.0", "rope_scaling=None"),
        ({"precision": "fp8", "stack": "megatron"}, "precision=fp8", "precision=bf16"),
        ({"precision": "fp32"}, "add up from bf16", "precision=bf16"),
        (
            {"settings": TrainingSettings(decay_style="warmup-stable-decay")},
            "decay_style",
            "decay_style=cosine",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    changed: dict[str, Any], reason: str, nearest: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        export_plan(nano_plan(**changed), target=NANOTRON)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


@given(
    plans(
        models=("llama3-8b", "llama2-7b", "llama2-70b", "qwen2-7b", "yi-34b"),
        stack="nanotron",
        shardings=("none", "zero1"),
        recomputes=("", "recompute=full", "schedule=gpipe"),
    )
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_a_plan_is_read_back_from_yaml(plan: TrainingPlan) -> None:
    assume(
        plan.layout.dp > 1 or plan.layout.cp == 1
    )  # zero1 over one rank is written as none, the same to every rank
    expressible(plan, NANOTRON)
    check_round_trip(plan, target=NANOTRON, source=NANOTRON_SOURCE)


def test_data_tokenizer_and_folders_are_read_back() -> None:
    check_round_trip(GOLDEN["dense"](), target=NANOTRON, source=NANOTRON_SOURCE)


def test_unknown_words_are_listed_and_wrong_ones_refused() -> None:
    text = export_plan(nano_plan(), target=NANOTRON).files[0].text
    assert import_text(
        text + "s3_upload: {upload_s3_path: x}\n", source=NANOTRON_SOURCE
    ).passed_through == ("s3_upload.upload_s3_path=x",)
    for old, new, message in (
        ("hidden_act: silu", "hidden_act: gelu", "hidden_act"),
        ("pp_engine: 1f1b", "pp_engine: magic", "pp_engine=magic"),
        ("dtype: bfloat16", "dtype: int4", "model.dtype=int4"),
        ("num_hidden_layers: 32", "num_hidden_layers: many", "expected a whole number"),
    ):
        with pytest.raises(ConfigError, match=message):
            import_text(text.replace(old, new), source=NANOTRON_SOURCE)


@given(st.text(alphabet="model: tokens:\n {}[]-1a|&*", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        import_text(text, source=NANOTRON_SOURCE)


def many_plans() -> list[tuple[str, TrainingPlan]]:
    layouts = (
        "mbs=1",
        "tp=2,mbs=1",
        "tp=4,mbs=1,recompute=full",
        "tp=2,pp=2,mbs=1",
        "pp=4,mbs=1,schedule=gpipe",
        "tp=2,cp=2,mbs=1",
    )
    models = (
        "llama3-8b",
        "llama3-70b",
        "llama2-7b",
        "llama2-70b",
        "qwen2-7b",
        "mistral-large-123b",
        "yi-34b",
        "llama-65b",
    )
    return [
        (f"{model}-{number}", nano_plan(model, "h100:64", layout, gbs=1024))
        for model in models
        for number, layout in enumerate(layouts)
    ]


def test_nanotrons_own_configuration_takes_the_exports(tmp_path: Path) -> None:
    assert write_exports(many_plans(), NANOTRON, tmp_path) >= 40
    run_loader("nanotron_yaml.py", tmp_path, variable="MESHWRIGHT_NANOTRON", what=NANOTRON.versions)
