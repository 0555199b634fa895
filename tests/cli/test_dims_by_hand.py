"""Dims by hand wherever a command takes a model's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import run
from meshwright.cli.plan_files import read_request, request_to_yaml
from meshwright.search.request import PlanRequest

DIMS = "layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"
ASKED = ["--cluster", "h100:16", "--seq", "4096", "--gbs", "32"]
Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *args: str) -> dict[str, Any]:
    assert run([*args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["plan"], [*ASKED, "--top", "2"]),
        (["explain"], [*ASKED, "--layout", "tp=4,pp=2"]),
        (["why-oom"], [*ASKED, "--layout", "tp=4,pp=2"]),
        (["diff", "tp=4", "tp=2", "--model"], ASKED),
    ],
)
def test_dims_are_priced_as_the_name_is(
    before: list[str], after: list[str], capsys: Capture
) -> None:
    by_name, by_hand = (answer(capsys, *before, model, *after) for model in ("llama3-8b", DIMS))
    for found in (by_name, by_hand):
        found.pop("request", None)
        found.get("search", {}).pop("seconds", None)
    assert by_hand == by_name


def test_models_shows_the_parameters(capsys: Capture) -> None:
    assert run(["models", DIMS]) == 0
    out = capsys.readouterr().out
    assert "by-hand" in out and "8,030,261,248" in out
    found = answer(capsys, "models", DIMS)
    assert found["params"] == sum(found["parts"].values()) == 8_030_261_248


def test_a_saved_request_reads_back_unchanged(tmp_path: Path, capsys: Capture) -> None:
    saved = tmp_path / "request.yaml"
    first = answer(capsys, "plan", DIMS, *ASKED, "--top", "1", "--save-request", str(saved))
    assert first["request"]["model"] == DIMS
    again = PlanRequest.of(read_request(saved))
    assert request_to_yaml(again) == saved.read_text()
    assert answer(capsys, "plan", "--request", str(saved))["plans"] == first["plans"]


@pytest.mark.parametrize(
    "line",
    [
        ["plan", "layer=1", *ASKED],
        ["plan", "layers=1", *ASKED],
        ["explain", "layers=x", *ASKED, "--layout", "tp=1"],
        ["why-oom", "layers=1,,", *ASKED, "--layout", "tp=1"],
        ["diff", "tp=4", "tp=2", "--model", "hidden=-1", *ASKED],
        ["models", "=", "--json"],
    ],
)
def test_wrong_dims_are_one_line(line: list[str], capsys: Capture) -> None:
    assert run(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
