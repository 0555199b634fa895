"""Primus's presets: its own defaults for Megatron, those of its models, and the flags that set the
same values in Megatron-LM."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from meshwright.software.megatron_lm.words import flags
from meshwright.values.data import package_rows

__all__ = [
    "BASE",
    "RELEASE",
    "Key",
    "flags_of",
    "keys",
    "model_presets",
    "preset_of",
    "usual_values",
    "values_of",
    "without_variables",
]

RELEASE = "v26.5.1"
"""Of AMD-AGI/Primus whose keys `scripts/distil_primus_keys.py` read."""
BASE = "language_model"
"""The preset that those of all models extend."""
_VARIABLE = re.compile(r"\$\{[^:{}]+:([^}]*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of a configuration; a row of `software/primus/keys.csv`."""

    name: str
    flag: str
    """Of Megatron-LM; empty where only Primus knows it."""
    off: bool
    """Whether the flag stands for no."""
    preset: bool
    """Whether Primus's presets have it."""
    primus: Any
    """What pre_trainer.yaml and language_model.yaml have."""
    megatron: Any
    """What Megatron-LM's parser has."""

    @property
    def usual(self) -> Any:
        """Return the value where nobody says one."""
        return self.primus if self.preset else self.megatron


@cache
def keys() -> Mapping[str, Key]:
    """Return every key by its name."""
    return MappingProxyType(
        {
            row["key"]: Key(
                name=row["key"],
                flag=row["flag"],
                off=row["off"] == "yes",
                preset=row["primus"] != "",
                primus=json.loads(row["primus"] or "null"),
                megatron=json.loads(row["megatron"] or "null"),
            )
            for row in package_rows("software/primus/keys.csv")
        }
    )


@cache
def model_presets() -> Mapping[str, Mapping[str, Any]]:
    """Return what the preset of each model has beside the base of all."""
    found: dict[str, dict[str, Any]] = {BASE: {}}
    for row in package_rows("software/primus/models.csv"):
        found.setdefault(row["model"], {})[row["key"]] = json.loads(row["value"])
    return MappingProxyType(found)


def preset_of(model: str) -> str:
    """Return the name of a model's preset by the name of the catalogue; the base where it has
    none."""
    wanted = _plain(model)
    return next((name for name in model_presets() if _plain(name) == wanted), BASE)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", re.sub(r"_v0\.1$", "", name.lower()))


def without_variables(text: str) -> str:
    """Return a YAML in which `${NAME:value}` has its value, as where nobody sets the variable."""
    return _VARIABLE.sub(r"\1", text)


def usual_values(model: str) -> dict[str, Any]:
    """Return what a configuration has that names a model's preset and says nothing else."""
    return {name: key.usual for name, key in keys().items()} | dict(model_presets()[model])


@cache
def _by_flag() -> Mapping[str, Key]:
    return MappingProxyType({key.flag: key for key in keys().values() if key.flag})


def values_of(words: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the values that Megatron-LM's flags set, by key."""
    found: dict[str, Any] = {}
    for flag, given in words.items():
        key = _by_flag().get(flag)
        name = flag.removeprefix("--").replace("-", "_") if key is None else key.name
        if key is not None and not given:
            found[name] = not key.off
        elif name in _TEXTS:
            found[name] = " ".join(given)
        else:
            many = flag in flags() and flags()[flag].kind == "many" and name not in _ALONE
            values = [_value(word) for word in given]
            found[name] = values if many or len(values) > 1 else (values or [True])[0]
    for name in _PAIRS & found.keys():
        found[name] = [int(part) for part in str(found[name]).split(",")]
    return found


_TEXTS = frozenset({"data_path", "train_data_path", "valid_data_path", "test_data_path", "split"})
"""Keys that Primus cuts at spaces itself, and shares."""
_ALONE = frozenset({"cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff"})
"""Keys that take several values, and that Primus's presets give one."""
_PAIRS = frozenset({"window_size"})
"""Pairs that Megatron-LM's parser makes of a text; Primus hands values on past the parser."""
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def _value(word: str) -> Any:
    """Return a number as one, and other words as they are."""
    if word in ("true", "false", "null"):
        return json.loads(word)
    if not _NUMBER.fullmatch(word):
        return word
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def flags_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return values as words for Megatron-LM's parser, without those that it has by itself; what
    only Primus knows is left out."""
    words: list[str] = []
    for name, value in values.items():
        key = keys().get(name)
        if key is None or not key.flag or value is None or value == key.megatron:
            continue
        if isinstance(value, bool):
            words += [key.flag] if value is not key.off else []
        elif isinstance(value, list):
            parts = [",".join(map(str, value))] if name in _PAIRS else map(str, value)
            words += [key.flag, *parts]
        else:
            words += [key.flag, *(str(value).split() if name in _TEXTS else [str(value)])]
    return tuple(words)
