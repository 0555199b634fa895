"""Axolotl's YAML read back into a model, a workload and a layout, and edited to say another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.software.axolotl.export import WORDS, sharding_words
from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.deepspeed.read import json_values
from meshwright.software.finetuning import trainer_values
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset
from meshwright.software.text import Taken
from meshwright.software.trainer_files import (
    Cut,
    arguments_of,
    file_named,
    fsdp_cut,
    mended_values,
    said_text,
    targets_of,
    trainer_run,
    zero_cut,
)
from meshwright.values.edited import Values
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

__all__ = ["AXOLOTL_SOURCE", "read_axolotl"]

_NAME = "axolotl"
_USUAL_LENGTH = 512
"""AxolotlInputConfig.sequence_len."""
_SECTION = "fsdp_config."


def read_axolotl(text: str, beside: Beside) -> Imported:
    """Return the run that a YAML describes."""
    values = read_yaml(text, what=_NAME)
    words = Taken(values, what=_NAME)
    weights = words.text("base_model", "")
    length = words.take("sequence_len", None) or _USUAL_LENGTH
    adapters = _adapters(words)
    cut = _cut(words, values, beside.files)
    given = arguments_of(
        words, usual_mbs=1, checkpoints=False, names=WORDS, weights=weights, data=_data(words)
    )
    words.drop_under(("attn_implementation", "flash_attention", "fsdp_version"))
    return trainer_run(
        words,
        beside,
        name=_NAME,
        cut=cut,
        given=given,
        adapters=adapters,
        length=length,
        packing="sample_packing",
    )


def _cut(words: Taken, values: Mapping[str, Any], files: Mapping[str, str]) -> Cut:
    name = words.take("deepspeed", None)
    if name is not None:
        if (text := files.get(str(name))) is None:
            raise ConfigError(f"{_NAME}: deepspeed: {name}: no such file beside it")
        says = "DeepSpeed is priced as Axolotl's FSDP2 of the same stage"
        found = zero_cut(json_values(text, what=str(name)), what=str(name))
        return Cut(layout=found.layout, warnings=(says,))
    section = values.get("fsdp_config")
    if not section:
        return Cut(layout={"sharding": "none"})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{_NAME}: fsdp_config={section!r}: expected keys and values")
    words.drop_under(("fsdp",))
    prefix = "fsdp_" if any(str(key).startswith("fsdp_") for key in section) else ""
    return fsdp_cut(words, at=_SECTION, prefix=prefix, what=_NAME)


def _data(words: Taken) -> tuple[Dataset, ...]:
    sets = words.take("datasets", None)
    listed = sets if isinstance(sets, list) else ()
    found = [one["path"] for one in listed if isinstance(one, dict) and "path" in one]
    return (Dataset(path=str(found[0])),) if len(found) == 1 else ()


def _adapters(words: Taken) -> dict[str, Any]:
    kind, rank = words.take("adapter", None), words.take("lora_r", None)
    modules, four = words.take("lora_target_modules", None), words.flag("load_in_4bit", False)
    every = words.take("lora_target_linear", None)
    words.drop_under(("lora_alpha", "lora_dropout"))
    if kind is None:
        return {}
    if kind not in ("lora", "qlora") or not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"{_NAME}: adapter={kind}, lora_r={rank}: expected lora or qlora, a rank")
    targets = targets_of("all" if every is True else modules)
    frozen = "nf4" if four or kind == "qlora" else "half"
    return {"lora_rank": rank, "lora_targets": targets, "frozen": frozen}


def _values(plan: TrainingPlan) -> Values:
    values = trainer_values(plan, name=_NAME)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
    found = {WORDS.get(name, name): values[name] for name in (*names, "optim")}
    shards = sharding_words(plan, "")
    section = shards.get("fsdp_config", {})
    if shards:
        found["gradient_checkpointing"] = False
    held = ("reshard_after_forward", "activation_checkpointing", "offload_params")
    return {**found, **{f"{_SECTION}{name}": section[name] for name in held if name in section}}


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    layout, values = plan.layout, read_yaml(text, what=_NAME)
    section = values.get("fsdp_config") or {}
    own = {name: found.layout.get(name, "none") for name in ("sharding", "offload")}
    changed = [name for name, value in own.items() if getattr(layout, name) != value]
    if changed and (not section or layout.sharding == "none"):
        wanted = ", ".join(f"{name}={getattr(layout, name)}" for name in changed)
        raise ConfigError(f"{_NAME}: {wanted}: the file would gain or lose its whole FSDP section")
    if changed and any(str(key).startswith("fsdp_") for key in section):
        raise ConfigError(f"{_NAME}: its fsdp_config has the words of FSDP1, which are not edited")
    return mended_values(
        text, plan, _values, form="yaml", read=lambda tried: read_axolotl(tried, found.beside)
    )


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and "base_model:" in text
        and any(word in text for word in ("micro_batch_size:", "sequence_len:", "datasets:"))
    )


AXOLOTL_SOURCE = ImportSource(
    name=_NAME,
    title="Axolotl's YAML",
    matches=_matches,
    read=lambda text: read_axolotl(text, Beside()),
    read_beside=read_axolotl,
    files=file_named(_NAME, "deepspeed"),
    weights=said_text(_NAME, "base_model"),
    mend=_mended,
    shardings=("zero2", "zero3"),
)
