"""NeMo AutoModel: the YAML of a fine-tuning recipe (`automodel FILE`)."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget
from meshwright.software.finetuning import (
    adapter_modules,
    base_model,
    finetune_notes,
    own_layers,
    require_finetuning,
    usual_settings,
)
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import chosen, require, require_one_of
from meshwright.values.errors import CannotExpress
from meshwright.values.text import write_yaml

__all__ = ["NEMO_AUTOMODEL"]

_NAME = "nemo-automodel"
_FILE = "automodel.yaml"
_DATASET = "rajpurkar/squad"
_PARTS = "nemo_automodel.components"
_STYLES = {"cosine": "cosine", "linear": "linear", "constant": "constant"}


def _write(plan: TrainingPlan) -> Exported:
    require_finetuning(plan, name=_NAME)
    says = "its own split of a pipeline is not priced here"
    require_one_of(plan, "layout.pp", (1,), name=_NAME, says=says)
    require(plan, {"work.frozen": "half"}, name=_NAME, reason="weights in four bits: {has} here")
    kinds, says = ("none", "zero2", "zero3", "hybrid"), "it has DDP and FSDP2"
    require_one_of(plan, "layout.sharding", kinds, name=_NAME, says=says)
    if len(plan.settings.data) > 1:
        reason = f"{len(plan.settings.data)} datasets: one is written"
        nearest = f"data={plan.settings.data[0].path}"
        raise CannotExpress(_NAME, reason, nearest=nearest)
    comment = "# Written by meshwright for NeMo AutoModel 0.5 (automodel automodel.yaml).\n"
    return Exported(
        target=_NAME,
        files=(ExportedFile(name=_FILE, text=comment + write_yaml(_values(plan))),),
        command=("-m", "nemo_automodel.cli.app", _FILE),
        notes=(
            *finetune_notes(plan, _DATASET),
            *(("data is read as rows of `messages`, as chats",) if plan.settings.data else ()),
        ),
    )


def _values(plan: TrainingPlan) -> dict[str, Any]:
    settings, layout = plan.settings, plan.layout
    packed = plan.work.sample_len is not None
    saves = settings.save_dir is not None
    return {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "seed": settings.seed,
        "step_scheduler": {
            "global_batch_size": layout.gbs,
            "local_batch_size": layout.mbs,
            "max_steps": settings.train_steps,
            "ckpt_every_steps": settings.save_interval if saves else settings.train_steps,
            "log_remote_every_steps": settings.log_interval,
        },
        "dist_env": {"backend": "nccl", "timeout_minutes": 10},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": base_model(plan, name=_NAME),
            "torch_dtype": "bfloat16",
        },
        **_adapters(plan),
        "distributed": _distributed(plan),
        "loss_fn": {"_target_": f"{_PARTS}.loss.masked_ce.MaskedCrossEntropy"},
        "dataset": _dataset(plan, packed=packed),
        "packed_sequence": {"packed_sequence_size": plan.work.seq_len if packed else 0},
        "dataloader": {
            "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
            "collate_fn": f"{_PARTS}.datasets.utils.default_collater",
            "shuffle": True,
        },
        "optimizer": {
            "_target_": "torch.optim.AdamW",
            "lr": settings.learning_rate,
            "betas": [settings.adam_beta1, settings.adam_beta2],
            "eps": settings.adam_eps,
            "weight_decay": settings.weight_decay,
        },
        "lr_scheduler": _schedule(plan),
        "clip_grad_norm": {"max_norm": settings.clip_gradient},
        "checkpoint": {
            "enabled": saves,
            "checkpoint_dir": settings.save_dir or "checkpoints",
            **({} if settings.load_dir is None else {"restore_from": settings.load_dir}),
        },
    }


def _adapters(plan: TrainingPlan) -> dict[str, Any]:
    """Patterns, since its own Llama and Qwen hold q, k and v as one layer, qkv_proj."""
    rank = plan.work.lora_rank
    if not rank:
        return {}
    return {
        "peft": {
            "_target_": f"{_PARTS}._peft.lora.PeftConfig",
            "target_modules": [f"*{name}" for name in adapter_modules(plan)],
            "dim": rank,
            "alpha": 2 * rank,
            "dropout": 0.0,
            "use_triton": True,
        }
    }


def _distributed(plan: TrainingPlan) -> dict[str, Any]:
    layout = plan.layout
    require_one_of(plan, "layout.recompute", ("none", "full"), name=_NAME, says="full or none")
    require(
        plan,
        {"layout.recompute_layers": None, "layout.recompute_method": "uniform"},
        name=_NAME,
        reason="{path}={given}: it recomputes every layer or none",
        nearest="recompute=full or none",
    )
    again = layout.recompute == "full"
    if layout.sharding == "none":
        require_one_of(plan, "layout.tp", (1,), name=_NAME, says="DDP cuts no layer")
        return {"strategy": "ddp", "activation_checkpointing": again}
    replicas = 1
    if layout.sharding == "hybrid" and layout.shard_size is not None:
        replicas = layout.dp * layout.cp // layout.shard_size
    words: dict[str, Any] = {
        "strategy": "fsdp2",
        "tp_size": layout.tp,
        "cp_size": layout.cp,
        "pp_size": 1,
        **({"dp_replicate_size": replicas} if replicas > 1 else {}),
        "sequence_parallel": layout.sp,
        "activation_checkpointing": again,
    }
    if layout.sharding == "zero2":
        words["reshard_after_forward"] = False
    return words


def _dataset(plan: TrainingPlan, *, packed: bool) -> dict[str, Any]:
    data = plan.settings.data
    way = {"_target_": f"{_PARTS}.datasets.llm.squad.make_squad_dataset", "dataset_name": _DATASET}
    if data:
        kind = f"{_PARTS}.datasets.llm.chat_dataset.ChatDataset"
        way = {"_target_": kind, "path_or_dataset_id": data[0].path}
    length = {"seq_length": plan.work.seq_len, "padding": "max_length", "truncation": True}
    return {**way, "split": "train", **({} if packed else length)}


def _schedule(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    _ = (settings.eval_interval, settings.eval_steps, settings.split)
    constant = settings.decay_style == "constant"
    return {
        "lr_decay_style": chosen(_STYLES, plan, "settings.decay_style", name=_NAME),
        "lr_warmup_steps": settings.warmup_steps,
        "lr_decay_steps": settings.train_steps,
        "init_lr": 0.0,
        "min_lr": settings.learning_rate if constant else settings.min_learning_rate,
    }


NEMO_AUTOMODEL = ExportTarget(
    name=_NAME,
    title="NeMo AutoModel",
    versions="NeMo AutoModel 0.5",
    write=_write,
    trained_layers=own_layers,
    stacks=("nemo-automodel",),
    usual=usual_settings,
)
