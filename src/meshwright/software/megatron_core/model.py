"""A model's shape in the fields of Megatron-Core's TransformerConfig and its GPT model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Activation, ModelDetails, RouterBalance
from meshwright.software.text import Taken
from meshwright.software.words import WordTable, require, require_one_of
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.models.spec import MlaSpec, ModelSpec, MoeSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Precision

__all__ = [
    "ACTIVATIONS",
    "BALANCE",
    "FP8_WEIGHTS",
    "keeps_narrow_weights",
    "loss_notes",
    "loss_words",
    "model_words",
    "narrow_words",
    "read_model",
    "take_loss",
]

WORDS = WordTable("software/megatron_core/words.csv")
ACTIVATIONS: dict[Activation, str] = {
    "silu": "F.silu",
    "gelu": "F.gelu",
    "relu": "F.relu",
    "squared-relu": "squared_relu",
    "quick-gelu": "quick_gelu",
}
"""Python names of the activation function."""
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
BALANCE: dict[RouterBalance, str] = {
    "aux-loss": "aux_loss",
    "sequence-aux-loss": "seq_aux_loss",
    "bias": "seq_aux_loss",
    "none": "none",
}
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
"""Megatron-Core's words for the positions of decoders."""


def model_words(
    plan: TrainingPlan,
    *,
    name: str,
    positions: Mapping[str, str] = POSITIONS,
    norms: int = 2,
    sinks: bool = False,
) -> dict[str, Any]:
    """Return the fields of a decoder-only model in plain types, the activation function left out.

    `norms` is how many a layer of the software's class has, `sinks` whether its attention may have
    them.
    """
    _require_decoder(plan, name, norms=norms, sinks=sinks)
    model, details = plan.model, plan.details
    words: dict[str, Any] = {
        **WORDS.written(plan),
        "ffn_hidden_size": model.ffn or 4 * model.hidden,
        "add_qkv_bias": model.qkv_bias or model.linear_bias,
        "normalization": _NORMS[model.norm],
        **_positions(plan, name, positions),
    }
    if model.window is not None:
        words["window_size"] = [model.window - 1, 0]
        words |= {"window_attn_skip_freq": model.global_every} if model.global_every else {}
    if model.attention_sinks:
        words["softmax_type"] = "learnable"
    if details.gate_offset is not None:
        words["glu_linear_offset"] = details.gate_offset
    if details.gate_clamp is not None:
        words["activation_func_clamp_value"] = details.gate_clamp
    if model.mla is not None:
        words |= {
            "multi_latent_attention": True,
            **WORDS.written(plan, part="model.mla"),
            "rope_type": "rope",
            "rotary_scaling_factor": 1.0,
        }
    if model.moe is not None:
        words |= _experts(plan, model.moe, name)
    if model.mtp_layers:
        words |= {"mtp_num_layers": model.mtp_layers, "mtp_loss_scaling_factor": details.mtp_loss}
    return words


_USUAL_EXPERTS = {
    "moe_router_dtype": "fp32",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
}
"""What is written of experts whatever the plan."""
_NOT_MEGATRON = ("model.norms_per_layer", "model.parallel_block")
"""What Megatron-LM's own programs refuse too."""


def _require_decoder(plan: TrainingPlan, name: str, *, norms: int, sinks: bool) -> None:
    has = {
        "model.family": "decoder",
        "model.hybrid": None,
        "model.norms_per_layer": norms,
        "model.parallel_block": False,
        **({} if sinks else {"model.attention_sinks": False}),
        "model.token_types": 0,
        "model.mlm_head": False,
    }
    reason, near = (
        "{path}={given}: this export is of models with {has}",
        "a model with {path}={has}",
    )
    for path, value in has.items():
        nearest = near if path in _NOT_MEGATRON else f"{near}, or --to megatron-lm"
        require(plan, {path: value}, name=name, reason=reason, nearest=nearest)
    says = "the export is for pretraining"
    require_one_of(plan, "work.lora_rank", (0,), name=name, says=says)


