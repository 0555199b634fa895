"""A launcher in a folder: every job is a file, runs for some seconds by the clock that it is given,
and ends as its script says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.runs.records import measured, predicted

from meshwright.platforms.executor import JobStatus
from meshwright.platforms.job import Job, JobText
from meshwright.runs.belief import Prior
from meshwright.runs.candidates import Candidate
from meshwright.runs.forecasts import Forecast, Options
from meshwright.runs.outcome import Failure
from meshwright.runs.record import Outcome, RunRecord, run_id_of
from meshwright.values.layout import Layout


@dataclass
class StandIn:
    """Jobs outlive whoever started them: all that is known of them is in files."""

    folder: Path
    now: Callable[[], float]
    seconds: Callable[[str], float] = lambda label: 0.0
    states: Mapping[str, str] = field(default_factory=dict)
    """How jobs end, by the end of their label; `succeeded` for all others, `running` for ever."""
    room: int | None = None
    name: str = "standin"

    def check(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def slots(self, job: Job) -> int | None:
        return self.room

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        return JobText(file_name="job.sh", text="", submit="")

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        with (self.folder / "submitted.log").open("a") as log:
            log.write(label + "\n")
        beside = self.folder / f".{label}"
        beside.write_text(json.dumps({"at": self.now(), "directory": str(directory)}))
        os.replace(beside, self.folder / label)
        return label

    def find(self, label: str, *, directory: Path) -> str | None:
        return label if (self.folder / label).exists() else None

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        return {
            handle: self._status(handle) for handle in handles if (self.folder / handle).exists()
        }

    def _status(self, handle: str) -> JobStatus:
        started = json.loads((self.folder / handle).read_text())["at"]
        state = next(
            (state for end, state in self.states.items() if handle.endswith(end)), "succeeded"
        )
        if state == "queued":
            return JobStatus(state="queued", reason="Resources")
        if state == "running" or self.now() < started + self.seconds(handle):
            return JobStatus(state="running", started_s=started)
        return JobStatus(state=state, started_s=started, ended_s=started + self.seconds(handle))  # type: ignore[arg-type]

    def cancel(self, handle: str) -> None:
        (self.folder / handle).unlink(missing_ok=True)

    def submissions(self) -> list[str]:
        """Labels in the order in which they were submitted."""
        log = self.folder / "submitted.log"
        return log.read_text().splitlines() if log.exists() else []


LAYOUTS = tuple(
    Layout(tp=tp, dp=8 // tp, mbs=mbs, gbs=64) for tp in (1, 2, 4, 8) for mbs in (1, 2, 4)
)


def candidates(steps: Mapping[str, float] | None = None) -> tuple[Candidate, ...]:
    """Twelve layouts, the first predicted fastest."""
    found = []
    for place, layout in enumerate(LAYOUTS):
        forecast = predicted(step_s=1.0 + 0.05 * place)
        nothing = Forecast.__new__(Forecast)  # the course of a study does not look at it
        found.append(
            Candidate(run_id=run_id_of(layout), layout=layout, predicted=forecast, forecast=nothing)
        )
    return tuple(found)


def options() -> Options:
    size = len(LAYOUTS)
    return Options(
        step=Prior(
            mean=np.log(1.0 + 0.05 * np.arange(size)), shared=np.full((size, size), 0.02), own=0.02
        ),
        fill=Prior(mean=np.full(size, -1.0), shared=np.full((size, size), 0.01), own=0.01),
        axes=np.array([[np.log2(layout.tp), np.log2(layout.mbs)] for layout in LAYOUTS]),
    )


def step_of(run_id: str) -> float:
    """What a layout really takes: not in the order of the predictions."""
    return 1.0 + int(run_id[-4:], 16) / 65536.0


def judge(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
    """Finished runs take what their layout takes, whatever the log."""
    if status.state == "succeeded":
        return measured(step_of(folder.name))
    if status.ended:
        kinds = {
            "out_of_memory": "cuda_oom",
            "timed_out": "time_limit",
            "node_failed": "node_failure",
            "preempted": "preempted",
        }
        return Failure(failure_class=kinds.get(status.state, "unknown"), message=status.state)  # type: ignore[arg-type]
    return (
        Failure(failure_class="hang", message=f"silent for {silent_s} s")
        if silent_s is not None and silent_s > 600
        else None
    )


def job(record: RunRecord) -> Job:
    return Job(name="job", command=("train.py", record.layout.words()), nodes=1, gpus_per_node=8)
