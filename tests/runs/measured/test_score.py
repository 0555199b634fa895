from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.runs.measured.cells import TruthTable
from meshwright.values.errors import ConfigError
from meshwright_truth.score import Figures, Guess, read_predictions, score_table, spearman

BLANK = dict.fromkeys(
    (
        "source",
        "notes",
        "group",
        "gpu",
        "num_gpus",
        "seq_len",
        "gbs",
        "precision",
        "release",
        "task",
        "tp",
        "pp",
    ),
    "",
)


def row(
    number: int, *, step: str = "", peak: str = "", oom: str = "0", **cells: str
) -> dict[str, str]:
    layout = {"tp": "1", "pp": "1", "gbs": "8", "num_gpus": "8"}
    return {
        **BLANK,
        **layout,
        "row_id": f"r{number}",
        "step_time_s": step,
        "peak_mem_gib": peak,
        "oom": oom,
        **cells,
    }


def score(rows: list[dict[str, str]], guesses: dict[str, Guess], *, name: str = "t") -> Figures:
    return score_table(
        TruthTable(name, tuple(rows)), {(name, row_id): guess for row_id, guess in guesses.items()}
    )


def test_errors_of_two_rows() -> None:
    figures = score(
        [row(1, step="2"), row(2, step="4")], {"r1": Guess(step_s=2.2), "r2": Guess(step_s=2.0)}
    )
    assert (figures.t_ans, figures.n_time) == (1.0, 2)
    assert figures.medape == pytest.approx(0.3)
    assert figures.mape == pytest.approx(0.3)
    assert figures.bias == pytest.approx(math.sqrt(1.1 * 0.5) - 1)
    assert figures.in20 == 0.5


def test_rows_without_an_answer_lower_the_share_only() -> None:
    figures = score(
        [row(1, step="2", peak="10"), row(2, step="4", peak="20")], {"r1": Guess(2.0, 11.0, False)}
    )
    assert (figures.t_ans, figures.m_ans, figures.o_ans, figures.medape) == (0.5, 0.5, 0.5, 0.0)
    assert figures.mem_mape == pytest.approx(0.1)


@pytest.mark.parametrize(
    "cells",
    [
        {"notes": "TRAP: x"},
        {"notes": "BEFORE the fix"},
        {"tp": ""},
        {"gbs": ""},
        {"source": "mindspeed-llm-ci"},
    ],
)
def test_doubtful_and_incomplete_times_are_left_out(cells: dict[str, str]) -> None:
    assert score([row(1, step="2", **cells)], {"r1": Guess(2.0)}).t_ans is None


def test_tables_for_memory_only() -> None:
    figures = score(
        [row(1, step="2", peak="10")], {"r1": Guess(2.0, 10.0)}, name="megatron_functional"
    )
    assert (figures.t_ans, figures.m_ans) == (None, 1.0)


def test_suspect_memory_is_left_out() -> None:
    assert score([row(1, peak="10", notes="SUSPECT")], {"r1": Guess(None, 10.0)}).m_ans is None


def eight(steps: list[float], said: list[float]) -> Figures:
    rows = [row(i, step=str(step), group="g") for i, step in enumerate(steps)]
    return score(rows, {f"r{i}": Guess(step_s=guess) for i, guess in enumerate(said)})


def test_ranks_and_regret() -> None:
    steps = [1.0, 2, 3, 4, 5, 6, 7, 8]
    perfect = eight(steps, steps)
    assert (perfect.groups, perfect.regret1) == (1, 0.0)
    assert perfect.spearman == pytest.approx(1.0)
    backwards = eight(steps, steps[::-1])
    assert backwards.spearman == pytest.approx(-1.0)
    assert backwards.regret1 == pytest.approx(1 - 1 / 8)
    assert backwards.regret3_mean == pytest.approx(1 - 1 / 6)
    assert eight(steps[:7], steps[:7]).groups == 0


def test_choosing_what_runs_out_of_memory_loses_everything() -> None:
    rows = [row(i, step=str(i + 1), group="g") for i in range(8)] + [row(9, oom="1", group="g")]
    guesses = {f"r{i}": Guess(step_s=float(i + 1), oom=False) for i in range(8)}
    careless = score(rows, {**guesses, "r9": Guess(0.5, None, False)})
    careful = score(rows, {**guesses, "r9": Guess(0.5, None, True)})
    assert (careless.regret1_mean, careless.regret_oom_mean) == (0.0, 1.0)
    assert (careful.regret_oom_mean, careful.oom_bacc, careless.oom_bacc) == (0.0, 1.0, 0.5)
    assert (careful.oom_f1, careful.oom_precision, careless.oom_precision) == (1.0, 1.0, None)


def test_equal_values_share_their_rank() -> None:
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert spearman([1, 1], [1, 2]) is None


def test_predictions_file(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("source,row_id,step_time_s,peak_mem_gib,oom\nt,r1,1.5,,1\nt,r2,,inf,\n")
    assert read_predictions(path) == {
        ("t", "r1"): Guess(1.5, None, True),
        ("t", "r2"): Guess(None, None, None),
    }
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="step_time_s"):
        read_predictions(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_predictions(tmp_path / "absent.csv")


@pytest.fixture(scope="session")
def reference(truth_dir: Path) -> ModuleType:
    """The script that comes with the published runs."""
    path = truth_dir.parent / "tools" / "score.py"
    if not path.is_file():
        pytest.skip("the reference script is absent: ../tools/score.py beside the published runs")
    spec = importlib.util.spec_from_file_location("reference_score", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_score"] = module
    spec.loader.exec_module(module)
    return module


figures_of_rows = st.lists(
    st.tuples(
        st.sampled_from(["", "0", "1"]),
        st.sampled_from(["", "1", "2", "3.5", "nan", "0"]),
        st.sampled_from(["", "1", "2.5", "3"]),
        st.sampled_from(["g", "h"]),
        st.sampled_from(["", "SUSPECT", "outlier"]),
        st.sampled_from([None, 0.5, 1.0, 2.0, 3.0]),
        st.sampled_from([None, 1.0, 2.0]),
        st.sampled_from([None, True, False]),
    ),
    min_size=1,
    max_size=40,
)


@given(rows=figures_of_rows)
def test_equal_to_the_reference_script(reference: ModuleType, rows: list[tuple]) -> None:  # type: ignore[type-arg]
    truth = [
        row(i, oom=o, step=s, peak=p, group=g, notes=n)
        for i, (o, s, p, g, n, *_) in enumerate(rows)
    ]
    ours = {f"r{i}": Guess(*r[5:]) for i, r in enumerate(rows)}
    theirs = {
        ("t", k): {
            "step_time_s": _text(g.step_s),
            "peak_mem_gib": _text(g.peak_gib),
            "oom": _flag(g.oom),
        }
        for k, g in ours.items()
    }
    expected = {
        key: value
        for key, value in reference.score("t", truth, theirs)[0].items()
        if value is not None
    }
    assert score(truth, ours).present() == expected


def _text(value: float | None) -> str:
    return "" if value is None else str(value)


def _flag(value: bool | None) -> str:
    return "" if value is None else str(int(value))
