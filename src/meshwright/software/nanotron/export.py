"""nanotron: one YAML."""

from __future__ import annotations

from typing import Any

from meshwright.search.rules.split import split_by_cost
from meshwright.software.contract import EnvVar, Exported, ExportedFile, ExportTarget, TrainedLayers
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import chunk_layers
from meshwright.values.errors import CannotExpress
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["NAME", "NANOTRON"]

NAME = "nanotron"
_ENVIRONMENT = (
    EnvVar(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        value="1",
        why="nanotron demands it: exchanges of tensor parallelism start in order",
    ),
    EnvVar(
        name="PYTORCH_CUDA_ALLOC_CONF",
        value="expandable_segments:True",
        why="less fragmentation of GPU memory",
    ),
)


def _write(plan: TrainingPlan) -> Exported:
    _require_llama(plan)
    values = {
        "general": {
            "project": "meshwright",
            "run": "plan",
            "seed": plan.settings.seed,
            "ignore_sanity_checks": True,
        },
        "checkpoints": _checkpoints(plan),
        "parallelism": _parallelism(plan),
        "model": _model(plan),
        "tokenizer": _tokenizer(plan),
        "tokens": {
            "sequence_length": plan.work.seq_len,
            "train_steps": train_steps(plan.settings, plan.work),
            "micro_batch_size": plan.layout.mbs,
            "batch_accumulation_per_replica": plan.layout.gbs // (plan.layout.mbs * plan.layout.dp),
            "val_check_interval": -1,
        },
        "optimizer": _optimizer(plan),
        "data_stages": [{"name": "training", "start_training_step": 1, "data": _data(plan)}],
        "logging": {
            "iteration_step_info_interval": plan.settings.log_interval,
            "log_level": "info",
            "log_level_replica": "warning",
        },
    }
    return Exported(
        target=NAME,
        files=(
            ExportedFile(
                name="nanotron.yaml",
                text="# Written by meshwright for nanotron 0.4 and later.\n" + write_yaml(values),
            ),
        ),
        command=("run_train.py", "--config-file", "nanotron.yaml"),
        environment=_ENVIRONMENT,
        notes=(
            "run_train.py is in nanotron's repository",
            *(() if plan.settings.data else ("without data it trains on random tokens",)),
        ),
    )


def _require_llama(plan: TrainingPlan) -> None:
    model, details, layout = plan.model, plan.details, plan.layout
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("model.family", model.family, "decoder"),
        ("model.hybrid", model.hybrid and "mixers", None),
        ("model.moe", model.moe and "experts", None),
        ("model.mla", model.mla and "latent attention", None),
        ("model.gated", model.gated, True),
        ("model.norm", model.norm, "rmsnorm"),
        ("model.norms_per_layer", model.norms_per_layer, 2),
        ("model.qk_norm", model.qk_norm, False),
        ("model.positions", model.positions, "rope"),
        ("model.linear_bias", model.linear_bias, False),
        ("model.attention_sinks", model.attention_sinks, False),
        ("model.parallel_block", model.parallel_block, False),
        ("model.window", model.window, None),
        ("model.mtp_layers", model.mtp_layers, 0),
        ("model.head_dim", model.head_dim, model.hidden // model.num_heads),
        ("details.activation", details.activation, "silu"),
        ("details.rope_share", details.rope_share, 1.0),
        ("details.rope_scaling", details.rope_scaling, None),
        ("details.dropout", details.dropout, 0.0),
        ("work.lora_rank", plan.work.lora_rank, 0),
    )
    for path, given, has in wanted:
        if given != has:
            why = (
                " (its groups leave no rank for expert parallelism)" if path == "model.moe" else ""
            )
            raise CannotExpress(
                NAME,
                f"{path}={given}: its Llama and Qwen2 have {has}{why}",
                nearest=f"a model with {path}={has}",
            )
    if plan.model.num_kv_heads < layout.tp:
        reason = f"tp={layout.tp} with {model.num_kv_heads} KV heads: it does not copy them"
        raise CannotExpress(NAME, reason, nearest=f"tp={model.num_kv_heads}")
    if plan.work.precision != "bf16":
        reason = (
            f"precision={plan.work.precision}: its attention is flash-attn's and its gradients add"
            " up from bf16"
        )
        raise CannotExpress(NAME, reason, nearest="precision=bf16")


def _parallelism(plan: TrainingPlan) -> dict[str, Any]:
    layout = plan.layout
    if layout.vpp > 1:
        raise CannotExpress(
            NAME, f"vpp={layout.vpp}: its engines hold one chunk a stage", nearest="vpp=1"
        )
    if (
        layout.recompute == "selective"
        or layout.recompute_layers is not None
        or layout.recompute_method != "uniform"
    ):
        raise CannotExpress(
            NAME,
            f"recompute={layout.recompute}: it recomputes every layer or none",
            nearest="recompute=full or none",
        )
    _require_stages(plan)
    return {
        "dp": layout.dp,
        "pp": layout.pp,
        "tp": layout.tp,
        "context_parallel_size": layout.cp,
        "expert_parallel_size": layout.ep,
        "pp_engine": "afab" if layout.schedule == "gpipe" else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if layout.sp else "ALL_REDUCE",
        "tp_linear_async_communication": layout.sp,
        "recompute_layer": layout.recompute == "full",
        "tp_recompute_allgather": True,
    }


