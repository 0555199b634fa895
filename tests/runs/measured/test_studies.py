"""What rests on one study: words outside the wheel, and the list of the page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs.measured.examples import LLAMA

from meshwright.runs.measured.cells import TruthTable, read_rules
from meshwright.runs.measured.rows import Case, read_row
from meshwright.values.data import published_rows
from meshwright_truth.studies import fitted_constants, studies_of, studies_section


@pytest.fixture
def in_a_wheel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "meshwright_truth", None)
    for cached in (published_rows, read_rules):
        cached.cache_clear()
    yield
    for cached in (published_rows, read_rules):
        cached.cache_clear()


def case(**cells: str) -> Case:
    found = read_row({**LLAMA, **cells})
    assert isinstance(found, Case)
    return found


STUDY = {"framework": "Megatron-LM dev", "gpu": "H100-80GB-SXM"}


def test_a_clone_knows_how_studies_were_run() -> None:
    changes = dict(case(**STUDY).stack_changes)
    assert changes["tp_overlap"] == 0 and changes["dp_overlap"] == 0
    nanotron = case(framework="nanotron", gpu="H100-80GB-SXM", interconnect="")
    assert nanotron.machines.nodes[0].network_link.name == "efa-p5-400"


@pytest.mark.usefixtures("in_a_wheel")
def test_a_wheel_knows_settings_and_no_studies() -> None:
    assert "tp_overlap" not in dict(case(**STUDY).stack_changes)
    nanotron = case(framework="nanotron", gpu="H100-80GB-SXM", interconnect="")
    assert nanotron.stack_name.startswith("nanotron")
    assert nanotron.machines.nodes[0].network_link.name != "efa-p5-400"
    said = case(notes="torch.compile off; CUDA graph full_iteration; DeepEP")
    assert dict(said.stack_changes)["pointwise_fused"] == 0
    assert dict(said.stack_changes)["dispatcher"] == "flex"
    full = case(notes="CUDA graph full_iteration")
    assert dict(full.stack_changes)["launch_hidden"] == 1


def test_words_that_two_tables_have_rest_on_none() -> None:
    def table(name: str, **cells: str) -> TruthTable:
        return TruthTable(name=name, rows=({**LLAMA, "row_id": name, **cells},))

    found = studies_of(
        [
            table("one", framework="paddle", notes="torch.compile off"),
            table("two", framework="nanotron", notes="torch.compile off"),
        ]
    )
    assert found.in_package == {"one": ("paddle",)}
    assert found.beside == {"two": ("nanotron",)}
    page = studies_section(found)
    assert "| two |  |  | 1 |" in page and "that one alone has: `paddle`." in page


def test_a_source_that_names_the_table_it_is_fitted_on_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,1,fitted on amp\ny,2,fitted on its own runs; not on amp\n")
    (tmp_path / "b.py").write_text('RATE = 3\n"""Fitted once.\n\nfitted on the runs\nof amp."""\n')
    (tmp_path / "c.md").write_text("fitted on amp")
    found = [(f.file, f.table, f.count) for f in fitted_constants(tmp_path, ["amp", "vtrain"])]
    assert found == [("a.csv", "amp", 1), ("b.py", "amp", 1)]
