from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.loads.test_traces import AZURE, MOONCAKE

from meshwright.runs.loads.figures import Answer, Figures, figures_of
from meshwright.runs.loads.load import (
    Lengths,
    Line,
    ServeJob,
    closed_loop,
    line_of,
    load_of,
    poisson,
    read_serve_job,
    read_trace,
)
from meshwright.values.errors import ConfigError


def test_a_closed_loop_has_four_requests_a_client_and_eight_at_least() -> None:
    lengths = Lengths(input_len=10, output_len=4)
    assert [len(closed_loop(clients, lengths).asks) for clients in (1, 2, 3, 8)] == [8, 8, 12, 32]


@given(st.floats(0.0, 0.9), st.integers(1, 500), st.integers(1, 500), st.integers(0, 99))
def test_lengths_lie_within_their_spread(
    spread: float, prompt: int, answer: int, seed: int
) -> None:
    lengths = Lengths(input_len=prompt, output_len=answer, spread=spread, seed=seed)
    for ask in closed_loop(2, lengths, requests=20).asks:
        assert max(1, prompt * (1 - spread) - 0.5) <= ask.input_len <= prompt * (1 + spread) + 0.5
        assert ask.input_len + ask.output_len <= lengths.longest


def test_a_load_is_read_back() -> None:
    load = poisson(3.0, Lengths(input_len=8, output_len=3, spread=0.3, seed=4), requests=5)
    assert load_of(json.loads(json.dumps(load.to_dict()))) == load
    job = ServeJob(command=("serve", "--port", "{port}"), loads=(load,), environment={"A": "b"})
    assert read_serve_job(job.to_json()) == job


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "sent_s,input_len\n0,3\n",
            "line 2: expected numbers in the columns sent_s, input_len and output_len",
        ),
        ("sent_s,input_len,output_len\n0,3,4\nnan,3,4\n", "line 3: expected a time"),
        ("sent_s,input_len,output_len\n0,0,4\n", "line 2: expected a time, and 1 to"),
        ("sent_s,input_len,output_len\n", "expected one request at least"),
    ],
)
def test_a_broken_trace_names_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_trace(path)


def test_a_trace_starts_at_its_first_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("sent_s,input_len,output_len\n12.5,3,4\n10.0,5,6\n")
    assert [(ask.sent_s, ask.input_len, ask.output_len) for ask in read_trace(path).asks] == [
        (0.0, 5, 6),
        (2.5, 3, 4),
    ]


def test_published_traces_are_loads(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(AZURE)
    asks = read_trace(path).asks
    assert [(ask.input_len, ask.output_len) for ask in asks] == [(110, 27), (4808, 10), (3180, 8)]
    assert [ask.sent_s for ask in asks] == pytest.approx([0.0, 0.5, 0.552], abs=1e-6)
    path.write_text(MOONCAKE)
    assert [ask.sent_s for ask in read_trace(path).asks] == pytest.approx([0.0, 3.053])
    path.write_text(AZURE + "never,1,1\n")
    with pytest.raises(ConfigError, match="line 5: expected a time in TIMESTAMP"):
        read_trace(path)


def test_figures_by_hand() -> None:
    answers = [
        Answer(
            sent_s=0.0,
            first_s=1.0,
            last_s=3.0,
            gaps_s=(0.5, 1.5),
            prompt_tokens=10,
            output_tokens=3,
        ),
        Answer(
            sent_s=1.0, first_s=3.0, last_s=5.0, gaps_s=(2.0,), prompt_tokens=20, output_tokens=2
        ),
        Answer(sent_s=1.0, error="gone"),
    ]
    found = figures_of(answers)
    assert (found.requests, found.failed, found.duration_s) == (2, 1, 5.0)
    assert (found.prompt_tokens, found.output_tokens, found.tokens_per_s) == (30, 5, 1.0)
    assert (found.ttft_s.mean, found.ttft_s.p50) == (1.5, 1.5)
    assert found.tpot_s.mean == 1.5  # (3 - 1) / 2 and (5 - 3) / 1
    assert found.itl_s.mean == pytest.approx(4 / 3)
    assert found.e2e_s.p90 == pytest.approx(3.9)  # of 3 and 4
    assert Figures.of(json.loads(json.dumps(found.to_dict()))) == found


def test_nobody_answered_is_nan_and_no_crash() -> None:
    found = figures_of([Answer(sent_s=0.0, error="gone")])
    assert math.isnan(found.tokens_per_s) and math.isnan(found.ttft_s.mean)
    assert found.to_dict()["ttft_s"] == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_lines_are_found_among_others() -> None:
    line = Line(kind="ready", content={"ready_s": 1.5})
    assert line_of(line.text()) == line
    assert line_of(f"[rank0]: {line.text()}") == line
    assert line_of(line.text()[:-4]) is None
    assert line_of("INFO: ready") is None
