from __future__ import annotations

from meshwright.runs.outcome import Failure
from meshwright.runs.training.folder import PastJob, decide, jobs_needed

OOM = Failure(
    failure_class="cuda_oom", message="CUDA is out of memory", evidence="OutOfMemoryError"
)


def job(
    number: int,
    state: str,
    last: int | None = None,
    *,
    failure: Failure | None = None,
    saved: int | None = None,
) -> PastJob:
    return PastJob(number=number, state=state, last_step=last, failure=failure, saved_step=saved)  # type: ignore[arg-type]


def test_the_first_job_is_sent() -> None:
    assert decide([], total_steps=100).action == "submit"


def test_an_open_job_is_waited_for() -> None:
    assert decide([job(1, "running")], total_steps=100).action == "wait"
    assert decide([job(1, "unknown")], total_steps=100).action == "wait"


def test_jobs_that_stop_at_their_limit_are_a_chain() -> None:
    jobs = [job(1, "succeeded", 40, saved=40)]
    found = decide(jobs, total_steps=100)
    assert (found.action, found.wait_s) == ("submit", 0)
    assert found.why == "job 1: its time was over; it goes on from step 40"
    jobs += [job(2, "timed_out", 85, saved=80), job(3, "succeeded", 100, saved=100)]
    assert decide(jobs[:2], total_steps=100).action == "submit"
    assert decide(jobs, total_steps=100).action == "done"


def test_the_target_ends_the_chain_though_a_job_still_waits() -> None:
    assert (
        decide([job(1, "succeeded", 100, saved=100), job(2, "queued")], total_steps=100).action
        == "done"
    )


def test_a_log_that_reports_every_tenth_step() -> None:
    """954 steps, a report every 10: the last is at 950."""
    assert decide([job(1, "succeeded", 950)], total_steps=954, report_every=10).action == "done"
    assert decide([job(1, "succeeded", 940)], total_steps=954, report_every=10).action == "submit"


def test_a_job_that_was_killed_behind_its_last_report_is_not_done() -> None:
    killed = Failure(failure_class="unknown", message="killed by SIGKILL")
    found = decide([job(1, "failed", 100, failure=killed, saved=80)], total_steps=100)
    assert found.action == "submit"
    assert found.wait_s > 0


def test_a_limit_too_short_for_a_checkpoint_stops_the_chain() -> None:
    jobs = [job(1, "timed_out", 30, saved=0), job(2, "timed_out", 31, saved=0)]
    found = decide(jobs, total_steps=100)
    assert found.action == "stop"
    assert "the limit is too short" in found.why


def test_two_limits_are_the_same_way_to_end_whatever_the_scheduler_calls_them() -> None:
    lines = (
        "*** STEP 1.0 ON n1 CANCELLED DUE TO TIME LIMIT ***",
        "*** JOB 2 ON n1 CANCELLED DUE TO TIME LIMIT ***",
    )
    ends = [
        Failure(failure_class="time_limit", message="the time limit was reached", evidence=line)
        for line in lines
    ]
    jobs = [
        job(number, "timed_out", None, failure=end, saved=0)
        for number, end in enumerate(ends, start=1)
    ]
    assert decide(jobs, total_steps=100).action == "stop"


def test_without_sight_of_the_checkpoints_the_logs_steps_stand_for_them() -> None:
    jobs = [job(1, "timed_out", 30), job(2, "timed_out", 60), job(3, "timed_out", 90)]
    assert decide(jobs, total_steps=100).action == "submit"
    stuck = [job(1, "timed_out", 30), job(2, "timed_out", 30), job(3, "timed_out", 30)]
    assert decide(stuck, total_steps=100).action == "stop"


def test_the_same_failure_twice_stops() -> None:
    jobs = [job(1, "failed", 3, failure=OOM, saved=0)]
    assert decide(jobs, total_steps=100).action == "submit"
    assert (
        decide([*jobs, job(2, "failed", 3, failure=OOM, saved=0)], total_steps=100).action == "stop"
    )


def test_a_log_without_steps_is_no_end() -> None:
    found = decide([job(1, "succeeded")], total_steps=100)
    assert found.action == "stop"
    assert "reports no step" in found.why


def test_a_cancelled_job_stays_cancelled() -> None:
    assert decide([job(1, "cancelled", 50, saved=50)], total_steps=100).action == "stop"


def test_no_more_jobs_than_allowed() -> None:
    found = decide([job(1, "succeeded", 40, saved=40)], total_steps=100, most_jobs=1)
    assert found.action == "stop"
    assert found.why == "1 job of at most 1 ended, at step 40 of 100"


def test_jobs_needed() -> None:
    """Ten days in jobs of 4.98 days of steps are three."""
    assert jobs_needed(train_s=864_000, steps_s=430_200) == 3
    assert jobs_needed(train_s=430_200, steps_s=430_200) == 1
    assert jobs_needed(train_s=1e9, steps_s=None) == 1
