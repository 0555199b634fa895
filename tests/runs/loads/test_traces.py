from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.runs.loads.traces import read_traffic
from meshwright.serving.traffic import Trace
from meshwright.values.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.4799600,110,27
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 1025, "output_length": 5, "hash_ids": [46, 7, 8]}
{"timestamp": 30535, "input_length": 1024, "output_length": 26, "hash_ids": [46, 7]}
"""


def read(folder: Path, text: str, name: str = "trace") -> Trace:
    path = folder / name
    path.write_text(text)
    return read_traffic(path)


def test_azures_trace_is_ordered_by_its_clock(tmp_path: Path) -> None:
    found = read(tmp_path, AZURE)
    assert found.sent_s.tolist() == pytest.approx([0.0, 0.5, 0.552])
    assert (found.prompts.tolist(), found.outputs.tolist()) == ([110, 4808, 3180], [27, 10, 8])
    assert (found.hashes, found.started) == (None, "2023-11-16 18:17:03")


def test_azures_second_trace_has_a_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\r\n\n"
    )
    found = read(tmp_path, text)
    assert found.sent_s.tolist() == pytest.approx([0.0, 0.007405], abs=1e-6)


def test_mooncakes_trace_names_blocks(tmp_path: Path) -> None:
    found = read(tmp_path, MOONCAKE)
    assert found.sent_s.tolist() == pytest.approx([0.0, 3.053])
    assert found.hashes is not None
    assert found.hashes[1] == found.hashes[0][:2]
    assert (found.block_tokens, found.started) == (512, None)
    assert found.prefix_share(0, 2) == pytest.approx(1023 / (1025 + 1024))


def test_other_sizes_of_blocks_are_told_by_their_number(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 40 + at, "output_length": 1, "hash_ids": ["a", "b", at]}
        for at in range(3)
    ]
    found = read(tmp_path, "\n".join(map(json.dumps, rows)))
    assert found.block_tokens == 16
    rows[0]["hash_ids"] = rows[1]["hash_ids"] = list(range(99))
    with pytest.raises(ConfigError, match="99 hash_ids for a prompt of 40 tokens"):
        read(tmp_path, "\n".join(map(json.dumps, rows)))


def test_burstgpt_and_our_own(tmp_path: Path) -> None:
    burst = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
    )
    found = read(tmp_path, burst)
    assert (found.size, found.prompts.tolist()) == (1, [472])
    assert found.notes == ("1 request without a token of prompt or answer left out",)
    assert read(tmp_path, "sent_s,input_len,output_len\n1.5,3,4\n2,5,6\n").seconds == 1.0


def span(name: str, at: int, **usage: Any) -> dict[str, Any]:
    told = [{"key": f"gen_ai.usage.{key}", "value": value} for key, value in usage.items()]
    return {"name": name, "startTimeUnixNano": str(at), "attributes": told}


def spans(*found: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(found)}]}]}


def test_spans_of_opentelemetry(tmp_path: Path) -> None:
    """The engine's spans count; a gateway's around them tells the same tokens once more."""
    start = 1_700_000_000 * 10**9
    old = {"prompt_tokens": {"intValue": "100"}, "completion_tokens": {"intValue": 7}}
    new = {"input_tokens": {"intValue": "200"}, "output_tokens": {"intValue": "8"}}
    lines = [
        spans(span("llm_request", start + 2 * 10**9, **old), span("chat", start, **old)),
        spans(span("llm_request", start, **new), span("other", start)),
    ]
    found = read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert found.sent_s.tolist() == pytest.approx([0.0, 2.0])
    assert (found.prompts.tolist(), found.outputs.tolist()) == ([200, 100], [8, 7])
    assert found.started == "2023-11-14 22:13:20"
    whole = read(tmp_path, json.dumps(spans(span("chat", start, **new)), indent=2))
    assert whole.prompts.tolist() == [200]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty; expected Azure's CSV"),
        ("a,b,c\n1,2,3\n", "line 1: no columns that are known; expected Azure's CSV"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "expected one request at least"),
        (AZURE + "yesterday,1,1\n", "line 5: expected a time in TIMESTAMP"),
        (AZURE + "2023-11-16 18:17:04,1\n", "line 5: expected a whole number of tokens in Gen"),
        (AZURE + "\n2023-11-16 18:17:04,-1,1\n", "line 6: expected 0 to 16777216 tokens"),
        ("sent_s,input_len,output_len\n1,2,3\nnan,2,3\n", "line 3: expected a time"),
        ("sent_s,input_len,output_len\n1,2,3\n1,2.5,3\n", "line 3: expected a whole number"),
        (AZURE + "2023-11-16 18:17:04+02:00,1,1\n", "line 5: expected a time in TIMESTAMP"),
        (AZURE + "9023-11-16 18:17:04,1,1\n", "seconds from the first request to the last"),
        ("sent_s,input_len,output_len\n1,0,3\n", "no request with a token of prompt and of"),
        (MOONCAKE + "{", "line 3: no JSON object"),
        (MOONCAKE + "[1]", "line 3: no JSON object"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 5}', "line 3: expected timestamp, input_"),
        (MOONCAKE.replace("1025", "1025.5"), "line 1: expected timestamp, input_length"),
        (MOONCAKE.replace("[46, 7]", "46"), "line 2: expected timestamp, input_length"),
        ('{"some": 1}', "line 1: no input_length; expected Azure's CSV"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}', "line 1: no spans as OTLP's"),
        ('{"resourceSpans": []}', "no span with gen_ai.usage.input_tokens"),
    ],
)
def test_a_broken_trace_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traffic(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_traffic(tmp_path / "binary")
