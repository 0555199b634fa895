"""A plan's layout in torchtitan's words, which its TOML and its Python form share."""

from __future__ import annotations

from typing import Any, Literal

from meshwright.errors import CannotExpress
from meshwright.exports._split import chunk_layers, expert_tp
from meshwright.exports.plan import TrainingPlan

__all__ = ["Form", "chunk_modules", "layers_of_chunks", "parallelism", "schedule_of"]

Form = Literal["toml", "python"]

_NAMES: dict[Form, str] = {"toml": "torchtitan-toml", "python": "torchtitan"}
_SCHEDULES = {
    ("1f1b", False): "1F1B",
    ("1f1b", True): "Interleaved1F1B",
    ("gpipe", False): "GPipe",
    ("zero-bubble", True): "ZBVZeroBubble",
}
"""(schedule, whether a stage holds several chunks): PyTorch's name
(`torch.distributed.pipelining.schedules`)."""


def schedule_of(name: str) -> str:
    """Return our word for one of PyTorch's schedules; KeyError for one that no layout has."""
    return {value: key[0] for key, value in _SCHEDULES.items()}[name]


def parallelism(plan: TrainingPlan, *, form: Form) -> dict[str, Any]:
    """Return the section `parallelism`, in both forms but for what differs between 0.2 and 0.3."""
    layout = plan.layout
    words = {
        **_data_parallel(plan, form),
        "tensor_parallel_degree": layout.tp,
        **_sequence_parallel(plan, form),
        "context_parallel_degree": layout.cp,
        **_expert_parallel(plan, form),
        **_pipeline(plan, form),
    }
    _require_mixed_precision(plan, form=form)
    if form == "toml" and layout.tp > 1:
        words["enable_async_tensor_parallel"] = plan.stack.tp_overlap > 0
    return words


def _data_parallel(plan: TrainingPlan, form: Form) -> dict[str, Any]:
    """Weights are sharded over dp_shard * cp; zero2 keeps gathered weights until the backward pass,
    zero3 gathers them again."""
    layout, name = plan.layout, _NAMES[form]
    replicas, shards = 1, layout.dp
    reshard = {"none": "default", "zero2": "never", "zero3": "always", "hybrid": "always"}.get(
        layout.sharding
    )
    if reshard is None:
        raise CannotExpress(
            name,
            f"sharding={layout.sharding}: FSDP2 shards gradients with the optimizer",
            nearest="sharding=zero2",
        )
    if layout.sharding == "none" and layout.dp * layout.cp > 1:
        if layout.cp > 1 or layout.tp > 1 or layout.pp > 1:
            raise CannotExpress(
                name, "sharding=none (DDP) goes with no other axis", nearest="sharding=zero2"
            )
        replicas, shards = layout.dp, 1
    if layout.sharding == "hybrid":
        group = layout.shard_size or layout.dp * layout.cp
        replicas, shards = layout.dp * layout.cp // group, group // layout.cp
    return {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": reshard,
    }


def _sequence_parallel(plan: TrainingPlan, form: Form) -> dict[str, Any]:
    if form == "python":
        return {"enable_sequence_parallel": plan.layout.sp} if plan.layout.tp > 1 else {}
    if plan.layout.tp > 1 and not plan.layout.sp:
        raise CannotExpress(
            _NAMES[form],
            "sp=0 with tp > 1: 0.2 always cuts the sequence over the tensor-parallel group",
            nearest="sp=1",
        )
    return {}


def _expert_parallel(plan: TrainingPlan, form: Form) -> dict[str, Any]:
    layout, name = plan.layout, _NAMES[form]
    if plan.model.moe is None:
        return {}
    if layout.ep == 1:
        if expert_tp(layout) != layout.tp:
            words = (
                f"etp={expert_tp(layout)} with ep=1 and tp={layout.tp}: without expert parallelism"
                " experts are cut as all else is"
            )
            raise CannotExpress(name, words, nearest=f"etp={layout.tp}")
        return {"expert_parallel_degree": 1}
    if form == "python":
        if expert_tp(layout) != 1:
            words = (
                f"etp={expert_tp(layout)} with ep={layout.ep}: expert parallelism takes its ranks"
                " from tp too"
            )
            raise CannotExpress(name, words, nearest="etp=1")
        return {"expert_parallel_degree": layout.ep}
    if expert_tp(layout) not in (1, layout.tp):
        raise CannotExpress(
            name, f"etp={expert_tp(layout)}: it is 1 or tp={layout.tp}", nearest="etp=1"
        )
    return {"expert_parallel_degree": layout.ep, "expert_tensor_parallel_degree": expert_tp(layout)}


def _pipeline(plan: TrainingPlan, form: Form) -> dict[str, Any]:
    layout, name = plan.layout, _NAMES[form]
    if layout.pp == 1:
        return {"pipeline_parallel_degree": 1}
    schedule = _SCHEDULES.get((layout.schedule, layout.vpp > 1))
    if schedule is None:
        words = (
            f"schedule={layout.schedule} with vpp={layout.vpp}: PyTorch's zero-bubble schedule has"
            " two chunks a stage"
        )
        raise CannotExpress(
            name, words, nearest="schedule=zero-bubble with vpp=2, or schedule=1f1b"
        )
    if plan.model.tied:
        words = "tied embeddings with pp > 1: the first and the last stage can't share a weight"
        raise CannotExpress(name, words, nearest="pp=1, or a model with tied=0")
    return {
        "pipeline_parallel_degree": layout.pp,
        "pipeline_parallel_schedule": schedule,
        "pipeline_parallel_microbatch_size": layout.mbs,
        "module_fqns_per_model_part": chunk_modules(
            chunk_layers(layout, plan.model.num_layers), form=form
        ),
    }


def chunk_modules(chunks: tuple[int, ...], *, form: Form) -> list[list[str]]:
    """Return the modules of each chunk by name: the embedding first, the last norm and the head
    behind."""
    parts, first = [], 0
    for size in chunks:
        parts.append([f"layers.{number}" for number in range(first, first + size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output" if form == "toml" else "lm_head"]
    return parts


def layers_of_chunks(parts: list[list[str]]) -> tuple[int, ...]:
    """Return the layers of each chunk; modules that are no layers are left out."""
    return tuple(sum(name.startswith("layers.") for name in part) for part in parts)


def _require_mixed_precision(plan: TrainingPlan, *, form: Form) -> None:
    """Refuse half precision where torchtitan would compute in fp32: it casts in FSDP, or by
    autocast without any other axis."""
    layout = plan.layout
    sharded = layout.sharding != "none" and layout.dp * layout.cp > 1
    if plan.work.precision != "fp32" and not sharded and (layout.tp > 1 or layout.pp > 1):
        words = (
            f"precision={plan.work.precision} with tp={layout.tp}, pp={layout.pp} and no sharded"
            " data parallelism runs in fp32"
        )
        raise CannotExpress(
            _NAMES[form], words, nearest="dp=2 with sharding=zero2, or tp=1 with pp=1"
        )
