"""A study's course, on a launcher of files and a clock that jumps."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs import standin
from tests.runs.records import measured

from meshwright.platforms.executor import JobStatus
from meshwright.platforms.job import Job
from meshwright.runs.budget import read_budget
from meshwright.runs.limits import StudyLimits
from meshwright.runs.lock import locked
from meshwright.runs.loop import Tuner, View, tried_of
from meshwright.runs.outcome import Failure
from meshwright.runs.record import Outcome, RunRecord, first_id
from meshwright.runs.store import Store, study_folder
from meshwright.values.errors import LauncherError, LauncherSilent, StudyError

REQUEST = {"model": "tiny-llama", "cluster": "h100:8"}


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Bench:
    """A study with everything around it."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.folder = folder
        self.launcher = standin.StandIn(
            folder=folder / "launcher", now=self.clock.now, seconds=lambda label: 20.0
        )
        self.moments: list[View] = []
        self.judge: Callable[[JobStatus, Path, float | None], Outcome | None] = standin.judge

    def store(self) -> Store:
        return study_folder(self.folder / "study", request=REQUEST, trial={})

    def run(self, **limits: Any) -> View:
        self.launcher.check()
        store = self.store()
        with locked(store.folder) as lock:
            return self.tuner(store, lock, **limits).run()

    def tuner(
        self,
        store: Store,
        lock: Any,
        *,
        usd_per_chip_hour: float | None = None,
        repeats: bool = False,
        **limits: Any,
    ) -> Tuner:
        return Tuner(
            usd_per_chip_hour=usd_per_chip_hour,
            repeats=repeats,
            store=store,
            lock=lock,
            candidates=standin.candidates(),
            options=standin.options(),
            limits=StudyLimits(**limits),
            executor=self.launcher,
            num_chips=8,
            job=standin.job,
            judge=self.judge,
            now=self.clock.now,
            sleep=self.clock.sleep,
            show=self.moments.append,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def ends(record: RunRecord) -> str:
    """The end of a run's label."""
    return record.run_id[-8:]


def test_a_study_finds_the_fastest_of_what_it_ran(bench: Bench) -> None:
    view = bench.run(max_runs=20, strategy="grid")
    assert len(view.records) == 12
    assert view.stop == "every candidate has been run"
    assert view.best is not None
    assert view.best.run_id == min((record.run_id for record in view.records), key=standin.step_of)
    for record in view.records:
        assert record.measured == measured(standin.step_of(record.run_id))
    assert view.gpu_hours == pytest.approx(12 * 8 * 20 / 3600, rel=0.1)


def test_moments_say_what_is_left_to_gain_once_something_was_measured(bench: Bench) -> None:
    bench.run(max_runs=4, confidence=0.99)
    told = [view.left_to_gain for view in bench.moments]
    assert told[0] is None  # nothing has been measured
    known = [share for share in told if share is not None]
    assert known
    assert all(0 <= share < 1 for share in known)


def test_it_stops_at_max_runs_and_goes_on_when_more_are_allowed(bench: Bench) -> None:
    assert (
        bench.run(max_runs=3, strategy="grid").stop
        == "3 runs of 12 candidates, as many as --max-runs allows"
    )
    view = bench.run(max_runs=5, strategy="grid")
    assert len(view.records) == 5
    assert len(bench.launcher.submissions()) == 5


def test_a_finished_study_runs_nothing_again(bench: Bench) -> None:
    first = bench.run(max_runs=4, strategy="grid")
    again = bench.run(max_runs=4, strategy="grid")
    assert again.records == first.records
    assert len(bench.launcher.submissions()) == len(first.records) > 1


def test_hours_end_with_the_job_and_not_with_who_looks_at_it(bench: Bench) -> None:
    store = bench.store()
    bench.launcher.check()
    with locked(store.folder) as lock:
        tuner = bench.tuner(store, lock, max_runs=1)
        assert tuner._start() is None
    bench.clock.at += 7 * 3600
    assert bench.run(max_runs=1).gpu_hours == pytest.approx(8 * 20 / 3600)


def test_several_at_a_time(bench: Bench) -> None:
    bench.run(max_runs=6, parallel=3, strategy="grid")
    at_once = [
        sum(record.state == "submitted" for record in view.records) for view in bench.moments
    ]
    assert max(at_once) == 3
    assert len(set(bench.launcher.submissions())) == 6


def test_the_budget_is_never_passed(bench: Bench) -> None:
    view = bench.run(
        max_runs=12, strategy="grid", minutes_per_run=1.0, budget=read_budget("0.3gpuh")
    )
    # a run may take 8 * 1 / 60 = 0.133 hours and takes 20 s, 0.0444 (and a poll): four fit before
    # 0.3 could be passed
    assert view.gpu_hours <= 0.3
    assert len(view.records) == 4
    assert "could pass --budget 0.3gpuh" in view.stop


def test_a_budget_in_dollars_buys_hours_at_the_price(bench: Bench) -> None:
    """At $2 an hour $0.6 buys the 0.3 hours of the test before."""
    limits: dict[str, Any] = {"strategy": "grid", "minutes_per_run": 1.0}
    view = bench.run(**limits, max_runs=12, budget=read_budget("$0.6"), usd_per_chip_hour=2.0)
    assert len(view.records) == 4
    assert "could pass --budget $0.6" in view.stop


def test_a_budget_in_runs_takes_the_place_of_max_runs(bench: Bench) -> None:
    view = bench.run(max_runs=2, strategy="grid", budget=read_budget("3runs"))
    assert view.stop == "3 runs of 12 candidates, as many as --budget 3runs allows"


def test_leaders_within_the_noise_run_again_under_names_of_their_own(bench: Bench) -> None:
    """All take the same time with 5 % of noise: some are run again, and the best is told by the
    mean of its runs."""
    takes = iter([1.0, 1.02, 0.97, 1.03, 1.01, 0.99, 1.0, 1.02, 1.04, 0.98, 1.0, 1.01])

    def judge(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
        if status.state != "succeeded":
            return None
        step_s = next(takes)
        low, high = step_s * 0.8, step_s * 1.25
        return replace(measured(step_s), step_low_s=low, step_high_s=high, steps=4)

    bench.judge = judge
    view = bench.run(max_runs=8, repeats=True, confidence=0.95)
    again = [record for record in view.records if first_id(record.run_id) != record.run_id]
    assert again and all(record.chosen_because.startswith("once more") for record in again)
    ids = [record.run_id for record in view.records]
    assert len(set(ids)) == len(ids) == len(set(bench.launcher.submissions())) == 8
    assert again[0].run_id.startswith(f"{first_id(again[0].run_id)}-again2-")
    assert set(view.chances) == {first_id(run_id) for run_id in ids}
    assert view.best is not None
    assert view.best.run_id in view.chances
    told = tried_of(view.records)
    means = {name: run.step_s for name, run in told.items()}
    assert min(means, key=lambda name: means[name] or math.inf) == view.best.run_id


def test_failures_of_every_kind_stop_nothing_and_are_results(bench: Bench) -> None:
    runs = [candidate.run_id[-8:] for candidate in standin.candidates()]
    bench.launcher.states = {
        runs[0]: "out_of_memory",
        runs[1]: "failed",
        runs[2]: "timed_out",
        runs[3]: "running",
    }
    view = bench.run(max_runs=6, strategy="grid")
    classes = {
        record.run_id[-8:]: record.failure.failure_class
        for record in view.records
        if record.failure
    }
    assert classes == {
        runs[0]: "cuda_oom",
        runs[1]: "unknown",
        runs[2]: "time_limit",
        runs[3]: "hang",
    }
    assert view.best is not None
    assert not (bench.launcher.folder / f"mw-{bench.store().study.study_id[:8]}-{runs[3]}").exists()


def test_all_failed_is_a_result(bench: Bench) -> None:
    bench.launcher.states = {"": "failed"}
    view = bench.run(max_runs=3)
    assert view.best is None
    assert [record.state for record in view.records] == ["failed"] * 3


@pytest.mark.parametrize("state", ["preempted", "node_failed"])
def test_what_is_not_the_run_s_own_fault_has_one_more_go(bench: Bench, state: str) -> None:
    bench.launcher.states = {"": state}
    view = bench.run(max_runs=1)
    assert len(bench.launcher.submissions()) == 2
    assert view.records[0].failure is not None


def test_a_queue_that_never_starts_ends_the_study_and_the_next_start_tries_again(
    bench: Bench,
) -> None:
    bench.launcher.states = {"": "queued"}
    view = bench.run(max_runs=3, queue_minutes=5)
    assert "never started: waited 5 minutes in the queue" in view.stop
    assert len(bench.launcher.submissions()) == 1
    assert any(view.waits == {view.records[0].run_id: "Resources"} for view in bench.moments)
    bench.launcher.states = {}
    assert bench.run(max_runs=3).best is not None


def test_a_launcher_that_refuses_is_one_clear_line_and_the_next_start_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, job: Job, *, directory: Path, label: str) -> str:
        raise LauncherError("sbatch: invalid partition 'gpo'")

    with monkeypatch.context() as patched:
        patched.setattr(standin.StandIn, "submit", refuse)
        with pytest.raises(
            StudyError, match=r"could not be started: sbatch: invalid partition 'gpo'"
        ):
            bench.run(max_runs=2)
    view = bench.run(max_runs=2)
    assert [record.state for record in view.records] == ["finished", "finished"]


def test_a_launcher_that_is_silent_is_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, silent = standin.StandIn.poll, iter([True, True, False])

    def now_and_then(self: standin.StandIn, handles: Any) -> Any:
        if next(silent, False):
            raise LauncherSilent("squeue: timed out")
        return poll(self, handles)

    monkeypatch.setattr(standin.StandIn, "poll", now_and_then)
    assert bench.run(max_runs=2).best is not None
    assert any("squeue: timed out" in view.waits.values() for view in bench.moments)


def test_a_job_that_was_submitted_when_the_tuner_died_is_found_and_not_submitted_again(
    bench: Bench,
) -> None:
    store = bench.store()
    bench.launcher.check()
    with locked(store.folder) as lock:
        tuner = bench.tuner(store, lock, max_runs=1)
        record = tuner._choose()
        assert isinstance(record, RunRecord)
        tuner._add(record, "submitting")
        bench.launcher.submit(
            standin.job(record),
            directory=store.run_folder(record.run_id),
            label=store.label(record.run_id),
        )
    view = bench.run(max_runs=1)
    assert view.records[0].state == "finished"
    assert len(bench.launcher.submissions()) == 1


def test_a_job_that_the_launcher_forgot_is_lost_after_minutes_and_run_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin.StandIn, "poll", lambda self, handles: {})
    view = bench.run(max_runs=1)
    assert view.records[0].failure is not None
    assert "did not know it for 5 minutes" in view.records[0].failure.message
    assert len(bench.launcher.submissions()) == 2