def _positions(plan: TrainingPlan, name: str, known: Mapping[str, str]) -> dict[str, Any]:
    model, details = plan.model, plan.details
    says = f"decoders have {', '.join(known)}"
    if model.positions not in known:
        reason = f"positions={model.positions}: {says}"
        raise CannotExpress(name, reason, nearest="a model with positions=rope")
    words: dict[str, Any] = {"position_embedding_type": known[model.positions]}
    if model.positions == "learned" and model.max_positions != plan.work.seq_len:
        reason = (
            f"max_positions={model.max_positions}: the table of positions is as long as the"
            f" sequence of {plan.work.seq_len}"
        )
        raise CannotExpress(name, reason, nearest=f"seq_len={model.max_positions}")
    if model.positions == "rope":
        base = details.rope_base
        words |= {
            "rotary_base": int(base) if base is not None and base == int(base) else base,
            "rotary_percent": details.rope_share,
        }
        if details.rope_scaling is not None:
            words |= {"rope_scaling": True, "rope_scaling_factor": details.rope_scaling}
    return words


def _experts(plan: TrainingPlan, moe: MoeSpec, name: str) -> dict[str, Any]:
    details = plan.details
    if moe.latent_dim is not None:
        reason = f"moe.latent_dim={moe.latent_dim}: experts work in the hidden size"
        raise CannotExpress(name, reason, nearest="a model without latent_dim")
    bias = plan.model.linear_bias
    if moe.expert_bias != bias:
        reason = (
            f"moe.expert_bias={moe.expert_bias} with linear_bias={bias}: biases are those of all"
            " linear layers"
        )
        raise CannotExpress(name, reason, nearest=f"a model with moe.expert_bias={bias}")
    assert details.router_balance is not None
    words: dict[str, Any] = {
        **WORDS.written(plan, part="model.moe"),
        "moe_router_load_balancing_type": BALANCE[details.router_balance],
        "moe_aux_loss_coeff": 0.0 if details.router_balance == "none" else details.aux_loss,
        "moe_router_score_function": details.router_score,
        "moe_router_enable_expert_bias": details.router_balance == "bias",
        **_USUAL_EXPERTS,
    }
    if moe.first_dense_layers or moe.layer_frequency > 1:
        words["moe_layer_freq"] = _layers_with_experts(
            plan.model.num_layers, moe.first_dense_layers, moe.layer_frequency
        )
    if moe.shared_ffn:
        words["moe_shared_expert_intermediate_size"] = moe.shared_ffn
    if moe.capacity_factor is not None:
        words |= {
            "moe_expert_capacity_factor": moe.capacity_factor,
            "moe_pad_expert_input_to_capacity": True,
        }
    if details.routed_scale is not None:
        words["moe_router_topk_scaling_factor"] = details.routed_scale
    if details.router_groups is not None:
        words |= {
            "moe_router_num_groups": details.router_groups,
            "moe_router_group_topk": details.router_top_groups,
        }
    return words


def _layers_with_experts(layers: int, first: int, every: int) -> list[int]:
    """Return 1 for each layer with experts: behind the `first` dense ones, the last of `every`."""
    rounds, left = divmod(layers - first, every)
    return [0] * first + ([0] * (every - 1) + [1]) * rounds + [0] * left


