"""What readers of fine-tuning files share: transformers' TrainingArguments, adapters, DeepSpeed's
ZeRO and Accelerate's FSDP, and how a file is edited for another layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, Mended
from meshwright.software.finetuning import MODULES, OPTIMIZER_WORDS
from meshwright.software.mending import fewest, nodes_note
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.software.text import Taken
from meshwright.values.edited import Format, Values
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout, Optimizer
from meshwright.values.text import read_yaml
from meshwright.values.workload import LORA_TARGETS, LoraTarget, Precision, Workload

__all__ = [
    "ZERO_STAGES",
    "Arguments",
    "Cut",
    "arguments_of",
    "file_named",
    "fsdp_cut",
    "mended_values",
    "precision_of",
    "said_text",
    "targets_of",
    "trainer_run",
    "zero_cut",
]

ZERO_STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
"""DeepSpeed's zero_optimization.stage."""
_FORMS: dict[str, Optimizer] = {
    **{word: cast("Optimizer", name) for name, word in OPTIMIZER_WORDS.items()},
    **dict.fromkeys(("adamw_torch", "adamw_hf", "adamw_anyprecision"), "adam"),
    **dict.fromkeys(("adamw_8bit",), "adam-8bit"),
    **dict.fromkeys(("paged_adamw",), "paged-adam-8bit"),
}
"""transformers' OptimizerNames: those that an export writes, and others of Adam."""
_STYLES = {
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What ranks share of the model, as DeepSpeed's JSON or Accelerate's YAML says it."""

    layout: Mapping[str, Any]
    """Fields of Layout."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """What transformers' TrainingArguments say of a run."""

    layout: dict[str, Any]
    rounds: int
    settings: TrainingSettings
    warnings: tuple[str, ...]


def arguments_of(
    words: Taken,
    *,
    usual_mbs: int,
    checkpoints: bool,
    names: Mapping[str, str] | None = None,
    weights: str,
    data: tuple[Dataset, ...],
) -> Arguments:
    """Take the fields of TrainingArguments, which a program may have other names for."""
    own = names or {}
    warnings: list[str] = []
    optim = words.text(own.get("optim", "optim"), "adamw_torch_fused")
    if optim not in _FORMS:
        warnings.append(f"optimizer {optim}: it is priced as Adam")
    again = words.flag("gradient_checkpointing", checkpoints)
    words.drop_under(("gradient_checkpointing_kwargs", "accelerator_config"))
    layout = {
        "mbs": words.count(own.get("per_device_train_batch_size", _MBS), usual_mbs),
        "recompute": "full" if again else "none",
        "optimizer": _FORMS.get(optim, "adam"),
    }
    rounds = words.count("gradient_accumulation_steps", 1)
    settings = _settings(words, own, weights=weights, data=data)
    return Arguments(layout=layout, rounds=rounds, settings=settings, warnings=tuple(warnings))


_MBS = "per_device_train_batch_size"
_NUMBERS = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "adam_epsilon": "adam_eps",
    "max_grad_norm": "clip_gradient",
}
_COUNTS = {"warmup_steps": "warmup_steps", "seed": "seed", "logging_steps": "log_interval"}


def _settings(
    words: Taken, own: Mapping[str, str], *, weights: str, data: tuple[Dataset, ...]
) -> TrainingSettings:
    given: dict[str, Any] = {"tokenizer": weights, "data": data}
    for word, name in _NUMBERS.items():
        if words.has(word):
            given[name] = words.number(word, 0.0)
    for word, name in _COUNTS.items():
        value = words.take(word, None)
        if isinstance(value, int) and not isinstance(value, bool):
            given[name] = value
    style = words.take(own.get("lr_scheduler_type", "lr_scheduler_type"), None)
    if isinstance(style, str) and style in _STYLES:
        given["decay_style"] = _STYLES[style]
    steps = words.take("max_steps", None)
    if isinstance(steps, int) and steps > 0:
        given["train_steps"] = steps
    folder, strategy = words.take("output_dir", None), words.take("save_strategy", "steps")
    if folder is not None and strategy != "no":
        given["save_dir"] = str(folder)
        every = words.take("save_steps", None)
        given["save_interval"] = every if isinstance(every, int) and every > 0 else None
    resume = words.take("resume_from_checkpoint", None)
    if isinstance(resume, str):
        given["load_dir"] = resume
    return TrainingSettings(**given)


def targets_of(modules: Any) -> tuple[LoraTarget, ...]:
    """Return the layers that have adapters, of transformers' names (or torchtune's): a list, words
    with commas, or one for all."""
    if modules is None:
        return ("linear_qkv",)  # peft's own for Llama and Qwen: q_proj and v_proj
    if not isinstance(modules, str | list):
        raise ConfigError(f"layers with adapters: {modules!r}: expected their names")
    names = modules.split(",") if isinstance(modules, str) else [str(one) for one in modules]
    if names and names[0].strip() in ("all", "all-linear"):
        return LORA_TARGETS
    given = {name.strip() for name in names}
    found = [target for target, own in MODULES.items() if given.intersection(own)]
    return cast("tuple[LoraTarget, ...]", tuple(found)) or LORA_TARGETS


def precision_of(words: Taken) -> Precision:
    """Take the number format of TrainingArguments; bf16 where the file says nothing."""
    half, wide = words.take("fp16", False), words.take("bf16", "auto")
    if half is True:
        return "fp16"
    return "bf16" if wide in (True, "auto", "true", "full", None) else "fp32"


