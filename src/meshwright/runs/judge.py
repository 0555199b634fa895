"""What became of a run of a study: by its launcher's word and its logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meshwright.runs.executors import JobStatus
from meshwright.runs.outcome import RunWork, outcome_of, read_run_logs
from meshwright.runs.record import Outcome
from meshwright.runs.store import RUN_LOGS

__all__ = ["judge_runs"]


def judge_runs(work: RunWork) -> Callable[[JobStatus, Path, float | None], Outcome | None]:
    """Return what reads the folder of a run, for a study of this work; it returns None for a run
    that goes on."""

    def judge(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
        return outcome_of(
            status,
            logs=read_run_logs([folder / name for name in RUN_LOGS]),
            work=work,
            silent_s=silent_s,
        )

    return judge
