"""Megatron-Bridge: a recipe in Python, the same as YAML overrides, and as words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from meshwright.software.contract import (
    BF16_GRADIENTS,
    Exported,
    ExportedFile,
    ExportTarget,
    TrainedLayers,
)
from meshwright.software.megatron_bridge.sections import (
    NAME,
    PROVIDERS,
    TARGET,
    provider_of,
    sections,
)
from meshwright.software.megatron_core.layout import trained
from meshwright.software.megatron_core.model import ACTIVATIONS, loss_notes
from meshwright.software.megatron_lm.export import environment
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Code, python_call
from meshwright.values.text import write_yaml

__all__ = ["MEGATRON_BRIDGE"]

_SCRIPT = "meshwright_bridge.py"
_FP8 = ("fp8 keeps the first and the last layer in bf16, as Megatron-Bridge's recipe does",)
_PROVIDERS = tuple(provider.name for provider in PROVIDERS.values())
_HEAD = '''"""Written by meshwright for Megatron-Bridge 0.3: run it on every rank; `key.sub=value` words override."""

import sys

import torch
import torch.nn.functional as F
from megatron.bridge.models.{folder} import {provider}
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
'''  # noqa: E501
_IMPORTS = {
    "squared_relu": "from megatron.core.activations import squared_relu\n",
    "quick_gelu": "from megatron.core.fusions.fused_bias_geglu import quick_gelu\n",
}
_TAIL = """

if __name__ == "__main__":
    pretrain(process_config_with_overrides(recipe(), cli_overrides=sys.argv[1:]), forward_step_func=forward_step)
"""  # noqa: E501


def _write(plan: TrainingPlan) -> Exported:
    found = sections(plan)
    assert plan.details.activation is not None
    activation = Code(ACTIVATIONS[plan.details.activation])
    why = f"activation_func ({plan.details.activation}) is code and stays the recipe's"
    comment = f"# Overrides of a Megatron-Bridge recipe, written by meshwright; {why}.\n"
    return Exported(
        target=NAME,
        files=(
            ExportedFile(name=_SCRIPT, text=_script(found, activation)),
            ExportedFile(name="overrides.yaml", text=comment + write_yaml(_override(found))),
            ExportedFile(name="overrides.txt", text="\n".join(_words(_override(found))) + "\n"),
        ),
        command=(_SCRIPT, *plan.settings.extra),
        environment=environment(plan),
        notes=(
            *loss_notes(plan),
            (
                f"{_SCRIPT} is complete by itself; overrides.yaml and overrides.txt say the same"
                " for a recipe of Megatron-Bridge's own"
            ),
            *(_FP8 if plan.work.precision == "fp8" else ()),
        ),
    )


def _script(found: dict[str, Any], activation: Code) -> str:
    provider = provider_of(found["model"])
    model = found["model"] | ({} if provider.own_activation else {"activation_func": activation})
    lines = [
        "",
        "",
        "def recipe() -> ConfigContainer:",
        "    cfg = _pretrain_common()",
        f"    cfg.model = {python_call(provider.name, model, indent=1)}",
    ]
    for section, values in found.items():
        if section == "comm_overlap":
            lines.append(
                f"    cfg.comm_overlap = {python_call('CommOverlapConfig', values, indent=1)}"
            )
        elif section == "mixed_precision":
            lines.append(
                "    cfg.mixed_precision ="
                f" {python_call('MixedPrecisionConfig', _dtypes_as(Code, values), indent=1)}"
            )
        elif section != "model":
            lines += [
                f"    cfg.{section}.{key} = {value!r}"
                for key, value in _dtypes_as(Code, values).items()
            ]
    head = _HEAD.format(folder=provider.module, provider=provider.name) + _IMPORTS.get(
        str(activation), ""
    )
    return head + "\n".join([*lines, "    return cfg", ""]) + _TAIL


def _dtypes_as(form: Callable[[str], Any], values: dict[str, Any]) -> dict[str, Any]:
    return {key: form(value) if key.endswith("_dtype") else value for key, value in values.items()}


def _override(found: dict[str, Any]) -> dict[str, Any]:
    """Return the sections with the mixed precision as an object that is made anew, whether the
    recipe has one or a recipe's name."""
    named = _dtypes_as(lambda name: {"_target_": name, "_call_": False}, found["mixed_precision"])
    return {**found, "mixed_precision": {"_target_": TARGET, **named}}


def _words(found: dict[str, Any]) -> list[str]:
    """Return `model.tensor_model_parallel_size=2` and so on, as Hydra reads them; ++ adds where a
    section was another kind of value."""
    words = []
    for section, values in found.items():
        pairs = (
            {f"++{section}": values}
            if "_target_" in values
            else {f"{section}.{key}": value for key, value in values.items()}
        )
        words += [f"{path}={_hydra(value)}" for path, value in pairs.items()]
    return words


def _hydra(value: Any) -> str:
    """JSON's null, true, numbers and lists are Hydra's too; keys stand without quotes there, and a
    text's backslashes are as they are, but for those before a quote."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_hydra, value))}]"
    if isinstance(value, str):
        return (
            '"' + re.sub(r'(\\*)("|$)', lambda f: f[1] * 2 + f[2].replace('"', '\\"'), value) + '"'
        )
    return json.dumps(value)


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Read the call of the provider in the script."""
    calls = [
        node for node in ast.walk(ast.parse(exported.files[0].text)) if isinstance(node, ast.Call)
    ]
    [provider] = [
        call for call in calls if isinstance(call.func, ast.Name) and call.func.id in _PROVIDERS
    ]
    values = {
        word.arg: ast.literal_eval(word.value)
        for word in provider.keywords
        if word.arg and isinstance(word.value, (ast.Constant, ast.List))
    }
    return trained(values, what=NAME)


MEGATRON_BRIDGE = ExportTarget(
    name=NAME,
    title="Megatron-Bridge",
    versions="Megatron-Bridge 0.3",
    write=_write,
    trained_layers=_trained_layers,
    stacks=(*BF16_GRADIENTS, "megatron"),
    takes_extra=True,
)
