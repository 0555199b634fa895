"""The tree of configurations that a NeMo 2.0 recipe is: each node names what is called, and its
arguments."""

from __future__ import annotations

import math
from typing import Any

from meshwright.software.defaults import train_steps
from meshwright.software.megatron_core.layout import (
    ddp_words,
    parallel_words,
    recompute_words,
    tp_overlap,
)
from meshwright.software.megatron_core.model import loss_words, model_words, narrow_words
from meshwright.software.nemo2.encoders import encoder_data, encoder_model
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Activation
from meshwright.values.errors import CannotExpress
from meshwright.values.workload import Precision

__all__ = ["ACTIVATION_TARGETS", "NAME", "PRECISIONS", "finetuned", "recipe"]

_LINEARS = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
"""NeMo's own target modules of LoRA (nemo/collections/llm/peft/lora.py): every linear layer, as
`Workload.lora_rank` prices it."""


def finetuned(tree: dict[str, Any], *, restore_from: str, lora_rank: int) -> dict[str, Any]:
    """Return a pretraining recipe as one that fine-tunes from a checkpoint; `lora_rank` 0 trains
    all weights.

    As NeMo's `default_finetune_recipe` and `finetune_recipe` of September 2025 have it: SQuAD where
    no data are given, alpha twice the rank, and no distributed optimizer with adapters, which NeMo
    2.5 says does not work.
    """
    found = {
        **tree,
        "_target_": "nemo.collections.llm.api.finetune",
        "resume": _resume(restore_from),
    }
    data = tree["data"]
    if data["_target_"].endswith("MockDataModule"):
        sizes = {
            name: data[name] for name in ("seq_length", "micro_batch_size", "global_batch_size")
        }
        found["data"] = {"_target_": "nemo.collections.llm.gpt.data.squad.SquadDataModule", **sizes}
    if not lora_rank:
        return found
    optim = tree["optim"]
    lora = {
        "_target_": "nemo.collections.llm.peft.lora.LoRA",
        "target_modules": _LINEARS,
        "dim": lora_rank,
        "alpha": 2 * lora_rank,
    }
    return {
        **found,
        "peft": lora,
        "optim": {**optim, "config": {**optim["config"], "use_distributed_optimizer": False}},
    }


def _resume(restore_from: str) -> dict[str, Any]:
    restore = {"_target_": "nemo.lightning.resume.RestoreConfig", "path": restore_from}
    return {"_target_": "nemo.lightning.resume.AutoResume", "restore_config": restore}


