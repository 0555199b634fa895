from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from meshwright.cli.catalogues import chips
from meshwright.values.errors import UnknownNameError
from meshwright.values.hardware.catalogue import ChipRow, chip_rows
from meshwright.values.hardware.parse import servers

APP = typer.Typer()
APP.command()(chips)


def test_the_list_names_every_chip_in_full() -> None:
    result = CliRunner().invoke(APP, [], env={"COLUMNS": "40"})
    assert result.exit_code == 0
    for row in chip_rows():
        (line,) = (
            line for line in result.output.splitlines() if line.split()[:1] == [row.chip.name]
        )
        assert row.domain_link in line.split() and row.network in line.split()


@pytest.mark.parametrize("row", chip_rows(), ids=lambda row: row.chip.name)
def test_a_page_says_every_source_and_choice(row: ChipRow) -> None:
    result = CliRunner().invoke(APP, [row.chip.name])
    assert result.exit_code == 0
    for column in (
        "source",
        "usable_source",
        "matmul_source",
        "attention_source",
        "choice",
        "notes",
    ):
        assert row.cells[column] in result.output


def test_json_of_one_and_of_all() -> None:
    one = json.loads(CliRunner().invoke(APP, ["H100-SXM", "--json"]).output)
    assert (one["name"], one["nominal_gb"], one["usable_gib"], one["bf16_tflops"]) == (
        "h100",
        80,
        79.1,
        989,
    )
    assert (one["domain_link"]["name"], one["network"]["gb_per_s"], one["gpus_per_node"]) == (
        "nvlink4",
        50,
        8,
    )
    every = json.loads(CliRunner().invoke(APP, ["--json"]).output)
    assert [chip["name"] for chip in every["chips"]] == [row.chip.name for row in chip_rows()]


def test_servers_as_a_table_one_by_name_and_those_of_a_chip() -> None:
    every = json.loads(CliRunner().invoke(APP, ["--servers", "--json"]).output)["servers"]
    assert [server["name"] for server in every] == [server.name for server in servers()]
    shown = CliRunner().invoke(APP, ["--servers", "H100-SXM"]).output
    assert "dgx-h100" in shown.split() and "dgx-a100" not in shown.split()
    page = CliRunner().invoke(APP, ["p5"]).output
    assert (
        "p5.48xlarge  8 x h100; `--cluster p5.48xlarge:4` is 32 chips" in page
        and "`meshwright chips h100`" in page
    )
    assert "72 x gb200, in 18 nodes" in CliRunner().invoke(APP, ["dgx-gb200"]).output
    assert (
        json.loads(CliRunner().invoke(APP, ["p5.48xlarge", "--json"]).output)["network"]
        == "efa-p5-400"
    )


def test_unknown_name() -> None:
    result = CliRunner().invoke(APP, ["h1000"])
    assert isinstance(result.exception, UnknownNameError)
