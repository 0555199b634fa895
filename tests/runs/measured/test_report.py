from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.values.errors import ConfigError
from meshwright_truth.page import accuracy_page, read_earlier, show
from meshwright_truth.score import Figures

FIGURES = Figures(
    rows=4,
    t_ans=1.0,
    n_time=4,
    medape=0.125,
    bias=-0.05,
    in20=0.75,
    spearman=0.5,
    groups=1,
    n_mem=0,
)


def test_figures_for_people() -> None:
    assert [
        show(name, getattr(FIGURES, name))
        for name in ("n_time", "medape", "bias", "spearman", "mem_mape")
    ] == [
        "4",
        "12.5 %",
        "-5.0 %",
        "0.500",
        "",
    ]


def test_page_has_a_line_per_table_and_a_table_each() -> None:
    page = accuracy_page({"b": FIGURES, "a": FIGURES}, unanswered={"a": {"gpu: a|b": 2}})
    assert page.index("## a") < page.index("## b")
    assert "| a | 4 | 100.0 % | 12.5 % | -5.0 % | 75.0 % | 0.500 |" in page
    assert "| step time, median error | 12.5 % |" in page
    assert "Not answered: 2 rows, gpu: a\\|b." in page
    assert page.endswith("\n") and not page.endswith("\n\n")


def test_page_with_earlier_figures() -> None:
    page = accuracy_page({"a": FIGURES}, earlier={"a": {"medape": 0.25}})
    assert "| figure | before | now |" in page
    assert "| step time, median error | 25.0 % | 12.5 % |" in page
    assert "| step times within 20 % |  | 75.0 % |" in page


def test_earlier_figures_are_read(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text(json.dumps({"tables": {"a": {"medape": 0.2}}, "unanswered": {}}))
    assert read_earlier(path) == {"a": {"medape": 0.2}}
    path.write_text(json.dumps({"a": {"medape": 0.2, "regret1": None}}))
    assert read_earlier(path)["a"]["medape"] == 0.2


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '{"a": {"b": "c"}}', "\xff"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "before.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as error:
        read_earlier(path)
    assert "\n" not in str(error.value)
