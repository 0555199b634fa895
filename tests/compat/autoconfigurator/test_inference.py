from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.cli import run
from meshwright.compat.autoconfigurator import measured as measuring
from meshwright.compat.autoconfigurator.inference import (
    InferenceSearch,
    inference_of,
    predict_points,
)
from meshwright.compat.autoconfigurator.words import compose
from meshwright.runs.serving import trial
from meshwright.software.serving import EngineCommand, ServedWorker
from meshwright.values.errors import ConfigError

STANDIN = Path(__file__).parents[2] / "runs" / "loads" / "standin.py"
RUN, BENCHMARK = (
    "search_config.inference_settings.run",
    "search_config.inference_settings.benchmark",
)
HEADINGS = "TP,PP,BS,Latency [ms],Throughput per GPU [samples/sec/gpu]"


def inference(*words: str) -> InferenceSearch:
    return inference_of(compose(["auto_configurator_path=/opt/tool", *words]))


def test_the_grid_of_a_predefined_search_is_the_documented_one() -> None:
    found = inference("search_config=gpt3/5b")
    assert len(found.grid) == 3 * 2 * 7 and {(tp, pp) for tp, pp, _ in found.grid} == {
        (tp, pp) for tp in (1, 2, 4) for pp in (1, 2)
    }
    assert (found.input_len, found.output_len, found.data_type, found.name) == (
        60,
        20,
        "fp16",
        "gpt3_5b",
    )
    assert found.folder == Path("/opt/tool/results/gpt3/5b_80gb/inference")


def test_more_batch_takes_longer_and_gives_more() -> None:
    points, refused = predict_points(
        inference("search_config=gpt3/5b", f"{BENCHMARK}.batch_sizes=[4,32,256]")
    )
    assert len(points) == 18 and not refused
    for tp, pp in {(point.tp, point.pp) for point in points}:
        ours = [point for point in points if (point.tp, point.pp) == (tp, pp)]
        latencies, rates = (
            [point.latency_ms for point in ours],
            [point.samples_per_s_per_gpu for point in ours],
        )
        assert latencies == sorted(latencies) and rates == sorted(rates)
    at = points[0]
    # 5e9 weights of 2 bytes at 2 TB/s are 5 ms, which each of 20 tokens takes at least
    assert at.latency_ms > 20 * 4.9 and at.samples_per_s_per_gpu == pytest.approx(
        4e3 / at.latency_ms
    )


def test_what_cannot_run_is_a_row_and_the_rest_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *(
            "search_config=gpt3/175b",
            f"auto_configurator_path={tmp_path}",
            "run_training_hp_search=False",
        ),
        *(
            f"{RUN}.tensor_parallel_sizes=[1,5,8]",
            f"{RUN}.pipeline_parallel_sizes=[1]",
            f"{BENCHMARK}.batch_sizes=[4,4096]",
        ),
        f"{BENCHMARK}.output_len=500",
    ]
    assert run(["autoconfigurator", *words, "--dry-run"]) == 0
    folder = tmp_path / "results" / "gpt3" / "175b_80gb" / "inference" / "final_summary"
    final = (folder / "final_output.csv").read_text().splitlines()
    assert final[0] == HEADINGS and [line.split(",")[:3] for line in final[1:]] == [["8", "1", "4"]]
    with (folder / "all_points.csv").open() as handle:
        [row] = csv.DictReader(handle)
    assert ",".join(row).startswith(HEADINGS) and (row["Source"], row["GPUs"], row["GPU"]) == (
        "predicted",
        "8",
        "a100-80",
    )
    assert float(row["Memory [GiB]"]) > 175e9 * 2 / 8 / 2**30
    with (folder / "failed_points.csv").open() as handle:
        failed = {
            (row["TP"], row["BS"]): (row["Class"], row["Reason"]) for row in csv.DictReader(handle)
        }
    assert {key: kind for key, (kind, _) in failed.items()} == {
        **{("1", batch): "oom" for batch in ("4", "4096")},
        **{("5", batch): "rule" for batch in ("4", "4096")},
        ("8", "4096"): "oom",
    }
    assert (
        "num_heads=96 is not divisible by tp=5" in failed["5", "4"][1]
        and "GiB short" in failed["8", "4096"][1]
    )
    assert (
        "1 point predicted as fastertransformer runs them, and 5 that can't run"
        in capsys.readouterr().out
    )


def test_where_nothing_runs_the_answer_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        f"{RUN}.tensor_parallel_sizes=[1]",
        f"{RUN}.pipeline_parallel_sizes=[1]",
        f"auto_configurator_path={tmp_path}",
    ]
    assert (
        run(
            [
                "autoconfigurator",
                "search_config=gpt3/175b",
                "run_training_hp_search=False",
                "--dry-run",
                *words,
            ]
        )
        == 1
    )
    assert "GiB short of one request" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["t5/0.22b", "bert/0.11b", "mixtral/3b"])
