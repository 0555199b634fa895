"""What both exports share: the model's config.json, and the words of transformers' run_clm.py."""

from __future__ import annotations

import json
from typing import Any

from meshwright.software.contract import Exported, TrainedLayers
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import ModelDetails
from meshwright.values.errors import CannotExpress
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "LAYER_CLASSES",
    "decoder_config",
    "hf_config",
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
    }
    words |= {"use_cache": False, "torch_dtype": "float32"}
    if plan.model.moe is not None:
        words |= {"router_aux_loss_coef": plan.details.aux_loss, "output_router_logits": True}
    return words


def decoder_config(
    model: ModelSpec, details: ModelDetails, *, max_positions: int, name: str
) -> dict[str, Any]:
    """Return what config.json says of a decoder's shape; CannotExpress where transformers' Llama,
    Qwen and Mixtral differ from it."""
    _require_known(model, details, name)
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
    if model.moe is not None:
        if model.qkv_bias:
            raise CannotExpress(
                name,
                "qkv_bias with experts: no model of this export has it",
                nearest="a model without qkv_bias",
            )
        if not model.qk_norm and model.moe.expert_ffn != model.ffn:
            reason = (
                f"moe.expert_ffn={model.moe.expert_ffn} beside ffn={model.ffn}: Mixtral has one"
                " width"
            )
            raise CannotExpress(name, reason, nearest=f"a model with ffn={model.moe.expert_ffn}")
        return "qwen3_moe" if model.qk_norm else "mixtral"
    if model.qkv_bias and model.qk_norm:
        raise CannotExpress(
            name,
            "qkv_bias and qk_norm together: no model of this export has both",
            nearest="a model without qkv_bias",
        )
    return "qwen2" if model.qkv_bias else "qwen3" if model.qk_norm else "llama"


def _require_known(model: ModelSpec, details: ModelDetails, name: str) -> None:
    moe = model.moe
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("model.family", model.family, "decoder"),
        ("model.hybrid", model.hybrid and "mixers", None),
        ("model.mla", model.mla and "latent attention", None),
        ("model.gated", model.gated, True),
        ("model.norm", model.norm, "rmsnorm"),
        ("model.norms_per_layer", model.norms_per_layer, 2),
        ("model.positions", model.positions, "rope"),
        ("model.linear_bias", model.linear_bias, False),
        ("model.attention_sinks", model.attention_sinks, False),
        ("model.parallel_block", model.parallel_block, False),
        ("model.window", model.window, None),
        ("model.mtp_layers", model.mtp_layers, 0),
        ("moe.shared_ffn", moe.shared_ffn if moe is not None else 0, 0),
        ("moe.first_dense_layers", moe.first_dense_layers if moe is not None else 0, 0),
        ("moe.layer_frequency", moe.layer_frequency if moe is not None else 1, 1),
        ("moe.capacity_factor", moe.capacity_factor if moe is not None else None, None),
        ("moe.expert_bias", moe.expert_bias if moe is not None else False, False),
        ("moe.latent_dim", moe.latent_dim if moe is not None else None, None),
        ("details.activation", details.activation, "silu"),
        ("details.rope_share", details.rope_share, 1.0),
        ("details.router_score", details.router_score or "softmax", "softmax"),
        ("details.routed_scale", details.routed_scale, None),
        ("details.router_groups", details.router_groups, None),
        ("details.router_top_groups", details.router_top_groups, None),
        ("details.router_balance", details.router_balance or "aux-loss", "aux-loss"),
    )
    for path, given, has in wanted:
        if given != has:
            raise CannotExpress(
                name,
                f"{path}={given}: the models of this export have {has}",
                nearest=f"a model with {path}={has}",
            )


def _experts(model: ModelSpec, kind: str) -> dict[str, Any]:
    moe = model.moe
    if moe is None:
        return {}
    words: dict[str, Any] = {
        "num_local_experts" if kind == "mixtral" else "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
    }
    return (
        words
        if kind == "mixtral"
        else {
            **words,
            "moe_intermediate_size": moe.expert_ffn,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
        }
    )


