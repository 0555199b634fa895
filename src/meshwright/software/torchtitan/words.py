"""Which of torchtitan's models a plan's is, and what it is built from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.software.looked_at import plain
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import chunk_layers, expert_tp
from meshwright.software.words import LLAMA, chosen, require
from meshwright.values.errors import CannotExpress, ConfigError

__all__ = [
    "DIMS_CHANGED",
    "Form",
    "TitanModel",
    "chunk_modules",
    "dims_line",
    "layers_of_chunks",
    "parallelism",
    "read_dims_line",
    "schedule_of",
    "titan_model",
]

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


_RESHARD = {"zero2": "never", "zero3": "always", "hybrid": "always", "none": "default"}


def _data_parallel(plan: TrainingPlan, form: Form) -> dict[str, Any]:
    """Weights are sharded over dp_shard * cp; zero2 keeps gathered weights until the backward pass,
    zero3 gathers them again."""
    layout, name = plan.layout, _NAMES[form]
    replicas, shards = 1, layout.dp
    says = "FSDP2 shards gradients with the optimizer"
    reshard = chosen(_RESHARD, plan, "layout.sharding", name=name, says=says)
    if layout.sharding == "none" and layout.dp * layout.cp > 1:
        if layout.cp > 1 or layout.tp > 1 or layout.pp > 1:
            reason = "sharding=none (DDP) goes with no other axis"
            raise CannotExpress(name, reason, nearest="sharding=zero2")
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
        reason = "sp=0 with tp > 1: 0.2 always cuts the sequence over the tensor-parallel group"
        raise CannotExpress(_NAMES[form], reason, nearest="sp=1")
    return {}


def _expert_parallel(plan: TrainingPlan, form: Form) -> dict[str, Any]:
    layout, name = plan.layout, _NAMES[form]
    if plan.model.moe is None:
        return {}
    etp, ep, tp = expert_tp(layout), layout.ep, layout.tp
    if ep == 1:
        if etp != tp:
            reason = (
                f"etp={etp} with ep=1 and tp={tp}: without expert parallelism experts are cut as"
                " all else is"
            )
            raise CannotExpress(name, reason, nearest=f"etp={tp}")
        return {"expert_parallel_degree": 1}
    if form == "python":
        if etp != 1:
            reason = f"etp={etp} with ep={ep}: expert parallelism takes its ranks from tp too"
            raise CannotExpress(name, reason, nearest="etp=1")
        return {"expert_parallel_degree": ep}
    if etp not in (1, tp):
        raise CannotExpress(name, f"etp={etp}: it is 1 or tp={tp}", nearest="etp=1")
    return {"expert_parallel_degree": ep, "expert_tensor_parallel_degree": etp}


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
        nearest = "schedule=zero-bubble with vpp=2, or schedule=1f1b"
        raise CannotExpress(name, words, nearest=nearest)
    if plan.model.tied:
        words = "tied embeddings with pp > 1: the first and the last stage can't share a weight"
        raise CannotExpress(name, words, nearest="pp=1, or a model with tied=0")
    chunks = chunk_layers(layout, plan.model.num_layers)
    return {
        "pipeline_parallel_degree": layout.pp,
        "pipeline_parallel_schedule": schedule,
        "pipeline_parallel_microbatch_size": layout.mbs,
        "module_fqns_per_model_part": chunk_modules(chunks, form=form),
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
        nearest = "dp=2 with sharding=zero2, or tp=1 with pp=1"
        raise CannotExpress(_NAMES[form], words, nearest=nearest)


Kind = Literal["llama3", "qwen3", "deepseek_v3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TitanModel:
    """A model of torchtitan with its dims by torchtitan's names."""

    kind: Kind
    dims: dict[str, Any]
    moe: dict[str, Any] | None
    notes: tuple[str, ...] = ()


def titan_model(plan: TrainingPlan, *, name: str) -> TitanModel:
    """Return the model: Llama for plain layers; Qwen3 for norms of queries and keys, tied weights
    or experts; else DeepSeek."""
    require(plan, _LLAMA_LIKE, name=name)
    model, details = plan.model, plan.details
    common = {
        "dim": model.hidden,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "vocab_size": model.vocab,
        "norm_eps": details.norm_eps,
        "rope_theta": details.rope_base,
    }
    moe = _moe(plan, name)
    notes = () if moe is None or plain(details).router_balance in ("bias", "none") else (_BALANCE,)
    if model.mla is not None:
        dims = {**common, **_latent(plan, name)}
        return TitanModel(kind="deepseek_v3", dims=dims, moe=moe, notes=notes)
    heads = {"n_kv_heads": model.num_kv_heads, "head_dim": model.head_dim, "hidden_dim": model.ffn}
    whole = model.head_dim * model.num_heads == model.hidden
    if moe is None and not model.qk_norm and not model.tied and whole:
        dims = {**common, **heads, "rope_scaling": details.rope_scaling}
        return TitanModel(kind="llama3", dims=dims, moe=None)
    dims = {**common, **heads, **_qwen(plan, name)}
    return TitanModel(kind="qwen3", dims=dims, moe=moe, notes=notes)


