from __future__ import annotations

import importlib
from typing import Any

import pytest
from tests.search.examples import CASES, layout, problem

import meshwright
from meshwright import api
from meshwright.cost.layer import price_layer
from meshwright.cost.memory import MEMORY_TERMS
from meshwright.cost.operators import Site
from meshwright.cost.stages import distinct_shapes
from meshwright.cost.step import TIME_TERMS
from meshwright.search.explain import Explanation, explain, term_differences
from meshwright.search.operators import layer_tables
from meshwright.search.quote import quotes
from meshwright.search.refine import reprice, requote, setting_of
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layouts


@pytest.fixture(scope="module", params=list(CASES))
def found(request: pytest.FixtureRequest) -> Explanation:
    words, asked = CASES[request.param]
    return explain(layout(words, asked), asked)


def test_cases_keep_the_rules() -> None:
    for words, asked in CASES.values():
        assert setting_of(asked).broken_rules(layout(words, asked)) == []


def test_terms_sum_to_the_step(found: Explanation) -> None:
    assert sum(term.seconds for term in found.time) == pytest.approx(found.quote.step_s, rel=1e-9)
    assert sum(term.share for term in found.time) == pytest.approx(1.0, rel=1e-9)


def test_memory_sums_to_what_is_used(found: Explanation) -> None:
    assert len(found.quote.stages) == found.quote.layout.pp
    for stage in found.quote.stages:
        assert sum(stage.memory_bytes.values()) == pytest.approx(stage.used_bytes)
    assert found.quote.peak_bytes == max(stage.used_bytes for stage in found.quote.stages)


def test_layers_of_the_stages_sum_to_the_model(found: Explanation) -> None:
    assert sum(stage.num_layers for stage in found.quote.stages) == found.setting.model.total_layers


def test_operators_sum_to_the_layer(found: Explanation) -> None:
    shapes, _ = distinct_shapes(Layouts.of([found.quote.layout]))
    setting = found.setting
    site = Site(
        model=setting.model,
        work=setting.work,
        stack=setting.stack,
        pool=setting.pool,
        shapes=shapes,
    )
    for table, segment in zip(found.layers, setting.model.segments, strict=True):
        price = price_layer(site, segment)
        assert table.forward_s == pytest.approx(float(price.forward_s[0]), rel=1e-9)
        assert table.backward_s == pytest.approx(float(price.backward_s[0]), rel=1e-9)
        assert table.saved_bytes == pytest.approx(float(price.kept_bytes[0]), rel=1e-9)


def test_differences_sum_to_the_change_of_the_step(found: Explanation) -> None:
    for rival in found.rivals:
        if rival.quote is not None:
            assert sum(change for _, change in rival.differences_s) == pytest.approx(
                rival.quote.step_s - found.quote.step_s, abs=1e-6
            )


def test_rivals_are_priced_as_a_plan_prices_them(found: Explanation) -> None:
    asked = next(
        asked
        for words, asked in CASES.values()
        if asked.setting.model == found.setting.model and asked.setting.pool == found.setting.pool
    )
    rivals = [rival.quote for rival in found.rivals if rival.quote is not None]
    again = reprice(asked, [quote.layout for quote in rivals])
    assert [quote.step_s for quote in rivals] == pytest.approx([priced.step_s for priced in again])
    assert [quote.peak_bytes for quote in rivals] == pytest.approx(
        [priced.peak_bytes for priced in again]
    )


def test_rivals_use_the_same_chips_and_batch(found: Explanation) -> None:
    for rival in found.rivals:
        assert (rival.layout is None) == (rival.verdict == "breaks a rule") == bool(rival.reason)
        if rival.layout is not None:
            assert (rival.layout.num_chips, rival.layout.gbs) == (
                found.quote.layout.num_chips,
                found.quote.layout.gbs,
            )
            assert found.setting.broken_rules(rival.layout) == []


def test_rivals_that_fit_come_first_and_fastest_first(found: Explanation) -> None:
    places = [
        (0 if r.quote.fits else 1, r.quote.step_s) if r.quote is not None else (2, 0.0)
        for r in found.rivals
    ]
    assert places == sorted(places)


def test_binding_names_memory_exactly_where_it_does_not_fit(found: Explanation) -> None:
    assert found.binding.startswith("Memory of stage ") != found.quote.fits


