"""What holds between the answers to two questions, whatever they are: rules without an expected
figure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.api import plan
from meshwright.runs.candidates import candidates_of
from meshwright.search.explain import explain
from meshwright.search.plan import search_plans
from meshwright.search.problem import resolve
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.units import format_count, parse_number

PLANS = int(os.environ.get("MESHWRIGHT_RANDOM_PLANS", "6"))
"""Random questions per rule; a night sets more."""
CHIPS = ["h100", "a100-80", "v100-32", "mi300x"]
MODELS = ["tiny-llama", "llama3-8b", "gpt3-1.3b", "mixtral-8x7b", "llama2-13b"]


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "model": draw(st.sampled_from(MODELS)),
        "kind": draw(st.sampled_from(CHIPS)),
        "count": draw(st.sampled_from([4, 8, 12, 16])),
        "seq_len": draw(st.sampled_from([512, 2048, 4096])),
        "gbs": draw(st.sampled_from([16, 32, 48, 96])),
    }


def request(question: dict[str, Any], **more: Any) -> PlanRequest:
    fields = dict(question)
    cluster = f"{fields.pop('kind')}:{fields.pop('count')}"
    return PlanRequest.of({"cluster": cluster, "fastest": True, **fields, **more})


def fastest(question: dict[str, Any], **more: Any) -> float:
    """Seconds of a step of the best plan, on fewer of the chips where the answer says so; infinite
    where none fits or keeps the rules."""
    try:
        answer = plan(request(question, **more))
    except ConfigError:
        return float("inf")
    found: Sequence[Any] = [*answer.plans, *([] if answer.fewer is None else [answer.fewer])]
    return min((one.step_s for one in found), default=float("inf"))


@settings(max_examples=PLANS)
@given(question=questions(), least=st.sampled_from([4.0, 8.0, 12.0]))
def test_more_memory_is_never_slower(question: dict[str, Any], least: float) -> None:
    less = fastest(question, max_memory_gib=least)
    assert fastest(question, max_memory_gib=2 * least) <= less


@settings(max_examples=PLANS)
@given(question=questions())
def test_more_chips_are_never_slower(question: dict[str, Any]) -> None:
    more = {**question, "count": 2 * question["count"]}
    assert fastest(more) <= fastest(question)


@settings(max_examples=max(2, PLANS // 3))
@given(question=questions(), other=st.sampled_from(CHIPS))
def test_the_order_of_pools_changes_nothing(question: dict[str, Any], other: str) -> None:
    own = f"{question['kind']}:4"
    if other != question["kind"]:
        assert fastest(question, cluster=f"{own},{other}:4") == pytest.approx(
            fastest(question, cluster=f"{other}:4,{own}"), rel=1e-12
        )


def test_the_rules_are_asked_of_plans_that_there_are() -> None:
    asked = {"model": "tiny-llama", "kind": "h100", "count": 8, "seq_len": 512, "gbs": 16}
    assert 0 < fastest(asked) < 60
    assert 0 < fastest(asked, cluster="h100:4,a100-80:4") < 60
    with TemporaryDirectory() as folder:
        slow = fastest(asked, cluster=cluster_file(Path(folder), asked, memory_gb_per_s=300))
        assert fastest(asked) < slow < 60
    assert candidates_of(resolve(request(asked)), lambda layout: None).members


def cluster_file(folder: Path, question: dict[str, Any], name: str = "mine", **changes: Any) -> str:
    """Write the question's chips as a file, with other figures or another name."""
    pool = {name: changes.pop(name) for name in ("network", "oversubscription") if name in changes}
    content: dict[str, Any] = {
        "chips": {name: {"like": question["kind"], **changes}},
        "pools": [{"chip": name, "count": question["count"], **pool}],
    }
    path = folder / f"{name}-{abs(hash((str(changes), str(pool))))}.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@settings(max_examples=PLANS)
@given(question=questions(), share=st.sampled_from([1.1, 1.5, 3.0]))
def test_faster_memory_is_never_slower(question: dict[str, Any], share: float) -> None:
    rate = find_chip(question["kind"]).memory_bytes_per_s / 1e9
    with TemporaryDirectory() as folder:
        own, faster = (
            fastest(question, cluster=cluster_file(Path(folder), question, memory_gb_per_s=one))
            for one in (rate, share * rate)
        )
    assert faster <= own


@settings(max_examples=PLANS)
@given(question=questions(), gbps=st.sampled_from([25, 100, 200]))
def test_a_faster_network_is_never_slower(question: dict[str, Any], gbps: int) -> None:
    with TemporaryDirectory() as folder:
        slow, fast = (
            fastest(question, cluster=cluster_file(Path(folder), question, network=rate))
            for rate in (gbps, 2 * gbps)
        )
    assert fast <= slow


@settings(max_examples=PLANS)
@given(question=questions())
def test_the_name_of_a_chip_changes_nothing(question: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        one, other = (
            fastest(question, cluster=cluster_file(Path(folder), question, name))
            for name in ("alpha", "zulu-9")
        )
    assert one == other


@settings(max_examples=max(2, PLANS // 3))
@given(question=questions(), other=st.sampled_from(CHIPS))
def test_a_pool_more_never_lengthens_the_step(question: dict[str, Any], other: str) -> None:
    if other != question["kind"]:
        own = f"{question['kind']}:8"
        assert fastest(question, cluster=f"{own},{other}:4") <= fastest(question, cluster=own) * (
            1 + 1e-12
        )


@settings(max_examples=PLANS)
@given(question=questions())
def test_tune_predicts_what_plan_and_explain_say(question: dict[str, Any]) -> None:
    try:
        problem = resolve(request(question))
        members = candidates_of(problem, lambda layout: None).members
    except ConfigError:
        return
    for member in members[:2]:
        quote = explain(member.layout, problem).quote
        assert member.predicted.step_s == quote.step_s


@settings(max_examples=100 * PLANS)
@given(count=st.floats(1, 9.99e14))
def test_a_count_reads_back_as_it_is_written(count: float) -> None:
    written = format_count(count)
    assert parse_number(written, name="n", whole=False, thousand=1000) == pytest.approx(
        count, rel=0.0051
    )
    assert "e" not in written


@settings(max_examples=PLANS)
@given(question=questions())
def test_a_plan_and_its_explanation_are_equal_to_the_last_digit(question: dict[str, Any]) -> None:
    try:
        plans = search_plans(request(question, top=2)).plans
    except ConfigError:
        return
    for found in plans:
        if found.chips:
            continue  # some are idle: a question of fewer chips
        quote = explain(found.layout, resolve(request(question))).quote
        assert (quote.step_s, dict(quote.time_s)) == (found.step_s, found.time_s)
        assert quote.peak_bytes == found.peak_bytes
