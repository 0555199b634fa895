"""How a run does, from real forms of logs, worked by hand; and a training's directory, followed as
it grows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.runs.test_failures import OOM
from tests.software.logs.forms import (
    megatron_line,
    megatron_saved,
    megatron_validation,
    nanotron_line,
    nemo1_bar,
    nemo2_line,
    titan_line,
)

import meshwright
from meshwright.api import checkpoints as ckpt
from meshwright.cli.watch import page
from meshwright.runs.watch.alarms import RunFacts, facts_of_plan
from meshwright.runs.watch.follow import Follower
from meshwright.runs.watch.status import status_of
from meshwright.sizing.checkpoints import Saved
from meshwright.software.log import Evaluation
from meshwright.software.log_reader import read_log
from meshwright.values.errors import ConfigError

PLAN: dict[str, Any] = {
    "request": {"model": "llama3-8b", "seq_len": 1024, "usd_per_hour": None},
    "plans": [
        {
            "layout": {"tp": 2, "cp": 1, "pp": 2, "dp": 4, "gbs": 64},
            "step_s": 2.0,
            "tokens_per_s_per_gpu": 2048.0,
            "mfu": 0.4,
            "tflops_per_gpu": 400.0,
            "interval": {"step_s": [1.8, 2.4]},
            "provenance": {"tokens_per_dollar": 2048.0 * 3600 / 2.5},
        }
    ],
}
FACTS = facts_of_plan(PLAN)


def steps(first: int, last: int, *, s: float = 2.5, loss: float = 3.0) -> str:
    return "".join(megatron_line(step, 1e3 * s, loss=loss) for step in range(first, last + 1))


def written(path: Path, text: str, *, at_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    os.utime(path, (at_s, at_s))
    return path


def test_facts_of_a_plan() -> None:
    """2 * 2 * 4 chips; 2,048 tokens/s at 2.5 USD an hour."""
    assert (FACTS.chips, FACTS.tokens, FACTS.step_interval_s) == (16, 65536, (1.8, 2.4))
    assert FACTS.usd_per_chip_hour == pytest.approx(2.5)
    with pytest.raises(ConfigError, match="with a plan #2"):
        facts_of_plan(PLAN, rank=2)


def test_a_run_by_hand(tmp_path: Path) -> None:
    """100 steps of 2.5 s where the plan says 2: MFU 0.4 * 2 / 2.5, 16 chips for 250 s at 2.5 USD,
    499,900 steps to go."""
    follower = Follower(path=written(tmp_path / "train.log", steps(1, 100), at_s=1000), facts=FACTS)
    status = follower.poll(now_s=1030)
    assert (status.framework, status.state, status.step, status.total_steps, status.restarts) == (
        "megatron-lm",
        "running",
        100,
        500000,
        0,
    )
    assert (status.step_s, status.mfu, status.tflops_per_gpu) == pytest.approx((2.5, 0.32, 320.0))
    assert status.tokens_per_s == pytest.approx(65536 / 2.5)
    assert (status.busy_s, status.usd) == pytest.approx((250, 16 * 2.5 * 250 / 3600))
    assert status.left_s == pytest.approx(499_900 * 2.5)
    assert status.silent_s == pytest.approx(30)
    assert [alarm.kind for alarm in status.alarms] == ["below_plan"]


def test_held_out_losses_and_what_a_failure_would_undo(tmp_path: Path) -> None:
    text = (
        steps(1, 10)
        + megatron_validation(10, 2.5)
        + megatron_saved(10)
        + steps(11, 20)
        + megatron_validation(20, 2.75)
        + steps(21, 24)
    )
    status = Follower(path=written(tmp_path / "train.log", text, at_s=1000)).poll(now_s=1000)
    assert (status.validation, status.best_validation) == (
        Evaluation(step=20, loss=2.75),
        Evaluation(step=10, loss=2.5),
    )
    lines = page(status, now_s=1000)
    assert "Held out  2.7500 at step 20, least 2.5000 at 10" in lines
    assert "Saved     step 10; a failure now would undo 14 steps, 35 s of work" in lines
    assert ckpt.read_losses(str(tmp_path / "train.log"), save_every=5) == [
        Saved(step=10, loss=2.5),
        Saved(step=20, loss=2.75),
    ]


@pytest.mark.parametrize(
    ("line", "total"),
    [
        (lambda step: megatron_line(step, 2500), 500000),
        (lambda step: nanotron_line(step, 2500), 100),
        (lambda step: nemo1_bar(step, 2.5, total=777), 777),
        (lambda step: nemo2_line(step, 2.5), 100),
        (lambda step: titan_line(step, 65536 / 2.5 / 16), None),
    ],
    ids=["megatron", "nanotron", "nemo-1", "nemo-2", "torchtitan"],
)
def test_every_form_gives_step_time_and_its_end(line: Any, total: int | None) -> None:
    status = status_of(
        "run", read_log("".join(line(step) for step in range(1, 13)) + "\n"), facts=FACTS
    )
    assert status.step_s == pytest.approx(2.5, rel=1e-3)
    assert (status.step, status.total_steps) == (12, total)


def test_only_what_is_new_is_read_and_a_shorter_file_is_read_again(tmp_path: Path) -> None:
    log = written(
        tmp_path / "train.log", steps(1, 10)[:-20], at_s=1000
    )  # the last line is half written
    follower = Follower(path=log)
    assert follower.poll(now_s=1000).step == 9
    written(log, steps(1, 10)[-20:] + steps(11, 12), at_s=1010)
    status = follower.poll(now_s=1010)
    assert status.step == 12
    assert status.busy_s == pytest.approx(30)
    log.write_text(steps(1, 2), encoding="utf-8")
    assert follower.poll(now_s=1020).restarts == 1


def test_an_error_counts_behind_the_last_report_and_when_it_is_quiet(tmp_path: Path) -> None:
    log = written(tmp_path / "train.log", steps(1, 10) + OOM + "\n", at_s=1000)
    follower = Follower(path=log)
    assert follower.poll(now_s=1010).alarms == ()
    failed = follower.poll(now_s=1040)
    assert (failed.state, [alarm.kind for alarm in failed.alarms]) == ("stopped", ["failed"])
    assert failed.alarms[0].message.startswith("cuda_oom: ")
    written(log, steps(5, 14), at_s=1100)  # started again from a checkpoint
    went_on = follower.poll(now_s=1140)
    assert (went_on.state, went_on.step, went_on.restarts, went_on.alarms) == ("running", 14, 1, ())


def test_a_training_of_two_jobs(tmp_path: Path) -> None:
    """Its plan, its target and its last event come from the directory; an older job's error is the
    older job's."""
    run = tmp_path / "run"
    written(run / "train.yaml", "train: 1\n", at_s=1000)
    written(run / "plan.json", json.dumps(PLAN), at_s=1000)
    for number in (1, 2):
        written(
            run / "jobs" / str(number) / "job.json",
            json.dumps({"number": number, "total_steps": 200}),
            at_s=1000,
        )
    written(run / "jobs" / "1" / "stdout.log", steps(1, 20), at_s=1000)
    written(run / "jobs" / "1" / "stderr.log", OOM + "\n", at_s=1001)
    written(
        run / "events.jsonl",
        '{"event": "submitted", "job": 2, "why": "job 1: it starts again"}\n{"event": "sub',
        at_s=1100,
    )
    written(run / "jobs" / "2" / "stdout.log", steps(11, 30), at_s=1200)
    follower = Follower(path=run)
    status = follower.poll(now_s=1240)
    assert (status.step, status.total_steps, status.restarts, status.state) == (
        30,
        200,
        1,
        "running",
    )
    assert status.notes == ("submitted job 2: job 1: it starts again",)
    assert status.usd == pytest.approx(16 * 2.5 * 40 * 2.5 / 3600)
    written(
        run / "events.jsonl",
        '\n{"event": "stopped", "why": "job 2: it failed the same way twice"}\n',
        at_s=1300,
    )
    stopped = follower.poll(now_s=1300)
    assert (stopped.state, stopped.is_over) == ("stopped", True)
    assert stopped.alarms[0].message == "unknown: job 2: it failed the same way twice"
    written(
        run / "events.jsonl", '{"event": "finished", "why": "step 200 of 200 is done"}\n', at_s=1400
    )
    done = follower.poll(now_s=99999)
    assert (done.state, done.is_over, [alarm.kind for alarm in done.alarms]) == (
        "done",
        True,
        ["below_plan"],
    )


