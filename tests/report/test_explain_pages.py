from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.pages import BASE, EXPLANATION, LADDER, LARGE, SETTING, SPREADS

from meshwright.report.diff_text import print_comparison, print_ladder, print_prices
from meshwright.report.explain_json import comparison_record, explanation_record, ladder_record
from meshwright.report.explain_text import print_explanation
from meshwright.report.trace import write_trace
from meshwright.search.diff import compare
from meshwright.search.request import PlanRequest
from meshwright.trust import intervals as confidence
from meshwright.values.errors import ConfigError
from meshwright.values.layout import parse_layout

WIDTH = 80
DIFFERENT = compare(
    parse_layout("tp=8,pp=4,mbs=1,recompute=none"),
    parse_layout("tp=4,pp=4,mbs=2,sp=1,recompute_modules=mlp+moe"),
)
PAGES: dict[str, Callable[[Console], None]] = {
    "explain": lambda console: print_explanation(
        EXPLANATION, console, parts=("tables", "rivals", "sources")
    ),
    "why_oom": lambda console: print_ladder(LADDER, SETTING, console),
    "diff": lambda console: print_comparison(DIFFERENT, console),
    "diff_same": lambda console: print_comparison(compare({}, {}), console),
    "diff_prices": lambda console: print_prices(BASE, LARGE, console),
}


@pytest.fixture(autouse=True)
def _known_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages must not change with every fit of the residuals."""
    monkeypatch.setattr(confidence, "_published", lambda: SPREADS)


def text_of(page: Callable[[Console], None]) -> str:
    out = io.StringIO()
    page(Console(file=out, width=WIDTH, markup=False, highlight=False, emoji=False))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("name", list(PAGES))
def test_page_is_as_it_was(name: str) -> None:
    golden = Path(__file__).with_name(f"{name}.golden")
    text = text_of(PAGES[name])
    if os.environ.get("MESHWRIGHT_ACCEPT"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), (
        "read the difference; to accept it, run pytest once with MESHWRIGHT_ACCEPT=1"
    )


ASKED = PlanRequest(model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64)


@pytest.mark.parametrize("name", list(PAGES))
def test_page_keeps_to_a_terminal_of_80_columns(name: str) -> None:
    assert max(map(len, text_of(PAGES[name]).splitlines())) <= WIDTH


@pytest.mark.parametrize(
    "record",
    [
        explanation_record(EXPLANATION, ASKED),
        ladder_record(LADDER, SETTING, ASKED),
        comparison_record(DIFFERENT),
    ],
)
def test_records_are_json_without_nan(record: dict[str, object]) -> None:
    assert json.loads(json.dumps(record, allow_nan=False))


def test_record_of_an_explanation_has_the_keys_of_a_plan() -> None:
    record = explanation_record(EXPLANATION, ASKED)
    assert set(record) >= {
        "layout",
        "step_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "tflops_per_gpu",
        "fits",
        "peak_memory_gib",
        "time",
        "memory",
        "provenance",
    }
    assert sum(record["time"].values()) == pytest.approx(record["step_s"])
    assert sum(record["memory"].values()) == pytest.approx(max(record["peak_memory_gib"]))
    assert set(record["provenance"]["time"]) == {term.term for term in EXPLANATION.time}
    assert set(record["provenance"]["memory"]) == set(record["memory"])


def test_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_trace(tmp_path / "no" / "step.json", {})
