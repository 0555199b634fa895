"""Every named constant moves its term, every other one moves nothing, and formulas come to their
terms: over plans of all kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.search.examples import layout, problem
from tests.serving.cases import prices

from meshwright.cost.terms import (
    bubble_s,
    data_term_s,
    head_term_s,
    imbalance_s,
    layer_term_s,
    pipeline_messages_s,
    recompute_term_s,
    simulated_bubble_s,
    simulated_messages_s,
)
from meshwright.search.constants import Holders, holders_of, stack_of, with_held
from meshwright.search.provenance import Basis, Provenance, basis_of, standing, worked
from meshwright.search.quote import Quote, quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.search.twin import Twin, twin
from meshwright.serving.engine import Worker
from meshwright.serving.static import static_batch
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Cluster, Link, Pool
from meshwright.values.mixed_layout import MixedLayout, StageLayout
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import Stack, find_stack
from meshwright.values.workload import Workload

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("tp=8,pp=4,mbs=1", {}),
    "experts": (
        "tp=2,ep=8,pp=2",
        {"model": "mixtral-8x7b", "cluster": "h100:64", "seq_len": 4096, "gbs": 256},
    ),
    "fsdp": ("mbs=1", {"model": "llama3-8b", "cluster": "h100:8", "gbs": 32, "stack": "fsdp"}),
    "tpu": (
        "tp=4",
        {
            **{"model": "llama3-8b", "cluster": "tpu-v5p:64", "stack": "maxtext"},
            **{"seq_len": 4096, "gbs": 256},
        },
    ),
}
"""Plans that are held to it on every run: one of each kind."""
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "amd": ("tp=8", {"model": "llama3-70b", "cluster": "mi300x:64", "gbs": 64}),
    "ascend": (
        "tp=8,pp=4",
        {
            **{"model": "llama3-70b", "cluster": "ascend-910b:64", "stack": "mindspeed"},
            **{"seq_len": 4096, "gbs": 64},
        },
    ),
    "interleaved": (
        "tp=8,pp=8,vpp=2,recompute=full",
        {"model": "gpt3-175b", "cluster": "a100-80:512", "seq_len": 2048, "gbs": 512},
    ),
    "latent": (
        "tp=1,pp=16,ep=64,vpp=2",
        {"model": "deepseek-v3", "cluster": "h800:2048", "seq_len": 4096, "gbs": 2048},
    ),
    "long": (
        "tp=8,cp=4,mbs=1",
        {"model": "llama3-8b", "cluster": "h100:64", "seq_len": 65536, "gbs": 16},
    ),
    "fp8": ("tp=8,pp=4,mbs=1", {"precision": "fp8"}),
    "encoder-decoder": (
        "tp=2,mbs=4",
        {"model": "t5-3b", "cluster": "a100-80:16", "seq_len": 512, "gbs": 256},
    ),
    "selective": (
        "tp=4,pp=4,mbs=1,recompute=selective,recompute_modules=layernorm",
        {},
    ),
    "no tables": (
        "tp=4",
        {"model": "llama3-8b", "cluster": "v100-32:32", "seq_len": 2048, "gbs": 64},
    ),
}
"""The rest of the kinds, in the slow suite."""
STEP = 0.01


@cache
def found(name: str) -> tuple[Any, Any, Basis]:
    words, asked = (PLANS | MORE)[name]
    there = problem(**asked)
    chosen = layout(words, there)
    return there, chosen, basis_of(chosen, there)


plans = pytest.mark.parametrize(
    "name", [*PLANS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)


def priced(asked: Any, chosen: Any, setting: Any) -> Quote:
    """The price as `explain` prints it, by the real modules: no twin has a part in it."""
    return requote(quotes([chosen], setting), replace(asked, setting=setting))[0]


def terms_of(quote: Quote, stage: int) -> dict[str, float]:
    return {f"time.{name}": value for name, value in quote.time_s.items()} | {
        f"memory.{name}": value for name, value in quote.stages[stage].memory_bytes.items()
    }


def all_of(basis: Basis) -> Mapping[str, Provenance]:
    return {f"time.{name}": each for name, each in basis.time.items()} | {
        f"memory.{name}": each for name, each in basis.memory.items()
    }


def in_catalogues(setting: Any) -> Iterator[tuple[str, list[Any]]]:
    """Every figure and flag of chip, links and software, by its printed name, and the settings with
    it moved by 1 % up and down, or switched; one that may not be moved so is left out."""
    node = setting.pool.node
    owners: dict[str, Any] = {
        "chip": node.chip,
        "domain_link": node.domain_link,
        "network_link": node.network_link,
        "stack": setting.stack,
    }
    for owner, held in owners.items():
        for one in fields(held):
            value = getattr(held, one.name)
            if isinstance(value, bool | float) and value != 0.0:
                name = f"{held.name if isinstance(held, Link) else owner}.{one.name}"
                yield name, list(moved(setting, owner, held, one.name, value))


def moved(setting: Any, owner: str, held: Any, field: str, value: float) -> Iterator[Any]:
    ends = [not value] if isinstance(value, bool) else [value * (1 + STEP), value * (1 - STEP)]
    for end in ends:
        try:
            changed = replace(held, **{field: end})
        except ValueError:
            continue
        if isinstance(changed, Stack):
            yield replace(setting, stack=changed)
        else:
            node = replace(setting.pool.node, **{owner: changed})
            yield replace(setting, pool=replace(setting.pool, node=node))


@plans
def test_named_constants_move_their_terms_and_no_others_do(name: str) -> None:
    asked, chosen, basis = found(name)
    setting = setting_of(asked)
    base = priced(asked, chosen, setting)
    stage = base.fullest.stage
    now = terms_of(base, stage)
    sums = {"time": base.step_s, "memory": base.peak_bytes}
    named = {term: {each.name for each in of.constants} for term, of in all_of(basis).items()}
    for constant, ways in in_catalogues(setting):
        expected = {term for term in now if constant in named[term]}
        found_moved: set[str] = set()
        for there in ways:
            try:
                after = terms_of(priced(asked, chosen, there), stage)
            except (ValueError, AssertionError):
                continue  # a switch that this model or chip has no other side of
            found_moved = {
                term
                for term, value in now.items()
                if abs(after[term] - value) > 1e-11 * sums[term.partition(".")[0]]
            }
            if found_moved:
                break
        assert found_moved == expected, constant


@plans
def test_every_term_that_takes_anything_names_its_function_and_numbers(name: str) -> None:
    asked, chosen, basis = found(name)
    quote = priced(asked, chosen, setting_of(asked))
    for term, value in terms_of(quote, quote.fullest.stage).items():
        if value <= 1e-9:
            continue
        each = all_of(basis)[term]
        shown = [worked(call) for call in each.calls]
        assert shown, f"{term} has no function"
        single = term == "time.overhead"  # the stack's own figure
        assert sum(len(one.inputs) for one in shown) >= (1 if single else 2), term
        assert shown[0].formula, f"{shown[0].function} has no formula"


@plans
def test_a_closed_form_comes_to_its_term(name: str) -> None:
    """The numbers of the formula, evaluated as it is printed, give the printed time."""
    asked, chosen, basis = found(name)
    quote = priced(asked, chosen, setting_of(asked))
    closed = 0
    for term, seconds in quote.time_s.items():
        if seconds > 1e-9:
            first = worked(basis.time[term].calls[0])
            if first.value is not None:
                closed += 1
                assert first.value == pytest.approx(seconds, rel=1e-9), (term, first.function)
    assert closed >= 4


def test_closing_functions_are_the_ones_named() -> None:
    """The functions of `cost/terms.py` by name, each found behind the term whose form it is."""
    experts = found("experts")[2].time
    dense = found("dense")[2].time
    parts = {name: {worked(call).function for call in of.calls} for name, of in dense.items()}
    assert f"cost.terms.{layer_term_s.__name__}" in parts["matmul"]
    assert f"cost.terms.{head_term_s.__name__}" in parts["head"]
    assert f"cost.terms.{imbalance_s.__name__}" in parts["imbalance"]
    assert f"cost.terms.{data_term_s.__name__}" in parts["dp_comm"]
    assert f"cost.terms.{recompute_term_s.__name__}" in parts["recompute"]
    assert {f"cost.terms.{f.__name__}" for f in (bubble_s, simulated_bubble_s)} <= parts["bubble"]
    messages = {f"cost.terms.{f.__name__}" for f in (pipeline_messages_s, simulated_messages_s)}
    assert messages <= parts["pp_comm"]
    assert any("ep_comm" in call.terms for call in experts["ep_comm"].calls)


@plans
def test_constants_have_kinds_and_sources(name: str) -> None:
    for each in all_of(found(name)[2]).values():
        for constant in each.constants:
            assert constant.source
            assert constant.kind in ("table", "fitted", "data sheet", "formula", "assumed")
            assert (constant.kind == "table") == constant.name.startswith("table ")


def test_an_event_simulation_is_named() -> None:
    functions = {worked(call).function for call in found("dense")[2].time["bubble"].calls}
    assert {"cost.terms.simulated_bubble_s", "cost.simulate.steady_step_s"} <= functions


def test_the_overhead_by_hand() -> None:
    """Host work of a step is the stack's 0.02 s: 1 % more is 0.2 ms more, of term and step; what
    hides of it is the launches' share. A check of every exchange would add, and is off: a zero."""
    constants = {each.name: each for each in found("dense")[2].time["overhead"].constants}
    assert set(constants) == {
        *("stack.step_overhead_s", "stack.launch_hidden", "stack.collective_check_s")
    }
    assert constants["stack.collective_check_s"].value == 0.0
    assert constants["stack.step_overhead_s"].term_change == pytest.approx(0.0002)
    assert constants["stack.step_overhead_s"].sum_change == pytest.approx(0.0002)
    assert (constants["stack.launch_hidden"].term_change or 0.0) < 0