NAME = "nemo2"
ACTIVATION_TARGETS: dict[Activation, str] = {
    "silu": "torch.nn.functional.silu",
    "gelu": "torch.nn.functional.gelu",
    "relu": "torch.nn.functional.relu",
    "squared-relu": "megatron.core.activations.squared_relu",
}
_HALF = {
    "params_dtype": "torch.bfloat16",
    "pipeline_dtype": "torch.bfloat16",
    "autocast_enabled": False,
}
PRECISIONS: dict[Precision, dict[str, Any]] = {
    "bf16": {"precision": "bf16-mixed", **_HALF},
    "fp16": {
        "precision": "16-mixed",
        **_HALF,
        "params_dtype": "torch.float16",
        "pipeline_dtype": "torch.float16",
    },
    "fp8": {"precision": "bf16-mixed", **_HALF, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8-blockwise": {"precision": "bf16-mixed", **_HALF, "fp8": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"precision": "bf16-mixed", **_HALF, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"precision": "bf16-mixed", **_HALF, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Arguments of MegatronMixedPrecision; dtypes by their names."""
_MODELS = "nemo.collections.llm.gpt.model."
_CLASSES = {
    "plain": ("base.GPTModel", "base.GPTConfig"),
    "stretched": ("llama.LlamaModel", "llama.Llama31Config"),
    "latent": ("deepseek.DeepSeekModel", "deepseek.DeepSeekConfig"),
}
"""Model and its configuration below _MODELS: of any decoder, with Llama 3.1's rotary scaling, with
latent attention."""
_STRATEGY = "nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy"
_DDP = "megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig"


def recipe(plan: TrainingPlan) -> dict[str, Any]:
    """Return the tree; `_target_` names a class, a text under `dtype` or `activation_func` a
    function or a dtype."""
    if plan.work.precision not in PRECISIONS:
        raise CannotExpress(
            NAME,
            f"precision={plan.work.precision}: recipes train from half-precision weights",
            nearest="precision=bf16",
        )
    model = (
        _decoder(plan)
        if plan.model.family == "decoder"
        else encoder_model(plan, activation=_activation(plan))
    )
    model["config"] |= {
        **recompute_words(plan),
        **loss_words(plan.stack, plan.work.precision),
        **_tensor_overlap(plan),
    }
    return {
        "_target_": "nemo.collections.llm.api.pretrain",
        "_partial_": True,
        "model": model,
        "trainer": _trainer(plan),
        "data": _data(plan) if plan.model.family == "decoder" else encoder_data(plan, _data(plan)),
        "log": _log(plan),
        "optim": _optim(plan),
        "resume": _recipe_resume(plan),
    }


def _activation(plan: TrainingPlan) -> str:
    assert plan.details.activation is not None
    if plan.details.activation not in ACTIVATION_TARGETS:
        reason = (
            f"details.activation={plan.details.activation}: it has {', '.join(ACTIVATION_TARGETS)}"
        )
        raise CannotExpress(NAME, reason, nearest="details.activation=gelu")
    return ACTIVATION_TARGETS[plan.details.activation]


def _decoder(plan: TrainingPlan) -> dict[str, Any]:
    words = model_words(plan, name=NAME)
    kind = (
        "latent"
        if plan.model.mla is not None
        else "stretched"
        if words.pop("rope_scaling", False)
        else "plain"
    )
    model_class, config_class = (f"{_MODELS}{name}" for name in _CLASSES[kind])
    if kind == "stretched":  # GPTConfig has no such field
        words["scale_factor"] = words.pop("rope_scaling_factor")
    elif "rope_scaling_factor" in words:
        raise CannotExpress(
            NAME, "rope_scaling with latent attention", nearest="rope_scaling unset"
        )
    config = {
        "_target_": config_class,
        **words,
        "seq_length": plan.work.seq_len,
        "activation_func": _activation(plan),
    }
    return {"_target_": model_class, "config": config}


def _tensor_overlap(plan: TrainingPlan) -> dict[str, Any]:
    return {"tp_comm_overlap": True} if tp_overlap(plan) else {}


def _trainer(plan: TrainingPlan) -> dict[str, Any]:
    settings, chips = plan.settings, plan.cluster.num_chips
    devices = math.gcd(chips, plan.pool.node.chips_per_node)
    words: dict[str, Any] = {
        "_target_": "nemo.lightning.pytorch.trainer.Trainer",
        "accelerator": "gpu",
        "devices": devices,
        "num_nodes": chips // devices,
        "max_steps": train_steps(settings, plan.work),
        "accumulate_grad_batches": 1,
        "use_distributed_sampler": False,
        "log_every_n_steps": settings.log_interval,
        "limit_val_batches": settings.eval_steps,
        "val_check_interval": settings.eval_interval if settings.eval_steps else None,
        "plugins": {
            "_target_": "nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision",
            **PRECISIONS[plan.work.precision],
            "grad_reduce_in_fp32": plan.stack.gradient_bytes >= 4,
            **narrow_words(plan),
        },
        "strategy": _strategy(plan),
    }
    return {key: value for key, value in words.items() if value is not None}


def _strategy(plan: TrainingPlan) -> dict[str, Any]:
    ddp = ddp_words(plan, name=NAME)
    fsdp = {"fsdp": "megatron"} if ddp.pop("use_megatron_fsdp", False) else {}
    instances = ddp.get("num_distributed_optimizer_instances", 1)
    words = {
        "_target_": _STRATEGY,
        **parallel_words(plan),
        **fsdp,
        "pipeline_dtype": PRECISIONS[plan.work.precision]["pipeline_dtype"],
        "gradient_as_bucket_view": True,
        "num_distributed_optimizer_instances": instances,
        "ddp": {"_target_": _DDP, **ddp},
    }
    return {key: value for key, value in words.items() if value is not None}


def _data(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    sizes = {
        "seq_length": plan.work.seq_len,
        "micro_batch_size": plan.layout.mbs,
        "global_batch_size": plan.layout.gbs,
    }
    tokenizer = _tokenizer(plan)
    if not settings.data:
        return {
            "_target_": "nemo.collections.llm.gpt.data.mock.MockDataModule",
            **sizes,
            **tokenizer,
        }
    paths = [word for entry in settings.data for word in (str(entry.weight), entry.path)]
    split = ",".join(f"{share:g}" for share in settings.split or ())
    return {
        "_target_": "nemo.collections.llm.gpt.data.pre_training.PreTrainingDataModule",
        "paths": paths,
        **sizes,
        "split": split,
        "seed": settings.seed,
        **tokenizer,
    }


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    kind, base = settings.tokenizer_kind, "nemo.collections.common.tokenizers"
    if kind == "null":
        return {}
    if kind == "huggingface":
        return {
            "tokenizer": {
                "_target_": f"{base}.huggingface.auto_tokenizer.AutoTokenizer",
                "pretrained_model_name": settings.tokenizer,
            }
        }
    if kind == "sentencepiece":
        return {
            "tokenizer": {
                "_target_": f"{base}.sentencepiece_tokenizer.SentencePieceTokenizer",
                "model_path": settings.tokenizer,
            }
        }
    raise CannotExpress(
        NAME,
        f"tokenizer_kind={kind}: this export has huggingface and sentencepiece",
        nearest="tokenizer_kind=huggingface",
    )


def _log(plan: TrainingPlan) -> dict[str, Any]:
    """Checkpoints lie in the folder of the logs."""
    settings = plan.settings
    words: dict[str, Any] = {
        "_target_": "nemo.lightning.nemo_logger.NeMoLogger",
        "name": "meshwright",
    }
    if settings.save_dir is None:
        return words
    checkpoints = {
        "_target_": "nemo.lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
        "every_n_train_steps": settings.save_interval,
        "save_last": True,
    }
    return {**words, "log_dir": settings.save_dir, "ckpt": checkpoints}


def _recipe_resume(plan: TrainingPlan) -> dict[str, Any]:
    words: dict[str, Any] = {
        "_target_": "nemo.lightning.resume.AutoResume",
        "resume_if_exists": True,
        "resume_ignore_no_checkpoint": True,
    }
    return (
        words
        if plan.settings.load_dir is None
        else {**words, "resume_from_directory": plan.settings.load_dir}
    )


def _optim(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    if settings.decay_style not in ("cosine", "constant"):
        raise CannotExpress(
            NAME,
            f"decay_style={settings.decay_style}: this export has cosine and constant",
            nearest="decay_style=cosine",
        )
    least = (
        settings.learning_rate if settings.decay_style == "constant" else settings.min_learning_rate
    )
    config = {
        "_target_": "megatron.core.optimizer.optimizer_config.OptimizerConfig",
        "optimizer": "adam",
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_eps": settings.adam_eps,
        "clip_grad": settings.clip_gradient,
        "bf16": plan.work.precision != "fp16",
        "fp16": plan.work.precision == "fp16",
        "use_distributed_optimizer": plan.layout.sharding != "none",
    }
    scheduler = {
        "_target_": "nemo.lightning.pytorch.optim.lr_scheduler.CosineAnnealingScheduler",
        "warmup_steps": settings.warmup_steps,
        "constant_steps": 0,
        "min_lr": least,
    }
    return {
        "_target_": "nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule",
        "config": config,
        "lr_scheduler": scheduler,
    }
