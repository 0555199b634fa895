"""`meshwright mcp`, asked by the protocol's own client over stdin and stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from meshwright import api
from meshwright.api.agents import TOOLS, answer, input_schema, tool_named
from meshwright.cli import run
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, UnknownNameError

RUN: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 8192, "gbs": 64}
LAYOUT = {**RUN, "layout": "tp=2,mbs=1"}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("plan", RUN),
    ("explain", LAYOUT),
    ("why_oom", {**LAYOUT, "layout": "tp=1,mbs=4"}),
    ("compare", {"model": "llama3-8b", "clusters": ["h100:64", "h200:64"], "tokens": "2T"}),
    ("export", {**RUN, "layout": "tp=2,mbs=1,sharding=zero3", "to": "torchtitan"}),
    (
        "serving_plan",
        {"model": "llama3.1-8b", "cluster": "h100:8", "input_len": 1000, "output_len": 200},
    ),
    ("plan", {**RUN, "seq": 8192}),
    ("plan", {**RUN, "gbs": "64 sequences"}),
    ("explain", {**LAYOUT, "layout": "tp=3,mbs=1"}),
    ("export", {**RUN, "layout": "tp=2,mbs=1,sharding=zero1", "to": "torchtitan"}),
    ("fly", {}),
]


async def _asked() -> tuple[dict[str, Any], list[Any]]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "meshwright", "mcp"], env=dict(os.environ)
    )
    async with Client(stdio_client(server)) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        return listed, [await client.call_tool(name, given) for name, given in ASKED]


@pytest.fixture(scope="module")
def session() -> tuple[dict[str, Any], list[Any]]:
    return anyio.run(_asked)


def test_the_client_sees_every_tool_with_typed_inputs(
    session: tuple[dict[str, Any], list[Any]],
) -> None:
    listed, _ = session
    assert list(listed) == ["plan", "explain", "why_oom", "compare", "export", "serving_plan"]
    for tool in listed.values():
        schema = tool.input_schema
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is False
        assert all(one.get("description") for one in schema["properties"].values())
        assert tool.annotations.read_only_hint is True
    plan = listed["plan"].input_schema
    assert plan["required"] == ["model", "cluster", "seq_len"]
    assert plan["properties"]["objective"]["enum"][0] == "step_time"


def test_answers_come_with_intervals_and_sources(session: tuple[dict[str, Any], list[Any]]) -> None:
    plan, explained, oom, compared, exported, served = session[1][:6]
    for one in (plan, explained, oom, compared, exported, served):
        assert not one.is_error
        assert json.loads(one.content[0].text) == one.structured_content
        assert len(one.content[0].text) < 30_000
    [first, *_] = plan.structured_content["plans"]
    low, high = first["interval"]["step_s"]
    assert low < first["step_s"] < high
    assert first["provenance"]["kernels"]
    matmul = explained.structured_content["sources"]["time"]["matmul"]
    assert all(one["source"] for one in matmul["constants"])
    assert any(rung["fits"] == "yes" for rung in oom.structured_content["ladder"])
    for row in compared.structured_content["rows"]:
        assert row["interval"]["days"][0] < row["days"] < row["interval"]["days"][1]
        assert all(price["source"] for price in row["prices"])
    assert "torchtitan.train" in exported.structured_content["command"]
    best = served.structured_content["plans"][0]
    low, high = best["interval"]["tpot_s"]
    assert low < best["tpot_s"] < high


def test_what_is_refused_is_an_error_in_one_sentence(
    session: tuple[dict[str, Any], list[Any]],
) -> None:
    says = ["did you mean 'seq_len'", "gbs='64 sequences'", "tp=3", "sharding=zero2", "known tool"]
    for one, words in zip(session[1][6:], says, strict=True):
        assert one.is_error
        text = one.content[0].text
        assert words in text
        assert "\n" not in text
        assert "Traceback" not in text


def test_a_tool_answers_as_its_command() -> None:
    found = answer(tool_named("plan"), {**RUN, "pins": {"tp": [2], "pp": [1]}})
    same = api.plan(PlanRequest.of({**RUN, "pins": {"tp": [2], "pp": [1]}, "top": 3})).to_dict()
    assert found["plans"] == same["plans"]
    with pytest.raises(ConfigError, match="cluster: not given"):
        answer(tool_named("plan"), {"model": "llama3-8b"})
    with pytest.raises(UnknownNameError, match="'layouts' is no known argument of explain"):
        answer(tool_named("explain"), {"layouts": "tp=2"})


def test_a_plans_own_layout_goes_on_to_other_tools() -> None:
    plan = answer(tool_named("plan"), {**RUN, "top": 1})["plans"][0]
    again = answer(tool_named("explain"), {**RUN, "layout": plan["layout"]})
    assert again["layout"] == plan["layout"]


def test_the_tools_are_listed_without_the_sdk(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "--list"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["inputs"] for one in listed] == [input_schema(tool) for tool in TOOLS]