def test_a_run_that_did_its_steps_does_not_hang(tmp_path: Path) -> None:
    follower = Follower(
        path=written(tmp_path / "train.log", steps(1, 10), at_s=1000),
        facts=RunFacts(total_steps=10),
    )
    assert (follower.poll(now_s=10**6).state, follower.poll(now_s=10**6).alarms) == ("done", ())


def test_the_embedded_trainers_summary_ends_a_run_before_its_last_step(tmp_path: Path) -> None:
    lines = [
        json.dumps({"event": "step", "step": step, "loss": 3.0, "step_s": 1.0})
        for step in range(1, 6)
    ]
    lines.append(json.dumps({"event": "summary", "ended_by": "signal", "step_s": 1.0}))
    log = written(tmp_path / "train.log", "\n".join(lines) + "\n", at_s=1000)
    ended = Follower(path=log, facts=RunFacts(total_steps=20)).poll(now_s=10**6)
    assert (ended.state, ended.is_over, ended.left_s, ended.alarms) == ("ended", True, 15.0, ())
    assert Follower(path=log, facts=RunFacts(total_steps=5)).poll(now_s=10**6).state == "done"


@pytest.mark.parametrize(
    "between", ["", "RuntimeError: CUDA error: an illegal memory access was encountered\n"]
)
def test_a_log_that_is_appended_behind_its_summary_goes_on(between: str, tmp_path: Path) -> None:
    step = [
        json.dumps({"event": "step", "step": step, "loss": 3.0, "step_s": 1.0}) + "\n"
        for step in range(1, 9)
    ]
    summary = json.dumps({"event": "summary", "ended_by": "signal", "step_s": 1.0}) + "\n"
    log = written(
        tmp_path / "train.log", "".join([*step[:5], summary, between, *step[5:7]]), at_s=1000
    )
    follower = Follower(path=log, facts=RunFacts(total_steps=20))
    assert (follower.poll(now_s=1001).state, follower.poll(now_s=1001).step) == ("running", 7)
    written(log, summary, at_s=1010)
    assert follower.poll(now_s=1011).state == "ended"
    written(log, step[7], at_s=1020)
    assert follower.poll(now_s=1021).state == "running"


def test_the_function_and_its_refusals(tmp_path: Path) -> None:
    log = written(tmp_path / "train.log", steps(1, 20), at_s=1000)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    status = meshwright.watch_run(log, plan=tmp_path / "plan.json", steps=40, usd_per_hour=5.0)
    assert status.total_steps == 40
    assert status.usd == pytest.approx(16 * 5 * 50 / 3600)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"path": tmp_path / "none.log"}, "no such file or folder"),
        ({"path": tmp_path}, "neither a training"),
        ({"path": tmp_path / "plan.json"}, "no log; give the run's directory or log, with --plan"),
        ({"path": log, "plan": log}, "expected the object that `meshwright plan --json` prints"),
        ({"path": log, "steps": 0}, "steps=0: expected a positive number"),
    ]
    for words, says in refused:
        with pytest.raises(ConfigError, match=says):
            meshwright.watch_run(**words)