def test_a_job_that_vanishes_is_said_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = JobStatus(state="unknown", reason="Slurm knows no job 7")
    monkeypatch.setattr(standin.StandIn, "poll", lambda self, handles: dict.fromkeys(handles, gone))
    bench.run(max_runs=1)
    first = next(view for view in bench.moments if view.waits)
    assert list(first.waits.values()) == ["Slurm knows no job 7"]
    assert bench.moments.index(first) <= 2


def test_what_a_running_job_may_wait_for_is_said_before_it_hangs(bench: Bench) -> None:
    """The stand-in writes nothing; half a minute later its logs are looked at."""
    bench.launcher = replace(bench.launcher, seconds=lambda label: 100.0)
    bench.judge = lambda status, folder, silent_s: (
        standin.judge(status, folder, silent_s) if status.ended else None
    )
    bench.launcher.check()
    store = bench.store()
    with locked(store.folder) as lock:
        tuner = bench.tuner(store, lock, max_runs=1)
        tuner.suspect = lambda folder, silent_s: "stuck" if silent_s > 45 else ""
        tuner.run()
    said = [view for view in bench.moments if "stuck" in view.waits.values()]
    assert 50 <= len(said) <= 56  # polls, one a second, from 45 s to the end at 100 s
    assert not bench.moments[-1].waits


