"""What every command prints becomes a part whose charts are drawn; figures that the parts make of
it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.measured.examples import LLAMA
from tests.runs.measured.serving.examples import SERVED

from meshwright.api.report import find_chart, page_bytes, report_parts
from meshwright.cli import run
from meshwright.report.charts.draw import alone
from meshwright.report.charts.forms import Grid, Heat, Points, Stack
from meshwright.report.parts.part import Part

CASE = ["llama3-8b", "--cluster", "h100:8", "--seq", "8192", "--gbs", "32"]
COMMANDS = {
    "explain": ["explain", *CASE, "--layout", "tp=2,pp=2"],
    "why-oom": ["why-oom", *CASE, "--layout", "mbs=4"],
    "diff": ["diff", "tp=8,pp=4", "tp=4,pp=8"],
    "estimate": ["estimate", *CASE, "--tokens", "100B"],
    "size": ["size", "--cluster", "a100-80:16", "--days", "5", "--tokens", "20B"],
    "serving plan": [
        "serving",
        "plan",
        "llama3.1-8b",
        "--cluster",
        "h100:2",
        "--input-len",
        "1000",
        "--output-len",
        "200",
    ],
    "serving simulate": [
        "serving",
        "simulate",
        "llama3.1-8b",
        "--cluster",
        "l40s:1",
        "--layout",
        "tp=1",
        "--rate",
        "2",
        "--requests",
        "50",
    ],
    "validate": ["validate", "runs.csv"],
    "serving validate": ["serving", "validate", "served.csv"],
    "chips": ["chips", "h100"],
    "models": ["models", "llama3-8b"],
}
CHARTS = {
    "explain": {"time", "stages", "roofline", "rivals-steps"},
    "why-oom": {"memory", "fixes"},
    "estimate": {"days", "time", "memory"},
    "size": {"tried", "time", "memory"},
    "serving plan": {"front", "ttft"},
    "validate": {"errors"},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What a command prints, each asked once."""
    folder = tmp_path_factory.mktemp("answers")
    rows = {
        "runs.csv": {**LLAMA, "step_time_s": "10", "peak_mem_gib": "30", "oom": "0"},
        "served.csv": SERVED,
    }
    for name, row in rows.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, list(row))
            writer.writeheader()
            writer.writerow(row)
    seen: dict[str, dict[str, Any]] = {}

    def answer(name: str) -> dict[str, Any]:
        if name not in seen:
            patch = pytest.MonkeyPatch()
            with (
                patch.context() as inside,
                Path.open(folder / "out.json", "w", encoding="utf-8") as out,
            ):
                inside.chdir(folder)
                inside.setattr("sys.stdout", out)
                assert run([*COMMANDS[name], "--json"]) in (0, 1)
            seen[name] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
        return seen[name]

    return answer


@pytest.mark.parametrize("name", list(COMMANDS))
def test_what_a_command_prints_becomes_a_page(
    name: str, answers: Callable[[str], dict[str, Any]]
) -> None:
    pytest.importorskip("jinja2", reason="pages need jinja2: pip install 'meshwright[report]'")
    parts = report_parts([answers(name)])
    [part] = parts
    assert part.answer.endswith(".")
    assert len(part.answer) > 20
    assert {chart.key for chart in part.charts} >= CHARTS.get(name, set())
    assert all(chart.data.rows for chart in part.charts)
    assert all(alone(chart).startswith("<svg") for chart in part.charts)
    assert part.title.encode() in page_bytes(parts)


def part_of(answers: Callable[[str], dict[str, Any]], name: str) -> Part:
    return report_parts([answers(name)])[0]


def grid_of(part: Part, key: str) -> Grid:
    return next(
        block
        for section in part.sections
        for block in section.blocks
        if isinstance(block, Grid) and block.key == key
    )


def test_days_are_those_of_the_estimate_and_sum(answers: Callable[[str], dict[str, Any]]) -> None:
    days = find_chart([part_of(answers, "estimate")], "days")
    assert isinstance(days, Stack)
    assert days.bars[0].total == pytest.approx(answers("estimate")["run"]["days"], rel=1e-6)