_BALANCE = (
    "torchtitan balances experts by a bias that follows their load (load_balance_coeff), not by a"
    " loss"
)


_LLAMA_LIKE = {
    "model.family": "decoder",
    "model.hybrid": None,
    **LLAMA,
    "model.qkv_bias": False,
    "details.activation": "silu",
    "details.rope_share": 1.0,
    "details.dropout": 0.0,
}
"""What all models of torchtitan have."""
_EXPERTS = {
    "moe.layer_frequency": 1,
    "moe.capacity_factor": None,
    "moe.expert_bias": False,
    "moe.latent_dim": None,
}


def _qwen(plan: TrainingPlan, name: str) -> dict[str, Any]:
    if plan.details.rope_scaling is not None:
        words = (
            f"rope_scaling={plan.details.rope_scaling:g} with norms of queries and keys, tied"
            " weights or experts: Qwen3's rotation has none"
        )
        raise CannotExpress(name, words, nearest="rope_scaling unset")
    if plan.model.moe is not None and plan.model.moe.first_dense_layers:
        words = (
            f"first_dense_layers={plan.model.moe.first_dense_layers} without latent attention:"
            " Qwen3 has experts in every layer"
        )
        raise CannotExpress(name, words, nearest="a model with first_dense_layers=0")
    return {"qk_norm": plan.model.qk_norm, "enable_weight_tying": plan.model.tied}


def _latent(plan: TrainingPlan, name: str) -> dict[str, Any]:
    model, mla, moe = plan.model, plan.model.mla, plan.model.moe
    assert mla is not None
    if moe is None:
        reason = "latent attention without experts: DeepSeek's layers behind the first have experts"
        raise CannotExpress(name, reason, nearest="a model with experts")
    if model.tied or model.qk_norm:
        reason = f"tied={model.tied}, qk_norm={model.qk_norm} with latent attention"
        raise CannotExpress(name, reason, nearest="a model without either")
    if plan.details.rope_scaling is not None:
        reason = f"rope_scaling={plan.details.rope_scaling:g} with latent attention"
        raise CannotExpress(name, reason, nearest="rope_scaling unset")
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    dims = (mla.v_head_dim, mla.qk_nope_head_dim, query)
    if model.num_kv_heads != model.num_heads or model.head_dim not in dims:
        given = f"num_kv_heads={model.num_kv_heads}, head_dim={model.head_dim}"
        reason = f"{given} with latent attention: every head has its own keys and values"
        nearest = f"num_kv_heads={model.num_heads}, head_dim={mla.v_head_dim}"
        raise CannotExpress(name, reason, nearest=nearest)
    return {
        "inter_dim": model.ffn,
        "n_dense_layers": moe.first_dense_layers,
        "q_lora_rank": mla.q_lora_rank or 0,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


def _moe(plan: TrainingPlan, name: str) -> dict[str, Any] | None:
    moe, details = plan.model.moe, plan.details
    if moe is None:
        return None
    require(plan, _EXPERTS, name=name, reason="{path}={given}: its experts have {has}")
    shared, left = divmod(moe.shared_ffn, moe.expert_ffn)
    if left:
        reason = (
            f"shared_ffn={moe.shared_ffn}: shared experts are as wide as routed ones"
            f" ({moe.expert_ffn}), or several of them"
        )
        nearest = f"a model with shared_ffn={shared * moe.expert_ffn}"
        raise CannotExpress(name, reason, nearest=nearest)
    return {
        "num_experts": moe.num_experts,
        "num_shared_experts": shared,
        "top_k": moe.top_k,
        "expert_ffn": moe.expert_ffn,
        "score_func": details.router_score,
        # as Qwen3, Mixtral and DeepSeek-V3; not DeepSeek-V2
        "route_norm": plan.model.mla is None or details.router_score == "sigmoid",
        "route_scale": details.routed_scale or 1.0,
        "num_expert_groups": details.router_groups,
        "num_limited_groups": details.router_top_groups,
        "load_balance_coeff": _balance(plan),
    }


def _balance(plan: TrainingPlan) -> float | None:
    """Return the step of the balancing bias; a loss is not read as one, so that a plan that asks
    for it is refused."""
    balance = plain(plan.details).router_balance
    if balance in ("bias", "none"):
        balance = plan.details.router_balance
    return None if balance == "none" else 1e-3


def dims_line(model: TitanModel) -> str:
    """Write the model as a comment for TOML, which has no place for dims; `read_dims_line` reads it
    back."""
    moe = {} if model.moe is None else {"moe": model.moe}
    return "dims: " + json.dumps({"kind": model.kind, **model.dims, **moe})


DIMS_CHANGED = "the comment `# dims:` is not as the export wrote it; export the file again"


def read_dims_line(text: str) -> TitanModel | None:
    """Return the model of such a comment; None where a text has none."""
    match = re.search(r"^# dims: (\{.*\})$", text, re.MULTILINE)
    if match is None:
        return None
    try:
        dims = json.loads(match[1])
        kind, moe = dims.pop("kind"), dims.pop("moe", None)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"torchtitan: {DIMS_CHANGED} ({error})") from None
    return TitanModel(kind=kind, dims=dims, moe=moe)
