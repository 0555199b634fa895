"""What a recipe starts is what Megatron-Bridge's export writes, and what is read back from it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.software.examples import training_plan
from tests.software.frameworks import check_round_trip, rebuilt

from meshwright.search.quote import Setting, quotes
from meshwright.software.contract import export_plan, import_text
from meshwright.software.megatron_bridge.export import MEGATRON_BRIDGE
from meshwright.software.megatron_bridge.read import BRIDGE_SOURCE
from meshwright.software.plan import TrainingPlan
from meshwright.values.text import read_yaml


def plan_of(model: str, cluster: str, layout: str, **given: Any) -> TrainingPlan:
    return training_plan(model, cluster, layout, **{"stack": "megatron-bridge", **given})


STARTED = {
    # scripts/performance of v0.6.0, by model, chip and number format
    "one graph": lambda: plan_of(
        "qwen3-30b-a3b", "b300:8", "ep=8,mbs=1", precision="mxfp8", seq_len=4096
    ),
    "graphs of attention": lambda: plan_of(
        "deepseek-v3",
        "gb200:256",
        "pp=4,vpp=4,ep=64,mbs=1,layers_per_stage=" + "+".join(["4"] * 15 + ["1"]),
        seq_len=4096,
        gbs=2048,
    ),
    "offloading": lambda: plan_of("llama3-70b", "gb200:64", "mbs=1,sharding=zero3"),
    "no recipe": lambda: plan_of("mixtral-8x7b", "h100:64", "ep=8,mbs=1"),
}


def step_and_peak(plan: TrainingPlan) -> tuple[float, float]:
    setting = Setting(
        model=plan.model,
        pool=plan.pool,
        work=plan.work,
        stack=plan.stack,
        limit_bytes=plan.pool.node.chip.usable_bytes,
    )
    [quote] = quotes([plan.layout], setting)
    return quote.step_s, quote.peak_bytes


@pytest.mark.parametrize("case", STARTED)
def test_what_is_read_back_costs_what_was_planned(case: str) -> None:
    plan = STARTED[case]()
    check_round_trip(plan, target=MEGATRON_BRIDGE, source=BRIDGE_SOURCE, file=1)
    exported = export_plan(plan, target=MEGATRON_BRIDGE)
    assert not [note for note in exported.notes if "counts on" in note]
    read = rebuilt(import_text(exported.files[1].text, source=BRIDGE_SOURCE), plan)
    assert step_and_peak(read) == pytest.approx(step_and_peak(plan), rel=1e-12)


def written(case: str, section: str) -> dict[str, Any]:
    text = export_plan(STARTED[case](), target=MEGATRON_BRIDGE).files[1].text
    found: dict[str, Any] = read_yaml(text, what="overrides")[section]
    return found


def test_a_graph_of_the_whole_step_brings_what_it_needs() -> None:
    """`_set_cuda_graph_overrides` of scripts/performance/utils/overrides.py, v0.6.0."""
    model = written("one graph", "model")
    assert (model["cuda_graph_impl"], model["cuda_graph_scope"]) == ("local", ["full_iteration"])
    assert model["use_te_rng_tracker"] and written("one graph", "rng")["te_rng_tracker"]
    assert written("one graph", "rerun_state_machine") == {"check_for_nan_in_loss": False}
    assert written("one graph", "comm_overlap")["overlap_moe_expert_parallel_comm"] is True
    assert model["moe_flex_dispatcher_backend"] == "hybridep"


def test_graphs_of_parts_are_named() -> None:
    model = written("graphs of attention", "model")
    assert model["cuda_graph_impl"] == "transformer_engine"
    assert model["cuda_graph_scope"] == ["attn", "moe_router", "moe_preprocess"]


def test_offloading_is_written_with_its_switch() -> None:
    model = written("offloading", "model")
    assert (model["cpu_offloading"], model["cpu_offloading_num_layers"]) == (True, 20)


def test_what_a_layout_refuses_is_not_written_and_said() -> None:
    """A pipeline of whole stages has no other micro batch to hide an exchange behind; full
    recompute runs under no graph of parts."""
    plan = plan_of(
        "qwen3-235b-a22b",
        "gb200:256",
        "pp=2,ep=32,mbs=1,recompute=full",
        seq_len=4096,
        gbs=2048,
    )
    exported = export_plan(plan, target=MEGATRON_BRIDGE)
    assert "cuda_graph_impl: none" in exported.files[1].text
    assert any("counts on CUDA graphs" in note for note in exported.notes)


def test_moments_in_half_precision_are_written_as_dtypes_and_read_back() -> None:
    plan = STARTED["graphs of attention"]()
    assert plan.start is not None and plan.start.half_moments
    exported = export_plan(plan, target=MEGATRON_BRIDGE)
    assert "cfg.optimizer.exp_avg_dtype = torch.bfloat16" in exported.files[0].text
    assert "exp_avg_sq_dtype: torch.bfloat16" in exported.files[1].text
    read = import_text(exported.files[1].text, source=BRIDGE_SOURCE)
    assert read.start is not None and read.start.half_moments
