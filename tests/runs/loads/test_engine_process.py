from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from meshwright.runs.loads.load import Lengths, Line, ServeJob, closed_loop, line_of
from meshwright.runs.loads.measure import measure_engine

STANDIN = Path(__file__).parent / "standin.py"
LENGTHS = Lengths(input_len=8, output_len=4)


def job(word: str = "", **changes: object) -> ServeJob:
    values = {
        "command": (sys.executable, str(STANDIN), "{port}", *([word] if word else [])),
        "loads": tuple(closed_loop(clients, LENGTHS, requests=2 * clients) for clients in (1, 4)),
        "vocab": 100,
        "ready_s": 20.0,
        **changes,
    }
    return ServeJob(**values)  # type: ignore[arg-type]  # fields by name


def measured(asked: ServeJob, capfd: pytest.CaptureFixture[str]) -> tuple[bool, list[Line], str]:
    """Return whether all was well, the lines, and what the engine printed; nothing of it may be
    left."""
    lines: list[str] = []
    well = measure_engine(asked, write=lines.append)
    printed = capfd.readouterr().err
    child = int(printed.split("child ")[1].split()[0]) if "child " in printed else None
    assert (
        child is None
        or not psutil.pid_exists(child)
        or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    )
    return well, [line for line in map(line_of, lines) if line is not None], printed


def test_an_engine_is_started_measured_and_ended(capfd: pytest.CaptureFixture[str]) -> None:
    well, lines, printed = measured(job(), capfd)
    assert well
    assert [line.kind for line in lines] == ["starting", "ready", "point", "point", "end"]
    assert [line.content["name"] for line in lines[2:4]] == ["concurrency=1", "concurrency=4"]
    assert lines[3].content["figures"]["requests"] == 8
    assert "child " in printed  # there was one to be ended


def test_one_that_dies_under_load_keeps_the_points_before(
    capfd: pytest.CaptureFixture[str],
) -> None:
    well, lines, _ = measured(job("dies"), capfd)
    assert not well
    first, second = (line.content for line in lines if line.kind == "point")
    assert first["error"] is None
    assert second["error"] == "the engine ended with exit code 1 under concurrency=4"
    assert "CUDA out of memory" in second["evidence"]
    assert lines[-1] == Line(kind="end", content={"measured": 1, "asked": 2})


def test_one_that_never_becomes_ready_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    well, lines, _ = measured(job("never", ready_s=1.5), capfd)
    assert not well
    assert lines[-1].kind == "failed"
    assert lines[-1].content["failure_class"] == "hang"
    assert lines[-1].content["message"] == "the engine was not ready after 2 s: no 200 from /health"


def test_one_that_ends_at_once_is_told_with_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _, lines, _ = measured(job("exits"), capfd)
    assert lines[-1].content["message"] == "the engine ended with exit code 3 before it was ready"
    assert (
        lines[-1].content["evidence"]
        == "ValueError: tensor parallel size 3 does not divide 8 heads"
    )


def test_a_port_in_use_is_said_before_anything_starts(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        _, lines, printed = measured(job(port=port), capfd)
    assert lines[-1].content == {
        "failure_class": "launcher_error",
        "message": f"port {port} cannot be used: Address already in use",
        "evidence": None,
    }
    assert "child" not in printed


def test_a_program_that_is_not_there_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = measured(job(command=("no-such-engine", "{port}")), capfd)
    assert (
        lines[-1].content["message"]
        == "no-such-engine could not be started: No such file or directory"
    )


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_measurer_is_told_to_end(
    tmp_path: Path, sent: signal.Signals
) -> None:
    path = tmp_path / "serve.json"
    path.write_text(job("never", ready_s=60.0).to_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright.runs.loads", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stderr is not None
    child = int(process.stderr.readline().split()[1])
    process.send_signal(sent)
    process.communicate(timeout=30)
    assert process.returncode != 0
    deadline = time.monotonic() + 10
    while (
        psutil.pid_exists(child)
        and psutil.Process(child).status() != psutil.STATUS_ZOMBIE
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
