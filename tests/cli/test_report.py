from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.report.answers import plan_answer, plan_of

from meshwright.cli import run
from meshwright.runs.outcome import Measured
from meshwright.runs.record import Event, Predicted, RunRecord, run_id_of
from meshwright.runs.store import study_folder
from meshwright.values.layout import Layout


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.json"
    answer = plan_answer(plan_of(1), plan_of(2, longer_s=0.5), cluster="h100:16")
    answer["request"]["calibration"] = "gone.yaml"  # nothing is computed beyond the answer
    path.write_text(json.dumps(answer))
    return path


def test_a_page_is_written_and_says_what_could_not_be_computed(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "plan.json"]) == 0
    assert capsys.readouterr().out.startswith("written to report.html (0.")
    page = (plan.parent / "report.html").read_text(encoding="utf-8")
    assert "Run llama3-8b on h100:16 with tp=4" in page
    assert "gone.yaml" in page


def test_what_came_from_files_is_text_and_never_markup(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(plan.read_text())
    answer["request"]["model"] = "<script>alert(1)</script>"
    answer["rejected"] = {"</table><img src=x onerror=alert(1)>": 1}
    plan.write_text(json.dumps(answer))
    assert run(["report", "plan.json", "--title", "</title><b>"]) == 0
    page = (plan.parent / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "<b>" not in page


def test_standard_input_is_read_and_two_results_make_two_parts(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys,
        "stdin",
        io.StringIO(
            json.dumps({"differences": [{"field": "tp", "a": 8, "b": 4}], "labels": ["reshard"]})
        ),
    )
    assert run(["report", "plan.json", "-", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert parts[0]["kind"] == "plan"
    assert parts[1]["sections"][-1]["blocks"][0]["rows"] == [["tp", 8, 4]]
    assert not (plan.parent / "report.html").exists()


@pytest.mark.parametrize(
    ("form", "begins"), [("svg", b"<svg"), ("md", b"## Step time by term"), ("png", b"\x89PNG")]
)
def test_one_chart_alone(
    plan: Path, form: str, begins: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "png":
        pytest.importorskip(
            "resvg_py", reason="PNG needs resvg-py: pip install 'meshwright[report]'"
        )
    assert run(["report", "plan.json", "--format", form, "--chart", "time"]) == 0
    assert (plan.parent / f"time.{form}").read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["plan.json", "--format", "svg"],
            "--format svg writes one chart: give --chart, one of lost, rival, time, memory",
        ),
        (
            ["plan.json", "--format", "svg", "--chart", "tim"],
            "'tim' is no known chart of this report; did you mean 'time'",
        ),
        (
            ["plan.json", "--format", "svg", "--chart", "7:time"],
            "'7:time' is no known chart of this report",
        ),
        (["plan.json", "--chart", "time"], "--chart time has no effect on a page"),
        (["plan.json", "--format", "pdf"], "'pdf' is no known format"),
        (["absent.json"], "absent.json: cannot be read (No such file or directory)"),
        (["broken.json"], "broken.json: not what a command prints with --json"),
        (
            ["older.json"],
            (
                "older.json: looks like an answer of plan, but lacks 'time'; it may come from"
                " another version"
            ),
        ),
        (
            ["other.json"],
            "other.json: looks like an answer of plan, but holds something else than expected",
        ),
        (
            ["list.json"],
            "list.json: expected one JSON object, as commands print with --json, got list",
        ),
        (
            ["plan.json", "-o", "no/such/folder.html"],
            "no/such/folder.html: cannot be written (No such file or directory)",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    plan: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (plan.parent / "broken.json").write_text("step 12\n")
    (plan.parent / "list.json").write_text("[1]")
    answer = json.loads(plan.read_text())
    (plan.parent / "other.json").write_text(json.dumps({**answer, "plans": "none"}))
    del answer["plans"][0]["time"]
    (plan.parent / "older.json").write_text(json.dumps(answer))
    assert run(["report", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_without_its_extra_the_command_to_install_it_is_named(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent: Any = None
    monkeypatch.setitem(sys.modules, "jinja2", absent)
    assert run(["report", "plan.json"]) == 2
    assert "pip install -e '.[report]'" in capsys.readouterr().err


def test_an_image_without_fonts_is_refused(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resvg = pytest.importorskip(
        "resvg_py", reason="PNG needs resvg-py: pip install 'meshwright[report]'"
    )
    draw = resvg.svg_to_bytes
    monkeypatch.setattr(
        resvg, "svg_to_bytes", lambda **words: draw(**words, skip_system_fonts=True)
    )
    assert run(["report", "plan.json", "--format", "png", "--chart", "time"]) == 2
    assert "no font was found to write with" in capsys.readouterr().err
    assert not (plan.parent / "time.png").exists()


def test_a_study_is_read_from_its_directory_at_any_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = study_folder(
        tmp_path / "study", request={"model": "llama3-8b", "cluster": "h100:16"}, trial={}
    )
    predicted = Predicted(
        step_s=1.0,
        step_interval_s=(0.8, 1.5),
        peak_bytes=4e10,
        peak_interval_bytes=(3e10, 6e10),
        fits="yes",
        flops_per_s_per_gpu=4e14,
        mfu=0.4,
    )
    layout = Layout(tp=2, dp=8, gbs=64)
    record = RunRecord(
        run_id=run_id_of(layout),
        number=1,
        layout=layout,
        predicted=predicted,
        chosen_because="the fastest",
    )
    record = store.plan(record, Event(at_s=100.0, event="planned"))
    record = store.add(record, Event(at_s=110.0, event="submitted", handle="7"))
    figures = Measured(
        step_s=1.25, step_low_s=1.2, step_high_s=1.3, tokens_per_s=4e5, samples_per_s=50.0, steps=8
    )
    store.add(record, Event(at_s=335.0, event="finished", outcome=figures, started_s=110.0))
    before = sorted(path.name for path in (tmp_path / "study").rglob("*"))
    assert run(["report", str(tmp_path / "study"), "--json"]) == 0
    part = json.loads(capsys.readouterr().out)["parts"][0]
    assert "the fastest of 1 measured, 0 failed is tp=2, pp=1, dp=8" in part["answer"]
    assert {"title": "Spent", "value": "1.00 GPU-hours", "note": "1 run"} in part[
        "tiles"
    ]  # 225 s on 16 GPUs
    assert sorted(path.name for path in (tmp_path / "study").rglob("*")) == before


def test_a_directory_that_is_no_study_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert "no study here (study.yaml is missing)" in capsys.readouterr().err
