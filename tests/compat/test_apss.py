"""The door for users of Baidu AIAK's strategy search: the record's form and arithmetic, limits,
modes."""

from __future__ import annotations

import ast
import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright import cli
from meshwright.compat.apss import LEGACY_CHIPS, LEGACY_MODELS, ApssRequest, apss
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model

Capture = pytest.CaptureFixture[str]
FLAGS = [
    "use-flash-attn",
    "sequence-parallel",
    "use-distributed-optimizer",
    "fused-rmsnorm",
    "apply-rotary-positional-embedding-kernel",
]
SIZES = ["pipeline-model-parallel-size", "tensor-model-parallel-size", "micro-batch-size"]
RECOMPUTE = ["recompute-granularity", "recompute-method", "recompute-num-layers"]
SMALL = ["apss", "--model-name", "llama2-7b", "--num-gpus", "16", "--global-batch-size", "512"]


def records(words: list[str], capsys: Capture) -> tuple[list[dict[str, Any]], str]:
    """What is printed, one literal a line, and what is said."""
    assert cli.run(words) == 0
    out, err = capsys.readouterr()
    return [ast.literal_eval(line) for line in out.splitlines()], err


def test_the_defaults_are_the_tools() -> None:
    asked = ApssRequest()
    assert (asked.model_name, asked.num_gpus, asked.gpu_infos, asked.nproc_per_node) == (
        "llama2-70b",
        256,
        "a800",
        8,
    )
    assert (asked.global_batch_size, asked.sequence_length, asked.top) == (1024, 4096, 5)
    plan = asked.plan_request()
    assert (plan.cluster, plan.num_gpus, plan.gbs, plan.seq_len, plan.gpus_per_node) == (
        "a800:256",
        256,
        1024,
        4096,
        8,
    )


def test_every_name_of_the_tool_is_known() -> None:
    assert len(LEGACY_MODELS) == 14
    layers = {name: find_model(name).total_layers for name in LEGACY_MODELS}
    assert layers["llama2-35b"] == 48 and layers["llama2-70b"] == 80  # arXiv:2307.09288
    assert {name: find_chip(name).vendor for name in LEGACY_CHIPS} == {
        **dict.fromkeys(("a800", "h800", "h100"), "NVIDIA"),
        "kunlun3": "Kunlunxin",
        "ascend_910b": "Huawei",
    }


def test_a_record_of_one_kind_has_its_form(capsys: Capture) -> None:
    found, err = records([*SMALL, "--top", "3"], capsys)
    assert 1 <= len(found) <= 3 and err.startswith("note: the first strategy uses 16 chips, dp=")
    for record in found:
        assert list(record) == [
            "sim_throughput",
            "sim_total_time_s",
            "max-use-mem-size",
            "strategy",
        ]
        strategy = record["strategy"]
        wanted = [*SIZES, *FLAGS, "pipeline-stage-chips", *RECOMPUTE]
        assert list(strategy) == [
            key
            for key in wanted
            if key != "sequence-parallel" or strategy["tensor-model-parallel-size"] > 1
        ]
        assert all(strategy[flag] == "" for flag in FLAGS if flag in strategy)
        assert strategy["pipeline-stage-chips"] == ["a800"] and len(record["max-use-mem-size"]) == 1
        assert all(len(strategy[key]) == 1 for key in RECOMPUTE)
        assert 32 % strategy["pipeline-model-parallel-size"] == 0  # equal stages of 32 layers
    times = [record["sim_total_time_s"] for record in found]
    assert times == sorted(times)


def test_throughput_times_seconds_is_the_tokens_of_a_step(capsys: Capture) -> None:
    found, _ = records(
        [*SMALL, "--gpu-infos", "a800:8,h800:8", "--sequence-length", "2048"], capsys
    )
    for record in found:
        assert isinstance(record["sim_throughput"], int)
        assert record["sim_throughput"] == ceil(512 * 2048 / record["sim_total_time_s"])


def test_a_record_of_several_kinds_says_each_stage(capsys: Capture) -> None:
    [record], _ = records([*SMALL, "--gpu-infos", "kunlun3:8,h800:8", "--top", "1"], capsys)
    strategy = record["strategy"]
    assert (
        len(strategy["pipeline-stage-chips"])
        == len(strategy["pipeline-stage-layers"])
        == strategy["pipeline-model-parallel-size"]
    )
    assert sum(strategy["pipeline-stage-layers"]) == 32
    assert set(strategy["pipeline-stage-chips"]) <= {"kunlun3", "h800"}
    assert len(record["max-use-mem-size"]) == 2 and all(
        len(strategy[key]) == 2 for key in RECOMPUTE
    )


def test_recomputation_is_said_by_kind() -> None:
    """70B on 32 chips of 80 GB: 69e9 parameters * (2 + 4 + 12) bytes / 32 are 36 GiB before any
    activation."""
    answer = apss(
        model_name="llama2-70b", num_gpus=32, global_batch_size=512, sequence_length=8192, top=3
    )
    words = [record["strategy"] for record in answer.records]
    assert any(strategy["recompute-granularity"] != [None] for strategy in words), (
        "the request no longer shows recomputation"
    )
    for strategy, plan in zip(words, answer.result.plans, strict=True):
        assert plan.mixed is not None
        first = plan.mixed.stages[0]
        assert all(stage.recompute == first.recompute for stage in plan.mixed.stages)
        [granularity], [method], [layers] = (strategy[key] for key in RECOMPUTE)
        if granularity == "full":
            assert (method, layers) == (
                ("block", first.recompute_layers) if first.recompute_layers else ("uniform", 1)
            )
        else:
            assert (method, layers) == (None, None)


