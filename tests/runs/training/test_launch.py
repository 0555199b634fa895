"""A chain of jobs that the platform starts one behind another, on a launcher whose jobs all lose
their node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tests.runs.training.plans import prepared

from meshwright.platforms.executor import Executor, JobStatus
from meshwright.platforms.job import Job
from meshwright.runs.lock import locked
from meshwright.runs.training.folder import open_folder
from meshwright.runs.training.launch import Launch


@dataclass
class LosesNodes:
    """The first job of each chain loses its node behind other lines than the last did; those behind
    it are dropped."""

    name: str = "slurm"
    chains: list[list[str]] = field(default_factory=list)

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        if any(word.startswith("--dependency=") for word in job.words):
            self.chains[-1].append(label)
        else:
            self.chains.append([label])
        return label

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        firsts = [chain[0] for chain in self.chains]
        return {
            handle: JobStatus(state="node_failed" if handle in firsts else "never_started")
            for handle in handles
        }

    def find(self, label: str, *, directory: Path) -> str | None:
        raise AssertionError("every job that is written down was sent")


def test_jobs_that_a_failure_dropped_are_sent_again_and_no_more_than_allowed(
    tmp_path: Path,
) -> None:
    training = prepared("meshwright", tmp_path, time="12h", most_jobs=3)
    assert training.needed_jobs() > 4
    folder = open_folder(tmp_path, training.request, plan={"plans": [{}]}, machine=None)
    starter, said = LosesNodes(), list[str]()
    with locked(tmp_path) as lock:
        launch = Launch(
            training=folder,
            prepared=training,
            starter=cast(Executor, starter),
            lock=lock,
            say=said.append,
            now=lambda: 0.0,
            sleep=lambda _: None,
        )
        decision = launch.follow()
    # Three chains: of three jobs; of the two that are left when the first has run; of one.
    assert [len(chain) for chain in starter.chains] == [3, 2, 1]
    assert decision.action == "stop"
    assert decision.why.startswith("3 jobs of at most 3 ended")