def test_sizes_that_were_tried_are_drawn_against_the_days_there_are(
    answers: Callable[[str], dict[str, Any]],
) -> None:
    chart = find_chart([part_of(answers, "size")], "tried")
    assert isinstance(chart, Points)
    assert sum(len(group.points) for group in chart.groups) == len(answers("size")["tried"])
    assert chart.guides[0].points[0][1] == 5.0
    assert chart.groups[1].points[0].y <= 5.0


def test_fixes_stand_left_or_right_of_the_line(answers: Callable[[str], dict[str, Any]]) -> None:
    record = answers("why-oom")
    chart = find_chart([part_of(answers, "why-oom")], "fixes")
    assert isinstance(chart, Points)
    fits, not_alone, start = chart.groups
    assert all(point.x <= record["limit_gib"] for point in fits.points)
    assert all(point.x > record["limit_gib"] for point in not_alone.points)
    assert start.points[0].x == pytest.approx(record["limit_gib"] + record["over_gib"])


def test_the_front_of_serving_is_the_answer_s_own(answers: Callable[[str], dict[str, Any]]) -> None:
    record = answers("serving plan")
    chart = find_chart([part_of(answers, "serving plan")], "front")
    assert isinstance(chart, Points)
    assert [(p.x, p.y) for p in chart.groups[0].points] == [
        (o["tokens_per_s_per_user"], o["tokens_per_s_per_gpu"]) for o in record["pareto"]
    ]
    assert "llama3.1-8b on" in part_of(answers, "serving plan").title


def test_a_simulated_load_has_its_percentiles_in_milliseconds(
    answers: Callable[[str], dict[str, Any]],
) -> None:
    record = answers("serving simulate")
    rows = grid_of(part_of(answers, "serving simulate"), "seen").rows
    assert rows[0][:2] == ("TTFT", "ms")
    assert rows[0][3] == pytest.approx(1e3 * record["ttft_s"]["p50"])


def test_errors_of_tables_are_medians_in_per_cent(answers: Callable[[str], dict[str, Any]]) -> None:
    chart = find_chart([part_of(answers, "validate")], "errors")
    assert isinstance(chart, Stack)
    [bar] = chart.bars
    assert bar.total == pytest.approx(100 * answers("validate")["tables"][bar.label]["medape"])


def test_objects_without_charts_are_shown_as_tables(
    answers: Callable[[str], dict[str, Any]],
) -> None:
    part = report_parts(
        [{"a": 1, "b": {"c": [1.5, 2]}, "rows": [{"x": 1, "y": {"z": "q"}}, {"x": 2}]}]
    )[0]
    values, rows = part.sections
    assert values.blocks[0].rows == (("a", 1), ("b.c", "1.50000, 2"))  # type: ignore[union-attr]
    assert rows.blocks[0].rows == ((1, "q"), (2, None))  # type: ignore[union-attr]


def test_a_request_without_an_answer_has_no_charts_and_says_what_would_do() -> None:
    from meshwright import api

    found = api.plan(model="llama3-70b", cluster="h100:2", seq_len=8192, gbs=8).to_dict()
    part = report_parts([found])[0]
    assert "no layout fits; the nearest" in part.answer
    assert not any(isinstance(chart, Heat) for chart in part.charts)


def test_what_was_computed_is_said_and_an_answer_that_no_longer_holds_is_told() -> None:
    from meshwright import api

    found = api.plan(model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=32, top=1).to_dict()
    [note] = report_parts([found])[0].notes
    assert note.startswith("As `plan` printed them:")
    best = found["plans"][0]
    slower = {**found, "plans": [{**best, "step_s": 1.1 * best["step_s"]}]}
    told = report_parts([slower])[0].notes[1]
    assert told.startswith(f"Priced again, the best plan takes {best['step_s']:.3g}")
    assert told.endswith("Run `plan` again.")