def test_the_optimizer_by_hand() -> None:
    """It moves bytes at the memory's rate: 1 % more of it takes 1 / 1.01 of the time."""
    asked, chosen, basis = found("dense")
    seconds = priced(asked, chosen, setting_of(asked)).time_s["optimizer"]
    changes = {each.name: each.term_change for each in basis.time["optimizer"].constants}
    assert changes["chip.memory_bytes_per_s"] == pytest.approx(seconds * (1 / 1.01 - 1))


def test_tables_are_named_and_moved() -> None:
    """Products of an H100 are its measured table's, over its sustained share: 1 % each way."""
    asked, chosen, basis = found("dense")
    seconds = priced(asked, chosen, setting_of(asked)).time_s["matmul"]
    changes = {each.name: each.term_change for each in basis.time["matmul"].constants}
    assert changes["table h100 gemm/bf16"] == pytest.approx(0.01 * seconds)
    assert changes["chip.sustained_share"] == pytest.approx(seconds * (1 / 1.01 - 1))


def test_explaining_again_finds_the_same_constants() -> None:
    """A cache that kept what was watched the first time would hide what is read the second."""
    asked = problem("llama3-8b", "h100:16", gbs=128)
    first, second = (basis_of(layout("tp=2,pp=2,mbs=1", asked), asked) for _ in range(2))
    for term, found in first.time.items():
        assert [c.name for c in second.time[term].constants] == [c.name for c in found.constants]
    assert any(c.name == "chip.kin_speed" for found in first.time.values() for c in found.constants)


