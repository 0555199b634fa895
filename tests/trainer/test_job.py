"""What a training run is told, and what it refuses; needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.curves import job_of

from meshwright.trainer.checks import Part, own_parts, require_trainable
from meshwright.trainer.job import DataSettings, OptimizerSettings, job_keys, read_job
from meshwright.trainer.pipeline import learning_rate
from meshwright.values.errors import ConfigError, LayoutError, UnknownNameError
from meshwright.values.layout import Layout, parse_layout

REQUEST = {"model": "tiny-llama", "seq_len": 64, "precision": "fp32"}
OWN = {
    "name": "own",
    "num_layers": 2,
    "hidden": 64,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_dim": 16,
    "ffn": 128,
    "vocab": 512,
}
LAYOUTS = [{"dp": 2, "gbs": 8, "mbs": 4}, {"pp": 2, "gbs": 8, "mbs": 2, "layers_per_stage": [3, 1]}]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps({"request": REQUEST, "plans": [{"layout": layout} for layout in LAYOUTS]}),
        encoding="utf-8",
    )
    return path


def test_a_plan_is_read(plan: Path) -> None:
    job = read_job(plan)
    assert (job.model.name, job.seq_len, job.precision, job.layout) == (
        "tiny-llama",
        64,
        "fp32",
        Layout(dp=2, gbs=8, mbs=4),
    )


def test_the_second_plan_of_a_file(plan: Path) -> None:
    assert read_job(Path(f"{plan}#2")).layout == Layout(pp=2, gbs=8, mbs=2, layers_per_stage=(3, 1))


def test_words_go_on_top(plan: Path) -> None:
    words = [
        "steps=50",
        "optimizer.learning_rate=1",
        "compile=true",
        "save.folder=out",
        "minutes=2",
        "data.blend=0.7 a 0.3 b",
    ]
    job = read_job(plan, words)
    assert (job.steps, job.optimizer.learning_rate, job.compile, job.save.folder, job.minutes) == (
        50,
        1.0,
        True,
        "out",
        2.0,
    )
    assert job.data.blend == ("0.7", "a", "0.3", "b")


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("tiny-llama", 10_000.0),  # RoFormer's
        ("llama3-8b", 500_000.0),  # its config.json
        ({**OWN, "details": {"rope_base": 2e6}}, 2e6),
    ],
)
def test_a_plan_brings_the_base_of_its_models_positions(
    tmp_path: Path, model: Any, base: float
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps({"request": {**REQUEST, "model": model}, "plans": [{"layout": LAYOUTS[0]}]}),
        encoding="utf-8",
    )
    assert read_job(path).rope_base == base
    assert read_job(path, ["rope_base=1000"]).rope_base == 1000.0


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("steps", "expected key=value"),
        ("steps=many", "steps=many: expected int"),
        ("compile=3", "compile=3: expected bool"),
        ("precision=fp8", "precision=fp8: expected"),
        ("optimizer.lr=1", "'optimizer.lr' is no known key"),
        ("step=1", "did you mean 'steps'"),
        ("layout=1", "'layout' is no known key"),
    ],
)
def test_wrong_words_are_named(plan: Path, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_job(plan, [word])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "no JSON"),
        ("[]", "expected the object"),
        (json.dumps({"request": REQUEST, "plans": []}), "holds 0 plans"),
        (
            json.dumps({"request": REQUEST | {"precision": "fp8"}, "plans": [{"layout": {}}]}),
            "bf16 or fp32",
        ),
    ],
)
def test_wrong_plans_are_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        read_job(path)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_job(tmp_path / "none.json")


def test_a_layout_key_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps({"request": REQUEST, "plans": [{"layout": {"dpp": 2}}]}), encoding="utf-8"
    )
    with pytest.raises(UnknownNameError, match="dpp"):
        read_job(path)


def test_every_key_can_be_given(plan: Path) -> None:
    assert "optimizer.clip_norm" in job_keys()
    for key in job_keys():
        section, _, name = key.rpartition(".")
        job = read_job(plan)
        value = getattr(getattr(job, section) if section else job, name)
        if value is not None and value != ():
            assert read_job(plan, [f"{key}={json.dumps(value)}"]) == job


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    settings = OptimizerSettings(learning_rate=1.0, least_learning_rate=0.2, warmup_steps=4)
    rates = [learning_rate(step, settings, steps=12) for step in (0, 1, 3, 4, 8, 12, 99)]
    assert rates == pytest.approx([0.25, 0.5, 1.0, 1.0, 0.6, 0.2, 0.2])


def test_layers_of_interleaved_stages() -> None:
    """8 layers, 2 stages of 2 chunks: stage 0 has chunks 0 and 2."""
    model = replace(job_of("dense:").model, num_layers=8)
    found = [own_parts(model, Layout(pp=2, vpp=2), stage) for stage in (0, 1)]
    assert [[(place, part.layers) for place, part in parts] for parts in found] == [
        [(0, (0, 1)), (2, (4, 5))],
        [(1, (2, 3)), (3, (6, 7))],
    ]
    assert [part.first for _, part in found[0]] == [True, False]
    assert [part.last for _, part in found[1]] == [False, True]


def test_zero_bubble_has_one_chunk_or_two() -> None:
    job = job_of("dense:pp=2,vpp=3,schedule=zero-bubble,layers=2+2+1+1+1+1")
    with pytest.raises(LayoutError, match="one chunk per stage, or two in a V"):
        require_trainable(replace(job, model=replace(job.model, num_layers=8)), num_processes=2)


def test_chunks_of_a_v() -> None:
    """Down the stages and up again: the first has both ends of the model. Stages of 5 and 3 layers
    are 3 + 2 and 2 + 1."""
    model = replace(job_of("dense:").model, num_layers=8)
    layout = Layout(pp=2, vpp=2, schedule="zero-bubble", layers_per_stage=(5, 3))
    assert own_parts(model, layout, 0) == [
        (0, Part(layers=(0, 1, 2), first=True, last=False)),
        (3, Part(layers=(6, 7), first=False, last=True)),
    ]
    assert [(place, part.layers) for place, part in own_parts(model, layout, 1)] == [
        (1, (3, 4)),
        (2, (5,)),
    ]


def test_uneven_stages() -> None:
    model = job_of("dense:").model
    layout = Layout(pp=2, layers_per_stage=(3, 1))
    assert [own_parts(model, layout, stage)[0][1].layers for stage in (0, 1)] == [(0, 1, 2), (3,)]
    with pytest.raises(LayoutError, match="sum to 4"):
        own_parts(model, Layout(pp=2, layers_per_stage=(3, 2)), 0)


def test_uneven_stages_of_several_chunks() -> None:
    """Stages of 5 and 3 layers in 2 chunks each: 3 + 2 and 2 + 1; chunks go round, 3, 2, 2, 1."""
    model = replace(job_of("dense:").model, num_layers=8)
    layout = Layout(pp=2, vpp=2, layers_per_stage=(5, 3))
    assert [part.layers for _, part in own_parts(model, layout, 0)] == [(0, 1, 2), (5, 6)]
    assert [part.layers for _, part in own_parts(model, layout, 1)] == [(3, 4), (7,)]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("dense:mbs=3", "gbs=8 is not divisible by mbs\\*dp = 3"),
        ("dense:tp=8", "num_heads=4 is not divisible by tp=8"),
        ("dense:tp=4", "num_kv_heads=2 is not divisible by tp=4"),
        ("dense:sp=1", "sp=1 needs tp > 1"),
        (
            "dense:cp=8",
            "cp=8: context=all-to-all swaps tokens for heads, .* context=ring takes any number",
        ),
        ("dense:dp=2:ring", "with cp=1 nothing goes round"),
        ("dense:cp=32:ring", "seq_len=32 is not divisible by 64 .cp=32, two runs of tokens a rank"),
        ("dense:cp=3", "seq_len=32 is not divisible by 3 .cp=3"),
        ("dense:dp=2,ep=2", "ep=2: dense has no experts"),
        ("dense:etp=2", "etp=2: dense has no experts"),
        ("moe:tp=2", "experts with tp=2 need sequence parallelism"),
        ("moe:dp=3,gbs=6,mbs=1,ep=3", "num_experts=4 is not divisible by ep=3"),
        ("moe:ep=4", "ep\\*etp = 4 does not divide"),
        ("moe:dp=4,mbs=1,sharding=zero3,shard_size=2", "with experts"),
        ("dense:vpp=2", "need pp > 1"),
        ("dense:schedule=gpipe", "need pp > 1"),
        ("dense:schedule=zero-bubble", "need pp > 1"),
        ("dense:pp=2,vpp=2,dp=2,sharding=zero3,schedule=zero-bubble", "gradients are lost"),
        ("dense:pp=2,mbs=1,gbs=5,schedule=zero-bubble", "2 equal rounds, which 5 do not make"),
        ("dense:pp=8,mbs=1", "more than the 4 layers"),
        ("dense:pp=2,layers=4+0", "without layers"),
        ("dense:pp=2,mbs=8", "fewer than pp=2"),
        ("dense:pp=2,dp=2,mbs=2,sharding=zero2", "sharding=zero2 with pp > 1"),
        ("dense:dp=2,sharding=hybrid", "say over how many"),
        ("dense:dp=2,shard_size=2", "shards nothing"),
        ("dense:dp=2,sharding=zero3,shard_size=3", "does not divide"),
        ("dense:recompute_layers=2", "need recompute=full"),
        ("dense:recompute_modules=mlp", "needs recompute=selective"),
        ("dense:recompute=full,recompute_layers=0", "one layer or more"),
        ("dense:recompute=selective,recompute_modules=moe", "dense has none"),
    ],
)
def test_layouts_that_are_refused(case: str, says: str) -> None:
    job = job_of(case)
    with pytest.raises(LayoutError, match=says):
        require_trainable(job, num_processes=job.layout.num_chips)


def test_a_ring_takes_more_ranks_than_heads() -> None:
    job = job_of("dense:cp=8:ring")
    assert job.context == "ring"
    require_trainable(job, num_processes=8)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("dense:tp=2:compile", "compile=true with tp=2: compiled layers"),
        ("dense:cp=2:ring:compile", "compile=true with context=ring"),
        ("dense:pp=2,schedule=zero-bubble:compile", "compile=true with schedule=zero-bubble"),
        ("dense:recompute=selective:compile", "compile=true with recompute=selective"),
    ],
)
def test_compiling_is_refused_where_it_does_not_work(case: str, says: str) -> None:
    job = job_of(case)
    with pytest.raises(LayoutError, match=says):
        require_trainable(job, num_processes=job.layout.num_chips)


@pytest.mark.parametrize(
    "case",
    ["moe:dp=2,ep=2:compile", "dense:pp=2,vpp=2,recompute=full:compile", "dense:cp=2:compile"],
)
def test_compiling_is_taken_where_it_was_tried(case: str) -> None:
    """benchmarks/trainer_curves.py runs these."""
    job = job_of(case)
    assert job.compile
    require_trainable(job, num_processes=job.layout.num_chips)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "steps=0: expected 1 or more"),
        ({"minutes": 0.0}, "minutes=0.0: expected a positive number"),
        ({"peak_tflops": -1.0}, "peak_tflops=-1.0: expected a positive number"),
        ({"profile_step": -1}, "profile_step=-1: expected 0 or more"),
        ({"seed": -1}, "seed=-1: expected 0 to 2147483647"),
        ({"init_std": 0.0}, "init_std=0.0: expected a positive number"),
        (
            {"optimizer": OptimizerSettings(learning_rate=float("nan"))},
            "optimizer.learning_rate=nan: expected 0 or more",
        ),
        (
            {"optimizer": OptimizerSettings(beta2=1.0)},
            "optimizer.beta2=1.0: expected 0 or more and less than 1",
        ),
        (
            {"optimizer": OptimizerSettings(epsilon=0.0)},
            "optimizer.epsilon=0.0: expected a positive number",
        ),
        ({"data": DataSettings(epochs=0)}, "data.epochs=0: expected 1 or more"),
        ({"profile_step": 0, "trace": "out"}, "trace=out: it is of profile_step=0"),
        (
            {"steps": 2, "memory_snapshot": "out", "profile_step": 3},
            "memory_snapshot=out: .* a run of steps=2 does not have",
        ),
    ],
)
def test_values_that_mean_nothing(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        require_trainable(replace(job_of("dense:"), **changes), num_processes=1)


def test_the_number_of_processes_must_be_the_layouts() -> None:
    with pytest.raises(LayoutError, match="torchrun --nproc-per-node 4"):
        require_trainable(job_of("dense:tp=2,dp=2"), num_processes=2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mtp_layers": 1}, "mtp_layers=1"),
        ({"attention_sinks": True}, "attention sinks"),
        (
            {"qk_norm": True, "qk_norm_all_heads": True},
            "one norm of queries and keys over all heads",
        ),
        ({"positions": "learned", "max_positions": 16}, "more than its 16 positions"),
    ],
)
def test_models_that_are_refused(changes: dict[str, Any], says: str) -> None:
    job = job_of("dense:")
    with pytest.raises(ConfigError, match=says):
        require_trainable(replace(job, model=replace(job.model, **changes)), num_processes=1)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "tp=2,sp=1",
        "dp=2,sharding=zero2",
        "pp=2,vpp=2",
        "cp=2,sharding=zero3",
        "dp=4,zero=hsdp,shard_size=2,mbs=1",
    ],
)
def test_layouts_that_are_taken(words: str) -> None:
    job = job_of(f"dense:{words}")
    assert job.layout.words() == replace(job.layout, **parse_layout(words)).words()
    require_trainable(job, num_processes=job.layout.num_chips)


def test_help_and_bad_input_without_torch(tmp_path: Path) -> None:
    def start(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "meshwright.trainer", *words]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    helped = start("--help")
    assert (helped.returncode, "optimizer.learning_rate" in helped.stdout) == (0, True)
    refused = start(str(tmp_path / "none.json"))
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: plan ")
