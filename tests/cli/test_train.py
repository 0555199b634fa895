"""`meshwright train` and its kin from the command line, with a torchrun of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.platforms.executors.harness import machine_of_its_own
from tests.runs.training.standin import put_torchrun

from meshwright import cli
from meshwright.data.indexed import write_index

Capture = pytest.CaptureFixture[str]
HERE = ["train", "tiny-llama", "--cluster", "local:1", "--layout", "mbs=1", "--steps", "30"]


@pytest.fixture(autouse=True)
def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    put_torchrun(tmp_path, monkeypatch)
    with machine_of_its_own(tmp_path):
        yield


def error_of(arguments: list[str], capsys: Capture) -> str:
    """The one line that a refused command prints."""
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    return lines[0].removeprefix("error: ")


def test_a_training_on_this_machine(capsys: Capture) -> None:
    assert cli.run([*HERE, "-o", "run"]) == 0
    out, err = capsys.readouterr()
    assert "ok    replicas     1 GPU / (tp 1 * cp 1 * pp 1) = dp 1" in err
    assert (
        "note  data         none is given (--data): random or mock tokens, which teach nothing"
        in err
    )
    assert "step 30 of 30, loss 7.7, 2,048 tokens/s" in out, (
        "1,024 tokens a step (128 * 8) in half a second"
    )
    assert "newest checkpoint: step 30" in out
    assert "done: step 30 of 30 is done" in out
    plan = json.loads(Path("run/plan.json").read_text())
    assert len(plan["plans"]) == 1
    assert plan["plans"][0]["layout"]["gbs"] == 8
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["submitted", "ended", "finished"]
    assert cli.run(["train", "run", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert "done: step 30 of 30 is done" in out
    assert {line.split()[0] for line in err.splitlines()} == {"note"}, (
        "warnings stay, and nothing else"
    )


def test_a_chain_of_jobs_goes_on_from_checkpoints(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPS_A_JOB", "12")
    assert cli.run([*HERE, "-o", "run", "--time", "10h"]) == 0
    assert "minutes=570" in Path("run/jobs/1/job/job.sh").read_text(), (
        "half an hour before ten hours"
    )
    assert sorted(path.name for path in Path("run/jobs").iterdir()) == ["1", "2", "3"]
    first = [
        json.loads(line)["step"] for line in Path("run/jobs/2/stdout.log").read_text().splitlines()
    ]
    assert first == list(range(13, 25))
    assert "job 2: its time was over; it goes on from step 24" in capsys.readouterr().err
    assert cli.run(["train", "run"]) == 0
    assert "nothing is sent" in capsys.readouterr().err
    assert not Path("run/jobs/4").exists()


def test_a_failure_stops_it_and_the_same_command_goes_on(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.runs.training.launch.Launch._sleep", lambda self, seconds: None)
    monkeypatch.setenv("FAILS", "not today")
    assert cli.run([*HERE, "-o", "run"]) == 1
    assert "failed the same way twice without a checkpoint" in capsys.readouterr().out
    monkeypatch.delenv("FAILS")
    assert cli.run(["train", "run"]) == 0
    assert "done: step 30 of 30 is done" in capsys.readouterr().out


def test_status_logs_cancel_and_list(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEP_S", "60")
    assert cli.run([*HERE, "-o", "runs/a", "--detach"]) == 0
    capsys.readouterr()
    assert cli.run(["train", "status", "runs/a", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["total_steps"] == 30
    assert state["jobs"][0]["status"]["state"] in ("queued", "running")
    assert cli.run(["train", "list", "runs"]) == 0
    assert capsys.readouterr().out.startswith("runs/a  local  ")
    assert cli.run(["train", "cancel", "runs/a"]) == 0
    assert capsys.readouterr().out == "told to end: job 1\n"
    assert cli.run(["train", "logs", "runs/a", "--follow"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["step"] for line in lines] in ([], [1])
    assert cli.run(["train", "status", "runs/a"]) == 0
    assert "job 1: cancelled" in capsys.readouterr().out
    assert cli.run(["train", "cancel", "runs/a"]) == 0
    assert capsys.readouterr().out == "no job of it runs or waits\n"


def test_dry_run_prints_what_is_sent(capsys: Capture) -> None:
    assert cli.run([*HERE, "-o", "run", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert not Path("run").exists()
    assert cli.run([*HERE, "-o", "run"]) == 0
    for name in ("job.sh", "plan.json"):
        assert (
            f"==> {Path('run').absolute()}/jobs/1/job/{name}\n{Path('run/jobs/1/job', name).read_text()}"  # noqa: E501
            in out
        )


def test_preflight_problems_send_nothing(capsys: Capture) -> None:
    assert cli.run([*HERE, "-o", "run", "--data", "/no/corpus", "--quota", "1MB"]) == 1
    err = capsys.readouterr().err
    assert "STOP  data         /no/corpus.idx does not exist" in err
    assert "STOP  storage" in err
    assert "nothing is sent: data, storage; --allow NAME" in err
    assert not Path("run").exists()


def test_data_are_looked_at(capsys: Capture) -> None:
    ids = bytes([1, 0, 2, 0, 255, 255, 3, 0])
    Path("a.bin").write_bytes(ids)
    with Path("a.idx").open("wb") as file:
        write_index(
            file,
            dtype=np.dtype("<u2"),
            lengths=np.array([2, 2], dtype=np.int32),
            bounds=np.array([0, 1, 2]),
        )
    assert cli.run([*HERE, "-o", "run", "--data", "a", "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "2 documents, 4 tokens, weight 1" in out
    assert (
        "STOP  vocabulary   the model has 2,048 ids, padded to 2,048 (multiples of 128), and" in out
    )
    Path("a.bin").write_bytes(ids[:-2])
    assert cli.run([*HERE, "-o", "run", "--data", "a", "--dry-run"]) == 1
    assert "STOP  data" in capsys.readouterr().out


def test_a_single_document_can_not_be_held_out(capsys: Capture) -> None:
    Path("a.bin").write_bytes(bytes([1, 0] * 4000))
    with Path("a.idx").open("wb") as file:
        write_index(
            file,
            dtype=np.dtype("<u2"),
            lengths=np.array([4000], dtype=np.int32),
            bounds=np.array([0, 1]),
        )
    assert cli.run([*HERE, "-o", "run", "--data", "a", "--dry-run"]) == 1
    assert "1 document, and one is held out for the validation loss" in capsys.readouterr().out
    assert (
        cli.run([*HERE, "-o", "run", "--data", "a", "--setting", "split=100,0,0", "--dry-run"]) == 0
    )
    assert "valid.share" not in capsys.readouterr().out


def test_another_training_in_the_same_folder_is_refused(capsys: Capture) -> None:
    assert cli.run([*HERE, "-o", "run"]) == 0
    capsys.readouterr()
    assert "holds a training with settings={'train_steps': 30}" in error_of(
        [*HERE[:-1], "40", "-o", "run"], capsys
    )
    Path("other").mkdir()
    Path("other/thesis.tex").touch()
    assert "other: holds thesis.tex and no train.yaml" in error_of([*HERE, "-o", "other"], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "tiny-llama"], "train tiny-llama needs --cluster"),
        (["train", "plan.json"], "plan.json: no such file"),
        (
            ["train", "nowhere", "--cluster", "h100:8", "--seq", "128"],
            "'nowhere' is no known model",
        ),
        ([*HERE, "--launcher", "slrum"], "'slrum' is no known launcher; did you mean 'slurm'"),
        ([*HERE, "--to", "nemo1"], "'nemo1' is no known software to train with"),
        ([*HERE, "--time", "90"], "did you mean 90d (days) or 90h (hours)?"),
        ([*HERE, "--time", "1h", "--save-margin", "2h"], "none to train"),
        ([*HERE, "--save-margin", "30m"], "of no effect without a limit"),
        ([*HERE, "--tokenizer", "t"], "tokenizer=t: the embedded trainer has no place for it"),
        (
            [*HERE, "--setting", "lerning_rate=1"],
            "'lerning_rate' is no known setting; did you mean 'learning_rate'",
        ),
        ([*HERE, "--tokens", "2M"], "give one of them"),
        ([*HERE, "--keep", "0"], "keep=0: expected a positive number"),
        (
            [*HERE, "--keep", "3"],
            "keep=3: checkpoints stay for their validation loss, and nothing is held out",
        ),
        (["train", "tiny-llama", "--cluster", "local:1"], "a training needs its length"),
        (["train", "status", "nothing"], "nothing: no training here"),
        (["train", "logs", "."], ".: no training here"),
        ([*HERE, "--allow", "dat"], "'dat' is no known finding of preflight; did you mean 'data'"),
    ],
)
def test_bad_requests_are_one_line(arguments: list[str], words: str, capsys: Capture) -> None:
    assert words in error_of(arguments, capsys)


def test_what_a_platform_cannot_do_without_is_a_finding(capsys: Capture) -> None:
    words = [
        "train",
        "tiny-llama",
        "--cluster",
        "h100:8",
        "--seq",
        "128",
        "--gbs",
        "8",
        "--layout",
        "mbs=1",
        "--steps",
        "30",
    ]
    more = ["--launcher", "k8s", "--mount", "pvc=runs:/runs", "--save-dir", "/runs/a"]
    assert cli.run([*words, *more]) == 1
    err = capsys.readouterr().err
    assert "STOP  job          k8s-trainjob needs image, such as nvcr.io" in err
    assert cli.run([*words, *more, "--dry-run"]) == 0
    assert "missing: --image: k8s-trainjob needs image" in capsys.readouterr().out
    assert cli.run([*words, *more, "--image", "pytorch:25.04", "--dry-run"]) == 0
    assert "kind: TrainJob" in capsys.readouterr().out


def test_a_job_is_shown_with_what_is_missing(capsys: Capture) -> None:
    """Five days of an 8B: the steps that they reach, not a length of another model."""
    words = ["train", "llama3-8b", "--cluster", "h100:16", "--seq", "8192", "--launcher", "bcp"]
    words += ["--time", "5d", "--layout", "tp=2,sp=1,mbs=1,gbs=256"]
    assert cli.run([*words, "--dry-run", "--priority", "low", "--order", "3"]) == 0
    out = capsys.readouterr().out
    missing = [line for line in out.splitlines() if line.startswith("missing: ")]
    assert [line.split()[1].rstrip(":") for line in missing] == [
        *("--mount", "--steps", "--image", "--instance")
    ]
    assert "5d reaches --steps " in missing[1] and "2M" not in out
    for line in ("--image IMAGE", "--workspace WORKSPACE:/mount/data:RW", "--priority LOW"):
        assert line in out
    assert "5d reaches" in error_of(words, capsys)
