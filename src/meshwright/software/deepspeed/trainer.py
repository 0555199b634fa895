"""What both exports share: the model's config.json, and the words of transformers' run_clm.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from meshwright.software.contract import Exported, TrainedLayers
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import ModelDetails
from meshwright.software.words import (
    LLAMA,
    chosen,
    require,
    require_one_of,
    require_whole_recompute,
)
from meshwright.values.errors import CannotExpress
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "LAYER_CLASSES",
    "decoder_config",
    "hf_config",
    "json_text",
    "notes",
    "require_flat",
    "trained_layers",
    "trainer_words",
]

LAYER_CLASSES = {
    "llama": "LlamaDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "qwen3_moe": "Qwen3MoeDecoderLayer",
}
"""By model_type: the class of one layer in transformers, which is sharded and recomputed as a
unit."""


def hf_config(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the config.json of a decoder that transformers has a class for, to be trained."""
    if plan.work.lora_rank:
        reason = f"work.lora_rank={plan.work.lora_rank}: the models of this export have 0"
        raise CannotExpress(name, reason, nearest="a model with work.lora_rank=0")
    words = decoder_config(plan.model, plan.details, max_positions=plan.work.seq_len, name=name)
    words |= {
        "initializer_range": plan.settings.init_std,
        "attention_dropout": plan.details.dropout,
        "use_cache": False,
        "torch_dtype": "float32",
    }
    if plan.model.moe is not None:
        words |= {"router_aux_loss_coef": plan.details.aux_loss, "output_router_logits": True}
    return words