def trainer_run(
    words: Taken,
    beside: Beside,
    *,
    name: str,
    cut: Cut,
    given: Arguments,
    adapters: Mapping[str, Any],
    length: Any,
    packing: str,
) -> Imported:
    """Return the run that a file of transformers' Trainer describes, from what was taken of it; a
    warning names the words that nobody took. `packing` is the program's word for it."""
    weights = given.settings.tokenizer
    warnings = [*cut.warnings, *given.warnings]
    if words.flag(packing, False):
        warnings.append("packing: --sample-len says how long a sample is; it is taken as whole")
    work = Workload(
        seq_len=beside.length(length, what=name), precision=precision_of(words), **adapters
    )
    return Imported(
        source=name,
        model=beside.model_of(weights or None, what=name),
        work=work,
        layout={**given.layout, **cut.layout},
        stack=name,
        settings=given.settings,
        details=beside.details,
        replica_batch=given.layout["mbs"] * given.rounds,
        warnings=(*warnings, *_not_read(words)),
        finetunes=True,
    )


def said_text(name: str, key: str) -> Callable[[str], str | None]:
    """Return a function that reads one text of a program's YAML; None where it says none."""

    def read(text: str) -> str | None:
        found = read_yaml(text, what=name).get(key)
        return found if isinstance(found, str) else None

    return read


def file_named(name: str, key: str) -> Callable[[str], tuple[str, ...]]:
    """Return a function that reads the file which a program's YAML names under a key."""
    read = said_text(name, key)

    def files(text: str) -> tuple[str, ...]:
        found = read(text)
        return () if found is None else (found,)

    return files


def _not_read(words: Taken) -> tuple[str, ...]:
    """Return a warning that names what was not taken."""
    left = list(words.left())
    if not left:
        return ()
    more = f" and {len(left) - 6} more" if len(left) > 6 else ""
    return (f"{', '.join(left[:6])}{more}: of no meaning for a plan, which goes without",)


def zero_cut(values: Mapping[str, Any], *, what: str) -> Cut:
    """Return what DeepSpeed's JSON says of ZeRO's stage and of what waits on the host."""
    words = Taken(values, what=what)
    stage = words.take("zero_optimization.stage", 0)
    names = {number: name for name, number in ZERO_STAGES.items()}
    if isinstance(stage, bool) or not isinstance(stage, int) or stage not in names:
        raise ConfigError(f"{what}: zero_optimization.stage={stage!r}: expected 0 to 3")
    states = words.take("zero_optimization.offload_optimizer.device", "none")
    weights = words.take("zero_optimization.offload_param.device", "none")
    return Cut(layout={"sharding": names[stage], "offload": _offload(states, weights, what=what)})


def _offload(states: Any, weights: Any, *, what: str) -> str:
    for device in (states, weights):
        if device not in ("none", "cpu", "nvme", None):
            raise ConfigError(f"{what}: device={device!r}: expected none, cpu or nvme")
    held = {"cpu": "", "nvme": "-nvme"}
    if weights in held:
        return f"weights{held[weights]}"
    return f"optimizer{held[states]}" if states in held else "none"


_STRATEGIES = {
    **dict.fromkeys(("FULL_SHARD", 1), "zero3"),
    **dict.fromkeys(("SHARD_GRAD_OP", 2), "zero2"),
    **dict.fromkeys(("NO_SHARD", 3), "none"),
    **dict.fromkeys(("HYBRID_SHARD", 4), "hybrid"),
}
"""torch's ShardingStrategy, by name or number, as fsdp_sharding_strategy says it."""


def fsdp_cut(words: Taken, *, at: str, prefix: str, what: str) -> Cut:
    """Take a section of FSDP's (`fsdp_config.`), whose words may begin with `fsdp_`."""
    strategy = words.take(f"{at}{prefix}sharding_strategy", None)
    gathered = words.take(f"{at}{prefix}reshard_after_forward", True)
    if isinstance(gathered, str):  # of version 1's word, which version 2 reads too
        strategy, gathered = strategy or gathered, True
    if strategy is not None and strategy not in list(_STRATEGIES):
        known = ", ".join(str(name) for name in _STRATEGIES if isinstance(name, str))
        raise ConfigError(f"{what}: {at}{prefix}sharding_strategy={strategy}: expected {known}")
    layout: dict[str, Any] = {
        "sharding": "zero2" if gathered is False else _STRATEGIES.get(strategy, "zero3"),
        "offload": "weights" if words.flag(f"{at}{prefix}offload_params", False) else "none",
    }
    if words.flag(f"{at}{prefix}activation_checkpointing", False):
        layout["recompute"] = "full"
    words.drop_under((at.rstrip("."),))
    return Cut(layout=layout)


_HELD = ("mbs", "cp", "sharding", "recompute", "offload", "optimizer")


def _says(found: Imported, layout: Layout) -> bool:
    """Whether a file reads as a layout of ranks that all hold the whole depth."""
    usual, read = Layout(), found.layout
    if any(read.get(name, getattr(usual, name)) != getattr(layout, name) for name in _HELD):
        return False
    if found.replica_batch is not None and found.replica_batch * layout.dp != layout.gbs:
        return False
    return bool(read.get("gbs", layout.gbs) == layout.gbs)


def mended_values(
    text: str,
    plan: TrainingPlan,
    values: Callable[[TrainingPlan], Values],
    *,
    form: Format,
    read: Callable[[str], Imported],
) -> Mended:
    """Return a text with the fewest of an export's values changed that make it say a plan's layout;
    ConfigError where the file has no words for it."""
    plan = completed(plan)

    def same(tried: str) -> bool:
        try:
            return _says(read(tried), plan.layout)
        except ConfigError:
            return False

    if same(text):
        return Mended(text=text, notes=(nodes_note(plan),))
    return Mended(
        text=fewest(text, [values(plan)], form=form, same=same), notes=(nodes_note(plan),)
    )
