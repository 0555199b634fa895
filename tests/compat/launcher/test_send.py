"""A line from its first word to its last job: inside a job of Base Command, outside, on Slurm, and
on this machine."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.platforms.executors.harness import inside_base_command, programs
from tests.platforms.executors.test_base_command import installed

from meshwright.cli import run
from meshwright.compat.launcher import send as sending
from meshwright.compat.launcher.jobs import Step
from meshwright.compat.launcher.line import read_line
from meshwright.platforms.executor import JobStatus
from meshwright.platforms.job import Job

MESHWRIGHT = f'#!/bin/sh\nexec {sys.executable} -m meshwright "$@"\n'
TORCHRUN = """#!/bin/bash
printf '%s\\n' "torchrun $*"
grep -A4 data_prefix ./*_hydra.yaml
exit "${TORCHRUN_CODE:-0}"
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Path]:
    """Two files of documents, of 100 and 300, and a text to train a tokenizer on."""
    chance, folder = random.Random(1), tmp_path / "raw"
    folder.mkdir()
    letters = ["".join(chance.choices("abcdefgh", k=chance.randint(2, 7))) for _ in range(900)]
    for name, count in (("a", 100), ("b", 300)):
        rows = [{"text": " ".join(chance.choices(letters, k=40))} for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = "".join(" ".join(chance.choices(letters, k=30)) + "\n" for _ in range(900))
    (tmp_path / "t.txt").write_text(text)
    with (
        programs(tmp_path, "meshwright", text=MESHWRIGHT),
        programs(tmp_path, "torchrun", text=TORCHRUN),
    ):
        yield folder


def words(tmp_path: Path, raw: Path, stages: str, kind: str = "bcp") -> list[str]:
    data, tokenizer = "data_preparation", "data_preparation.train_tokenizer_args"
    return [
        *("launcher", f"cluster_type={kind}", f"stages={stages}", f"{data}=generic/custom_dataset"),
        *(f"data_dir={tmp_path}/data", f"base_results_dir={tmp_path}/results"),
        *(f"{data}.raw_dataset_files={raw}", f"{data}.run.cpus_per_node=1"),
        *(f"{tokenizer}.input={tmp_path}/t.txt", f"{tokenizer}.vocab_size=300"),
        *("training=gpt3/126m", "training.trainer.devices=2"),
    ]


def test_inside_a_job_everything_runs_there(tmp_path: Path, raw: Path, capfd: Capture) -> None:
    line = words(tmp_path, raw, "[data_preparation,training]")
    with inside_base_command(tmp_path, nodes=2):
        assert run(line) == 0
    said = capfd.readouterr()
    assert "num_nodes=8 is 2, the nodes that are here" in said.err
    # The shares are of tokens, known when the data is there: about a quarter and three quarters.
    [first, *_] = [row for row in said.out.splitlines() if row.strip().startswith("- 0.2")]
    assert 0.24 < float(first.strip(" -")) < 0.26
    assert said.out.count("torchrun --nnodes=2") == 2
    assert "weighed by their tokens" in said.err
    logs = tmp_path / "results" / "gpt3_126m" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == ["replica-0.log", "replica-1.log"]
    assert (
        "stages=[data_preparation,training]"
        in (tmp_path / "results" / "launcher" / "launcher_cmd.log").read_text()
    )


def test_the_code_is_that_of_the_program(
    tmp_path: Path, raw: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = words(tmp_path, raw, "[data_preparation]")
    with inside_base_command(tmp_path, nodes=2):
        assert run(line) == 0
        monkeypatch.setenv("TORCHRUN_CODE", "9")
        assert run(words(tmp_path, raw, "[data_preparation,training]")) == 9
    assert "gpt3-126m ended with 9; the same line goes on there" in capfd.readouterr().err


def test_outside_jobs_are_sent_one_behind_the_other(
    tmp_path: Path, raw: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_POLL_S", "0.1")
    monkeypatch.chdir(tmp_path)
    line = words(tmp_path, raw, "[data_preparation]")
    line += [
        "data_preparation.run.node_array_size=1",
        f"container_mounts=['workspace=W:{tmp_path}']",
    ]
    with installed(tmp_path):
        assert run([*line, "--dry-run"]) == 0
        assert "--workspace W:" in capfd.readouterr().out and not (tmp_path / "launcher").exists()
        assert run(line) == 0
        said = capfd.readouterr().err
        assert said.index("tokenizer: succeeded") < said.index("preprocess: sent")
        assert (tmp_path / "data/custom_dataset/preprocessed/b.jsonl_text_document.idx").exists()
        assert run(line) == 0
        assert "sent" not in capfd.readouterr().err


def test_this_machine_alone(tmp_path: Path, raw: Path, capfd: Capture) -> None:
    assert run(words(tmp_path, raw, "[data_preparation,training]", "interactive")) == 0
    said = capfd.readouterr()
    assert "torchrun --standalone --nproc-per-node=2" in said.out
    assert "num_nodes=8 is 1, the nodes that are here" in said.err


@dataclass
class Recorder:
    """A launcher that remembers what it was sent."""

    name: str = "slurm"
    sent: dict[str, Job] = field(default_factory=dict)
    states: dict[str, JobStatus] = field(default_factory=dict)

    def check(self) -> None:
        return

    def find(self, label: str, *, directory: Path) -> str | None:
        return label if label in self.states else None

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        self.sent[label] = job
        return str(100 + len(self.sent))

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        return {handle: self.states[handle] for handle in handles}


def test_on_slurm_each_job_waits_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = Recorder()
    monkeypatch.setattr("meshwright.compat.autoconfigurator.cluster.executor", lambda _: starter)
    line = read_line(["stages=[training]", f"data_dir={tmp_path}", f"base_results_dir={tmp_path}"])
    job = Job(name="one", command=("a",), nodes=1, gpus_per_node=1)
    data = [Step(name=name, does="", job=job, is_data=True) for name in ("a", "b")]
    steps = [
        Step(
            name=one.name,
            does="",
            job=Job(name=one.name, command=("a",), nodes=1, gpus_per_node=1),
            is_data=one.is_data,
        )
        for one in (*data, Step(name="t", does="", job=job))
    ]
    said: list[str] = []
    jobs = sending.written_jobs(line, steps, tmp_path)
    assert sending.send(line, jobs, said.append) == 0
    after = [job.words[:1] for job in starter.sent.values()]
    assert after == [(), ("--dependency=afterok:101",), ("--dependency=afterok:102",)]
    assert said == ["a: job 101", "b: job 102, behind 101", "t: job 103, behind 102"]
    # What is done is not made again, what runs is waited for, and a training goes on.
    starter.sent.clear()
    starter.states = {
        "a": JobStatus(state="succeeded"),
        "b": JobStatus(state="running"),
        "t": JobStatus(state="timed_out"),
    }
    assert sending.send(line, jobs, said.append) == 0
    assert list(starter.sent) == ["t"]
    assert starter.sent["t"].words[0] == "--dependency=afterok:b"


def test_jupyter_lab_has_a_token(capsys: Capture) -> None:
    line = ["launcher", "cluster_type=bcp", "stages=[notebook]", "data_dir=/mount/data"]
    line += ["base_results_dir=/mount/results", "cluster.workspace=ID", "--dry-run", "--json"]
    assert run(line) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert "--port 8888" in job["text"] and "secrets.token_hex" in job["text"]
    assert run([*line, "--no-token"]) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert "secrets.token_hex" not in job["text"] and "NO TOKEN" in job["does"]
