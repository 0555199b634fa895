from __future__ import annotations

import json

import pytest

from meshwright.cli import run
from meshwright.software.registry import TARGETS
from meshwright.values.hardware.catalogue import chip_rows
from meshwright.values.stack import find_stack, stack_names

Capture = pytest.CaptureFixture[str]


def record(capsys: Capture, *words: str) -> dict[str, list[dict[str, object]]]:
    assert run([*words, "--json"]) == 0
    found: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
    return found


def test_every_stack_is_listed_with_what_writes_its_files(capsys: Capture) -> None:
    rows = record(capsys, "stacks")["stacks"]
    assert [row["name"] for row in rows] == list(stack_names())
    for row in rows:
        assert row["targets"] == [one.name for one in TARGETS if row["name"] in one.stacks]


def test_a_stack_shows_its_figures_with_their_sources(capsys: Capture) -> None:
    assert run(["stacks", "torchtitan"]) == 0
    page = capsys.readouterr().out
    assert f"launch_hidden = {find_stack('torchtitan').launch_hidden}: " in page
    assert "builds on fsdp" in page
    assert run(["stacks", "torchtitn"]) == 2
    assert "did you mean 'torchtitan'" in capsys.readouterr().err


def test_every_price_has_a_source(capsys: Capture) -> None:
    rows = record(capsys, "prices")["prices"]
    priced = {one.chip.name: one.chip.usd_per_hour for one in chip_rows() if one.chip.usd_per_hour}
    on_demand = [row for row in rows if row["kind"] == "on-demand" and row["provider"] == ""]
    assert {row["chip"]: row["usd_per_hour"] for row in on_demand} == priced
    assert [row["chip"] for row in rows if not row["source"]] == []
