from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import typer
from tests.runs.measured.examples import LLAMA, SMALL_GPT
from typer.testing import CliRunner

from meshwright.cli.measured import predict
from meshwright.cli.validate import validate
from meshwright.runs.measured.files import read_tables
from meshwright.values.errors import ConfigError
from meshwright_truth.verdicts import read_measured

APP = typer.Typer()
APP.command()(predict)
APP.command()(validate)
MEASURED = {
    "step_time_s": "10",
    "peak_mem_gib": "30",
    "oom": "0",
    "notes": "",
    "source": "",
    "group": "g",
    "release": "",
    "task": "",
}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(APP, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_predict_writes_a_line_per_row_and_counts_reasons(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [LLAMA, SMALL_GPT, {**LLAMA, "row_id": "c", "gpu": "?"}])
    code, out = run("predict", table, "-o", tmp_path / "p.csv")
    assert code == 0 and "2 of      3 rows answered" in out and "1 not:" in out
    lines = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [(line["source"], line["row_id"], bool(line["step_time_s"])) for line in lines] == [
        ("runs", "a-1", True),
        ("runs", "b-1", True),
        ("runs", "c", False),
    ]


def test_predict_as_json_and_with_nothing_answered(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [{**LLAMA, "gpu": "?"}])
    code, out = run("predict", table, "-o", tmp_path / "p.csv", "--json")
    assert code == 1
    assert json.loads(out)["tables"]["runs"]["answered"] == 0


def test_validate_prints_writes_and_compares(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [{**LLAMA, **MEASURED}])
    code, out = run("validate", table, "--json")
    assert code == 0
    figures = json.loads(out)["tables"]["runs"]
    assert figures["t_ans"] == 1.0 and "medape" in figures
    (tmp_path / "before.json").write_text(out)
    code, out = run(
        "validate", table, "--before", tmp_path / "before.json", "-o", tmp_path / "accuracy.md"
    )
    assert code == 0 and "runs" in out
    assert "| figure | before | now |" in (tmp_path / "accuracy.md").read_text()


def test_validate_scores_a_predictions_file_alike(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [{**LLAMA, **MEASURED}])
    run("predict", table, "-o", tmp_path / "p.csv")
    made = run("validate", table, "--json")[1]
    read = run("validate", table, "--json", "--predictions", tmp_path / "p.csv")[1]
    assert json.loads(made)["tables"] == json.loads(read)["tables"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no rows"),
        ("row_id,model,gpu\n", "no rows"),
        ("a,b\n1,2\n", "row_id, model, gpu"),
        ("row_id,model,gpu,ttft_ms\n1,m,h100,3\n", "serving"),
        ('row_id,model,gpu\n1,"llama\n', "not a CSV"),
    ],
)
def test_bad_files_get_one_clear_line(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    commands: list[list[str | Path]] = [
        ["predict", path, "-o", tmp_path / "p.csv"],
        ["validate", path],
    ]
    for words in commands:
        with pytest.raises(ConfigError) as error:
            run(*words)
        assert part in str(error.value) and "\n" not in str(error.value)


OTHERS = {
    "inference": (
        {"row_id": "1", "model": "m", "gpu": "h100", "ttft_ms": "3"},
        "a table of serving runs; expected a table of training runs",
    ),
    "hetero": (
        {"kind": "trial", "model": "m", "iter_time_s": "2"},
        "column row_id, gpu is missing; expected a table of training runs",
    ),
    "expert_layouts": (
        {"model": "m", "gpu": "h100", "tp": "2"},
        "column row_id is missing; expected a table of training runs",
    ),
}
"""Tables of something else, and why they are left out."""


def others(folder: Path) -> tuple[list[Path], list[str]]:
    """Write them, and return the warnings that they give."""
    paths = [write(folder / f"{name}.csv", [row]) for name, (row, _) in OTHERS.items()]
    return paths, [
        f"warning: {path}: left out: {reason}"
        for path, (_, reason) in zip(paths, OTHERS.values(), strict=True)
    ]


def test_tables_of_something_else_are_left_out(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [{**LLAMA, **MEASURED}])
    paths, warnings = others(tmp_path)
    commands: list[list[str | Path]] = [
        ["predict", *paths, table, "-o", tmp_path / "p.csv", "--json"],
        ["validate", table, *paths, "--json"],
    ]
    for words in commands:
        result = CliRunner().invoke(APP, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0
        assert result.stderr.splitlines() == warnings
        assert list(json.loads(result.stdout)["tables"]) == ["runs"]
    assert (tmp_path / "p.csv").read_text().count("\n") == 2


def test_tables_without_measurements_are_left_out_of_a_comparison(tmp_path: Path) -> None:
    measured, blank = (
        write(tmp_path / "a.csv", [{**LLAMA, **MEASURED}]),
        write(tmp_path / "b.csv", [LLAMA]),
    )
    result = CliRunner().invoke(
        APP, ["validate", str(measured), str(blank), "--json"], catch_exceptions=False
    )
    assert result.stderr.startswith(
        "warning: b: left out: no measured column (step_time_s, peak_mem_gib, oom)"
    )
    assert list(json.loads(result.stdout)["tables"]) == ["a"]


def test_nothing_left_is_a_bad_request(tmp_path: Path) -> None:
    paths, _ = others(tmp_path)
    commands: list[list[str | Path]] = [
        ["predict", *paths, "-o", tmp_path / "p.csv"],
        ["validate", *paths],
    ]
    for words in commands:
        with pytest.raises(
            ConfigError,
            match=(
                r"inference.csv: a table of serving runs; .* \(and nothing to work on in 2 more\)"
            ),
        ):
            run(*words)
    assert not (tmp_path / "p.csv").exists()


def test_a_broken_table_is_not_left_out(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [{**LLAMA, **MEASURED}])
    (tmp_path / "empty.csv").write_text("row_id,model,gpu\n")
    (tmp_path / "quote.csv").write_text('row_id,model,gpu\n1,"llama\n')
    for name, part in {
        "empty": "no rows",
        "quote": "not a CSV file",
        "absent": "cannot be read",
    }.items():
        path = tmp_path / f"{name}.csv"
        commands: list[list[str | Path]] = [
            ["predict", table, path, "-o", tmp_path / "p.csv"],
            ["validate", table, path],
        ]
        for words in commands:
            with pytest.raises(ConfigError, match=f"{name}.csv: {part}"):
                run(*words)


def test_every_published_table_can_be_named(truth_dir: Path) -> None:
    """The scorer leaves out what has no step_time_s; the same files are left out here."""
    paths = sorted(truth_dir.glob("*.csv"))
    scored = [
        path.stem
        for path in paths
        if "step_time_s" in path.read_text(encoding="utf-8").split("\n", 1)[0].split(",")
    ]
    for found in (read_tables(paths), read_measured(paths)):
        assert [table.name for table in found.kept] == scored
        assert len(found.left_out) == len(paths) - len(scored) > 0


def test_other_bad_requests(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [LLAMA])
    (tmp_path / "sub").mkdir()
    twin = write(tmp_path / "sub" / "runs.csv", [LLAMA])
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    requests: list[tuple[list[str | Path], str]] = [
        (["predict", table, twin, "-o", tmp_path / "p.csv"], "two files"),
        (["predict", table, "-o", tmp_path / "absent" / "p.csv"], "there is no folder"),
        (["predict", tmp_path / "absent.csv", "-o", tmp_path / "p.csv"], "cannot be read"),
        (["predict", tmp_path / "x.csv", "-o", tmp_path / "p.csv"], "UTF-8"),
        (["validate", table], "no measured column"),
    ]
    for words, part in requests:
        with pytest.raises(ConfigError, match=part):
            run(*words)
