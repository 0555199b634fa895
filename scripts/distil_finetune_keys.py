"""Write the keys that programs of fine-tuning accept, as `software/*/options.csv`.

Run it in an environment that has the program: `python scripts/distil_finetune_keys.py trl`, or
axolotl, llamafactory (without its check of versions), torchtune. Names come from the released
parsers: dataclasses, a pydantic model, or the recipes' own YAML; no line is typed. Those of NeMo
AutoModel come from a clone and a tag: `... nemo-automodel CLONE v0.5.0`.
"""

from __future__ import annotations

import ast
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


AUTOMODEL = {
    "step_scheduler": ("components/training/step_scheduler.py", "StepScheduler"),
    "distributed": ("components/distributed/config.py", "FSDP2Config"),
    "peft": ("components/_peft/lora.py", "PeftConfig"),
    "lr_scheduler": ("components/optim/optimizer.py", "LRSchedulerConfig"),
    "checkpoint": ("components/checkpoint/config.py", "CheckpointingConfig"),
    "dataset": ("components/datasets/llm/squad.py", "make_squad_dataset"),
    "dataset.": ("components/datasets/llm/chat_dataset.py", "ChatDataset"),
}
"""Sections of NeMo AutoModel's YAML and what reads them; its recipes have the rest."""
RECIPES = "examples/llm_finetune"


def automodel_keys(clone: Path, tag: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of the recipes, and the arguments of what the sections build."""
    import yaml

    sys.path[:0] = [str(FOLDER.parents[1]), str(FOLDER.parents[2])]
    from scripts.recipes.trees import read_tree

    recipes = read_tree(clone, tag, folders=(RECIPES,), endings=(".yaml",))
    for text in recipes.values():
        for key in dotted(yaml.safe_load(text) or {}):
            yield key, RECIPES
    places = {f"nemo_automodel/{file}" for file, _ in AUTOMODEL.values()}
    tree = read_tree(clone, tag, folders=tuple(places))
    for section, (file, name) in AUTOMODEL.items():
        path = f"nemo_automodel/{file}"
        for node in ast.walk(ast.parse(tree[path])):
            if getattr(node, "name", "") == name:
                for key in sorted(arguments_of(node)):
                    yield f"{section.rstrip('.')}.{key}", path


def arguments_of(node: ast.AST) -> Iterator[str]:
    """Yield what a function, the __init__ of a class, or a dataclass is built with."""
    if isinstance(node, ast.FunctionDef):
        every = (*node.args.args, *node.args.kwonlyargs)
        yield from (one.arg for one in every if one.arg not in ("self", "tokenizer"))
    elif isinstance(node, ast.ClassDef):
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                yield line.target.id
            elif isinstance(line, ast.FunctionDef) and line.name == "__init__":
                yield from arguments_of(line)


def main(name: str, *clone: str) -> None:
    """Write the table of one program."""
    found: dict[str, str] = {}
    pairs = automodel_keys(Path(clone[0]), clone[1]) if clone else keys_of(name)
    for key, place in pairs:
        found.setdefault(key, place)
    released = clone[1].removeprefix("v") if clone else version(name)
    folder = name.replace("-", "_")
    with (FOLDER / folder / "options.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("option", "version", "source"))
        writer.writerows((key, released, found[key]) for key in sorted(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