def read_model(
    words: Taken, *, prefix: str, what: str, activation: Activation | None = None
) -> tuple[ModelSpec, ModelDetails]:
    """Return the model of such fields, which lie below `prefix`; defaults are Megatron-Core's."""
    at = prefix
    rope, positions = _read_positions(words, at, what)
    window = words.take(f"{at}window_size", None)
    sinks = words.peek(f"{at}softmax_type") == "learnable"
    words.drop({f"{at}softmax_type": "learnable"})
    dims, seq_len = WORDS.read(words, "model", at=at), WORDS.read(words, "work", at=at)["seq_len"]
    heads, hidden = dims["num_heads"], dims["hidden"]
    dims |= {
        "ffn": dims["ffn"] or 4 * hidden,
        "num_kv_heads": dims["num_kv_heads"] or heads,
        "head_dim": dims["head_dim"] or hidden // max(1, heads),
        "norm": "rmsnorm" if dims["norm"].lower() == "rmsnorm" else "layernorm",
        "qkv_bias": dims["qkv_bias"] and not dims["linear_bias"],
    }
    spec = ModelSpec(
        name="imported-model",
        **dims,
        positions=positions,
        max_positions=seq_len if positions == "learned" else 0,
        attention_sinks=sinks,
        # No field tells YaRN's factor; gpt-oss alone has learned sinks, and has it.
        rotation_has_factor=sinks and positions == "rope",
        window=None if window is None else int(window[0]) + 1,
        global_every=_every(words.take(f"{at}window_attn_skip_freq", None), window),
        mtp_layers=words.take(f"{at}mtp_num_layers", None) or 0,
        mla=_read_latent(words, at),
        moe=_read_experts(words, at, dims, what),
    )
    return spec, _read_details(words, at, spec, rope, activation)


def _every(frequency: Any, window: Any) -> int:
    return 1 if window is None else 0 if frequency is None else int(frequency)


def _read_positions(words: Taken, at: str, what: str) -> tuple[dict[str, Any], Any]:
    given = words.text(f"{at}position_embedding_type", "learned_absolute")
    names = {name: ours for ours, name in POSITIONS.items()}
    if given not in names:
        raise ConfigError(f"{what}: position_embedding_type={given}: expected {', '.join(names)}")
    rope = {
        "rope_base": words.number(f"{at}rotary_base", 10000),
        "rope_share": words.number(f"{at}rotary_percent", 1.0),
        "rope_scaling": (
            words.number(f"{at}rope_scaling_factor", 8.0)
            if words.flag(f"{at}rope_scaling", False)
            else None
        ),
    }
    return rope, names[given]


def _read_latent(words: Taken, at: str) -> MlaSpec | None:
    if not words.flag(f"{at}multi_latent_attention", False):
        return None
    words.drop({f"{at}rope_type": "rope", f"{at}rotary_scaling_factor": 1.0})
    return MlaSpec(**WORDS.read(words, "model.mla", at=at))


def _read_experts(words: Taken, at: str, dims: dict[str, Any], what: str) -> MoeSpec | None:
    if not words.peek(f"{at}num_moe_experts"):
        words.take(f"{at}num_moe_experts", None)
        return None
    frequency = words.take(f"{at}moe_layer_freq", 1)
    first, every = _read_frequency(frequency, dims["num_layers"], what)
    usual = {**_USUAL_EXPERTS, "moe_pad_expert_input_to_capacity": True}
    words.drop({f"{at}{name}": value for name, value in usual.items()})
    given = WORDS.read(words, "model.moe", at=at)
    return MoeSpec(
        **{**given, "expert_ffn": given["expert_ffn"] or dims["ffn"]},
        shared_ffn=words.take(f"{at}moe_shared_expert_intermediate_size", None) or 0,
        first_dense_layers=first,
        layer_frequency=every,
        capacity_factor=words.take(f"{at}moe_expert_capacity_factor", None),
        expert_bias=dims["linear_bias"],
        clamps_gate=words.peek(f"{at}activation_func_clamp_value") is not None,
    )


def _read_frequency(given: Any, layers: int, what: str) -> tuple[int, int]:
    """Return (leading dense layers, one layer in how many has experts)."""
    if isinstance(given, int) and given == 1:
        return 0, 1
    for first in range(layers):
        for every in range(1, layers + 1) if isinstance(given, list) else ():
            if _layers_with_experts(layers, first, every) == given:
                return first, every
        if isinstance(given, list) and given[first] == 1:
            break
    raise ConfigError(
        f"{what}: moe_layer_freq={str(given)[:60]}: expected dense layers first, then one layer"
        " with experts in every so many"
    )


