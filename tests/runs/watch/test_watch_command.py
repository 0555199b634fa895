"""`meshwright watch` by hand: a look, lines, JSON, metrics."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest
from tests.software.logs.forms import megatron_line

from meshwright.cli import run
from meshwright.cli.watch import drawn, shown
from meshwright.runs.watch.alarms import RunFacts
from meshwright.runs.watch.follow import Follower, Output, watched
from meshwright.values.errors import ConfigError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(megatron_line(step, 2000, loss=2.5) for step in range(1, 21)), encoding="utf-8"
    )
    return path


def test_a_look(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["watch", str(log), "--once", "--steps", "30", "--gpus", "8", "--usd-per-hour", "2.5"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "train.log  megatron-lm, running",
        "Step      20 of 30 (66.7%)",
        "Time      2 s a step",
    ]
    assert "Loss      2.5000  gradient norm 2.5" in lines
    assert "Cost      0.222 USD of steps so far, 0.111 USD to go  (2.5 USD a GPU and hour)" in lines
    assert lines[-2].startswith("Left      20 s at this speed") or lines[-3].startswith(
        "Left      20 s at this speed"
    )


def test_json_and_exit_codes(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(megatron_line(21, 2000, loss=None, nan=1))
    assert run(["watch", str(log), "--once", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["loss"], found["alarms"][0]["kind"]) == ("stopped", None, "nan")
    (tmp_path / "empty.log").write_text("hello\n", encoding="utf-8")
    assert run(["watch", str(tmp_path / "empty.log"), "--once"]) == 1
    assert "no line of a training software that is known yet" in capsys.readouterr().out
    assert run(["watch", str(log), "--once", "--metrics-port", "9400"]) == 2
    assert run(["watch", str(log), "--metrics-host", "0.0.0.0"]) == 2
    assert run(["watch", str(log), "--every", "5"]) == 2
    assert run(["watch", str(log), "--every", "5", "--once"]) == 2
    assert run(["watch", str(tmp_path / "none")]) == 2


def test_an_end_beyond_the_calendar_has_no_date(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", str(log), "--once", "--steps", "99999999999999999999"]) == 0
    [left] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Left")]
    assert left.endswith("at this speed")


def test_lines_appear_for_changes_alone_until_the_end(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three looks: the second sees nothing new, the third the last step."""
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            with log.open("a", encoding="utf-8") as file:
                file.write(megatron_line(21, 2000, loss=2.4))

    with shown(as_json=False) as show:
        status = watched(
            Follower(path=log, facts=RunFacts(total_steps=21)),
            every_s=7,
            output=Output(),
            show=show,
            sleep=sleep,
        )
    assert (status.state, looks) == ("done", [7, 7])
    first, second = capsys.readouterr().out.splitlines()
    assert "running: 20 of 21 (95.2%)  loss 2.5000  step 2 s  2 s left" in first
    assert "done: 21 of 21 (100.0%)  loss 2.4000" in second


def test_metrics_are_served_to_this_machine_and_written_whole(log: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "prometheus_client", reason="metrics need pip install 'meshwright[prometheus]'"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = []

    def ask(seconds: float) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            answers.append(answer.read().decode())
        with log.open("a", encoding="utf-8") as file:
            file.write(megatron_line(21, 2000, loss=2.4))

    output = Output(port=port, textfile=tmp_path / "mesh.prom")
    watched(
        Follower(path=log, facts=RunFacts(total_steps=21)),
        every_s=1,
        output=output,
        show=lambda status: None,
        sleep=ask,
    )
    assert 'meshwright_step{run="train.log"} 20.0\n' in answers[0]
    assert 'meshwright_step_seconds{run="train.log"} 2.0\n' in answers[0]
    assert 'meshwright_alarm{kind="nan",run="train.log"} 0.0\n' in answers[0]
    assert "meshwright_mfu_ratio{" not in answers[0]  # without a plan nobody knows
    assert 'meshwright_step{run="train.log"} 21.0\n' in (tmp_path / "mesh.prom").read_text(
        encoding="utf-8"
    )
    with socket.socket() as closed:  # the server is gone with the watch
        assert closed.connect_ex(("127.0.0.1", port)) != 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="Address already in use"):
            watched(
                Follower(path=log),
                every_s=1,
                output=Output(port=taken.getsockname()[1]),
                show=lambda status: None,
            )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_long_lines_go_on_under_their_words_and_alarms_are_red(width: int) -> None:
    words = "the median of the last steps is 3.1 s where 2 s were usual, a straggler perhaps"
    lines = [
        "MFU       " + words,
        f"! {'slow':<10}  step 1,021: {words}, or storage, or a hot chip",
    ]
    shown_page = drawn(lines, width)
    rows = shown_page.plain.splitlines()
    assert max(map(len, rows)) <= width
    named = [row for row in rows if not row.startswith(" ")]
    assert [row.split()[0] for row in named] == ["MFU", "!"]
    for row in rows:
        assert row in named or row.startswith((" " * 10, " " * 14))
    assert len(rows) == {80: 4, 120: 3, 200: 2}[width]
    [span] = [span for span in shown_page.spans if span.style == "bold red"]
    assert shown_page.plain[span.start :].startswith("! slow")
