"""What exports of fine-tuning share: the weights to start from, adapters, and the settings that
are usual where nobody says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.software.contract import Exported, TrainedLayers
from meshwright.software.deepspeed.trainer import decoder_config, require_flat
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import require_one_of
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress

__all__ = [
    "adapter_modules",
    "base_model",
    "finetune_notes",
    "one_dataset",
    "own_layers",
    "require_finetuning",
    "rounds",
    "trainer_values",
    "usual_settings",
]

MODULES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Linear layers of transformers' Llama and Qwen, by Megatron's names."""
OPTIMIZER_WORDS = {
    "adam": "adamw_torch_fused",
    "adam-8bit": "adamw_bnb_8bit",
    "paged-adam-8bit": "paged_adamw_8bit",
}
"""transformers' OptimizerNames."""
FULL_RATE, ADAPTER_RATE = 2e-5, 2e-4
"""Learning rates: of all weights, SFTConfig.learning_rate of TRL; of adapters, QLoRA
(arXiv:2305.14314), table 9, of 7B and 13B."""
WARMUP_FRAC = 0.03
"""QLoRA (arXiv:2305.14314), appendix B.2: warm-up of 3 % of the steps."""
STEPS = 1000
"""Where nobody says how long: a note says so."""
_STYLES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}
_BASES = "software/base_models.csv"


def usual_settings(plan: TrainingPlan) -> TrainingPlan:
    """Return the plan with what fine-tuning sets otherwise than training from nothing."""
    given = plan.settings
    told = (given.train_steps, given.train_samples, given.train_tokens) != (None, None, None)
    steps = given.train_steps if told else STEPS
    usual: dict[str, Any] = {
        "train_steps": steps,
        "learning_rate": ADAPTER_RATE if plan.work.lora_rank else FULL_RATE,
        "warmup_steps": max(1, round(WARMUP_FRAC * (steps or STEPS))),
        "weight_decay": 0.0,
        "adam_beta2": 0.999,
        "log_interval": 10,
    }
    found = {name: value for name, value in usual.items() if getattr(given, name) is None}
    return replace(plan, settings=replace(given, **found))


def require_finetuning(plan: TrainingPlan, *, name: str) -> str:
    """Refuse what programs of transformers' models can't express; return the model_type."""
    require_flat(plan, name=name)
    require_one_of(plan, "layout.cp", (1,), name=name, says="it splits no sequence")
    kinds, says = ("bf16",), "it trains in bf16"
    require_one_of(plan, "work.precision", kinds, name=name, says=says)
    require_one_of(
        plan,
        "settings.tokenizer_kind",
        ("huggingface", "null"),
        name=name,
        says="the model brings its own",
    )
    config = decoder_config(plan.model, plan.details, max_positions=plan.work.seq_len, name=name)
    if plan.model.moe is not None and plan.work.lora_rank:
        reason = "adapters beside experts: transformers holds experts as one parameter"
        raise CannotExpress(name, reason, nearest="a model without experts, or --finetune full")
    _ = (plan.details.aux_loss, plan.details.dropout, plan.settings.init_std)
    return str(config["model_type"])


def base_model(plan: TrainingPlan, *, name: str) -> str:
    """Return the weights to start from: a folder or a name of the Hugging Face Hub, which is the
    tokenizer's too."""
    if plan.settings.tokenizer:
        return plan.settings.tokenizer
    rows = {row["model"]: row["repository"] for row in package_rows(_BASES)}
    if plan.model.name not in rows:
        reason = f"model {plan.model.name}: nobody says which weights to start from"
        raise CannotExpress(name, reason, nearest="tokenizer=FOLDER_OR_HUB_NAME in the settings")
    return rows[plan.model.name]


def adapter_modules(plan: TrainingPlan) -> list[str]:
    """Return the layers that have adapters, by transformers' names."""
    return [module for target in plan.work.lora_targets for module in MODULES[target]]


def rounds(plan: TrainingPlan) -> int:
    """Return the micro batches of one step."""
    return plan.layout.gbs // (plan.layout.mbs * plan.layout.dp)


def own_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """The weights' own config.json says the layers, which is the plan's model."""
    del exported
    return TrainedLayers(chunks=(plan.model.num_layers,))


def one_dataset(plan: TrainingPlan, usual: str, *, name: str) -> str:
    """Return the data set: what the settings name, else the program's own example."""
    data = plan.settings.data
    if len(data) > 1:
        reason = f"{len(data)} datasets: one is written"
        raise CannotExpress(name, reason, nearest=f"data={data[0].path}")
    return data[0].path if data else usual


def trainer_values(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the fields of transformers' TrainingArguments."""
    settings, layout = plan.settings, plan.layout
    if settings.decay_style not in _STYLES:
        reason = f"decay_style={settings.decay_style}: this export has {', '.join(_STYLES)}"
        raise CannotExpress(name, reason, nearest="decay_style=cosine")
    full = layout.recompute == "full"
    words: dict[str, Any] = {
        "per_device_train_batch_size": layout.mbs,
        "gradient_accumulation_steps": rounds(plan),
        "gradient_checkpointing": full,
        **({"gradient_checkpointing_kwargs": {"use_reentrant": False}} if full else {}),
        "bf16": True,
        "max_steps": train_steps(settings, plan.work),
        "optim": OPTIMIZER_WORDS[layout.optimizer],
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": _STYLES[settings.decay_style],
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_epsilon": settings.adam_eps,
        "max_grad_norm": settings.clip_gradient,
        "seed": settings.seed,
        "logging_steps": settings.log_interval,
        "output_dir": settings.save_dir or "output",
        "save_strategy": "no" if settings.save_dir is None else "steps",
        "report_to": "none",
    }
    if settings.save_dir is not None:
        words["save_steps"] = settings.save_interval
    if settings.load_dir is not None:
        words["resume_from_checkpoint"] = settings.load_dir
    _ = (settings.min_learning_rate, settings.eval_interval, settings.eval_steps, settings.split)
    return words


def finetune_notes(plan: TrainingPlan, usual: str) -> tuple[str, ...]:
    """Return what a reader must know before the start."""
    found = []
    if not plan.settings.data:
        found.append(f"without data it reads {usual}")
    if not plan.settings.tokenizer:
        found.append("gated weights need an accepted licence: hf auth login")
    return tuple(found)
