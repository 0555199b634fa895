from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.runs.test_failures import OOM
from tests.software.logs.forms import megatron_line, megatron_memory, titan_line

from meshwright.platforms.executor import JobState, JobStatus
from meshwright.runs.counts import RunWork
from meshwright.runs.outcome import (
    Failure,
    Measured,
    RunLogs,
    outcome_of,
    read_run_logs,
    usual_report_s,
)

WORK = RunWork(seq_len=1024, gbs=64, num_chips=16)


def ended(state: JobState = "succeeded", exit_code: int | None = 0, reason: str = "") -> JobStatus:
    return JobStatus(state=state, exit_code=exit_code, reason=reason)


FAILED = ended(state="failed", exit_code=1)


def logs_of(folder: Path, texts: Mapping[str, str]) -> RunLogs:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return read_run_logs([folder / "stdout.log", folder / "stderr.log"])


def outcome(
    folder: Path,
    text: str,
    status: JobStatus | None = None,
    *,
    stderr: str = "",
    silent_s: float | None = None,
) -> Measured | Failure | None:
    logs = logs_of(folder, {"stdout.log": text, "stderr.log": stderr})
    return outcome_of(status or ended(), logs=logs, work=WORK, silent_s=silent_s)


def steps(*times_s: float, batch: int = 64) -> str:
    return "".join(
        megatron_line(step, 1e3 * s, batch=batch) for step, s in enumerate(times_s, start=1)
    )


def test_a_run_is_measured(tmp_path: Path) -> None:
    """Three of ten are warm-up; of 2.0, 2.0, 2.1, 2.2, 2.4, 2.5, 9.0 the median is 2.2."""
    text = steps(40, 9, 3, 2.0, 2.1, 2.0, 2.2, 9.0, 2.4, 2.5) + megatron_memory(
        0, 2, allocated_mib=1024, reserved_mib=2048
    )
    found = outcome(tmp_path, text, stderr="[W] a warning\n")
    assert isinstance(found, Measured)
    assert found.step_s == pytest.approx(2.2)
    assert (found.steps, found.final_loss) == (7, 9.5)
    assert found.step_low_s == pytest.approx(2.0)
    assert found.step_high_s == pytest.approx(2.5 + 0.4 * 6.5)
    assert found.tokens_per_s == pytest.approx(65536 / 2.2)
    assert found.samples_per_s == pytest.approx(64 / 2.2)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (2**30, 2**31)


def test_rates_of_one_device_become_times(tmp_path: Path) -> None:
    """4096 tokens/s on each of 16 devices: 64 * 1024 tokens take 1 s."""
    found = outcome(
        tmp_path,
        "".join(
            titan_line(step, rate) for step, rate in ((1, 300), (10, 4096), (20, 4096), (30, 4096))
        ),
    )
    assert isinstance(found, Measured)
    assert (found.step_s, found.steps) == (1.0, 3)


@pytest.mark.parametrize("state", ["timed_out", "preempted", "cancelled"])
def test_a_run_that_was_cut_short_counts_where_it_was_steady(
    tmp_path: Path, state: JobState
) -> None:
    cut = ended(state=state, exit_code=143)
    found = outcome(tmp_path, steps(40, 9, 3, 2, 2, 2, 2, 2), cut)
    assert isinstance(found, Measured) and found.step_s == 2
    short = outcome(tmp_path, steps(40, 9, 3, 2, 2, 2), cut)
    assert isinstance(short, Failure) and short.step == 6
    out = outcome(tmp_path, steps(40, 9, 3, 2, 2, 2, 2, 2), cut, stderr=OOM + "\n")
    assert isinstance(out, Failure) and out.failure_class == "cuda_oom"


def test_what_crashed_is_not_measured(tmp_path: Path) -> None:
    found = outcome(tmp_path, steps(40, 9, *[2] * 20), FAILED, stderr=OOM + "\n")
    assert isinstance(found, Failure)
    assert (found.failure_class, found.step) == ("cuda_oom", 22)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line of a software that is known"),
        (
            "-------------------- end of arguments ---------------------\n",
            "no step time in a log of megatron-lm",
        ),
        (steps(40), "it reported one step"),
        (
            steps(*[2] * 9, batch=32),
            "a batch of 32, the run was to have 64 sequences (65536 tokens)",
        ),
        (
            "".join(
                json.dumps({"step": s, "step_s": 2.0, "tokens_per_s": 1024.0}) + "\n"
                for s in range(1, 9)
            ),
            "2048 tokens a step",
        ),
        ("".join(megatron_line(s, 2e3, skipped=1) for s in range(1, 9)), "every one overflowed"),
    ],
)
def test_an_end_without_a_measurement_is_a_failure(tmp_path: Path, text: str, words: str) -> None:
    found = outcome(tmp_path, text)
    assert isinstance(found, Failure) and words in found.message


def test_what_goes_on_has_no_outcome(tmp_path: Path) -> None:
    running = ended(state="running", exit_code=None)
    assert outcome(tmp_path, steps(40, 9, 2, 2), running, silent_s=10.0) is None
    hung = outcome(tmp_path, steps(40, 9, 2, 2), running, silent_s=300.0)
    assert isinstance(hung, Failure) and hung.failure_class == "hang"


def test_the_usual_time_between_reports(tmp_path: Path) -> None:
    """torchtitan reports every tenth step: 1 s a step, 10 s between reports."""
    reading = logs_of(
        tmp_path, {"stdout.log": "".join(titan_line(step, 4096) for step in (10, 20, 30))}
    ).reading
    assert usual_report_s(reading, WORK) == pytest.approx(10.0)
    assert usual_report_s(None, WORK) is None


def test_logs_that_are_not_there(tmp_path: Path) -> None:
    found = outcome_of(FAILED, logs=read_run_logs([tmp_path / "none.log", tmp_path]), work=WORK)
    assert isinstance(found, Failure) and found.failure_class == "unknown"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(
        b"\xff\xfe\x00" * 100 + b"\n" + steps(40, 9, 2, 2, 2, 2, 2).encode() + b"\xe2\x82"
    )
    found = outcome_of(ended(), logs=read_run_logs([path]), work=WORK)
    assert isinstance(found, Measured) and found.step_s == 2


def test_order_between_two_logs(tmp_path: Path) -> None:
    """The kernel's word in stdout is before torch's in stderr: files are read in the order in which
    they are given."""
    logs = logs_of(
        tmp_path,
        {"stdout.log": "Memory cgroup out of memory: Killed process 7\n", "stderr.log": OOM + "\n"},
    )
    assert [found.failure_class for found in logs.evidence] == ["host_oom", "cuda_oom"]


def test_the_same_run_has_the_same_outcome_whatever_else_ran(tmp_path: Path) -> None:
    """Values in, values out: 100 orders of four runs."""
    chance = random.Random(7)
    texts = {
        "a": steps(60, 30, *[20] * 6),
        "b": steps(60, 30, *[9] * 6),
        "c": steps(60, 30, *[12] * 6),
        "d": steps(60, 30, *[5] * 6),
    }
    for _ in range(100):
        names = chance.sample(sorted(texts), 4)
        found = {name: outcome(tmp_path / name, texts[name]) for name in names}
        assert {name: one.step_s for name, one in found.items() if isinstance(one, Measured)} == {
            "a": 20,
            "b": 9,
            "c": 12,
            "d": 5,
        }
