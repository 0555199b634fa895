"""`meshwright plan --trace DIR`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from meshwright import cli
from meshwright.search import refine

SMALL = ["plan", "llama3-8b", "--cluster", "h100:16", "--seq", "4096", "--gbs", "32", "--json"]
Capture = pytest.CaptureFixture[str]


def traced(folder: Path, capsys: Capture, *words: str) -> tuple[list[dict[str, object]], str]:
    """The plans, and what was said."""
    assert cli.run([*SMALL, *words, "--trace", str(folder)]) == 0
    out, err = capsys.readouterr()
    plans: list[dict[str, object]] = json.loads(out)["plans"]
    return plans, err


def test_a_file_per_plan(tmp_path: Path, capsys: Capture) -> None:
    """A plan without a pipeline has one stage."""
    folder = tmp_path / "new" / "traces"
    plans, err = traced(
        folder,
        capsys,
        "--top",
        "9",
        "--set",
        "pp=1,2",
        "--set",
        "tp=4",
        "--set",
        "cp=1",
        "--set",
        "vpp=1",
    )
    assert {plan["layout"]["pp"] for plan in plans} == {1, 2}, (  # type: ignore[index]
        "the request no longer shows both kinds"
    )
    assert {path.name for path in folder.iterdir()} == {
        f"plan-{plan['rank']}.json" for plan in plans
    }
    ranks = ", ".join(f"#{plan['rank']}" for plan in plans)
    assert err == f"traces of plans {ranks} written to {folder}; open them at ui.perfetto.dev\n"
    for plan in plans:
        events = json.loads((folder / f"plan-{plan['rank']}.json").read_text())["traceEvents"]
        time: dict[str, float] = plan["time"]  # type: ignore[assignment]
        assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") / 1e6 == pytest.approx(
            sum(time.values()), rel=1e-9
        )
        peaks: list[float] = plan["peak_memory_gib"]  # type: ignore[assignment]
        memory = [
            max(e["args"]["GiB"] for e in events if e["name"] == f"memory of stage {stage}")
            for stage in range(len(peaks))
        ]
        assert memory == pytest.approx(peaks)


def test_a_trace_has_every_operation_of_its_plan(tmp_path: Path, capsys: Capture) -> None:
    [plan], _ = traced(
        tmp_path,
        capsys,
        "--top",
        "1",
        "--set",
        "pp=2",
        "--set",
        "vpp=2",
        "--set",
        "mbs=1",
        "--set",
        "tp=4",
    )
    trace = json.loads((tmp_path / "plan-1.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    stages = [event for event in events if event["tid"] in (0, 1)]
    count = sum(event["cat"] in ("forward", "backward") for event in stages)
    assert (
        count == 2 * 2 * 2 * 16
    )  # forward and backward of 32 / 2 micro batches through 2 chunks of 2 stages
    names = [
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"
    ]
    assert {name.split(":")[0] for name in names} >= {
        "stage 0",
        "stage 0, virtual stage 0",
        "stage 1, virtual stage 1",
    }
    assert "stage 0: communication" in names
    assert "pp=2,vpp=2" in trace["otherData"]["layout"]
    time: dict[str, float] = plan["time"]  # type: ignore[assignment]
    end_s = max(event["ts"] + event["dur"] for event in events) / 1e6
    assert end_s == pytest.approx(sum(time.values()), rel=1e-9)
    assert {event["cat"] for event in events} == {
        "forward",
        "backward",
        "bubble",
        "communication",
        "message",
        "once a step",
    }
    for thread in {event["tid"] for event in events}:
        own = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == thread
        )
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(own))  # microseconds


def test_a_folder_that_is_there_is_taken(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        traced(tmp_path, capsys, "--top", "1", "--set", "pp=2")
        assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "plan-1.json"}


def test_a_step_too_long_to_simulate_is_said(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refine, "MOST_OPERATIONS", 8)
    _, err = traced(tmp_path, capsys, "--top", "1", "--set", "pp=2")
    assert err == "no trace of plan #1: too many micro batches to be simulated\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["a file", "below a file", "a folder in the place of the file"])
def test_what_cannot_be_written_is_one_line(case: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "plan-1.json").mkdir(parents=True)
    folder = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "x"}.get(
        case, tmp_path / "taken"
    )
    assert cli.run([*SMALL, "--set", "pp=2", "--trace", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {folder}") and "cannot be" in err and err.count("\n") == 1


def test_a_wrong_request_makes_no_folder(tmp_path: Path, capsys: Capture) -> None:
    assert cli.run(["plan", "llama3-8c", *SMALL[2:], "--trace", str(tmp_path / "traces")]) == 2
    assert not (tmp_path / "traces").exists()
