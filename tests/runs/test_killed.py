"""kill -9 of the tuner at random moments, then start again."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.runs import standin

from meshwright.platforms.job import Job
from meshwright.runs.limits import StudyLimits
from meshwright.runs.lock import locked
from meshwright.runs.loop import Tuner, View
from meshwright.runs.store import read_store, study_folder

KILLS = 20
JOB_S = 0.03


class Once(standin.StandIn):
    """Jobs that are known by their label alone: a second one of the same is noted."""

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        beside = self.folder / f".{label}.{os.getpid()}"
        beside.write_text(json.dumps({"at": self.now(), "directory": str(directory)}))
        try:
            os.link(beside, self.folder / label)
        except FileExistsError:
            (self.folder / "twice").mkdir(exist_ok=True)
            (self.folder / "twice" / label).touch()
        return label


def tune(folder: Path) -> View:
    """Run the study, or go on with it, in this process."""
    launcher = Once(
        folder=folder / "launcher",
        now=time.time,
        seconds=lambda label: JOB_S,
        states={"7": "failed"},
    )
    launcher.check()
    store = study_folder(folder / "study", request={"model": "tiny-llama"}, trial={})
    with locked(store.folder) as lock:
        return Tuner(
            store=store,
            lock=lock,
            candidates=standin.candidates(),
            options=standin.options(),
            limits=StudyLimits(max_runs=10, tolerance=0.0),
            executor=launcher,
            num_chips=8,
            job=standin.job,
            judge=standin.judge,
            now=time.time,
            sleep=time.sleep,
            show=lambda view: None,
            poll_s=0.005,
        ).run()


def table(folder: Path) -> list[object]:
    """What the results are made of, without times of day."""
    return [
        (r.number, r.run_id, r.state, r.measured, r.failure)
        for r in read_store(folder / "study").records()
    ]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_and_nothing_repeated(tmp_path: Path, seed: int) -> None:
    tune(tmp_path / "whole")
    chance, kills = random.Random(seed), 0
    while kills < KILLS:
        child = multiprocessing.get_context("fork").Process(
            target=tune, args=(tmp_path / "killed",)
        )
        before = ended(tmp_path / "killed")
        child.start()
        child.join(chance.uniform(0.0, 0.1))
        if child.pid is not None and child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        kills += 1
        assert before.items() <= ended(tmp_path / "killed").items()
    tune(tmp_path / "killed")
    assert table(tmp_path / "killed") == table(tmp_path / "whole")
    assert not (tmp_path / "killed" / "launcher" / "twice").exists()


def ended(folder: Path) -> dict[str, object]:
    """Runs with an outcome, which may never be lost or changed."""
    if not (folder / "study" / "study.yaml").exists():
        return {}
    return {
        record.run_id: record.outcome
        for record in read_store(folder / "study").records()
        if record.outcome is not None
    }