def decoder_config(
    model: ModelSpec, details: ModelDetails, *, max_positions: int, name: str
) -> dict[str, Any]:
    """Return what config.json says of a decoder's shape; CannotExpress where transformers' Llama,
    Qwen and Mixtral differ from it."""
    parts, has = SimpleNamespace(model=model, details=details), "the models of this export have"
    require(parts, _KNOWN, name=name, reason=f"{{path}}={{given}}: {has} {{has}}")
    kind = _kind(model, name)
    words: dict[str, Any] = {
        "architectures": [LAYER_CLASSES[kind].replace("DecoderLayer", "ForCausalLM")],
        "model_type": kind,
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": details.norm_eps,
        "rope_theta": details.rope_base,
        "tie_word_embeddings": model.tied,
    }
    if details.rope_scaling is not None:
        words["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": details.rope_scaling,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return {**words, **_experts(model, kind)}


def _kind(model: ModelSpec, name: str) -> str:
    moe = model.moe
    if moe is None:
        if model.qkv_bias and model.qk_norm:
            reason = "qkv_bias and qk_norm together: no model of this export has both"
            raise CannotExpress(name, reason, nearest="a model without qkv_bias")
        return "qwen2" if model.qkv_bias else "qwen3" if model.qk_norm else "llama"
    if model.qkv_bias:
        reason = "qkv_bias with experts: no model of this export has it"
        raise CannotExpress(name, reason, nearest="a model without qkv_bias")
    if not model.qk_norm and moe.expert_ffn != model.ffn:
        reason = f"moe.expert_ffn={moe.expert_ffn} beside ffn={model.ffn}: Mixtral has one width"
        raise CannotExpress(name, reason, nearest=f"a model with ffn={moe.expert_ffn}")
    return "qwen3_moe" if model.qk_norm else "mixtral"


_KNOWN = {
    "model.family": "decoder",
    "model.hybrid": None,
    "model.mla": None,
    **LLAMA,
    "moe.shared_ffn": 0,
    "moe.first_dense_layers": 0,
    "moe.layer_frequency": 1,
    "moe.capacity_factor": None,
    "moe.expert_bias": False,
    "moe.latent_dim": None,
    "details.activation": "silu",
    "details.rope_share": 1.0,
    "details.router_score": "softmax",
    "details.routed_scale": None,
    "details.router_groups": None,
    "details.router_top_groups": None,
    "details.router_balance": "aux-loss",
}


def _experts(model: ModelSpec, kind: str) -> dict[str, Any]:
    moe = model.moe
    if moe is None:
        return {}
    if kind == "mixtral":
        return {"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.top_k}
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_ffn,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    }


_NO_PIPELINE = "{field}={given}: it has no pipeline"
_NO_TENSORS = "{field}={given}: run_clm.py loads no tensor-parallel model"
_AXES = {
    "layout.pp": (1, _NO_PIPELINE),
    "layout.vpp": (1, _NO_PIPELINE),
    "layout.schedule": ("1f1b", _NO_PIPELINE),
    "layout.tp": (1, _NO_TENSORS),
    "layout.sp": (0, _NO_TENSORS),
    "layout.ep": (1, "{field}={given}: transformers' experts are not spread while training"),
    "layout.etp": (None, "{field}={given}: transformers' experts are not cut while training"),
    "layout.layers_per_stage": (None, _NO_PIPELINE),
}


def require_flat(plan: TrainingPlan, *, name: str) -> None:
    """Refuse the axes that Trainer has no program for."""
    for path, (has, reason) in _AXES.items():
        require(plan, {path: has}, name=name, reason=reason, nearest="{field}={has}")
    require_whole_recompute(plan, name=name)


_PRECISIONS = {"bf16": ("--bf16",), "fp16": ("--fp16",), "fp32": ()}
_STYLES = {"cosine": "cosine_with_min_lr", "linear": "linear", "constant": "constant_with_warmup"}


def trainer_words(plan: TrainingPlan, *, name: str) -> tuple[str, ...]:
    """Return run_clm.py and its arguments (transformers examples/pytorch/language-modeling)."""
    settings, layout, work = plan.settings, plan.layout, plan.work
    says = f"this export has {', '.join(_PRECISIONS)}"
    precision = chosen(_PRECISIONS, plan, "work.precision", name=name, says=says)
    style = chosen(_STYLES, plan, "settings.decay_style", name=name)
    kinds, says = ("huggingface", "null"), "it takes Hugging Face's"
    require_one_of(plan, "settings.tokenizer_kind", kinds, name=name, says=says)
    least = json.dumps({"min_lr": settings.min_learning_rate})
    schedule: tuple[str, ...] = ("--lr_scheduler_type", style)
    schedule += ("--lr_scheduler_kwargs", least) if settings.decay_style == "cosine" else ()
    rounds = layout.gbs // (layout.mbs * layout.dp)
    return (
        *("run_clm.py", "--config_name", "config.json"),
        *("--tokenizer_name", settings.tokenizer or "gpt2", "--do_train"),
        *_data(plan, name),
        *("--block_size", str(work.seq_len), "--per_device_train_batch_size", str(layout.mbs)),
        *("--gradient_accumulation_steps", str(rounds)),
        *("--max_steps", str(train_steps(settings, work))),
        *("--learning_rate", repr(settings.learning_rate), *schedule),
        *("--warmup_steps", str(settings.warmup_steps)),
        *("--weight_decay", repr(settings.weight_decay)),
        *("--adam_beta1", repr(settings.adam_beta1), "--adam_beta2", repr(settings.adam_beta2)),
        *("--optim", "adamw_torch_fused", "--adam_epsilon", repr(settings.adam_eps)),
        *("--max_grad_norm", repr(settings.clip_gradient), "--seed", str(settings.seed)),
        *("--logging_steps", str(settings.log_interval)),
        *_checkpoints(plan),
        *precision,
        *settings.extra,
    )


def _data(plan: TrainingPlan, name: str) -> tuple[str, ...]:
    data = plan.settings.data
    if len(data) > 1:
        reason = f"{len(data)} datasets: run_clm.py reads one and has no blend"
        raise CannotExpress(name, reason, nearest=f"data={data[0].path}")
    if data:
        return ("--dataset_name", data[0].path)
    return ("--dataset_name", "wikitext", "--dataset_config_name", "wikitext-2-raw-v1")


def _checkpoints(plan: TrainingPlan) -> tuple[str, ...]:
    settings = plan.settings
    resume = () if settings.load_dir is None else ("--resume_from_checkpoint", settings.load_dir)
    if settings.save_dir is None:
        return ("--output_dir", "output", "--save_strategy", "no", *resume)
    every = ("--save_strategy", "steps", "--save_steps", str(settings.save_interval))
    return ("--output_dir", settings.save_dir, *every, *resume)


def json_text(values: dict[str, Any]) -> str:
    """Return the text of a JSON file."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def notes(plan: TrainingPlan) -> tuple[str, ...]:
    """Return what a reader must know before the start."""
    stand_in = (
        "without data it reads wikitext-2, and without a tokenizer GPT-2's: both are downloaded"
    )
    return (
        "run_clm.py is in transformers' repository, under examples/pytorch/language-modeling",
        *(() if plan.settings.data and plan.settings.tokenizer else (stand_in,)),
    )


def trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Every layer of config.json is trained, on each chip."""
    [config] = [json.loads(file.text) for file in exported.files if file.name == "config.json"]
    return TrainedLayers(chunks=(config["num_hidden_layers"],))
