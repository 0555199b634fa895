"""Context parallelism's way and adapters, as a request asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.search.exchange import context_way
from meshwright.search.explain import explain
from meshwright.search.problem import Asked, ask, resolve
from meshwright.search.quote import quotes
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, UnknownNameError


def asked(layout: str = "cp=8,mbs=1", **given: Any) -> Asked:
    fields = {"model": "llama2-70b", "cluster": "gb200:72", "seq_len": 8192, "gbs": 9, **given}
    return ask(layout, resolve(PlanRequest.of(fields)))


def step_s(**given: Any) -> float:
    found = asked(**given)
    [quote] = quotes([found.layout], found.problem.setting)
    return float(quote.step_s)


def word(**given: Any) -> tuple[str, bool] | None:
    found = asked(**given)
    at = found.problem.setting
    way = context_way(found.layout, model=at.model, pool=at.pool, work=at.work, stack=at.stack)
    return None if way is None else (way.word, way.chosen)


def test_the_fastest_way_is_taken_where_nobody_says_one() -> None:
    """Each word gives its own price; the plan's is the least of them, and is named."""
    prices = {way: step_s(cp_comm_type=way) for way in ("p2p", "a2a", "all_gather")}
    assert len(set(prices.values())) == 3
    best = min(prices, key=lambda way: prices[way])
    assert step_s() == pytest.approx(prices[best])
    assert word() == (best, True)
    assert word(cp_comm_type="p2p") == ("p2p", False)


def test_without_context_parallelism_there_is_no_way() -> None:
    assert word(layout="cp=1,mbs=1", gbs=72) is None
    assert word(stack="torchtitan", layout="cp=8,mbs=1") is None


def test_explain_says_the_way() -> None:
    found = asked()
    way = explain(found.layout, found.problem).context_way
    assert way is not None
    assert way.words() == (
        f"context parallelism by cp_comm_type={way.word}, the fastest of those that the software"
        " has"
    )


def test_graphs_take_launches_and_the_hosts_work_away() -> None:
    """8B on 32 B200, one micro-batch a step: without graphs the host's 20 ms show."""
    given = {"model": "llama3.1-8b", "cluster": "b200:32", "gbs": 16, "precision": "fp8"}

    def terms(graphs: str) -> tuple[float, float]:
        at = asked("cp=2,mbs=1", **given, stack="nemo", cuda_graphs=graphs)
        [quote] = quotes([at.layout], at.problem.setting)
        return float(quote.time_s["launch"]), float(quote.time_s["overhead"])

    none, half, whole = (terms(graphs) for graphs in ("none", "attn", "full_iteration"))
    assert whole == (0.0, 0.0)
    assert none[1] == pytest.approx(0.02) and half[1] == pytest.approx(0.01)
    assert none[0] >= half[0] >= 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cp_comm_type": "p2p", "stack": "torchtitan"}, "of no effect on torchtitan"),
        ({"cp_comm_type": "p2p", "model": "gpt-oss-20b"}, "windows or sinks"),
        ({"lora_targets": ["linear_qkv"]}, "of no effect with lora_rank=0"),
        ({"lora_rank": -1}, "lora_rank=-1"),
        ({"cuda_graphs": "attn", "stack": "torchtitan"}, "torchtitan has no such setting"),
    ],
)
def test_what_has_no_effect_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(**given)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="a2a"):
        asked(cp_comm_type="a2a2")
    with pytest.raises(ConfigError, match="linear_qkv"):
        asked(lora_rank=8, lora_targets=["linear_qk"])


def test_adapters_are_those_asked_for_else_the_recipes() -> None:
    """Megatron-Bridge's recipes of v0.5.0 adapt linear_qkv alone; without a release all four."""
    given = {"model": "llama3-70b", "precision": "fp8", "lora_rank": 16, "cluster": "gb200:8"}
    given |= {"gbs": 32, "layout": "pp=2,vpp=20,mbs=1", "seq_len": 4096}

    def targets(**more: Any) -> tuple[str, ...]:
        return asked(**{**given, **more}).problem.setting.work.lora_targets

    assert targets(stack="megatron-bridge@26.06") == ("linear_qkv",)
    assert len(targets(stack="nemo")) == 4
    assert targets(stack="nemo", lora_targets=["linear_proj"]) == ("linear_proj",)
    assert step_s(**given, stack="nemo", lora_targets=["linear_qkv"]) < step_s(
        **given, stack="nemo"
    )