def test_explaining_moves_nothing_elsewhere() -> None:
    """The twin's constants are its own: the same layout costs the same before and after."""
    from meshwright.cost import once, operators

    asked, chosen, _ = found("dense")
    before = priced(asked, chosen, setting_of(asked))
    basis_of(chosen, asked, depth="functions")
    assert priced(asked, chosen, setting_of(asked)) == before
    assert (operators.HALF, once.OPTIMIZER_BYTES) == (2.0, 30.0)


def test_terms_have_titles() -> None:
    basis = found("dense")[2]
    assert set(basis.time) == set(TIME_READINGS)
    assert set(basis.memory) == set(MEMORY_READINGS)


def test_a_served_batch_stands_on_what_moves_it() -> None:
    """The same machinery prices a serving worker: its link, its table, its engine's own figures."""
    held = prices("llama3.1-70b", chip="h100", worker=Worker(tp=4), engine="vllm")

    def latency(where: Twin, holders: Holders) -> dict[str, float]:
        there = where.module("meshwright.serving.prices").Prices(
            model=held.model,
            pool=with_held(held.pool, holders),
            engine=holders["engine"],
            worker=held.worker,
            quantisation=held.quantisation,
            cache=held.cache,
        )
        batch = where.module("meshwright.serving.static").static_batch
        found = batch(there, batch=8, input_len=512, output_len=64)
        return {"time.first": found.first_token_s, "time.token": found.tpot_s}

    holders = {**holders_of(held.pool, find_stack("megatron")), "engine": held.engine}
    standing_on = standing(latency, holders)
    names = {term: {each.name for each in of.constants} for term, of in standing_on.items()}
    assert any(name.startswith("table h100 gemm/fp8") for name in names["time.first"])
    assert any(name.startswith("engine.") for name in names["time.token"])
    assert not any(name.startswith("stack.") for name in names["time.token"])
    now = static_batch(held, batch=8, input_len=512, output_len=64).tpot_s
    for one in fields(held.engine):
        value = getattr(held.engine, one.name)
        if isinstance(value, float) and value:
            change: dict[str, Any] = {one.name: value * 1.01}
            there = replace(held, engine=replace(held.engine, **change))
            after = static_batch(there, batch=8, input_len=512, output_len=64).tpot_s
            if f"engine.{one.name}" not in names["time.token"]:
                assert after == pytest.approx(now, rel=1e-9), one.name