def test_flags_follow_the_model() -> None:
    """OPT-like Galactica has LayerNorm and learned positions."""
    [record] = apss(
        model_name="galactica-6.7b", num_gpus=16, global_batch_size=512, sequence_length=2048, top=1
    ).records
    assert not {"fused-rmsnorm", "apply-rotary-positional-embedding-kernel"} & set(
        record["strategy"]
    )
    [record] = apss(model_name="mixtral-8x7b", num_gpus=64, global_batch_size=512, top=1).records
    assert record["strategy"].get("expert-model-parallel-size", 1) in (1, 2, 4, 8)


def test_idle_chips_are_said_and_hold_nothing(capsys: Capture) -> None:
    words = [
        "apss",
        "--model-name",
        "llama2-7b",
        "--num-gpus",
        "16",
        "--gpu-infos",
        "h100:8,t4:8",
        "--global-batch-size",
        "512",
        "--top",
        "1",
    ]
    [record], err = records(words, capsys)
    assert (
        set(record["strategy"]["pipeline-stage-chips"]) == {"h100"}
        and record["max-use-mem-size"][1] == 0.0
    )
    assert "8 t4" in err


def test_json_is_the_plan_and_analytic_writes_traces(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "--gpu-infos", "a800:8,h800:8", "--top", "1", "--mode", "analytic", "--json"]
    assert cli.run(words) == 0
    out, err = capsys.readouterr()
    [plan] = json.loads(out)["plans"]
    assert {"rank", "layout", "stages", "chips", "step_s"} <= set(plan)
    assert "traces of plan #1 written to cache/llama2-7b_16_a800-8_h800-8_gbs512_seq4096" in err
    [trace] = (tmp_path / "cache").glob("*/plan-1.json")
    assert json.loads(trace.read_text())["traceEvents"]


def test_nothing_fits_is_an_answer(capsys: Capture) -> None:
    assert (
        cli.run(
            ["apss", "--model-name", "llama-1800b", "--num-gpus", "8", "--global-batch-size", "512"]
        )
        == 1
    )
    out, err = capsys.readouterr()
    assert out == "" and "nothing fits" in err


def test_it_is_a_function_too() -> None:
    assert meshwright.apss is apss


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpu_infos": "a900"}, "a900"),
        (
            {"gpu_infos": "a800:"},
            (
                "--gpu-infos a800:: expected KIND[:MOST][,KIND[:MOST]...] such as a800 or"
                " a800:128,h800:160"
            ),
        ),
        ({"gpu_infos": "a800:x"}, "count 'x' of a800: expected a whole number of chips"),
        ({"gpu_infos": "a800,A800-80GB"}, "a800 is named twice; give it once"),
        (
            {"gpu_infos": "a800:64,h800:100"},
            "at most 164 chips, fewer than --num-gpus 256; raise a maximum, or take --num-gpus 160",
        ),
        (
            {"num_gpus": 250},
            "--num-gpus 250: no multiple of --nproc-per-node 8; nearest that are: 248 or 256",
        ),
        ({"num_gpus": 2097152}, "--num-gpus 2097152: expected at most 1048576"),
        ({"num_gpus": 0}, "--num-gpus 0: expected 1 or more"),
        (
            {"global_batch_size": 1000},
            (
                "--global-batch-size 1000: no multiple of 512; nearest that are: 512 or 1024;"
                " --no-legacy-limits"
            ),
        ),
        (
            {"sequence_length": 2097152},
            "--sequence-length 2097152: expected at most 1048576; --no-legacy-limits takes any",
        ),
        ({"sequence_length": -512}, "--sequence-length -512: expected 1 or more"),
        ({"model_name": "llama9-7b"}, "llama9-7b"),
        ({"batch": 4}, "batch"),
    ],
)
def test_bad_requests_get_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apss(**fields)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_no_limit_may_be_said_as_minus_one_and_limits_be_lifted() -> None:
    assert ApssRequest(gpu_infos="a800:-1,h800:64").plan_request().cluster == "a800:256,h800:64"
    assert ApssRequest(global_batch_size=1000, legacy_limits=False).plan_request().gbs == 1000


def test_an_unknown_mode_is_refused(capsys: Capture) -> None:
    assert cli.run([*SMALL, "--mode", "slow"]) == 2
    assert "fast" in capsys.readouterr().err


def test_as_many_records_as_asked_for_are_printed() -> None:
    """In order, and no two of the same sizes and chips."""
    found = apss(model_name="llama2-7b", num_gpus=16, gpu_infos="a800:8,h800:8", top=12)
    times = [record["sim_total_time_s"] for record in found.records]
    assert len(times) == 12 and times == sorted(times)
    assert len(found.result.proof.bounds_s) == 12 if found.result.proof else False
    kinds = {
        (plan.layout.dp, plan.layout.mbs, plan.layout.tp, tuple(sorted(r.pool for r in m.stages)))
        for plan in found.result.plans
        if (m := plan.mixed)
    }
    assert len(kinds) == 12


def test_a_chip_without_the_kernel_is_not_given_its_flag() -> None:
    """A V100 has no flash attention, and its time was priced without."""
    asked = {"model_name": "llama2-7b", "num_gpus": 32, "global_batch_size": 512, "top": 1}
    [record] = apss(**asked, gpu_infos="v100-32").records
    assert "use-flash-attn" not in record["strategy"]
    [record] = apss(**asked, gpu_infos="a800").records
    assert "use-flash-attn" in record["strategy"]