def require_flat(plan: TrainingPlan, *, name: str) -> None:
    """Refuse the axes that Trainer has no program for."""
    layout = plan.layout
    axes: tuple[tuple[str, Any, Any, str], ...] = (
        ("pp", layout.pp, 1, "it has no pipeline"),
        ("vpp", layout.vpp, 1, "it has no pipeline"),
        ("schedule", layout.schedule, "1f1b", "it has no pipeline"),
        ("tp", layout.tp, 1, "run_clm.py loads no tensor-parallel model"),
        ("sp", layout.sp, False, "run_clm.py loads no tensor-parallel model"),
        ("ep", layout.ep, 1, "transformers' experts are not spread while training"),
        ("etp", layout.etp, None, "transformers' experts are not cut while training"),
        ("layers_per_stage", layout.layers_per_stage, None, "it has no pipeline"),
    )
    for axis, given, has, why in axes:
        if given != has:
            raise CannotExpress(
                name,
                f"{axis}={given}: {why}",
                nearest=f"{axis}={int(has) if isinstance(has, bool) else has}",
            )
    if (
        layout.recompute == "selective"
        or layout.recompute_layers is not None
        or layout.recompute_method != "uniform"
    ):
        raise CannotExpress(
            name,
            f"recompute={layout.recompute}: it recomputes every layer or none",
            nearest="recompute=full or none",
        )


def trainer_words(plan: TrainingPlan, *, name: str) -> tuple[str, ...]:
    """Return run_clm.py and its arguments (transformers examples/pytorch/language-modeling)."""
    settings, layout, work = plan.settings, plan.layout, plan.work
    precisions = {"bf16": ("--bf16",), "fp16": ("--fp16",), "fp32": ()}
    if work.precision not in precisions:
        raise CannotExpress(
            name,
            f"precision={work.precision}: this export has {', '.join(precisions)}",
            nearest="precision=bf16",
        )
    styles = {
        "cosine": "cosine_with_min_lr",
        "linear": "linear",
        "constant": "constant_with_warmup",
    }
    if settings.decay_style not in styles:
        raise CannotExpress(
            name,
            f"decay_style={settings.decay_style}: it has {', '.join(styles)}",
            nearest="decay_style=cosine",
        )
    schedule: tuple[str, ...] = ("--lr_scheduler_type", styles[settings.decay_style])
    if settings.decay_style == "cosine":
        schedule += ("--lr_scheduler_kwargs", json.dumps({"min_lr": settings.min_learning_rate}))
    if settings.tokenizer_kind not in ("huggingface", "null"):
        raise CannotExpress(
            name,
            f"tokenizer_kind={settings.tokenizer_kind}: it takes Hugging Face's",
            nearest="tokenizer_kind=huggingface",
        )
    return (
        *(
            "run_clm.py",
            "--config_name",
            "config.json",
            "--tokenizer_name",
            settings.tokenizer or "gpt2",
            "--do_train",
        ),
        *_data(plan, name),
        *("--block_size", str(work.seq_len), "--per_device_train_batch_size", str(layout.mbs)),
        *(
            "--gradient_accumulation_steps",
            str(layout.gbs // (layout.mbs * layout.dp)),
            "--max_steps",
            str(train_steps(settings, work)),
        ),
        *(
            "--learning_rate",
            repr(settings.learning_rate),
            *schedule,
            "--warmup_steps",
            str(settings.warmup_steps),
        ),
        *(
            "--weight_decay",
            repr(settings.weight_decay),
            "--adam_beta1",
            repr(settings.adam_beta1),
            "--adam_beta2",
            repr(settings.adam_beta2),
        ),
        *("--optim", "adamw_torch_fused"),
        *(
            "--adam_epsilon",
            repr(settings.adam_eps),
            "--max_grad_norm",
            repr(settings.clip_gradient),
            "--seed",
            str(settings.seed),
        ),
        *("--logging_steps", str(settings.log_interval)),
        *_checkpoints(plan),
        *precisions[work.precision],
        *settings.extra,
    )


def _data(plan: TrainingPlan, name: str) -> tuple[str, ...]:
    data = plan.settings.data
    if len(data) > 1:
        raise CannotExpress(
            name,
            f"{len(data)} datasets: run_clm.py reads one and has no blend",
            nearest=f"data={data[0].path}",
        )
    return (
        ("--dataset_name", data[0].path)
        if data
        else ("--dataset_name", "wikitext", "--dataset_config_name", "wikitext-2-raw-v1")
    )


def _checkpoints(plan: TrainingPlan) -> tuple[str, ...]:
    settings = plan.settings
    resume = () if settings.load_dir is None else ("--resume_from_checkpoint", settings.load_dir)
    if settings.save_dir is None:
        return ("--output_dir", "output", "--save_strategy", "no", *resume)
    return (
        "--output_dir",
        settings.save_dir,
        "--save_strategy",
        "steps",
        "--save_steps",
        str(settings.save_interval),
        *resume,
    )


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
