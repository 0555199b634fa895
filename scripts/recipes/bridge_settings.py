"""The settings that the table keeps of one of Megatron-Bridge's configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from scripts.recipes.values import External, Record, is_known

__all__ = ["COLUMNS", "settings_of"]


def settings_of(config: Any) -> dict[str, str]:
    """Return the columns of a configuration; blank where the source leaves a setting to a library,
    and where a setting is off."""
    return {name: read(config) for name, read in COLUMNS.items()}


def _at(config: Any, *paths: str) -> Any:
    """The first known value among dotted paths, None where no path has one."""
    for path in paths:
        held = config
        for name in path.split("."):
            held = held.known.get(name) if isinstance(held, Record) else None
        if held is not None and (is_known(held) or isinstance(held, External)):
            return held
    return None


def _number(*paths: str) -> Callable[[Any], str]:
    def read(config: Any) -> str:
        held = _at(config, *paths)
        return "" if held is None or isinstance(held, External) else str(held)

    return read


def _flag(*paths: str) -> Callable[[Any], str]:
    return lambda config: "1" if _at(config, *paths) is True else ""


def _either(path: str, *others: str) -> Callable[[Any], str]:
    """1 or 0, blank where unknown."""

    def read(config: Any) -> str:
        held = _at(config, path, *others)
        return "" if held is None else str(int(held is True))

    return read


def _words(held: Any) -> str:
    if held is None or isinstance(held, External):
        return ""
    return held if isinstance(held, str) else " ".join(str(word) for word in held)


def _stages(config: Any) -> str:
    """Stages as Megatron-Core's layouts write them: bars between, E embedding, t layer, m
    next-token layer, L loss; `t*4` for four layers, `(t*4|)*14` for fourteen such stages."""
    held = _at(config, "model.pipeline_model_parallel_layout")
    if held is None or isinstance(held, str):
        return held or ""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    stages = [_runs([letters[part] for part in stage], form="{}*{}") for stage in held]
    *first, last = stages
    return _runs([f"{stage}|" for stage in first], form="({})*{}") + last


def _runs(parts: Sequence[str], *, form: str) -> str:
    """The parts in a row, with more than two equal ones written once and counted."""
    found = ""
    for part, group in groupby(parts):
        count = len(list(group))
        found += form.format(part, count) if count > 2 else part * count
    return found


def _offloaded_layers(config: Any) -> str:
    """Layers that are offloaded; a number beside a switch that is off is of no effect."""
    on = _at(config, "model.cpu_offloading") is True
    return _number("model.cpu_offloading_num_layers")(config) if on else ""


def _recompute(config: Any) -> str:
    return _words(_at(config, "model.recompute_granularity"))


def _recompute_modules(config: Any) -> str:
    selective = _recompute(config) == "selective"
    return _words(_at(config, "model.recompute_modules")) if selective else ""


def _recompute_layers(config: Any) -> str:
    full = _recompute(config) == "full"
    return _number("model.recompute_num_layers")(config) if full else ""


def _dispatcher(config: Any) -> str:
    kind = _at(config, "model.moe_token_dispatcher_type")
    if kind != "flex":
        return _words(kind)
    if _at(config, "model.moe_enable_deepep") is True:
        return "deepep"
    return _words(_at(config, "model.moe_flex_dispatcher_backend"))


def _graph(config: Any) -> str:
    """v0.1 has a switch, which means `local` since there is a choice; where a recipe says nothing
    it is `none` (Megatron-Core core_v0.15.0, transformer_config.py)."""
    if _at(config, "model.enable_cuda_graph") is True:
        return "local"
    return _words(_at(config, "model.cuda_graph_impl")) or "none"


def _graph_scope(config: Any) -> str:
    scope = _words(_at(config, "model.cuda_graph_scope"))
    return scope if _graph(config) != "none" or scope == "full_iteration" else ""


def _tp_overlap(config: Any) -> str:
    """CommOverlapConfig turns it off where tp is 1."""
    wide = (_at(config, "model.tensor_model_parallel_size") or 1) > 1
    return _flag("comm_overlap.tp_comm_overlap")(config) if wide else ""


def _offloaded(config: Any) -> str:
    on = _at(config, "model.fine_grained_activation_offloading") is True
    return _words(_at(config, "model.offload_modules")) if on else ""


def _moments(config: Any) -> str:
    """The type of Adam's moments where the optimizer keeps them in another than fp32."""
    held = _at(config, "optimizer.exp_avg_dtype")
    aware = _at(config, "optimizer.use_precision_aware_optimizer") is True
    name = held.name.removeprefix("torch.") if isinstance(held, External) else "float32"
    return name if aware and name != "float32" else ""


def _lora_targets(config: Any) -> str:
    return _words(_at(config, "peft.target_modules"))


COLUMNS: dict[str, Callable[[Any], str]] = {
    "seq_len": _number("model.seq_length", "dataset.seq_length", "dataset.sequence_length"),
    "tp": _number("model.tensor_model_parallel_size"),
    "pp": _number("model.pipeline_model_parallel_size"),
    "cp": _number("model.context_parallel_size"),
    "vpp": _number("model.virtual_pipeline_model_parallel_size"),
    "ep": lambda config: _number("model.expert_model_parallel_size")(config) or "1",
    "etp": _number("model.expert_tensor_parallel_size"),
    "gbs": _number("train.global_batch_size"),
    "mbs": _number("train.micro_batch_size"),
    "pp_layout": _stages,
    "recompute": _recompute,
    "recompute_modules": _recompute_modules,
    "recompute_num_layers": _recompute_layers,
    "cpu_offloading_num_layers": _offloaded_layers,
    "offload_modules": _offloaded,
    "dispatcher": _dispatcher,
    "a2a_overlap": _flag("comm_overlap.overlap_moe_expert_parallel_comm"),
    "cuda_graph_impl": _graph,
    "cuda_graph_scope": _graph_scope,
    "megatron_fsdp": _flag("ddp.use_megatron_fsdp"),
    "nccl_ub": _flag("ddp.nccl_ub"),
    "tp_comm_overlap": _tp_overlap,
    "grad_reduce_in_fp32": _either(
        "mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32"
    ),
    "router_fusion": _flag("model.moe_router_fusion"),
    "op_fuser": _flag("model.use_transformer_engine_op_fuser"),
    "expert_capacity_factor": _number("model.moe_expert_capacity_factor"),
    "moment_dtype": _moments,
    "lora_targets": _lora_targets,
}
"""How each column is read from a configuration."""
