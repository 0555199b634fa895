"""Published layouts as a user of `plan` gets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.runs.measured.cells import TruthTable
from meshwright_truth.page import accuracy_page
from meshwright_truth.plan_path import PlanPath, PlanPriced, named_stack, plan_path
from meshwright_truth.score import score_table
from meshwright_truth.verdicts import read_measured

TRUTH = Path(__file__).parents[3] / "truth"


def table(name: str) -> TruthTable:
    [found] = read_measured([TRUTH / f"{name}.csv"]).kept
    return found


def some(rows: TruthTable, count: int = 3, **changes: str) -> TruthTable:
    return replace(rows, rows=tuple({**row, **changes} for row in rows.rows[:count]))


@pytest.mark.parametrize(
    ("framework", "release", "stack"),
    [
        ("Megatron-Bridge / Megatron-Core", "26.02", "megatron-bridge@26.02"),
        ("Megatron-Bridge", "", "megatron-bridge"),
        ("NeMo AutoModel (PyTorch FSDP2)", "2026-06-12", "nemo-automodel"),
        ("NeMo / Megatron-Core + TE", "", "nemo"),
        ("MaxText (JAX/XLA)", "", "maxtext"),
        ("PaddleNLP", "", None),
    ],
)
def test_a_software_is_named_as_a_user_does(framework: str, release: str, stack: str) -> None:
    row = {"framework": framework, "release": release}
    assert named_stack(row, table="megatron_bridge") == stack


def test_nothing_is_told_but_model_chips_layout_and_software() -> None:
    """`torch.compile=true` in the software's cell moves `predict` alone, a layout moves both."""
    plain = plan_path(some(table("torchtitan")))
    words = plan_path(some(table("torchtitan"), framework="torchtitan, torch.compile=true"))
    assert [run.plan_s for run in words.runs] == [run.plan_s for run in plain.runs]
    assert words.runs[0].predict_s < plain.runs[0].predict_s
    slower = plan_path(some(table("torchtitan"), recompute="full"))
    assert slower.runs[0].plan_s > plain.runs[0].plan_s


def test_runs_on_no_software_of_ours_are_left_out() -> None:
    assert plan_path(some(table("uci_4xA100"))) == PlanPath(runs=(), refused=())


def run_of(plan_s: float, predict_s: float, verdict: str) -> PlanPriced:
    return PlanPriced(
        row_id="a",
        measured_s=10.0,
        plan_s=plan_s,
        options_s=plan_s,
        predict_s=predict_s,
        verdict=verdict,  # type: ignore[arg-type]  # of the calls below
        inside=plan_s < 12.0,
    )


def test_the_page_has_both_errors_beside_each_other() -> None:
    """|12 / 10 - 1| and |9 / 10 - 1| are 15 % in the mean, |11 / 10 - 1| and 0 are 5 %."""
    path = PlanPath(runs=(run_of(12.0, 11.0, "no"), run_of(9.0, 10.0, "yes")), refused=())
    rows = some(table("nemo_docs"))
    page = accuracy_page({rows.name: score_table(rows, {})}, paths={rows.name: path})
    assert "| nemo_docs | 15.0 % | 5.0 % | 1 of 2 |" in page
    assert "15.0 % off in the mean (5.0 % with everything told), 50 % inside" in page
    assert "| mean, weighed by the root of runs | 15.0 % | 5.0 % | 1 of 2 |" in page
