"""What is peculiar to Base Command, on a stand-in for NGC CLI."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.platforms.executors.harness import Harness, bash, programs

from meshwright.platforms.base_command.executor import (
    STATES,
    BaseCommandExecutor,
    BaseCommandOptions,
    _number,
    _status_of,
)
from meshwright.platforms.base_command.script import one_gpu_instance
from meshwright.platforms.executor import JobState
from meshwright.platforms.registry import job_text
from meshwright.values.errors import ConfigError, LauncherError, LauncherSilent

FIELDS: dict[str, Any] = {
    "image": "nvcr.io/nvidia/pytorch:25.04-py3",
    "instance": "dgxa100.80g.8.norm",
}


@contextmanager
def installed(folder: Path) -> Iterator[Path]:
    """Put the stand-in where ngc is looked for; what runs in the end is ended."""
    state = folder / "ngc"
    state.mkdir()
    text = f'#!/bin/bash\nexec {sys.executable} -I -S {Path(__file__).parent / "ngc.py"} "$@"\n'
    with programs(folder, "ngc", text=text), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGC_STATE", str(state))
        yield state
    for pid in state.glob("*/pid"):
        if not (pid.parent / "code").exists() and not (pid.parent / "killed").exists():
            os.killpg(int(pid.read_text()), 9)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with installed(tmp_path):
        yield Harness(
            make=lambda: BaseCommandExecutor(BaseCommandOptions(log_every_s=0)),
            folder=tmp_path,
            fields=FIELDS,
        )


def test_several_nodes(harness: Harness) -> None:
    """bcprun is what starts them; it is not there, and the job fails by it."""
    handle = harness.submit(replace(bash("true"), nodes=2, gpus_per_node=8))
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code, status.reason) == ("failed", None, "FAILED")
    assert "bcprun: command not found" in (harness.folder / "run 1" / "stdout.log").read_text()


def test_options_and_organizations(harness: Harness) -> None:
    words = ("--preempt", "RUNONCE", "--priority", "HIGH")
    options = BaseCommandOptions(
        organization="ours",
        ace="a1",
        image=FIELDS["image"],
        instance=FIELDS["instance"],
        words=words,
    )
    directory, label = harness.place()
    handle = BaseCommandExecutor(options).submit(bash("true"), directory=directory, label=label)
    assert "@ours:" in handle
    assert harness.end(handle)[handle].state == "succeeded"
    assert BaseCommandExecutor().find(label, directory=directory) == handle


def test_how_a_job_is_queued(harness: Harness) -> None:
    """NGC CLI's own choices, which the stand-in has too."""
    asked = replace(
        bash("true"),
        priority="high",
        order=10,
        preempt="resumable",
        min_timeslice="1h30m",
        **FIELDS,
    )
    text = job_text(asked, launcher="bcp").text
    for line in ("--priority HIGH", "--order 10", "--preempt RESUMABLE", "--min-timeslice 1H30M"):
        assert line in text
    handle = harness.submit(replace(asked, image=None, instance=None))
    assert harness.end(handle)[handle].state == "succeeded"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"priority": "URGENT"}, "known: HIGH, LOW, NORMAL"),
        ({"preempt": "RUNTWICE"}, "did you mean 'RUNONCE'"),
        ({"order": 100}, "order=100: bcp has 1, the first, to 99"),
        ({"min_timeslice": "soon"}, "min_timeslice"),
    ],
)
def test_a_queue_that_base_command_has_not(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job_text(replace(bash("true"), **FIELDS, **words), launcher="bcp")


def test_checks_take_one_gpu() -> None:
    assert one_gpu_instance("dgxa100.80g.8.norm") == "dgxa100.80g.1.norm"
    assert one_gpu_instance("dgxa100.80g.2.norm") == "dgxa100.80g.2.norm"
    assert one_gpu_instance("cpu.x86.tiny") == "cpu.x86.tiny"


def test_a_queue_that_does_not_start_it(harness: Harness) -> None:
    handle = harness.submit(bash("true"))
    harness.end(handle)
    harness.fields = {**FIELDS, "image": "missing:1"}
    handle = harness.submit(bash("true"))
    status = harness.status(handle)
    assert (status.state, status.reason, status.started_s) == (
        "queued",
        "Waiting for resources",
        None,
    )
    harness.executor.cancel(handle)
    assert harness.status(handle).state == "cancelled"


def test_found_by_its_name_where_ngc_died_too(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(harness.of(bash("true")), directory=directory, label=label)
    (directory / "job" / "ngc.out").write_text("")
    assert harness.make().find(label, directory=directory) == handle


def test_older_than_the_list(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = harness.submit(bash("true"))
    monkeypatch.setattr(BaseCommandExecutor, "_list", lambda self, organization: [])
    assert harness.end(handle)[handle].state == "succeeded"


def test_logs_are_not_fetched_at_every_poll(harness: Harness) -> None:
    executor = BaseCommandExecutor(BaseCommandOptions(log_every_s=3600))
    directory, label = harness.place()
    line = f"echo one; while [[ ! -e '{harness.folder}/go' ]]; do sleep 0.1; done; echo two"
    handle = executor.submit(harness.of(bash(line)), directory=directory, label=label)
    while not (directory / "stdout.log").exists():
        executor.poll([handle])
    (harness.folder / "go").touch()
    seen = (directory / "stdout.log").read_text()
    assert harness.end(handle)[handle].state == "succeeded"
    assert executor.poll([handle])[handle].state == "succeeded"
    assert seen in ("", "one\n")
    assert (directory / "stdout.log").read_text() == "one\ntwo\n", "the end is fetched at once"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--preempt", "SOMETIMES"), "invalid choice: 'SOMETIMES'"),
        (("--nonsense",), "unrecognized arguments: --nonsense"),
    ],
)
def test_ngc_refuses(harness: Harness, words: tuple[str, ...], said: str) -> None:
    directory, label = harness.place()
    with pytest.raises(LauncherError, match=f"bcp: ngc refuses {label}: .*{said}"):
        harness.executor.submit(
            replace(harness.of(bash("true")), words=words), directory=directory, label=label
        )
    assert harness.executor.find(label, directory=directory) is None


def test_base_command_does_not_answer(harness: Harness) -> None:
    with pytest.raises(LauncherSilent, match="Request timed out"):
        BaseCommandExecutor(BaseCommandOptions(organization="down")).check()
    with pytest.raises(LauncherSilent, match="Request timed out"):
        harness.executor.poll([f"5000000@down:{harness.folder}"])


def test_ngc_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LauncherError, match=r"bcp: ngc is not there: install NGC CLI 4.19.1 or earlier"
    ):
        BaseCommandExecutor().check()


