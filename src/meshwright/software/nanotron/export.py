"""nanotron: one YAML."""

from __future__ import annotations

from typing import Any

from meshwright.search.rules.split import split_by_cost
from meshwright.software.contract import (
    Exported,
    ExportedFile,
    ExportTarget,
    TrainedLayers,
    variables,
)
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import chunk_layers
from meshwright.software.words import (
    LLAMA,
    WordTable,
    chosen,
    require,
    require_one_of,
    require_whole_recompute,
)
from meshwright.values.errors import CannotExpress
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["NAME", "NANOTRON", "WORDS", "own_split", "words_of_layout"]

NAME = "nanotron"
WORDS = WordTable("software/nanotron/words.csv")
_ENVIRONMENT = variables(
    (
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "1",
        "nanotron demands it: exchanges of tensor parallelism start in order",
    ),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "less fragmentation of GPU memory"),
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
            **_batch(plan),
            "val_check_interval": -1,
        },
        "optimizer": _optimizer(plan),
        "data_stages": [{"name": "training", "start_training_step": 1, "data": _data(plan)}],
        "logging": {
            **WORDS.written(plan, "logging."),
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


_LLAMA = {
    "model.mla": None,
    **LLAMA,
    "model.qk_norm": False,
}


def _require_llama(plan: TrainingPlan) -> None:
    model, layout = plan.model, plan.layout
    has = "{path}={given}: its Llama and Qwen2 have {has}"
    require(plan, {"model.family": "decoder", "model.hybrid": None}, name=NAME, reason=has)
    why = " (its groups leave no rank for expert parallelism)"
    require(plan, {"model.moe": None}, name=NAME, reason=has + why)
    require(plan, _LLAMA, name=NAME, reason=has)
    rest = {
        "model.head_dim": model.hidden // model.num_heads,
        "details.activation": "silu",
        "details.rope_share": 1.0,
        "details.rope_scaling": None,
        "details.dropout": 0.0,
        "work.lora_rank": 0,
    }
    require(plan, rest, name=NAME, reason=has)
    if model.num_kv_heads < layout.tp:
        reason = f"tp={layout.tp} with {model.num_kv_heads} KV heads: it does not copy them"
        raise CannotExpress(NAME, reason, nearest=f"tp={model.num_kv_heads}")
    says = "its attention is flash-attn's and its gradients add up from bf16"
    require_one_of(plan, "work.precision", ("bf16",), name=NAME, says=says)


def words_of_layout(plan: TrainingPlan) -> dict[str, Any]:
    """Return what a layout sets, by dotted path."""
    _require_llama(plan)
    return {
        **{f"parallelism.{key}": value for key, value in _parallelism(plan).items()},
        **{f"tokens.{key}": value for key, value in _batch(plan).items()},
        "optimizer.zero_stage": _zero_stage(plan),
    }


def _batch(plan: TrainingPlan) -> dict[str, int]:
    layout = plan.layout
    return {
        "micro_batch_size": layout.mbs,
        "batch_accumulation_per_replica": layout.gbs // (layout.mbs * layout.dp),
    }


def _zero_stage(plan: TrainingPlan) -> int:
    layout = plan.layout
    stages, says = ("zero1", "none"), "zero_stage is 0 or 1"
    require_one_of(plan, "layout.sharding", stages, name=NAME, says=says)
    # Cut over dp alone; with dp=1 and a split context, stage 1 does not start.
    return 0 if layout.sharding == "none" or (layout.dp == 1 and layout.cp > 1) else 1


def _parallelism(plan: TrainingPlan) -> dict[str, Any]:
    layout = plan.layout
    says = "its engines hold one chunk a stage"
    require_one_of(plan, "layout.vpp", (1,), name=NAME, says=says)
    require_whole_recompute(plan, name=NAME)
    _require_stages(plan)
    return {
        **WORDS.written(plan, "parallelism."),
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
    own = own_split(model, layout.pp)
    if min(own[:-1]) < 1:
        reason = f"pp={layout.pp}: nanotron's own split would leave a stage without layers"
        raise CannotExpress(NAME, reason, nearest=f"pp={max(1, layout.pp // 2)}")
    asked = chunk_layers(layout, model.num_layers)
    if asked != own:
        shown, wanted = ("+".join(map(str, split)) for split in (asked, own))
        reason = f"stages of {shown} layers: it cuts by cost, and nothing changes that"
        raise CannotExpress(NAME, reason, nearest=f"layers_per_stage={wanted}")


def _model(plan: TrainingPlan) -> dict[str, Any]:
    """Qwen2 where the projections of q, k, v have biases or the context is split, else Llama."""
    model, layout = plan.model, plan.layout
    qwen = model.qkv_bias or layout.cp > 1
    fixed: dict[str, Any] = {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "hidden_act": "silu",
    }
    fixed |= {"initializer_range": 0.02, "use_cache": True}
    fixed |= {"max_position_embeddings": plan.work.seq_len}
    dims = sorted({**fixed, **WORDS.written(plan, "model.model_config.")}.items())
    config = {"is_qwen2_config" if qwen else "is_llama_config": True, **dict(dims)}
    if qwen:
        config["attention_bias"] = model.qkv_bias
    if layout.cp > 1:
        config |= {"_attn_implementation": "llama3_ring_attention", "ring_attn_heads_k_stride": 1}
    return {
        "model_config": config,
        "init_method": WORDS.written(plan, "model.init_method."),
        "dtype": "bfloat16",
        "make_vocab_size_divisible_by": 1,
        "ddp_bucket_cap_mb": 25,
    }


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    kinds, says = ("huggingface", "null"), "it takes Hugging Face's"
    require_one_of(plan, "settings.tokenizer_kind", kinds, name=NAME, says=says)
    words = WORDS.written(plan, "tokenizer.")
    return {**words, "tokenizer_revision": None, "tokenizer_max_length": None}


def _checkpoints(plan: TrainingPlan) -> dict[str, Any]:
    """nanotron needs the section; without a folder nothing is ever due."""
    folder = plan.settings.save_dir
    return {
        "checkpoints_path": folder or "checkpoints",
        **WORDS.written(plan, "checkpoints."),
        "checkpoint_interval": 10**9 if folder is None else plan.settings.save_interval,
        "save_initial_state": False,
        "save_final_state": folder is not None,
    }


_STYLES = {"cosine": "cosine", "linear": "linear", "constant": "linear"}


def _optimizer(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    style = chosen(_STYLES, plan, "settings.decay_style", name=NAME)
    constant = settings.decay_style == "constant"
    steps, warmup = train_steps(settings, plan.work), settings.warmup_steps or 0
    return {
        "zero_stage": _zero_stage(plan),
        **WORDS.written(plan, "optimizer."),
        "accumulate_grad_in_fp32": True,
        "optimizer_factory": {
            "name": "adamW",
            **WORDS.written(plan, "optimizer.optimizer_factory."),
            "torch_adam_is_fused": True,
        },
        "learning_rate_scheduler": {
            **WORDS.written(plan, "optimizer.learning_rate_scheduler."),
            "lr_warmup_style": "linear",
            "lr_decay_style": style,
            "lr_decay_steps": max(1, steps - warmup),
            "min_decay_lr": settings.learning_rate if constant else settings.min_learning_rate,
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


def own_split(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Return layers per stage as nanotron cuts a model by itself."""
    return split_by_cost(
        layers=model.num_layers,
        hidden=model.hidden,
        heads=model.num_heads,
        ffn=model.ffn,
        vocab=model.vocab,
        pp=pp,
    )


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
