from __future__ import annotations

import contextlib
import tomllib
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
    plans,
    run_loader,
    write_exports,
)

from meshwright.software.contract import ExportTarget, export_plan, import_text
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.software.torchtitan.export import TORCHTITAN
from meshwright.software.torchtitan.mend import TORCHTITAN_SOURCE
from meshwright.software.torchtitan.toml import TORCHTITAN_TOML
from meshwright.values.errors import CannotExpress, ConfigError

TARGETS = (TORCHTITAN_TOML, TORCHTITAN)


def titan_plan(
    model: Any = "llama3-8b",
    cluster: str = "h100:64",
    layout: str = "tp=2,mbs=1,sharding=zero3",
    **given: Any,
) -> TrainingPlan:
    return training_plan(model, cluster, layout, **{"stack": "torchtitan", **given})


GOLDEN = {
    "dense": lambda: titan_plan(
        settings=TrainingSettings(
            data=(Dataset(path="/data/web"),),
            tokenizer="/tok/llama3",
            save_dir="/out",
            load_dir="/old/step-100",
            train_tokens=10**9,
        )
    ),
    "experts": lambda: titan_plan(
        "qwen3-30b-a3b", "h100:64", "ep=8,mbs=2,sharding=zero3,recompute=full"
    ),
    "latent": lambda: titan_plan(
        "deepseek-v2",
        "h100:128",
        "tp=2,ep=16,etp=1,pp=2,vpp=2,mbs=1,sharding=zero2",
        gbs=512,
        seq_len=4096,
    ),
    "long-context": lambda: titan_plan(
        "llama3.1-8b",
        "h100:16",
        "cp=8,mbs=1,sharding=zero3,recompute=selective",
        seq_len=131072,
        gbs=16,
    ),
    "uneven-pipeline": lambda: titan_plan(
        "llama3-70b", "h100:64", "tp=4,pp=4,mbs=1,sharding=zero2,layers_per_stage=21+20+20+19"
    ),
    "fp8-hybrid": lambda: titan_plan(
        "qwen3-8b", "h100:64", "mbs=1,sharding=hybrid,shard_size=8", precision="fp8"
    ),
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("case", GOLDEN)
def test_golden(target: ExportTarget, case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=target), case)


