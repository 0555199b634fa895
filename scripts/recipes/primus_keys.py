"""The keys of Primus's configurations for Megatron: its own presets over Megatron-LM's parser."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from scripts.recipes.megatron_arguments import megatron_arguments
from scripts.recipes.trees import Tree, read_tree, submodule_of

from meshwright.software.primus.presets import without_variables

__all__ = ["key_rows", "model_rows", "read_presets"]

_FOLDER = "primus/configs"
_MODULE = f"{_FOLDER}/modules/megatron/pre_trainer.yaml"
_MODELS = f"{_FOLDER}/models/megatron"
_BASE = f"{_MODELS}/language_model.yaml"
_MEGATRON = "third_party/Megatron-LM"


def read_presets(primus: Path, release: str) -> Tree:
    """Return the presets of a release by their path."""
    return read_tree(primus, release, folders=(_FOLDER,), endings=(".yaml",))


def key_rows(primus: Path, megatron: Path, release: str) -> Iterator[dict[str, str]]:
    """Yield each key with the flag of Megatron-LM that sets it, and what each of them has."""
    presets = read_presets(primus, release)
    own = _preset(presets, _MODULE) | _preset(presets, _BASE)
    arguments = megatron_arguments(megatron, submodule_of(primus, release, _MEGATRON))
    for key in sorted({*own, *arguments}):
        argument = arguments.get(key)
        yield {
            "key": key,
            "flag": "" if argument is None else argument.flag,
            "off": "" if argument is None or not argument.off else "yes",
            "primus": json.dumps(own[key]) if key in own else "",
            "megatron": "" if argument is None else json.dumps(argument.default),
        }


def model_rows(primus: Path, release: str) -> Iterator[dict[str, str]]:
    """Yield what each preset of a model has in another way than the base of all of them."""
    presets = read_presets(primus, release)
    base = _preset(presets, _BASE)
    for path in sorted(presets):
        if posixpath.dirname(path) != _MODELS or path == _BASE:
            continue
        for key, value in sorted(_preset(presets, path).items()):
            if key not in base or base[key] != value:
                name = posixpath.basename(path).removesuffix(".yaml")
                yield {"model": name, "key": key, "value": json.dumps(value)}


def _preset(presets: Tree, path: str) -> dict[str, Any]:
    """Return a preset over those that it extends, later ones first."""
    given: Mapping[str, Any] = yaml.safe_load(without_variables(presets[path])) or {}
    found: dict[str, Any] = {}
    for other in given.get("extends", ()):
        found |= _preset(presets, posixpath.normpath(f"{posixpath.dirname(path)}/{other}"))
    return found | {key: value for key, value in given.items() if key != "extends"}
