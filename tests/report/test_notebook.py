"""The example notebook, run from its first cell to its last, and what results show in one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock
from xml.etree import ElementTree

import pytest

from meshwright import api
from meshwright.runs.loop import View
from meshwright.runs.outcome import Measured
from meshwright.runs.record import Predicted, RunRecord
from meshwright.runs.store import Study
from meshwright.runs.tune import StudyResult
from meshwright.values.errors import MissingExtraError
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import named_model
from meshwright.values.text import html_table

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_example_runs_and_its_results_show_themselves(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=120,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    shown = [
        output.get("data", {})
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert "8.03B parameters" in shown[0]["text/html"]
    assert "llama3-8b on h100:16" in shown[1]["text/html"]
    assert shown[-1]["text/plain"] == "True"
    assert (tmp_path / "report.html").exists()


def cells_of(html: str) -> list[list[str]]:
    """Read a table back; it is well-formed."""
    return [[cell.text or "" for cell in row] for row in ElementTree.fromstring(html).iter("tr")]


def test_tables_are_well_formed_and_what_comes_from_outside_is_text() -> None:
    html = html_table("<b>", ("name", "figure"), [("a & b", 1.23456), (None, None)], note="x < y")
    assert cells_of(html) == [["name", "figure"], ["a & b", "1.235"], ["", ""]]
    assert "&lt;b&gt;" in html
    assert "x &lt; y" in html


def test_a_model_shows_its_parts() -> None:
    rows = cells_of(named_model("mixtral-8x7b")._repr_html_())
    assert ["experts", "45.1B", "96.6%"] in rows  # 32 layers x 8 experts x 3 x 4096 x 14336


def test_plans_show_their_figures_and_no_plans_the_reasons() -> None:
    found = api.plan(model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=32, top=2)
    heading, first, _ = cells_of(found._repr_html_())
    assert heading[:2] + heading[-1:] == ["#", "step, s", "layout"]  # the long one last
    assert first[1] == f"{found.best.step_s:.4g}"
    assert first[-1].replace(", ", ",") == found.best.layout.words()
    shown = dict(row[:2] for row in cells_of(found.best._repr_html_())[1:])
    assert shown["step, s"] == f"{found.best.step_s:.4g}"
    assert shown["matrix products"] == f"{found.best.time_s['matmul']:.4g}"
    assert len(repr(found)) < 300
    nothing = api.plan(model="llama3-70b", cluster="h100:2", seq_len=8192, gbs=8)
    assert "nothing fits" in nothing._repr_html_()
    assert "GiB too large" in nothing._repr_html_()


def test_plans_are_a_frame_and_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside stand-ins for pandas and matplotlib, which keep what they are given."""
    found = api.plan("llama3-70b", "h100:64", seq=8192, gbs=64, top=3)
    monkeypatch.setitem(sys.modules, "pandas", cast("Any", SimpleNamespace(DataFrame=list)))
    frame = found.to_pandas()
    assert [row["step_s"] for row in frame] == [plan.step_s for plan in found.plans]
    assert all("layout" not in row and row["tp"] >= 1 for row in frame)

    bars: list[tuple[str, list[float], list[float]]] = []
    axes = MagicMock()
    axes.barh = lambda names, seconds, *, left, label, color: bars.append((label, seconds, left))
    pyplot = SimpleNamespace(
        get_cmap=lambda name: SimpleNamespace(colors=[str(k) for k in range(20)])
    )
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", cast("Any", pyplot))
    assert found.plot(axes) is axes
    ends = [[start + more for start, more in zip(left, s, strict=True)] for _, s, left in bars]
    assert ends[-1] == pytest.approx([plan.step_s for plan in found.plans])
    assert len({label for label, _, _ in bars}) == len(bars) > 5


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = api.plan("tiny-llama", "h100:8", seq=512, gbs=8, top=1)
    for name in ("pandas", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pandas.*\[notebook\]"):
        found.to_pandas()
    with pytest.raises(MissingExtraError, match=r"matplotlib.*\[notebook\]"):
        found.plot()


def test_a_study_shows_every_run_beside_its_prediction() -> None:
    intervals: dict[str, Any] = {
        "step_interval_s": (0.8, 1.5),
        "peak_interval_bytes": (3e10, 6e10),
        "peak_bytes": 4e10,
        "fits": "yes",
    }
    predicted = Predicted(step_s=1.0, flops_per_s_per_gpu=4e14, mfu=0.4, **intervals)
    figures = Measured(
        step_s=1.25, step_low_s=1.2, step_high_s=1.3, tokens_per_s=4e5, samples_per_s=50.0, steps=8
    )
    layout = Layout(tp=2, dp=8, gbs=64)
    record = RunRecord(
        run_id="a",
        number=1,
        layout=layout,
        predicted=predicted,
        chosen_because="<fastest>",
        state="finished",
        outcome=figures,
    )
    facts = cast("Any", SimpleNamespace(model="llama3-8b", num_chips=16, chip="h100"))
    html = StudyResult(
        folder=Path("study"),
        facts=facts,
        view=View(records=(record,), waits={}, gpu_hours=0.5, stop="enough"),
    )._repr_html_()
    assert cells_of(html)[1] == ["1", layout.words(), "1", "1.25", "1.25", "finished", "<fastest>"]
    assert "llama3-8b on 16 x h100: best 1.25 s a step" in html
    assert "0.5 GPU-hours; stopped: enough" in html


def test_what_a_study_compares_is_a_table() -> None:
    rows = cells_of(
        Study(
            study_id="0123456789",
            request={"model": "llama3-8b", "calibration": None},
            trial={"steps": 20},
        )._repr_html_()
    )
    assert rows[1:] == [["model", "llama3-8b"], ["steps", "20"]]