def test_an_ngc_without_base_command(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGC_VERSION", "4.20.0")
    with pytest.raises(LauncherError, match=r"bcp: NGC CLI 4.20.0 has no base-command any more"):
        harness.executor.check()


def test_what_base_command_has_no_word_for(harness: Harness) -> None:
    with pytest.raises(ConfigError, match="bcp needs instance"):
        BaseCommandExecutor().submit(
            replace(bash("true"), image="a"), directory=harness.folder, label="a-1"
        )


@pytest.mark.parametrize("handle", ["", "12", "a@b:/c", "12@b"])
def test_what_is_no_handle(handle: str) -> None:
    with pytest.raises(LauncherError, match="no handle"):
        BaseCommandExecutor().poll([handle])


def test_every_status_has_a_row() -> None:
    """The 25 of NGC CLI 4.19.1."""
    assert len(STATES) == 25
    assert set(STATES.values()) <= set(get_args(JobState))
    for word, state in STATES.items():
        status = _status_of(
            {"status": word, "statusDetails": "why", "startedAt": "2026-01-02T03:04:05.000Z"}
        )
        assert status.state == state
        assert "why" in status.reason
    assert _status_of({"status": "SHINY_NEW"}) == replace(_status_of({}), reason="SHINY_NEW")
    assert _status_of({}).state == "unknown"


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ('{"job": {"id": 7}, "jobStatusHistory": []}', "7"),
        ('A newer version is available.\n{\n  "id": 8\n}', "8"),
        ("Error: no", None),
        ("[]", None),
        ('{"id": "x"}', None),
        ('{"job": ', None),
    ],
)
def test_the_number_in_an_answer(said: str, number: str | None) -> None:
    assert _number(said) == number


def test_the_words_that_are_sent(harness: Harness) -> None:
    directory, label = harness.place()
    harness.end(harness.executor.submit(harness.of(bash("true")), directory=directory, label=label))
    text = (directory / "job" / "job.sh").read_text()
    assert f"--name {label}" in text and "--format_type json" in text
    assert json.loads((directory / "job" / "sent.json").read_text()) == {
        "label": label,
        "organization": "",
    }
