"""What a recipe switches on beside the layout, in the words of Megatron-Bridge's configuration."""

from __future__ import annotations

from typing import Any, get_args

from meshwright.search.started import runnable
from meshwright.software.looked_at import plain
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Taken
from meshwright.values.errors import UnknownNameError
from meshwright.values.start import FULL_ITERATION, Dispatcher, GraphMaker, Start

__all__ = ["start_words", "take_start"]

_GLU_INTERLEAVE = 32
"""Columns of gate and input in turn, as the fused grouped feed-forward wants them
(scripts/performance/utils/overrides.py, v0.6.0)."""
_MOMENTS, _BFLOAT16 = ("exp_avg_dtype", "exp_avg_sq_dtype"), "torch.bfloat16"


def start_words(plan: TrainingPlan) -> dict[str, dict[str, Any]]:
    """Return the words by section; none where no recipe starts the plan."""
    if plan.start is None:
        return {}
    start = runnable(plain(plan.start), plain(plan.layout), plain(plan.model))
    graphs = start.cuda_graph_impl != "none"
    found: dict[str, dict[str, Any]] = {"model": {**_graphs(start), **_offload(start)}}
    if plan.model.moe is not None:
        found["model"] |= _experts(plan, start)
        found["comm_overlap"] = {
            "overlap_moe_expert_parallel_comm": start.a2a_overlap,
            "delay_wgrad_compute": start.a2a_overlap,
        }
    if start.half_moments:
        found["optimizer"] = {
            "use_precision_aware_optimizer": True,
            **dict.fromkeys(_MOMENTS, _BFLOAT16),
        }
    if graphs:
        found["rng"] = {"te_rng_tracker": True}
    if start.whole_step:
        found["rerun_state_machine"] = {"check_for_nan_in_loss": False}
        found["ddp"] = {"check_for_nan_in_grad": False}
    return found


def _graphs(start: Start) -> dict[str, Any]:
    """One graph of the whole step is a `local` one, whose scope is the iteration."""
    if start.cuda_graph_impl == "none":
        return {"cuda_graph_impl": "none"}
    scope = [FULL_ITERATION] if start.whole_step else list(start.cuda_graph_scope)
    return {
        "cuda_graph_impl": "local" if start.whole_step else start.cuda_graph_impl,
        "cuda_graph_scope": scope,
        "use_te_rng_tracker": True,
    }


def _offload(start: Start) -> dict[str, Any]:
    if not start.cpu_offloading_num_layers:
        return {}
    return {
        "cpu_offloading": True,
        "cpu_offloading_weights": False,
        "cpu_offloading_num_layers": start.cpu_offloading_num_layers,
    }


def _experts(plan: TrainingPlan, start: Start) -> dict[str, Any]:
    flex = start.dispatcher in ("deepep", "hybridep")
    words: dict[str, Any] = {
        "moe_token_dispatcher_type": "flex" if flex else "alltoall",
        "moe_flex_dispatcher_backend": start.dispatcher if flex else None,
        "moe_router_fusion": start.router_fusion,
    }
    if flex or start.a2a_overlap:
        words["moe_shared_expert_overlap"] = False
    if start.op_fuser:
        words["use_transformer_engine_op_fuser"] = True
        if plan.model.gated:
            words["moe_mlp_glu_interleave_size"] = _GLU_INTERLEAVE
    return words


_FOLLOW = (
    *("model.use_te_rng_tracker", "rng.te_rng_tracker", "model.moe_shared_expert_overlap"),
    *("rerun_state_machine.check_for_nan_in_loss", "ddp.check_for_nan_in_grad"),
    *("model.moe_mlp_glu_interleave_size", "comm_overlap.delay_wgrad_compute"),
    *("model.cpu_offloading_weights", "optimizer.use_precision_aware_optimizer"),
    "optimizer.exp_avg_sq_dtype",
)
"""Words that follow from the others."""


def take_start(words: Taken) -> Start | None:
    """Take the words; None where the file has none of them."""
    told = ("cuda_graph_impl", "moe_flex_dispatcher_backend")
    if not any(words.has(f"model.{name}") for name in told):
        return None
    backend = words.take("model.moe_flex_dispatcher_backend", None)
    flex = words.take("model.moe_token_dispatcher_type", "alltoall") == "flex"
    scope = words.take("model.cuda_graph_scope", None) or ()
    layers = words.take("model.cpu_offloading_num_layers", 0)
    for path in _FOLLOW:
        words.take(path, None)
    return Start(
        dispatcher=_one_of(backend or "deepep", Dispatcher) if flex else "alltoall",
        a2a_overlap=words.flag("comm_overlap.overlap_moe_expert_parallel_comm", False),
        cuda_graph_impl=_one_of(words.text("model.cuda_graph_impl", "none"), GraphMaker),
        cuda_graph_scope=(scope,) if isinstance(scope, str) else tuple(scope),
        router_fusion=words.flag("model.moe_router_fusion", False),
        op_fuser=words.flag("model.use_transformer_engine_op_fuser", False),
        tp_comm_overlap=bool(words.peek("comm_overlap.tp_comm_overlap")),
        cpu_offloading_num_layers=layers if words.flag("model.cpu_offloading", False) else 0,
        half_moments=words.text("optimizer.exp_avg_dtype", "") == _BFLOAT16,
    )


def _one_of(name: str, known: Any) -> Any:
    if name not in get_args(known):
        raise UnknownNameError("value of a start", name, get_args(known))
    return name
