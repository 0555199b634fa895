"""Studies of serving on this machine, with an engine that stands in: what is measured, what fails,
what is kept, what goes on."""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from meshwright.runs.limits import StudyLimits
from meshwright.runs.loads.figures import Limits
from meshwright.runs.loads.load import Lengths, closed_loop
from meshwright.runs.serving import trial
from meshwright.runs.serving.tune import (
    PreparedServing,
    prepare_serving_study,
    serving_place,
    tune_serving,
)
from meshwright.runs.store import read_store
from meshwright.runs.tune import StudyOptions
from meshwright.software.serving import EngineCommand, ServedWorker
from meshwright.values.errors import ConfigError, StudyError
from meshwright.values.models.catalogue import named_model

STANDIN = Path(__file__).parents[2] / "runs" / "loads" / "standin.py"
LOADS = tuple(
    closed_loop(clients, Lengths(input_len=16, output_len=4), requests=2 * clients)
    for clients in (1, 4)
)


def stands_in(word_of: dict[int, str]) -> Any:
    """An engine whose deployments go wrong as their tp says."""

    def command(served: ServedWorker) -> EngineCommand:
        word = word_of.get(served.worker.tp, "")
        return EngineCommand(
            words=(sys.executable, str(STANDIN), served.port, *([word] if word else []))
        )

    return command


def prepared(folder: Path, **changes: Any) -> PreparedServing:
    place = serving_place("local:2", folder=folder)
    # The stand-in takes any deployment; pipelines, which transformers does not, are left out here.
    values: dict[str, Any] = {
        "engine": "transformers",
        "loads": LOADS,
        "ready_s": 20.0,
        "pins": {"pp": (1,)},
        **changes,
    }
    return prepare_serving_study(named_model("tiny-llama"), place, **values)


def tuning(folder: Path, **limits: Any) -> StudyOptions:
    return StudyOptions(
        folder=folder, limits=StudyLimits(strategy="grid", minutes_per_run=2.0, **limits)
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cores of these runs are not those that other tests wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of two deployments one is measured in full, and one dies under its second load; then the same
    command again."""
    folder = tmp_path_factory.mktemp("study") / "serving"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "engine_command", stands_in({2: "dies"}))
        found = tune_serving(prepared(folder), tuning(folder))
        assert found.view.stop == "every candidate has been run"
        again = tune_serving(prepared(folder), tuning(folder))
        assert [record.attempts for record in again.view.records] == [1, 1]  # nothing is repeated
        yield folder


def test_every_load_that_was_measured_is_a_row(study: Path) -> None:
    found = {(row["tp"], row["load"]): row for row in rows(study / "results.csv")}
    assert set(found) == {("1", "concurrency=1"), ("1", "concurrency=4"), ("2", "concurrency=1")}
    row = found["1", "concurrency=4"]
    assert (row["requests"], row["output_tokens"], row["gpus"], row["keeps_limits"]) == (
        "8",
        "32",
        "1",
        "yes",
    )
    assert float(row["tokens_per_s"]) > 0 and float(row["predicted_tokens_per_s"]) > 0


def test_the_load_that_killed_its_engine_is_a_failed_point_with_its_evidence(study: Path) -> None:
    (row,) = rows(study / "failed.csv")
    assert (row["tp"], row["load"], row["failure_class"]) == ("2", "concurrency=4", "load")
    assert row["message"] == "the engine ended with exit code 1 under concurrency=4"
    assert "CUDA out of memory" in row["evidence"]


def test_the_best_is_kept_with_the_files_that_ran(study: Path) -> None:
    best = yaml.safe_load((study / "best.yaml").read_text())
    most = max(
        rows(study / "results.csv"), key=lambda row: float(row["tokens_per_s"]) / int(row["gpus"])
    )
    assert (str(best["deployment"]["worker"]["tp"]), best["load"]) == (most["tp"], most["load"])
    assert sorted(path.name for path in (study / "best").iterdir()) == ["config.json", "serve.json"]


def test_nothing_is_left_running(study: Path) -> None:
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(STANDIN) in (process.info["cmdline"] or [])
    ]


def test_another_question_in_the_same_folder_is_refused(study: Path) -> None:
    with pytest.raises(StudyError, match="holds another study"):
        tune_serving(prepared(study, loads=LOADS[:1]), tuning(study))


def test_those_who_read_studies_of_training_say_what_this_is(study: Path) -> None:
    with pytest.raises(
        ConfigError, match="a run of a study of serving, which `meshwright serving tune` reads"
    ):
        read_store(study).records()


def test_when_every_engine_fails_the_study_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "engine_command", stands_in({1: "exits"}))
    folder = tmp_path / "serving"
    found = tune_serving(prepared(folder, pins={"tp": (1,), "pp": (1,)}), tuning(folder))
    assert found.view.best is None
    (row,) = rows(folder / "failed.csv")
    assert row["failure_class"] == "config_error"
    assert row["evidence"] == "ValueError: tensor parallel size 3 does not divide 8 heads"
    assert not (folder / "best.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine": "vllm"}, "vllm loads a checkpoint: give --model-path"),
        ({"weights": ("fp8",)}, "no deployment of tiny-llama can be run"),
        ({"pins": {"tp": (3,)}}, "tp=1: not asked for"),
        ({"engine": "vlm"}, "did you mean"),
        ({"limits": Limits(ttft_s=1.0), "port": 70000}, "port=70000: expected 1 to 65535"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        prepared(tmp_path, **changes)
    assert says in str(error.value)