def _require_stages(plan: TrainingPlan) -> None:
    model, layout = plan.model, plan.layout
    if layout.pp == 1:
        return
    own = split_by_cost(
        layers=model.num_layers,
        hidden=model.hidden,
        heads=model.num_heads,
        ffn=model.ffn,
        vocab=model.vocab,
        pp=layout.pp,
    )
    if min(own[:-1]) < 1:
        reason = f"pp={layout.pp}: nanotron's own split would leave a stage without layers"
        raise CannotExpress(NAME, reason, nearest=f"pp={max(1, layout.pp // 2)}")
    asked = chunk_layers(layout, model.num_layers)
    if asked != own:
        shown, wanted = ("+".join(map(str, split)) for split in (asked, own))
        raise CannotExpress(
            NAME,
            f"stages of {shown} layers: it cuts by cost, and nothing changes that",
            nearest=f"layers_per_stage={wanted}",
        )


def _model(plan: TrainingPlan) -> dict[str, Any]:
    """Qwen2 where the projections of q, k, v have biases or the context is split, else Llama."""
    model, layout, details = plan.model, plan.layout, plan.details
    qwen = model.qkv_bias or layout.cp > 1
    config = {
        "is_qwen2_config" if qwen else "is_llama_config": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn,
        "max_position_embeddings": plan.work.seq_len,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "pad_token_id": None,
        "rms_norm_eps": details.norm_eps,
        "rope_theta": details.rope_base,
        "tie_word_embeddings": model.tied,
        "use_cache": True,
        "vocab_size": model.vocab,
    }
    if qwen:
        config["attention_bias"] = model.qkv_bias
    if layout.cp > 1:
        config |= {"_attn_implementation": "llama3_ring_attention", "ring_attn_heads_k_stride": 1}
    return {
        "model_config": config,
        "init_method": {"std": plan.settings.init_std},
        "dtype": "bfloat16",
        "make_vocab_size_divisible_by": 1,
        "ddp_bucket_cap_mb": 25,
    }


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    if settings.tokenizer_kind not in ("huggingface", "null"):
        raise CannotExpress(
            NAME,
            f"tokenizer_kind={settings.tokenizer_kind}: it takes Hugging Face's",
            nearest="tokenizer_kind=huggingface",
        )
    return {
        "tokenizer_name_or_path": settings.tokenizer,
        "tokenizer_revision": None,
        "tokenizer_max_length": None,
    }


def _checkpoints(plan: TrainingPlan) -> dict[str, Any]:
    """nanotron needs the section; without a folder nothing is ever due."""
    settings = plan.settings
    words: dict[str, Any] = {
        "checkpoints_path": settings.save_dir or "checkpoints",
        "resume_checkpoint_path": settings.load_dir,
    }
    if settings.save_dir is None:
        return {
            **words,
            "checkpoint_interval": 10**9,
            "save_initial_state": False,
            "save_final_state": False,
        }
    return {
        **words,
        "checkpoint_interval": settings.save_interval,
        "save_initial_state": False,
        "save_final_state": True,
    }


def _optimizer(plan: TrainingPlan) -> dict[str, Any]:
    settings, layout = plan.settings, plan.layout
    if layout.sharding not in ("none", "zero1"):
        raise CannotExpress(
            NAME, f"sharding={layout.sharding}: zero_stage is 0 or 1", nearest="sharding=zero1"
        )
    styles = {"cosine": "cosine", "linear": "linear", "constant": "linear"}
    if settings.decay_style not in styles:
        raise CannotExpress(
            NAME,
            f"decay_style={settings.decay_style}: it has {', '.join(styles)}",
            nearest="decay_style=cosine",
        )
    least = (
        settings.learning_rate if settings.decay_style == "constant" else settings.min_learning_rate
    )
    steps, warmup = train_steps(settings, plan.work), settings.warmup_steps or 0
    whole = layout.sharding == "none" or (layout.dp == 1 and layout.cp > 1)
    return {
        "zero_stage": (
            0 if whole else 1
        ),  # cut over dp alone; with dp=1 and a split context, stage 1 does not start
        "weight_decay": settings.weight_decay,
        "clip_grad": settings.clip_gradient,
        "accumulate_grad_in_fp32": True,
        "optimizer_factory": {
            "name": "adamW",
            "adam_eps": settings.adam_eps,
            "adam_beta1": settings.adam_beta1,
            "adam_beta2": settings.adam_beta2,
            "torch_adam_is_fused": True,
        },
        "learning_rate_scheduler": {
            "learning_rate": settings.learning_rate,
            "lr_warmup_steps": warmup,
            "lr_warmup_style": "linear",
            "lr_decay_style": styles[settings.decay_style],
            "lr_decay_steps": max(1, steps - warmup),
            "min_decay_lr": least,
        },
    }


def _data(plan: TrainingPlan) -> dict[str, Any]:
    """Tokens as datatrove writes them (Nanoset); two bytes a token where the vocabulary allows
    it."""
    settings = plan.settings
    words: dict[str, Any] = {"dataset": None, "num_loading_workers": 1, "seed": settings.seed}
    if settings.data:
        words["dataset"] = {
            "dataset_folder": [entry.path for entry in settings.data],
            "dataset_weights": [entry.weight for entry in settings.data],
            "tokenizer_name": settings.tokenizer,
            "vocab_size": plan.model.vocab,
            "token_size_in_bytes": 2 if plan.model.vocab <= 2**16 else 4,
        }
    return words


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    values = read_yaml(exported.files[0].text, what=NAME)
    config, pp = values["model"]["model_config"], values["parallelism"]["pp"]
    if pp == 1:
        return TrainedLayers(chunks=(config["num_hidden_layers"],))
    return TrainedLayers(
        chunks=split_by_cost(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            pp=pp,
        )
    )


NANOTRON = ExportTarget(
    name=NAME,
    title="nanotron",
    versions="nanotron 0.4 and its main branch of April 2026",
    write=_write,
    trained_layers=_trained_layers,
    stacks=("nanotron", "megatron"),
)
