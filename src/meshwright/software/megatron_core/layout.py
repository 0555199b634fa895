"""A layout in the fields of Megatron-Core's ModelParallelConfig, TransformerConfig and
DistributedDataParallelConfig."""

from __future__ import annotations

from typing import Any, cast

from meshwright.search.exchange import context_way
from meshwright.software.contract import TrainedLayers
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import chunk_layers, read_split_text, split_text
from meshwright.software.text import Taken
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import counted
from meshwright.values.workload import CP_COMM_TYPES, CpCommType

__all__ = [
    "SHARDED",
    "STRATEGIES",
    "context_words",
    "ddp_words",
    "parallel_words",
    "read_context",
    "read_ddp",
    "read_parallel",
    "read_recompute",
    "read_split",
    "recompute_words",
    "tp_overlap",
    "trained",
]

SHARDED = {"zero2": "optim_grads", "zero3": "optim_grads_params", "hybrid": "optim_grads_params"}
"""data_parallel_sharding_strategy of Megatron's FSDP."""
STRATEGIES = {
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
    "optim": "zero1",
    "no_shard": "none",
}
"""The same, read."""


def parallel_words(plan: TrainingPlan) -> dict[str, Any]:
    """Return the sizes of all groups, and the split of the pipeline where it is uneven."""
    layout = plan.layout
    words: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.sp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
    }
    if plan.model.moe is not None:
        words |= {
            "expert_model_parallel_size": layout.ep,
            "expert_tensor_parallel_size": layout.tp if layout.etp is None else layout.etp,
        }
    if layout.layers_per_stage is not None and layout.pp > 1:
        words["pipeline_model_parallel_layout"] = split_text(
            chunk_layers(layout, plan.model.num_layers), plan.model.mtp_layers
        )
    return words