def _read_details(
    words: Taken, at: str, spec: ModelSpec, rope: Mapping[str, Any], activation: Activation | None
) -> ModelDetails:
    found: dict[str, Any] = {
        **WORDS.read(words, "details", at=at),
        "activation": activation,
        "gate_offset": words.take(f"{at}glu_linear_offset", None),
        "gate_clamp": words.take(f"{at}activation_func_clamp_value", None),
        **(rope if spec.positions == "rope" else {}),
    }
    dropout = found["dropout"]
    attention = words.number(f"{at}attention_dropout", 0.1)
    if dropout != attention:
        raise ConfigError(
            f"hidden_dropout={dropout:g} and attention_dropout={attention:g} differ; a plan has one"
        )
    if spec.mtp_layers:
        found["mtp_loss"] = words.number(f"{at}mtp_loss_scaling_factor", 0.1)
    if spec.moe is not None:
        found |= _read_router(words, at)
    return ModelDetails(**found)


def _read_router(words: Taken, at: str) -> dict[str, Any]:
    balance = words.text(f"{at}moe_router_load_balancing_type", "aux_loss")
    biased = words.flag(f"{at}moe_router_enable_expert_bias", False)
    loss = words.number(f"{at}moe_aux_loss_coeff", 0.0)
    names = {"aux_loss": "aux-loss", "seq_aux_loss": "sequence-aux-loss", "none": "none"}
    if balance not in names:
        raise ConfigError(f"moe_router_load_balancing_type={balance}: expected {', '.join(names)}")
    kind = "bias" if biased else names[balance]
    return {
        "router_balance": kind,
        "router_score": words.text(f"{at}moe_router_score_function", "softmax"),
        **({} if kind == "none" else {"aux_loss": loss}),
        "routed_scale": words.take(f"{at}moe_router_topk_scaling_factor", None),
        "router_groups": words.take(f"{at}moe_router_num_groups", None),
        "router_top_groups": words.take(f"{at}moe_router_group_topk", None),
    }


FP8_WEIGHTS: frozenset[Precision] = frozenset(("fp8", "fp8-blockwise", "mxfp8"))
"""Formats in which the linear layers' weights may be kept themselves (`fp8_param_gather`)."""


def keeps_narrow_weights(plan: TrainingPlan) -> bool:
    """Whether the linear layers' weights are fp8 themselves, as the plan's stack counts them;
    sharded optimizers alone can update them."""
    return (
        plan.work.precision in FP8_WEIGHTS
        and not plan.stack.narrow_weight_copies
        and plan.layout.sharding != "none"
    )


def narrow_words(plan: TrainingPlan) -> dict[str, Any]:
    """Return the fields that keep the linear layers' weights in fp8; empty where they are not."""
    if not keeps_narrow_weights(plan):
        return {}
    return {
        "fp8_param_gather": True,
        **({"reuse_grad_buf_for_mxfp8_param_ag": True} if plan.work.precision == "mxfp8" else {}),
    }


def loss_words(stack: Stack, precision: Precision) -> dict[str, Any]:
    """Return the fields of the loss."""
    fused = stack.in_precision(precision).fused_loss
    if fused is None:
        return {"cross_entropy_loss_fusion": False}
    return {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": fused}


def loss_notes(plan: TrainingPlan) -> tuple[str, ...]:
    """Return what is to know of the written loss."""
    if plan.stack.in_precision(plan.work.precision).fused_loss != "te":
        return ()
    saved = (
        "it keeps no fp32 logits; native keeps 8 bytes a logit, which the prediction does not count"
    )
    warns = "the loss of NVIDIA's performance recipes, of which Megatron-Core 0.19 warns"
    return (f"cross_entropy_fusion_impl=te is {warns}: {saved}",)


def take_loss(words: Taken, stack: Stack, precision: Precision, *, prefix: str) -> None:
    """Take the fields of the loss away where they are what an export of the stack writes."""
    words.drop({f"{prefix}{name}": value for name, value in loss_words(stack, precision).items()})
