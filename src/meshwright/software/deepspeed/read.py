"""DeepSpeed's JSON read back into a layout, and edited to say another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.deepspeed.export import zero_config
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import TrainingSettings
from meshwright.software.trainer_files import mended_values, zero_cut
from meshwright.values.edited import Values
from meshwright.values.errors import ConfigError
from meshwright.values.workload import Precision, Workload

__all__ = ["DEEPSPEED_SOURCE", "json_values", "read_deepspeed", "zero_words"]

_NAME = "deepspeed"
_MICRO, _ROUNDS, _BATCH = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
)


def json_values(text: str, *, what: str) -> dict[str, Any]:
    """Return the object of a JSON; ConfigError where there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: no JSON: {str(error)[:120]}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{what}: expected an object of keys and values")
    return found


def read_deepspeed(text: str, beside: Beside) -> Imported:
    """Return the run that a JSON describes, with the model and the sequence from beside."""
    values = json_values(text, what=_NAME)
    warnings: list[str] = []
    layout: dict[str, Any] = dict(zero_cut(values, what=_NAME).layout)
    micro, rounds, batch = (_count(values, name) for name in (_MICRO, _ROUNDS, _BATCH))
    if micro is None and beside.mbs is None:
        warnings.append(f"{_MICRO} is left to the trainer: 1 is taken; --set mbs=N says another")
    layout["mbs"] = micro or beside.mbs or 1
    if values.get("activation_checkpointing"):
        layout["recompute"] = "full"
    else:
        warnings.append(
            "checkpointing of activations is the trainer's own switch: none is taken; --set"
            " recompute=full searches with it"
        )
    if batch is not None:
        layout["gbs"] = batch
    return Imported(
        source=_NAME,
        model=beside.model_of(None, what=_NAME),
        work=Workload(seq_len=beside.length(None, what=_NAME), precision=_precision(values)),
        layout=layout,
        stack=_NAME,
        settings=_settings(values),
        details=beside.details,
        replica_batch=None if rounds is None else layout["mbs"] * rounds,
        warnings=tuple(warnings),
    )


def _count(values: Mapping[str, Any], name: str) -> int | None:
    """Return a count; None where the file leaves it out, or to its trainer ("auto")."""
    value = values.get(name)
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{_NAME}: {name}={value!r}: expected a whole number of 1 or more")
    return value


def _precision(values: Mapping[str, Any]) -> Precision:
    on = {}
    for name in ("bf16", "fp16"):
        section = values.get(name)
        on[name] = section.get("enabled", False) if isinstance(section, Mapping) else False
    if on["fp16"] is True:
        return "fp16"
    return "bf16" if on["bf16"] in (True, "auto") or on["fp16"] == "auto" else "fp32"


def _settings(values: Mapping[str, Any]) -> TrainingSettings:
    clip, every = values.get("gradient_clipping"), values.get("steps_per_print")
    return TrainingSettings(
        clip_gradient=float(clip) if isinstance(clip, int | float) else None,
        log_interval=every if isinstance(every, int) and 1 <= every < 10**6 else None,
    )


def zero_words(plan: TrainingPlan) -> Values:
    """Return what a layout sets in the JSON, by dotted path; None goes out of the file."""
    words, layout = zero_config(plan), plan.layout
    zero = words["zero_optimization"]
    parts = {
        f"zero_optimization.{name}": zero.get(name)
        for name in ("offload_optimizer", "offload_param")
    }
    counts = {_MICRO: layout.mbs, _ROUNDS: words[_ROUNDS], _BATCH: layout.gbs}
    return {"zero_optimization.stage": zero["stage"], **parts, **counts}


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    _require_trainer(found, plan)
    return mended_values(
        text, plan, zero_words, form="json", read=lambda tried: read_deepspeed(tried, found.beside)
    )


def _require_trainer(found: Imported, plan: TrainingPlan) -> None:
    """Refuse what the JSON does not switch."""
    again = found.layout.get("recompute", "none")
    if plan.layout.recompute != again:
        raise ConfigError(
            f"{_NAME}: recompute={plan.layout.recompute}: the trainer's own switch"
            " (--gradient_checkpointing), not the JSON's"
        )


def _matches(name: str, text: str) -> bool:
    return name.endswith(".json") and any(
        f'"{word}"' in text for word in ("zero_optimization", _MICRO)
    )


DEEPSPEED_SOURCE = ImportSource(
    name=_NAME,
    title="DeepSpeed's JSON",
    matches=_matches,
    read=lambda text: read_deepspeed(text, Beside()),
    read_beside=read_deepspeed,
    mend=_mended,
    shardings=("none", "zero1", "zero2", "zero3"),
)