KINDS = ("h100", "a100-80")
MIXED = MixedLayout(
    stages=tuple(
        StageLayout(pool=pool, chip=chip, layers=layers, tp=8, sp=True, dp=2, mbs=1)
        for pool, chip, layers in ((0, "h100", 22), (1, "a100-80", 10))
    ),
    gbs=32,
    sharding="zero1",
)


def mixed_terms(where: Twin, holders: Holders) -> dict[str, float]:
    """A plan over two kinds of chips, of which each has holders of its own, priced and simulated;
    memory of the first stage."""
    pools = tuple(
        with_held(Pool(node=default_node(kind), num_chips=16), holders, prefix=f"{kind} ")
        for kind in KINDS
    )
    site = where.module("meshwright.cost.mixed").Site(
        model=find_model("llama3-8b"),
        cluster=Cluster(pools=pools),
        work=Workload(seq_len=8192, gbs=32),
        stack=stack_of(holders),
    )
    [found] = where.module("meshwright.search.mixed.reprice").reprice_mixed([MIXED], site)
    return {f"time.{name}": seconds for name, seconds in found.time_s.items()} | {
        f"memory.{name}": float(held[0]) for name, held in found.price.memory.items()
    }


def test_a_mixed_plan_stands_on_every_kind_of_its_chips() -> None:
    stack = find_stack("megatron")
    holders: dict[str, Any] = {}
    for kind in KINDS:
        pool = Pool(node=default_node(kind), num_chips=16)
        holders |= holders_of(pool, stack, prefix=f"{kind} ")
    standing_on = standing(mixed_terms, holders)
    named = {term: {each.name for each in of.constants} for term, of in standing_on.items()}
    for kind in KINDS:
        assert f"table {kind} gemm/bf16" in named["time.matmul"]
    assert "h100 chip.memory_bytes_per_s" in named["time.optimizer"]  # 22 layers against 10
    assert "h100 chip.usable_bytes" not in set().union(*named.values())
    real = twin()
    now = mixed_terms(real, holders)
    sums = {
        part: sum(value for term, value in now.items() if term.startswith(part))
        for part in ("time", "memory")
    }
    for kind in KINDS:
        owner = f"{kind} chip"
        for one in fields(holders[owner]):
            value = getattr(holders[owner], one.name)
            if not isinstance(value, float) or value == 0.0:
                continue
            moved_terms: set[str] = set()
            for end in (value * (1 + STEP), value * (1 - STEP)):
                try:
                    there = {**holders, owner: replace(holders[owner], **{one.name: end})}
                    after = mixed_terms(real, there)
                except (ValueError, AssertionError):
                    continue
                moved_terms = {
                    term
                    for term, value in now.items()
                    if abs(after[term] - value) > 1e-11 * sums[term.partition(".")[0]]
                }
                if moved_terms:
                    break
            assert moved_terms == {t for t in now if f"{owner}.{one.name}" in named[t]}, one.name


def test_the_example_of_a_linear_layer_is_a_layer_s() -> None:
    """The output head is a linear layer too, priced later; its time is a term of its own."""
    calls = {worked(call).function: call for call in found("dense")[2].time["matmul"].calls}
    shown = calls["cost.linear.linear"].values
    sides = {float(np.ravel(shown[side])[0]) for side in ("into", "out")}
    assert 129_024 / 8 not in sides  # the vocabulary of 128,256, padded to 128 * tp, over tp
