"""Write the keys that programs of fine-tuning accept, as `software/*/options.csv`.

Run it in an environment that has the program: `python scripts/distil_finetune_keys.py trl`, or
axolotl, llamafactory (without its check of versions), torchtune. Names come from the released
parsers: dataclasses, a pydantic model, or the recipes' own YAML; no line is typed.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import files, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src/meshwright/software"
DATACLASSES = {
    "trl": ("trl:ScriptArguments", "trl:SFTConfig", "trl:ModelConfig"),
    "llamafactory": (
        "llamafactory.hparams:ModelArguments",
        "llamafactory.hparams:DataArguments",
        "llamafactory.hparams.training_args:TrainingArguments",
        "llamafactory.hparams:FinetuningArguments",
    ),
}
MODELS = {
    "axolotl": (
        ("", "axolotl.utils.schemas.config:AxolotlInputConfig"),
        ("fsdp_config.", "axolotl.utils.schemas.fsdp:FSDPConfig"),
    )
}
OPTIMIZER = "optimizer."


def load(place: str) -> Any:
    """Return the object of `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def keys_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield each key with where it was found."""
    for place in DATACLASSES.get(name, ()):
        for field in fields(load(place)):
            if field.init:
                yield field.name, place
    for prefix, place in MODELS.get(name, ()):
        for key in load(place).model_fields:
            yield prefix + key, place
    if name == "torchtune":
        yield from recipe_keys()


def recipe_keys() -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of torchtune's recipes, and the arguments of torch's AdamW."""
    import torch
    import yaml

    for path in sorted(files("torchtune") or (), key=str):
        if str(path).startswith("recipes/configs/llama3") and path.suffix == ".yaml":
            for key in dotted(yaml.safe_load(path.read_text(encoding="utf-8"))):
                yield key, "recipes/configs"
    for key in inspect.signature(torch.optim.AdamW).parameters:
        if key != "params":
            yield f"{OPTIMIZER}{key}", "torch.optim.AdamW"


def dotted(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys of a tree, those of inner ones behind their own."""
    for key, value in tree.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")


def main(name: str) -> None:
    """Write the table of one program."""
    found: dict[str, str] = {}
    for key, place in keys_of(name):
        found.setdefault(key, place)
    with (FOLDER / name / "options.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("option", "version", "source"))
        writer.writerows((key, version(name), found[key]) for key in sorted(found))


if __name__ == "__main__":
    main(sys.argv[1])