def test_uneven_stages_are_bound_by_the_slowest() -> None:
    """30 of 32 layers on one of two stages: the mean stage has 16, so nearly 14 of 30 layers' time
    is imbalance."""
    asked = problem("llama3-8b", "h100:16", gbs=64)
    found = explain(layout("tp=4,pp=2,layers_per_stage=30+2", asked), asked)
    worst = found.time[0]
    assert (worst.title, worst.bound) == ("stage imbalance", "slowest of 2 stages")
    assert worst.share == pytest.approx(14 / 30, abs=0.05)
    assert (
        f"the largest loss is stage imbalance ({worst.share:.1%}; slowest of 2 stages). Faster and"
        " fits: pp 2 -> 1" in found.binding
    )
    worse = explain(layout("tp=4,pp=4,layers_per_stage=29+1+1+1", asked), asked)
    assert (
        worse.binding.startswith("Stage imbalance (")
        and "slowest of 4 stages): more than the" in worse.binding
    )


def test_no_change_of_a_layout_is_no_difference() -> None:
    words, asked = CASES["dense"]
    quote = quotes([layout(words, asked)], asked.setting)[0]
    assert term_differences(quote, quote) == ()


def test_llama_on_h100_by_hand() -> None:
    """256 / (8 * 4) = 8 replicas, 512 / 8 = 64 micro batches; tp within NVLink, dp across nodes,
    and the first stage is the fullest."""
    asked = problem()
    found = explain(layout("tp=8,pp=4,mbs=1", asked), asked)
    assert found.quote.layout.num_microbatches == 64
    assert found.quote.fullest.stage == 0
    bounds = {term.term: term.bound for term in found.time}
    assert bounds["tp_comm"] == "nvlink4: 8 ranks within a domain of 8"
    assert bounds["dp_comm"].endswith("8 ranks, 8 apart, over 8 domains")
    assert {rival.words for rival in found.rivals} >= {
        "tp 8 -> 16",
        "tp 8 -> 4",
        "pp 4 -> 8",
        "pp 4 -> 2",
        "vpp 1 -> 2",
        "mbs 1 -> 2",
    }


def test_pp_is_the_deepest_that_a_layout_cannot_double() -> None:
    asked = problem(cluster="h100:24", gbs=48)
    rivals = {rival.words: rival for rival in explain(layout("tp=8,pp=3", asked), asked).rivals}
    assert rivals["pp 3 -> 6"].verdict == "breaks a rule"
    assert "24 GPUs are not divisible by tp=8 * pp=6" in rivals["pp 3 -> 6"].reason


def test_every_term_has_a_reading() -> None:
    assert set(TIME_TERMS) <= set(TIME_READINGS)
    assert set(MEMORY_TERMS) <= set(MEMORY_READINGS)


def test_the_function_that_made_a_term_exists(found: Explanation) -> None:
    for basis in [*(term.provenance for term in found.time), *found.memory_provenance.values()]:
        module, _, name = basis.formula.rpartition(".")
        assert callable(getattr(importlib.import_module(f"meshwright.{module}"), name))


def test_every_constant_has_a_value_and_a_source() -> None:
    words, asked = CASES["experts"]
    found = explain(layout(words, asked), asked, depth="constants")
    assert all(term.provenance.constants for term in found.time)
    for basis in [*(term.provenance for term in found.time), *found.memory_provenance.values()]:
        for constant in basis.constants:
            assert constant.source
            assert constant.value is not None


def test_simulated_and_closed_prices_share_their_memory() -> None:
    words, asked = CASES["dense"]
    closed = quotes([layout(words, asked)], setting_of(asked))
    assert requote(closed, asked)[0].stages == closed[0].stages
    assert layer_tables(closed[0].layout, asked.setting)


def test_api_takes_words_or_fields() -> None:
    words, asked = CASES["dense"]
    fields: dict[str, Any] = {
        "model": "llama3-70b",
        "cluster": "h100:256",
        "seq_len": 8192,
        "gbs": 512,
        "stack": "megatron",
    }
    by_words = meshwright.explain(words, **fields)
    assert by_words.quote == meshwright.explain({"tp": 8, "pp": 4, "mbs": 1}, asked.request).quote
    assert meshwright.why_oom(words, **fields).quote == by_words.quote
    assert meshwright.diff("tp=8", {"tp": 4}).labels == ("reshard the checkpoint",)
    with pytest.raises(ConfigError, match="not both"):
        meshwright.explain(words, asked.request, **fields)


def test_a_faster_rival_that_needs_the_headroom_is_at_risk_and_never_said_to_fit() -> None:
    """A plan of 70B on 256 H100: half the stages would be faster, and leave less of 79.1 GiB free
    than the headroom."""
    found = api.explain(
        "tp=4,cp=2,pp=4,vpp=20",
        model="llama3-70b",
        cluster="h100:256",
        seq_len=7168,
        gbs=512,
        stack="megatron",
    )
    assert (
        "Faster, but at risk, as it needs a part of the headroom: pp 4 -> 2, by " in found.binding
    )
    assert "Faster and fits: pp 4 -> 2" not in found.binding