def context_words(plan: TrainingPlan) -> dict[str, Any]:
    """Return how context-parallel ranks exchange, and the levels where there are two; nothing
    without context parallelism."""
    work, cp = plan.work, plan.layout.cp
    if cp == 1 or work.cp_comm_type is None:
        return {}
    words: dict[str, Any] = {"cp_comm_type": work.cp_comm_type}
    way = context_way(plan.layout, model=plan.model, pool=plan.pool, work=work, stack=plan.stack)
    if work.cp_comm_type == "a2a+p2p" and way is not None:
        levels = [way.swapping, cp // way.swapping]
        words["hierarchical_context_parallel_sizes"] = levels
    return words


def read_context(words: Taken, *, at: str, cp: int) -> CpCommType | None:
    """Return how context-parallel ranks exchange, by default on a ring; None without them."""
    said = words.text(f"{at}cp_comm_type", "p2p")
    if words.has(f"{at}hierarchical_context_parallel_sizes"):
        words.take(f"{at}hierarchical_context_parallel_sizes", None)
    if cp == 1:
        return None
    if said not in CP_COMM_TYPES:
        raise UnknownNameError("cp_comm_type", said, CP_COMM_TYPES)
    return cast("CpCommType", said)


def read_split(text: str, *, what: str) -> tuple[int, ...]:
    """Return layers per chunk of a pipeline's text."""
    return tuple(chunk.count("t") for chunk in _chunks(text, what=what))


def _chunks(text: str, *, what: str) -> tuple[str, ...]:
    return read_split_text(text, what=f"{what}: pipeline_model_parallel_layout")


def recompute_words(plan: TrainingPlan, *, longest: int | None = None) -> dict[str, Any]:
    """Return the fields of recomputation; empty without it. `longest` is the longest chunk, where
    the layout's own split does not say."""
    layout = plan.layout
    if layout.recompute == "none":
        return {}
    if layout.recompute == "selective":
        modules = list(layout.recompute_modules)
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    layers = layout.recompute_layers
    if layers is None:  # every layer: units of one, or blocks as long as the longest chunk
        longest = longest or max(chunk_layers(layout, plan.model.num_layers))
        layers = 1 if layout.recompute_method == "uniform" else longest
    return {
        "recompute_granularity": "full",
        "recompute_method": layout.recompute_method,
        "recompute_num_layers": layers,
    }


def ddp_words(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return how gradients and states are reduced and split over data parallel ranks."""
    layout, stack = plan.layout, plan.stack
    fsdp = layout.sharding in SHARDED
    words: dict[str, Any] = {
        "use_distributed_optimizer": layout.sharding != "none",
        "overlap_grad_reduce": stack.dp_overlap > 0,
        "overlap_param_gather": stack.dp_overlap > 0 and layout.sharding != "none",
        "grad_reduce_in_fp32": stack.gradient_bytes >= 4,
        "average_in_collective": not fsdp,
    }
    if fsdp:
        words |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": SHARDED[layout.sharding],
        }
    if layout.sharding == "hybrid" and layout.shard_size is not None:
        words["num_distributed_optimizer_instances"] = layout.dp * layout.cp // layout.shard_size
    return words


def tp_overlap(plan: TrainingPlan) -> bool:
    """Whether tensor-parallel exchanges hide behind the products beside them."""
    node = plan.pool.node
    mapped = plan.layout.tp <= node.domain_size and node.domain_link.maps_peers
    return plan.stack.tp_overlap > 0 and plan.layout.sp and mapped and plan.model.takes_user_buffers


def trained(values: dict[str, Any], *, what: str) -> TrainedLayers:
    """Return the layers that such fields train, as Megatron-Core's get_num_layers_to_build counts
    them."""
    layers, pp = values["num_layers"], values.get("pipeline_model_parallel_size", 1)
    vpp = values.get("virtual_pipeline_model_parallel_size") or 1
    text = values.get("pipeline_model_parallel_layout")
    if text is not None:
        mtp = "".join(_chunks(text, what=what)).count("m")
        return TrainedLayers(chunks=read_split(text, what=what), mtp=mtp)
    mtp = values.get("mtp_num_layers") or 0
    return TrainedLayers(chunks=(layers // (pp * vpp),) * (pp * vpp), mtp=mtp)


def read_parallel(words: Taken, *, prefix: str, what: str) -> dict[str, Any]:
    """Return the layout of such fields."""
    at = prefix
    layout: dict[str, Any] = {
        "tp": words.count(f"{at}tensor_model_parallel_size", 1),
        "sp": words.flag(f"{at}sequence_parallel", False),
        "cp": words.count(f"{at}context_parallel_size", 1),
        "pp": words.count(f"{at}pipeline_model_parallel_size", 1),
        "vpp": words.take(f"{at}virtual_pipeline_model_parallel_size", None) or 1,
        "ep": words.count(f"{at}expert_model_parallel_size", 1),
    }
    etp = words.take(f"{at}expert_tensor_parallel_size", None)
    if etp is not None:
        layout["etp"] = etp
    text = words.take(f"{at}pipeline_model_parallel_layout", None)
    if text is not None:
        chunks = read_split(str(text), what=what)
        if len(chunks) % layout["pp"]:
            raise ConfigError(
                f"{what}: {counted(len(chunks), 'chunk')} of pipeline_model_parallel_layout for"
                f" pipeline_model_parallel_size={layout['pp']}"
            )
        layout |= {"layers_per_stage": chunks, "vpp": len(chunks) // layout["pp"]}
    return layout


def read_recompute(words: Taken, *, prefix: str) -> dict[str, Any]:
    """Return the recomputation of such fields."""
    granularity = words.take(f"{prefix}recompute_granularity", None)
    method = words.take(f"{prefix}recompute_method", None)
    layers = words.take(f"{prefix}recompute_num_layers", None)
    modules = words.take(f"{prefix}recompute_modules", None)
    if granularity is None:
        return {"recompute": "none"}
    if granularity == "full":
        return {
            "recompute": "full",
            "recompute_method": method or "uniform",
            "recompute_layers": layers,
        }
    return {"recompute": "selective", "recompute_modules": tuple(modules or ("core_attn",))}


def read_ddp(
    words: Taken, *, prefix: str, layout: dict[str, Any], num_chips: int | None = None
) -> dict[str, Any]:
    """Return the sharding of such fields; groups with replicas need the number of chips."""
    at = prefix
    optimizer = words.flag(f"{at}use_distributed_optimizer", False)
    fsdp = words.flag(f"{at}use_megatron_fsdp", False)
    strategy = words.text(f"{at}data_parallel_sharding_strategy", "no_shard")
    instances = words.count(f"{at}num_distributed_optimizer_instances", 1)
    for name in ("overlap_grad_reduce", "overlap_param_gather", "average_in_collective"):
        words.flag(f"{at}{name}", False)
    if not fsdp:
        return {"sharding": "zero1" if optimizer else "none"}
    if strategy == "optim_grads_params" and instances > 1:
        if num_chips is None:
            raise ConfigError(
                f"num_distributed_optimizer_instances={instances}: the size of a group depends on"
                " the number of chips, which is not said"
            )
        group = num_chips // (layout["tp"] * layout["pp"] * instances)
        return {"sharding": "hybrid", "shard_size": group}
    return {"sharding": STRATEGIES.get(strategy, "none")}