def test_without_a_pipeline_micro_batches_are_accumulated_and_with_one_the_rank_takes_its_whole_share() -> (  # noqa: E501
    None
):
    # 512 sequences over dp = 8: 64 a rank, in micro batches of 2
    def batch(layout: str) -> tuple[int, int, int]:
        text = (
            export_plan(
                titan_plan(layout=layout, cluster="h100:16", gbs=512), target=TORCHTITAN_TOML
            )
            .files[0]
            .text
        )
        words = tomllib.loads(text)
        training, parallel = words["training"], words["parallelism"]
        return (
            training["local_batch_size"],
            training["global_batch_size"],
            parallel.get("pipeline_parallel_microbatch_size", 0),
        )

    assert batch("tp=2,mbs=2,sharding=zero3") == (2, 512, 0)
    assert batch("pp=2,mbs=2,sharding=zero3") == (64, 512, 2)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"layout": "tp=2,mbs=1,sharding=none", "stack": "fsdp"}, "DDP", "sharding=zero2"),
        (
            {"layout": "pp=2,mbs=1,sharding=zero3,schedule=zero-bubble", "stack": "fsdp"},
            "two chunks a stage",
            "vpp=2",
        ),
        (
            {"layout": "tp=8,pp=8,mbs=1,dp=1,sharding=zero3", "stack": "fsdp"},
            "runs in fp32",
            "dp=2",
        ),
        (
            {
                "layout": (
                    "mbs=1,sharding=zero3,recompute=full,recompute_method=block,recompute_layers=8"
                )
            },
            "every layer",
            "recompute=full",
        ),
        (
            {"layout": "mbs=1,sharding=zero3,recompute=selective,recompute_modules=mlp"},
            "by operation",
            "recompute_modules=ops",
        ),
        ({"precision": "fp16", "stack": "fsdp"}, "precision=fp16", "precision=bf16"),
        ({"model": "qwen3-0.6b", "layout": "pp=2,mbs=1,sharding=zero3"}, "tied embeddings", "pp=1"),
        ({"model": "llama3.2-1b"}, "rope_scaling=32", "rope_scaling unset"),
        ({"model": "gpt3-5b", "seq_len": 2048}, "model.gated=False", "model.gated=True"),
        ({"model": "qwen2-7b"}, "model.qkv_bias=True", "model.qkv_bias=False"),
        (
            {"model": "deepseek-v3", "layout": "ep=8,mbs=1,sharding=zero3"},
            "model.mtp_layers=1",
            "model.mtp_layers=0",
        ),
        (
            {"model": "t5-2.8b", "seq_len": 512},
            "model.family=encoder-decoder",
            "model.family=decoder",
        ),
        (
            {"settings": TrainingSettings(decay_style="warmup-stable-decay")},
            "decay_style",
            "decay_style=cosine",
        ),
        (
            {"settings": TrainingSettings(data=(Dataset(path="/a"), Dataset(path="/b")))},
            "2 datasets",
            "data=/a",
        ),
        (
            {"settings": TrainingSettings(tokenizer="/t.model", tokenizer_kind="sentencepiece")},
            "sentencepiece",
            "tokenizer_kind=huggingface",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    target: ExportTarget, changed: dict[str, Any], reason: str, nearest: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        export_plan(titan_plan(**changed), target=target)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


def test_each_generation_refuses_what_the_other_has() -> None:
    no_sequence_parallel = titan_plan(layout="tp=2,sp=0,mbs=1,sharding=zero3")
    assert (
        "enable_sequence_parallel=False"
        in export_plan(no_sequence_parallel, target=TORCHTITAN).files[0].text
    )
    with pytest.raises(CannotExpress, match="sp=0"):
        export_plan(no_sequence_parallel, target=TORCHTITAN_TOML)
    cut_experts = titan_plan("qwen3-30b-a3b", layout="tp=2,ep=8,etp=2,mbs=1,sharding=zero3")
    assert (
        "expert_tensor_parallel_degree = 2"
        in export_plan(cut_experts, target=TORCHTITAN_TOML).files[0].text
    )
    with pytest.raises(CannotExpress, match="etp=2"):
        export_plan(cut_experts, target=TORCHTITAN)
    shared = titan_plan(
        "mixtral-8x7b",
        layout="ep=8,mbs=1,sharding=zero3",
        details=ModelDetails(router_score="sigmoid"),
    )
    with pytest.raises(CannotExpress, match="torchtitan-toml"):
        export_plan(shared, target=TORCHTITAN)


def test_a_loss_that_balances_experts_is_refused_only_where_it_was_asked_for() -> None:
    assert any(
        "balances" in note
        for note in export_plan(
            titan_plan("mixtral-8x7b", layout="ep=8,mbs=1"), target=TORCHTITAN
        ).notes
    )
    asked = titan_plan(
        "mixtral-8x7b", layout="ep=8,mbs=1", details=ModelDetails(router_balance="aux-loss")
    )
    with pytest.raises(ConfigError, match=r"has no place for details.router_balance='aux-loss'"):
        export_plan(asked, target=TORCHTITAN)


MODELS = (
    "llama3-8b",
    "llama3.1-70b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "deepseek-v2",
)


@given(
    plans(
        models=MODELS,
        stack="torchtitan",
        shardings=("none", "zero2", "zero3"),
        recomputes=("", "recompute=full", "recompute=selective,recompute_modules=ops"),
    )
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_a_plan_is_read_back_from_toml(plan: TrainingPlan) -> None:
    expressible(plan, TORCHTITAN_TOML)
    check_round_trip(plan, target=TORCHTITAN_TOML, source=TORCHTITAN_SOURCE)


PUBLISHED = """
[model]
name = "llama3"
flavor = "405B"
hf_assets_path = "./assets/hf/Llama-3.1-405B"
converters = ["float8"]

[optimizer]
lr = 8e-5

[training]
local_batch_size = 2
seq_len = 8192
steps = 3000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 64
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"

[activation_checkpoint]
mode = "full"

[compile]
enable = true

[profiling]
enable_profiling = true
"""


def test_a_configuration_of_torchtitans_own_kind_is_read() -> None:
    found = import_text(PUBLISHED, source=TORCHTITAN_SOURCE)
    assert (found.model.name, found.work.precision, found.num_chips, found.stack) == (
        "llama3.1-405b",
        "fp8",
        2048,
        "torchtitan",
    )
    # 126 layers, embedding and head counted as one each: 128 over 4 stages of 2 chunks are 16 each
    assert found.layout["layers_per_stage"] == (15, 16, 16, 16, 16, 16, 16, 15)
    assert (found.layout["vpp"], found.layout["sharding"], found.layout["mbs"], found.work.gbs) == (
        2,
        "zero2",
        1,
        128,
    )
    assert found.passed_through == ("--training.dataset=c4", "--profiling.enable_profiling")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('flavor = "405B"', 'flavor = "9000B"', "flavor=9000B"),
        ('mode = "full"', 'mode = "memory_budget"', "memory_budget"),
        ("local_batch_size = 2", 'local_batch_size = "two"', "expected a whole number"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 0", "expected 1 or more"),
        ('"Interleaved1F1B"', '"Mystery"', "pipeline_parallel_schedule=Mystery"),
        ('converters = ["float8"]', 'converters = ["int2"]', "int2"),
        ("[training]", "[training", "no TOML"),
    ],
)
def test_toml_that_no_plan_describes_is_refused_in_one_line(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        import_text(PUBLISHED.replace(old, new), source=TORCHTITAN_SOURCE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "layers"),
    [("", 8), ('selective_ac_option = "4"', 4), ('selective_ac_option = "1"', None)],
)
def test_each_nth_layer_recomputed_is_as_much_as_the_first_of_a_chunk(
    option: str, layers: int | None
) -> None:
    """The largest of 8 chunks has 16 layers: each second one is torchtitan's default."""
    found = import_text(
        PUBLISHED.replace('mode = "full"', f'mode = "selective"\n{option}'),
        source=TORCHTITAN_SOURCE,
    )
    method = {} if layers is None else {"recompute_method": "block", "recompute_layers": layers}
    assert {
        name: value for name, value in found.layout.items() if name.startswith("recompute")
    } == {"recompute": "full", **method}


@pytest.mark.parametrize(
    ("option", "layers", "said"),
    [("2", 1, ""), ("3", 1, "10 layers"), ("4", 1, "8 layers"), ("100", 0, "")],
)
def test_each_nth_layer_is_counted_through_the_chunks_of_a_rank(
    option: str, layers: int, said: str
) -> None:
    """126 layers over 4 ranks of 16 chunks: 2 layers each but for the first and the last, 32 on the
    ranks between."""
    text = PUBLISHED.replace(
        'mode = "full"', f'mode = "selective"\nselective_ac_option = "{option}"'
    )
    text = text.replace(
        "[activation_checkpoint]", "pipeline_parallel_layers_per_stage = 2\n[activation_checkpoint]"
    )
    found = import_text(text, source=TORCHTITAN_SOURCE)
    assert found.layout["vpp"] == 16
    assert found.layout.get("recompute_layers", 0) == layers
    assert found.layout["recompute"] == ("full" if layers else "none")
    assert [said in words for words in found.warnings] == [True] * bool(said)


def test_tensor_parallelism_that_runs_asynchronously_is_said_not_to_be_priced() -> None:
    text = PUBLISHED.replace(
        "[activation_checkpoint]", "enable_async_tensor_parallel = true\n[activation_checkpoint]"
    )
    assert [
        words for words in import_text(text, source=TORCHTITAN_SOURCE).warnings if "async" in words
    ]
    assert not import_text(PUBLISHED, source=TORCHTITAN_SOURCE).warnings


@given(st.text(alphabet='[]"=\n#.abtrue0123 {}:dims', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        import_text(text, source=TORCHTITAN_SOURCE)


def many_plans() -> list[tuple[str, TrainingPlan]]:
    """Plans over families and sizes for the loaders."""
    layouts = {
        "llama3-8b": (
            "mbs=1,sharding=zero3",
            "tp=2,mbs=1,sharding=zero2",
            "tp=2,pp=2,mbs=1,sharding=zero3",
            "pp=4,vpp=2,mbs=1,sharding=zero2",
        ),
        "llama2-7b": (
            "mbs=2,sharding=zero3,recompute=full",
            "pp=2,mbs=1,sharding=zero2,schedule=gpipe",
        ),
        "llama2-70b": (
            "tp=8,mbs=1,sharding=zero3",
            "tp=4,pp=4,mbs=1,sharding=zero2,layers_per_stage=21+20+20+19",
        ),
        "llama3.1-8b": (
            "cp=4,mbs=1,sharding=zero3",
            "mbs=1,sharding=hybrid,shard_size=8,recompute=selective",
        ),
        "llama3.1-70b": (
            "tp=8,mbs=1,sharding=zero3,recompute=full",
            "tp=4,pp=2,vpp=2,mbs=1,sharding=zero2",
        ),
        "llama3.1-405b": ("tp=8,pp=2,mbs=1,sharding=zero3,recompute=full",),
        "mistral-7b-v0.3": ("mbs=1,sharding=zero3", "tp=2,mbs=1,sharding=zero3"),
        "mistral-nemo-12b": ("tp=4,mbs=1,sharding=zero3",),
        "yi-34b": ("tp=8,mbs=1,sharding=zero3,recompute=full",),
        "qwen3-0.6b": ("mbs=4,sharding=zero2", "mbs=2,sharding=none"),
        "qwen3-8b": (
            "mbs=1,sharding=zero3",
            "cp=2,mbs=1,sharding=zero3",
            "pp=2,mbs=1,sharding=zero3",
        ),
        "qwen3-14b": ("tp=2,mbs=1,sharding=zero3,recompute=selective",),
        "qwen3-32b": ("tp=4,mbs=1,sharding=zero3", "tp=2,pp=4,mbs=1,sharding=zero2"),
        "qwen3-30b-a3b": (
            "ep=8,mbs=1,sharding=zero3",
            "tp=2,ep=8,etp=1,mbs=1,sharding=zero3",
            "pp=2,ep=4,mbs=1,sharding=zero2",
        ),
        "qwen3-235b-a22b": ("tp=4,ep=16,etp=1,mbs=1,sharding=zero3,recompute=full",),
        "mixtral-8x7b": ("ep=8,mbs=1,sharding=zero3", "tp=2,ep=4,etp=1,mbs=1,sharding=zero3"),
        "mixtral-8x22b": ("ep=8,pp=4,mbs=1,sharding=zero3",),
        "deepseek-v2-lite": ("ep=8,mbs=1,sharding=zero3", "ep=8,pp=3,dp=16,mbs=1,sharding=zero2"),
        "deepseek-v2": (
            "tp=2,ep=16,etp=1,mbs=1,sharding=zero3",
            "ep=8,pp=4,mbs=1,sharding=zero2,recompute=full",
        ),
        "deepseek-67b": ("tp=8,mbs=1,sharding=zero3", "tp=4,pp=5,dp=4,mbs=1,sharding=zero2"),
        "llama-65b": ("tp=8,mbs=1,sharding=zero3", "tp=4,pp=4,mbs=1,sharding=zero2"),
        "codellama-13b": ("tp=2,cp=2,mbs=1,sharding=zero3", "mbs=1,sharding=hybrid,shard_size=16"),
        "mistral-large-123b": (
            "tp=8,mbs=1,sharding=zero3,recompute=full",
            "tp=8,pp=4,mbs=1,sharding=zero2",
        ),
        "internlm2-20b": ("tp=2,pp=2,mbs=1,sharding=zero3",),
    }
    found = []
    for model, words in layouts.items():
        for number, layout in enumerate(words):
            chips = 48 if "pp=3" in layout else 80 if "pp=5" in layout else 64
            found.append(
                (
                    f"{model.replace('.', '_')}-{number}",
                    titan_plan(model, f"h100:{chips}", layout, gbs=3840, seq_len=4096),
                )
            )
    return found


@pytest.mark.parametrize(
    ("target", "script", "variable"),
    [
        (TORCHTITAN_TOML, "torchtitan_toml.py", "MESHWRIGHT_TORCHTITAN_02"),
        (TORCHTITAN, "torchtitan_python.py", "MESHWRIGHT_TORCHTITAN_03"),
    ],
    ids=["0.2", "0.3"],
)
def test_torchtitans_own_loader_takes_the_exports(
    target: ExportTarget, script: str, variable: str, tmp_path: Path
) -> None:
    assert write_exports(many_plans(), target, tmp_path) >= 40
    run_loader(script, tmp_path, variable=variable, what=target.versions)
