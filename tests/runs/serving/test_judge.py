from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.platforms.executor import JobStatus
from meshwright.runs.loads.figures import Answer, Limits, Served, figures_of, noise_of
from meshwright.runs.loads.load import Line
from meshwright.runs.outcome import Failure
from meshwright.runs.record import Event
from meshwright.runs.serving.trial import judge_serving, outcome_of_lines


def figures(tokens: int, *, seconds: float = 2.0) -> Any:
    return figures_of([Answer(sent_s=0.0, first_s=0.5, last_s=seconds, output_tokens=tokens)])


def point(
    name: str,
    tokens: int = 0,
    error: str | None = None,
    evidence: str | None = None,
    seconds: float = 2.0,
) -> Line:
    found = figures(tokens, seconds=seconds).to_dict() if error is None else None
    return Line(
        kind="point", content={"name": name, "figures": found, "error": error, "evidence": evidence}
    )


READY = Line(kind="ready", content={"ready_s": 3.0, "notes": ["a note"]})


def served(*lines: Line, chips: int = 2) -> Served:
    found = outcome_of_lines(lines, failure=None, evidence=(), chips=chips)
    assert isinstance(found, Served)
    return found


def test_the_best_load_is_that_of_most_tokens_a_chip_within_the_limits() -> None:
    found = served(READY, point("a", 10), point("b", 40, seconds=4.0))
    best = found.best("throughput", Limits())
    assert best is not None and best.load == "b"
    assert found.cost_s(best, "throughput") == 2 / (40 / 4.0)  # chips over tokens a second
    within = found.best("throughput", Limits(e2e_s=3.0))
    assert within is not None and within.load == "a"
    assert found.best("throughput", Limits(e2e_s=1.0)) is None
    shortest = found.best("latency", Limits())
    assert shortest is not None and (shortest.load, found.cost_s(shortest, "latency")) == ("a", 2.0)


def test_points_before_a_death_are_kept_and_the_dead_one_says_why() -> None:
    found = served(
        READY,
        point("a", 10),
        point("b", error="the engine ended with exit code 1 under b", evidence="last words"),
    )
    assert [one.load for one in found.measured] == ["a"]
    assert found.points[1].error == "the engine ended with exit code 1 under b"
    assert (found.ready_s, found.notes) == (3.0, ("a note",))


def write(folder: Path, *, out: str, err: str) -> Path:
    folder.mkdir()
    (folder / "stdout.log").write_text(out)
    (folder / "stderr.log").write_text(err)
    return folder


def test_a_cause_in_the_engines_log_goes_before_what_we_saw_of_it(tmp_path: Path) -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nRuntimeError:"
        " Engine core initialization failed\n"
    )
    line = Line(
        kind="failed",
        content={
            "failure_class": "unknown",
            "message": "the engine ended",
            "evidence": "RuntimeError: Engine",
        },
    )
    folder = write(tmp_path / "run", out=line.text() + "\n", err=log)
    found = judge_serving(lambda name: {"run": 4}[name])(
        JobStatus(state="failed", exit_code=1), folder, None
    )
    assert isinstance(found, Failure)
    assert found.failure_class == "cuda_oom"
    assert found.evidence is not None and "Tried to allocate" in found.evidence


def test_a_server_that_never_was_ready_keeps_its_own_words(tmp_path: Path) -> None:
    line = Line(
        kind="failed",
        content={
            "failure_class": "hang",
            "message": "the engine was not ready after 9 s",
            "evidence": "loading",
        },
    )
    folder = write(tmp_path / "run", out=line.text() + "\n", err="loading\n")
    found = judge_serving(lambda name: 1)(JobStatus(state="failed", exit_code=1), folder, None)
    assert found == Failure(
        failure_class="hang", message="the engine was not ready after 9 s", evidence="loading"
    )


def test_our_own_line_is_no_cause_of_what_it_tells(tmp_path: Path) -> None:
    told = (  # as torchrun would say of its rendezvous
        "port 8000 cannot be used: Address already in use"
    )
    line = Line(
        kind="failed",
        content={"failure_class": "launcher_error", "message": told, "evidence": None},
    )
    folder = write(tmp_path / "run", out=line.text() + "\n", err="")
    found = judge_serving(lambda name: 1)(JobStatus(state="failed", exit_code=1), folder, None)
    assert found == Failure(failure_class="launcher_error", message=told)


def test_a_run_that_its_limit_ended_keeps_what_it_had_measured(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "run", out="\n".join(line.text() for line in (READY, point("a", 10))), err=""
    )
    found = judge_serving(lambda name: 1)(JobStatus(state="timed_out"), folder, None)
    assert isinstance(found, Served) and [one.load for one in found.measured] == ["a"]
    empty = write(tmp_path / "other", out=READY.text(), err="")
    none = judge_serving(lambda name: 1)(JobStatus(state="timed_out"), empty, None)
    assert isinstance(none, Failure) and none.failure_class == "time_limit"


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", out=READY.text(), err="")
    assert judge_serving(lambda name: 1)(JobStatus(state="running"), folder, 40.0) is None


def test_what_was_served_is_read_back_from_an_event() -> None:
    from meshwright.runs.record import event_of

    found = served(READY, point("a", 10), point("b", error="gone"))
    event = Event(at_s=1.0, event="finished", outcome=found)
    assert event_of(event.to_dict()) == event


def test_noise_by_hand() -> None:
    # p90 / p50 = e: one standard deviation of a request is 1 / 1.2816; of the mean of 4 half of
    # that
    answers = [Answer(sent_s=0.0, first_s=0.1, last_s=1.0, output_tokens=2)] * 4
    quiet = served(READY, point("a", 10))
    assert noise_of(quiet.measured) == 0.0
    assert noise_of(()) == 0.0
    assert figures_of(answers).e2e_s.p90 == pytest.approx(1.0)