def test_a_study_stops_where_a_node_s_name_does_not_resolve(bench: Bench) -> None:
    lost = Failure(failure_class="unresolved_node", message="the node name n7 does not resolve")
    bench.judge = lambda status, folder, silent_s: lost
    view = bench.run(max_runs=3)
    assert len(view.records) == 1 and len(bench.launcher.submissions()) == 2
    assert "never started: the node name n7 does not resolve" in view.stop


@pytest.mark.parametrize("seed", range(100))
def test_a_hundred_orders_of_four_runs_are_ranked_right_and_nothing_is_credited_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Steps of 20, 9, 12 and 5 s, one that runs out of memory without a word, one that hangs, one
    whose loss is no number, in any order."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    bench = Bench(tmp_path)
    order = random.Random(seed)
    ids = [candidate.run_id for candidate in standin.candidates()]
    chosen = order.sample(ids, 7)
    steps = dict(zip(chosen, (20.0, 9.0, 12.0, 5.0), strict=False))
    oom, hang, nan = chosen[4:]
    bench.launcher.states = {oom[-8:]: "out_of_memory", hang[-8:]: "running"}
    bench.launcher.seconds = lambda label: float(order.randint(1, 40))

    def judged(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
        if status.state == "succeeded" and folder.name == nan:
            return Failure(failure_class="nan_loss", message="loss is nan at step 4", step=4)
        if status.state == "succeeded" and folder.name in steps:
            return measured(steps[folder.name])
        return standin.judge(status, folder, silent_s)

    bench.judge = judged
    view = bench.run(max_runs=12, strategy="random", parallel=order.randint(1, 4))
    found = {record.run_id: record for record in view.records}
    assert {run_id: found[run_id].measured.step_s for run_id in steps} == steps  # type: ignore[union-attr]
    assert [found[run_id].failure.failure_class for run_id in (oom, hang, nan)] == [  # type: ignore[union-attr]
        "cuda_oom",
        "hang",
        "nan_loss",
    ]
    ranked = sorted(steps, key=lambda run_id: found[run_id].measured.step_s)  # type: ignore[union-attr]
    assert [steps[run_id] for run_id in ranked] == [5.0, 9.0, 12.0, 20.0]
