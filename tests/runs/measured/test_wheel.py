"""A plain wheel has no scorers of published tables: what needs them says so, the rest works."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.measured.examples import LLAMA
from tests.runs.measured.serving.examples import ROW

SRC = Path(__file__).resolve().parents[3] / "src"
MAIN = """
import sys
sys.modules["meshwright_truth"] = None  # where an editable install would bring it
from meshwright.cli import main
main()
"""


def as_in_a_wheel(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )


def written(path: Path, row: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, row)
        writer.writeheader()
        writer.writerow(row)
    return path


@pytest.mark.parametrize("command", [("validate",), ("serving", "validate")])
def test_validate_says_what_is_missing_and_what_to_do(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    table = written(tmp_path / "runs.csv", {**LLAMA, "step_time_s": "10"})
    result = as_in_a_wheel(*command, table)
    assert result.returncode == 2 and result.stdout == ""
    [line] = result.stderr.splitlines()
    assert "meshwright_truth" in line and "clone" in line and "pip install -e ." in line


def test_predict_and_calibrate_need_no_scorers(tmp_path: Path) -> None:
    table = written(tmp_path / "runs.csv", {**LLAMA, "step_time_s": "10", "oom": "0"})
    for words in (("predict", table), ("calibrate", table)):
        result = as_in_a_wheel(*words, "-o", tmp_path / f"{words[0]}.out")
        assert result.returncode == 0, result.stderr
        assert (tmp_path / f"{words[0]}.out").stat().st_size > 0


def test_serving_predict_needs_no_scorers(tmp_path: Path) -> None:
    table = written(tmp_path / "served.csv", ROW)
    result = as_in_a_wheel("serving", "predict", table, "-o", tmp_path / "p.csv")
    assert result.returncode == 0, result.stderr
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
