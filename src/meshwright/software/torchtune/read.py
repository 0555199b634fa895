"""torchtune's recipe YAML read back into a model, a workload and a layout, and edited."""

from __future__ import annotations

from typing import Any

from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.finetuning import rounds
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import TrainingSettings
from meshwright.software.text import Taken
from meshwright.software.torchtune.export import ATTENTION, BUILDERS, OPTIMIZERS
from meshwright.software.trainer_files import mended_values
from meshwright.values.data import package_rows
from meshwright.values.edited import Values
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import read_yaml
from meshwright.values.workload import LoraTarget, Workload

__all__ = ["TORCHTUNE_SOURCE", "read_torchtune"]

_NAME = "torchtune"
_AGAIN, _OFFLOAD = "enable_activation_checkpointing", "fsdp_cpu_offload"
_FEED_FORWARD: tuple[LoraTarget, ...] = ("linear_fc1", "linear_fc2")


def read_torchtune(text: str, beside: Beside) -> Imported:
    """Return the run that a YAML describes."""
    words = Taken(read_yaml(text, what=_NAME), what=_NAME)
    builder = words.text("model._component_", "")
    way = next((one for one in ("qlora_", "lora_") if f".{one}" in builder), "")
    length = words.take("tokenizer.max_seq_len", None)
    mbs = words.count("batch_size", 2)
    warnings = []
    optimizer = words.text("optimizer._component_", OPTIMIZERS["adam"])
    forms = {name: form for form, name in OPTIMIZERS.items()}
    if optimizer not in forms:
        warnings.append(f"optimizer {optimizer}: it is priced as Adam")
    if words.flag("dataset.packed", False):
        warnings.append("packing: --sample-len says how long a sample is; it is taken as whole")
    dtype = words.text("dtype", "bf16")
    if dtype not in ("bf16", "fp32"):
        raise ConfigError(f"{_NAME}: dtype={dtype}: expected bf16 or fp32")
    layout = {
        "mbs": mbs,
        "sharding": "zero3",
        "recompute": "full" if words.flag(_AGAIN, False) else "none",
        "offload": "weights" if words.flag(_OFFLOAD, False) else "none",
        "optimizer": forms.get(optimizer, "adam"),
    }
    return Imported(
        source=_NAME,
        model=_model(builder.replace(f".{way}", ".") if way else builder, beside),
        work=Workload(
            seq_len=beside.length(length if isinstance(length, int) else None, what=_NAME),
            precision="bf16" if dtype == "bf16" else "fp32",
            **_adapters(words, way),
        ),
        layout=layout,
        stack=_NAME,
        settings=_settings(words),
        details=beside.details,
        replica_batch=mbs * words.count("gradient_accumulation_steps", 1),
        warnings=tuple(warnings),
        finetunes=True,
    )


def _model(builder: str, beside: Beside) -> ModelSpec:
    known = {row["builder"]: row["model"] for row in package_rows(BUILDERS)}
    if beside.model is None and builder in known:
        return find_model(known[builder])
    return beside.model_of(builder or None, what=_NAME)


def _adapters(words: Taken, way: str) -> dict[str, Any]:
    if not way:
        return {}
    modules = words.take("model.lora_attn_modules", ["q_proj", "v_proj"])
    given = {str(name) for name in modules} if isinstance(modules, list) else set()
    found = [target for target, names in ATTENTION.items() if given.intersection(names)]
    targets = (*found, *(_FEED_FORWARD if words.flag("model.apply_lora_to_mlp", False) else ()))
    frozen = "nf4" if way == "qlora_" else "half"
    rank = words.count("model.lora_rank", 8)
    return {"lora_rank": rank, "lora_targets": targets or ("linear_qkv",), "frozen": frozen}


def _settings(words: Taken) -> TrainingSettings:
    given: dict[str, Any] = {}
    for word, name in (
        ("optimizer.lr", "learning_rate"),
        ("optimizer.weight_decay", "weight_decay"),
        ("clip_grad_norm", "clip_gradient"),
    ):
        if words.has(word):
            given[name] = words.number(word, 0.0)
    for word, name in (
        ("lr_scheduler.num_warmup_steps", "warmup_steps"),
        ("max_steps_per_epoch", "train_steps"),
        ("seed", "seed"),
        ("log_every_n_steps", "log_interval"),
    ):
        if words.has(word):
            given[name] = words.whole(word, 0)
    folder = words.take("checkpointer.checkpoint_dir", None)
    return TrainingSettings(**given, tokenizer=folder if isinstance(folder, str) else None)


def _values(plan: TrainingPlan) -> Values:
    layout = plan.layout
    return {
        "batch_size": layout.mbs,
        "gradient_accumulation_steps": rounds(plan),
        _AGAIN: layout.recompute == "full",
        _OFFLOAD: layout.offload == "weights",
        "optimizer._component_": OPTIMIZERS[layout.optimizer],
    }


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    if plan.layout.sharding != "zero3":
        raise ConfigError(f"{_NAME}: sharding={plan.layout.sharding}: its recipes shard everything")
    if plan.layout.offload != "none" and plan.pool.num_chips == 1:
        raise ConfigError(f"{_NAME}: {_OFFLOAD}: a word of recipes over several cards")
    return mended_values(
        text, plan, _values, form="yaml", read=lambda tried: read_torchtune(tried, found.beside)
    )


def _matches(name: str, text: str) -> bool:
    return name.endswith((".yaml", ".yml")) and "_component_: torchtune." in text


TORCHTUNE_SOURCE = ImportSource(
    name=_NAME,
    title="torchtune's YAML",
    matches=_matches,
    read=lambda text: read_torchtune(text, Beside()),
    read_beside=read_torchtune,
    mend=_mended,
    shardings=("zero3",),
)