def test_families_that_the_old_tool_did_not_take(name: str) -> None:
    points, _ = predict_points(
        inference(
            f"search_config={name}",
            f"{BENCHMARK}.batch_sizes=[8]",
            f"{RUN}.tensor_parallel_sizes=[1,2]",
        )
    )
    assert points and all(point.latency_ms > 0 for point in points)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"{RUN}.engine=vlm", "'vlm' is no known engine; did you mean 'vllm'"),
        (f"{RUN}.time_limit=soon", f"{RUN}.time_limit=soon: expected"),
        (
            f"{RUN}.data_type=fp8",
            "'fp8' is no known search_config.inference_settings.run.data_type",
        ),
        (f"{BENCHMARK}.beam_width=4", "batches of one beam are modelled"),
        (f"{BENCHMARK}.batch_sizes=[0]", f"{BENCHMARK}.batch_sizes=0: expected a whole number"),
        (f"{BENCHMARK}.input_len=-1", f"{BENCHMARK}.input_len=-1: expected"),
        (f"{RUN}.tensor_parallel_sizes=[]", "expected a list of whole numbers"),
    ],
)
def test_values_that_cannot_be(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        inference("search_config=gpt3/5b", word)
    assert said in str(caught.value)


def test_words_without_effect_are_said() -> None:
    [note] = inference("search_config=gpt3/5b", f"{BENCHMARK}.topk=1").notes
    assert f"{BENCHMARK}.topk=1" in note
    assert "an encoder writes nothing" in inference("search_config=bert/0.11b").notes[0]


def test_a_search_without_the_settings_of_inference() -> None:
    config = compose(["auto_configurator_path=/opt/tool", "search_config=gpt3/5b"])
    del config["search_config"]["inference_settings"]["run"]["data_type"]
    with pytest.raises(
        ConfigError,
        match=(
            r"inference_settings.run.data_type: missing; run_inference_hp_search=False does without"
        ),
    ):
        inference_of(config)


def test_a_search_of_inference_alone_is_refused_where_nothing_can_be_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "search_config=gpt3/5b",
        f"auto_configurator_path={tmp_path}",
        "run_training_hp_search=False",
    ]
    assert run(["autoconfigurator", *words]) == 2
    said = capsys.readouterr().err
    assert (
        "nothing can be measured: no deployment of gpt3-5b can be run" in said
        and "--dry-run writes the predictions" in said
    )
    assert (
        run(
            [
                "autoconfigurator",
                *words,
                f"{RUN}.engine=vllm",
                f"{RUN}.model_path=/gpt",
                f"{RUN}.container=vllm/vllm-openai",
                "--dry-run",
            ]
        )
        == 0
    )
    folder = tmp_path / "results" / "gpt3" / "5b_80gb" / "inference" / "first_job"
    job, asked = (
        (folder / "job.sbatch").read_text(),
        json.loads((folder / "serve.json").read_text()),
    )
    assert "--container-image=vllm/vllm-openai" in job and "#SBATCH --time=0-00:30:00" in job
    assert asked["command"][:3] == ["vllm", "serve", "/gpt"] and [
        load["value"] for load in asked["loads"]
    ] == [4, 8, 16, 32, 64, 128, 256]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A grid on this machine with an engine that stands in and dies under the second load of tp=2;
    tp=3 does not divide the heads."""
    folder = tmp_path_factory.mktemp("inference")

    def command(served: ServedWorker) -> EngineCommand:
        return EngineCommand(
            words=(
                sys.executable,
                str(STANDIN),
                served.port,
                *(["dies"] if served.worker.tp == 2 else []),
            )
        )

    words = [
        "search_config=tiny/llama",
        "cluster_type=interactive",
        f"auto_configurator_path={folder}",
        "run_training_hp_search=False",
    ]
    words += [
        f"{RUN}.tensor_parallel_sizes=[1,2,3]",
        f"{BENCHMARK}.batch_sizes=[1,4]",
        f"{BENCHMARK}.input_len=16",
        f"{BENCHMARK}.output_len=4",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        patch.setattr(trial, "engine_command", command)
        patch.setattr(measuring, "find_spec", lambda name: name)
        assert run(["autoconfigurator", *words, "--quiet"]) == 0
    yield folder / "results" / "tiny" / "llama_80gb" / "inference", words


def test_a_grid_is_measured_and_what_fails_is_a_row(measured: tuple[Path, list[str]]) -> None:
    folder, _ = measured
    final = (folder / "final_summary" / "final_output.csv").read_text().splitlines()
    assert final[0] == HEADINGS and [line.split(",")[:3] for line in final[1:]] == [
        ["1", "1", "1"],
        ["1", "1", "4"],
        ["2", "1", "1"],
    ]
    with (folder / "final_summary" / "all_points.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {(row["Source"], row["Engine"], row["Data Type"]) for row in rows} == {
        ("measured", "transformers", "fp32")
    }
    for row in rows:
        # clients wait for their answers: no more a second than there are clients over the mean time
        # of one
        per_gpu = float(row["BS"]) / float(row["Latency [ms]"]) * 1e3 / int(row["TP"])
        assert 0 < float(row["Throughput per GPU [samples/sec/gpu]"]) <= 1.01 * per_gpu
        assert float(row["Predicted Latency [ms]"]) > 0
    with (folder / "final_summary" / "failed_points.csv").open() as handle:
        failed = {(row["TP"], row["BS"]): row for row in csv.DictReader(handle)}
    assert {key: row["Class"] for key, row in failed.items()} == {
        ("2", "4"): "load",
        ("3", "1"): "rule",
        ("3", "4"): "rule",
    }
    assert (
        "CUDA out of memory" in failed["2", "4"]["Evidence"]
        and "divisible by tp=3" in failed["3", "1"]["Reason"]
    )


def test_predictions_never_take_the_place_of_measurements(
    measured: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, words = measured
    before = (folder / "final_summary" / "all_points.csv").read_text()
    assert run(["autoconfigurator", *words, "--dry-run"]) == 0
    assert "predicted_summary/final_output.csv" in capsys.readouterr().out
    assert (folder / "final_summary" / "all_points.csv").read_text() == before
    assert (
        ",predicted,fastertransformer,"
        in (folder / "predicted_summary" / "all_points.csv").read_text()
    )
