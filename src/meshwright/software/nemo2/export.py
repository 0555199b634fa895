"""NeMo 2.0: a recipe for nemo_run in Python, and the same as its YAML."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import (
    BF16_GRADIENTS,
    EnvVar,
    Exported,
    ExportedFile,
    ExportTarget,
    TrainedLayers,
)
from meshwright.software.megatron_core.layout import trained
from meshwright.software.megatron_core.model import loss_notes
from meshwright.software.megatron_lm.export import environment
from meshwright.software.nemo2.recipe import NAME, recipe
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Code, python_call
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["NEMO2", "recipe_values"]

_SCRIPT = "meshwright_nemo.py"
_NAMED = ("activation_func", "params_dtype", "pipeline_dtype")
"""Arguments that are a function or a dtype, by its name."""


def _write(plan: TrainingPlan) -> Exported:
    tree = recipe(plan)
    text = write_yaml(recipe_values(tree))
    quiet = EnvVar(name="HF_HUB_OFFLINE", value="1", why="the tokenizer is read from its folder")
    local = (quiet,) if (plan.settings.tokenizer or "").startswith("/") else ()
    comment = "# Written by meshwright for NeMo 2.5: nemo llm pretrain --yaml recipe.yaml\n"
    vocabulary = "without a tokenizer NeMo's mock data take the vocabulary of GPT-2's"
    return Exported(
        target=NAME,
        files=(
            ExportedFile(name=_SCRIPT, text=_script(tree)),
            ExportedFile(name="recipe.yaml", text=comment + text),
        ),
        command=(_SCRIPT,),
        environment=(*environment(plan), *local),
        notes=(
            *loss_notes(plan),
            "run the script on every rank; `recipe()` is a run.Partial for an executor of nemo_run",
            *(() if plan.settings.data else (f"{vocabulary}; the model keeps its own",)),
        ),
    )


def recipe_values(value: Any, key: str = "") -> Any:
    """Return the tree as nemo_run writes it: functions and dtypes are targets that are not
    called."""
    if isinstance(value, dict):
        return {name: recipe_values(part, name) for name, part in value.items()}
    return {"_target_": value, "_call_": False} if key in _NAMED else value


def _script(tree: dict[str, Any]) -> str:
    targets = sorted({target.rpartition(".")[::2] for target in _targets(tree)})
    imports = [f"from {module} import {name}" for module, name in targets]
    return "\n".join(
        [
            '"""Written by meshwright for NeMo 2.5."""',
            "",
            "import nemo_run as run",
            "import torch",
            *imports,
            "",
            "",
            "def recipe() -> run.Partial:",
            f"    return {_config(tree, 1)}",
            "",
            "",
            'if __name__ == "__main__":',
            "    run.run(recipe(), direct=True)",
            "",
        ]
    )


def _targets(tree: dict[str, Any]) -> set[str]:
    """Return everything that the recipe names, dtypes left out."""
    found = {str(tree["_target_"])} | {
        str(value) for key, value in tree.items() if key == "activation_func"
    }
    for value in tree.values():
        if isinstance(value, dict):
            found |= _targets(value)
    return found


def _config(tree: dict[str, Any], indent: int) -> Code:
    arguments = {key: value for key, value in tree.items() if key not in ("_target_", "_partial_")}
    words = {
        key: _config(value, indent + 1) if isinstance(value, dict) else _named(key, value)
        for key, value in arguments.items()
    }
    call = python_call("", words, indent=indent)[2:]
    kind = "Partial" if "_partial_" in tree else "Config"
    target = str(tree["_target_"]).rpartition(".")[2]
    return Code(f"run.{kind}(\n{'    ' * (indent + 1)}{target},\n{call}")


def _named(key: str, value: Any) -> Any:
    if key not in _NAMED:
        return value
    is_dtype = value.startswith("torch.") and not value.startswith("torch.nn")
    return Code(value if is_dtype else value.rpartition(".")[2])


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Read the YAML, which the script equals node by node."""
    values = read_yaml(exported.files[1].text, what=NAME)
    config = values["model"]["config"]
    layers = config["num_layers"] + config.get("encoder_num_layers", 0)  # T5's are all on one stage
    return trained({**config, **values["trainer"]["strategy"], "num_layers": layers}, what=NAME)


NEMO2 = ExportTarget(
    name=NAME,
    title="NeMo 2.0",
    versions="NeMo 2.5, with nemo_run 0.5 and later",
    write=_write,
    trained_layers=_trained_layers,
    stacks=(*BF16_GRADIENTS, "megatron"),
)
