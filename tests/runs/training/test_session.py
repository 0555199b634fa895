"""The log of a job, printed as it grows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.platforms.executor import JobStatus
from meshwright.runs.training import session


def test_a_letter_that_is_written_in_two_halves_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, states = tmp_path / "stdout.log", iter(["running", "running", "succeeded", "succeeded"])
    first, second = "step 1 tr\xe8s".encode()[:-2], "step 1 tr\xe8s".encode()[-2:]
    log.write_bytes(first)

    def sleep(_seconds: float) -> None:
        with log.open("ab") as file:
            file.write(second if log.stat().st_size == len(first) else b"")

    def jobs(*_: Any) -> list[Any]:
        return [
            SimpleNamespace(note=SimpleNamespace(number=1), status=JobStatus(state=next(states)))  # type: ignore[arg-type]
        ]

    monkeypatch.setattr(session, "launcher_of", lambda request: SimpleNamespace(name="local"))
    monkeypatch.setattr(session, "past_jobs", jobs)
    training: Any = SimpleNamespace(
        jobs=lambda: [SimpleNamespace(number=1)], request=None, job_folder=lambda number: tmp_path
    )
    assert (
        "".join(
            session.follow_logs(training, number=None, name="stdout.log", follow=True, sleep=sleep)
        )
        == "step 1 tr\xe8s"
    )
