from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.records import measured, record

from meshwright import cli
from meshwright.api.measured import study_runs
from meshwright.api.report import read_result
from meshwright.runs.measured.results import is_study
from meshwright.runs.outcome import Failure
from meshwright.runs.record import Event, Outcome
from meshwright.runs.store import Store, study_folder
from meshwright.search.request import PlanRequest
from meshwright.values.layout import Layout

REQUEST = PlanRequest(model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64).to_dict()
GIB = 2**30


def study(
    folder: Path, *outcomes: Outcome | None, request: dict[str, object] | None = None
) -> Store:
    """Runs at mbs=1, 2, 4 ... in the order of their outcomes; None goes on."""
    store = study_folder(folder, request=request or REQUEST, trial={"steps": 6})
    for number, outcome in enumerate(outcomes, start=1):
        layout = Layout(tp=2, sp=True, dp=8, sharding="zero1", mbs=2 ** (number - 1), gbs=64)
        run = store.plan(record(layout, number=number), Event(at_s=1.0, event="planned"))
        if outcome is not None:
            store.add(
                run,
                Event(
                    at_s=2.0,
                    event="failed" if isinstance(outcome, Failure) else "finished",
                    outcome=outcome,
                ),
            )
    return store


OUT = Failure(
    failure_class="cuda_oom", message="ran out of accelerator memory", evidence="CUDA out of memory"
)
HANG = Failure(failure_class="hang", message="no progress for 300 s")


def test_a_study_gives_its_runs(tmp_path: Path) -> None:
    store = study(
        tmp_path / "mine", measured(6.5), OUT, HANG, None, measured(6.0, peak_allocated_bytes=None)
    )
    assert is_study(store.folder) and not is_study(tmp_path)
    found = study_runs(store.folder)
    first, out, last = found.runs
    assert (first.case.layout.mbs, first.step_s, first.peak_bytes, first.fitted) == (
        1,
        6.5,
        30 * GIB,
        True,
    )
    assert (first.case.memory.kind, first.case.model.name, first.case.machines.num_chips) == (
        "allocated",
        "llama3-8b",
        16,
    )
    assert (first.case.workload.seq_len, first.case.workload.gbs, first.case.stack_name) == (
        8192,
        64,
        "megatron-bridge",
    )
    assert (out.case.layout.mbs, out.step_s, out.fitted) == (2, None, False)
    assert (last.case.layout.mbs, last.peak_bytes, last.case.memory.kind) == (
        16,
        33 * GIB,
        "reserved",
    )
    assert [line.partition(": ")[2] for line in found.left_out] == [
        "hang, no progress for 300 s",
        "it has not ended",
    ]
    assert all(line.startswith("mine tp2-") for line in found.left_out)
    assert study_runs(store.folder, stack="torchtitan").runs[0].case.stack_name == "torchtitan"


def test_calibrate_takes_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = study(tmp_path / "mine", measured(6.5), HANG, measured(6.0))
    target = tmp_path / "calibration.yaml"
    assert cli.run(["calibrate", str(store.folder), "-o", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "calibrated on 2 runs with megatron-bridge on h100" in out
    assert err.count("warning: left out: mine ") == 1
    assert (
        cli.run(
            [
                "plan",
                "llama3-8b",
                "--cluster",
                "h100:16",
                "--seq",
                "8192",
                "--gbs",
                "64",
                "--calibration",
                str(target),
            ]
        )
        == 0
    )


def test_a_study_needs_no_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = study(tmp_path / "mine", measured(6.5))
    assert (
        cli.run(
            ["calibrate", str(store.folder), "--layout", "mbs=1", "-o", str(tmp_path / "c.yaml")]
        )
        == 2
    )
    assert "a study says all of its runs" in capsys.readouterr().err


def test_processors_calibrate_no_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.platforms.given.find_local_cluster", lambda: None)
    request = {**REQUEST, "cluster": "local:2", "precision": "fp32"}
    store = study(tmp_path / "mine", replace(measured(0.5)), request=request)
    assert cli.run(["calibrate", str(store.folder), "-o", str(tmp_path / "c.yaml")]) == 2
    assert (
        "a study of this machine's processors; calibrate takes studies on accelerators"
        in capsys.readouterr().err
    )


def test_a_report_counts_no_run_that_is_none(tmp_path: Path) -> None:
    """64 sequences of 8192 tokens of an 8B model need 1.6 s at the peak of 16 H100s."""
    store = study(tmp_path / "mine", measured(6.5), measured(1.0), measured(5.0, steps=2))
    found = read_result(store.folder)
    states = [(run["state"], (run.get("failure") or {}).get("message")) for run in found["runs"]]
    assert [state for state, _ in states] == ["finished", "failed", "failed"]
    assert "above 100 %" in str(states[1][1]) and "on 2 steps" in str(states[2][1])
    assert found["best"]["measured"]["step_s"] == 6.5
    assert [run.step_s for run in study_runs(store.folder).runs] == [6.5]
    assert len(study_runs(store.folder).left_out) == 2
