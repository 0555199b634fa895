"""Evaluates what Megatron-Bridge's run_script.py does, up to the call of `pretrain`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from scripts.recipes.builtins import COMMON_EXTERNALS
from scripts.recipes.evaluate import Evaluator
from scripts.recipes.trees import Tree
from scripts.recipes.values import Raised, Record, unknown

__all__ = ["Launch", "defaults_of_arguments", "evaluator_for", "launch"]

_ROOTS = ("scripts/performance/", "src/", "scripts/common/")
_PARSER = "scripts/performance/argument_parser.py"
_MAJOR = {"a100": 8, "h100": 9, "h200": 9, "b200": 10, "b300": 10, "gb200": 10, "gb300": 10}
"""CUDA compute capability, which decides about dispatchers
(https://developer.nvidia.com/cuda-gpus); of others it stays unknown."""
_MIXED = "megatron.bridge.training.mixed_precision"


def _precision(evaluator: Evaluator, name: Any) -> Any:
    """A precision by the name of its function, where it is not one already."""
    if not isinstance(name, str):
        return name
    return evaluator.call(evaluator.member(_MIXED, name.replace("-", "_")))


_PRECISIONS = {f"{_MIXED}.get_mixed_precision_config": _precision}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A call of run_script.py."""

    tree: Tree
    gpu: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def defaults_of_arguments(tree: Tree) -> dict[str, object]:
    """Return what run_script.py's arguments are when none is given, by their names."""
    found: dict[str, object] = {}
    for node in ast.walk(ast.parse(tree[_PARSER])):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("add_argument"):
            continue
        flags = [one.value for one in node.args if isinstance(one, ast.Constant)]
        long = [str(flag) for flag in flags if str(flag).startswith("--")]
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if not long:
            continue
        dest = named.get("dest")
        name = dest.value if isinstance(dest, ast.Constant) else long[0].lstrip("-")
        found[str(name).replace("-", "_")] = _default(named)
    return found


def _default(named: Mapping[str | None, ast.expr]) -> object:
    action = named.get("action")
    if isinstance(action, ast.Constant) and action.value == "store_true":
        return False
    if "default" not in named:
        return None
    try:
        value: object = ast.literal_eval(named["default"])
    except ValueError:
        return unknown(ast.unparse(named["default"]))
    return value


def evaluator_for(tree: Tree, *, gpu: str) -> Evaluator:
    """Return an evaluator of a release on a GPU."""
    return Evaluator(
        tree, roots=_ROOTS, externals={**COMMON_EXTERNALS, **_device(gpu), **_PRECISIONS}
    )


def launch(how: Launch) -> Record:
    """Return the configuration that run_script.py hands to training."""
    evaluator = evaluator_for(how.tree, gpu=how.gpu)
    handed: list[Record] = []
    evaluator.externals.update(_configuration(how))
    evaluator.externals["megatron.bridge.training.pretrain.pretrain"] = (
        lambda evaluator, config, **named: handed.append(config)
    )
    evaluator.call(evaluator.member("run_script", "main"))
    if not handed:
        raise Raised("main() never comes to pretrain()")
    return handed[0]


def _device(gpu: str) -> dict[str, Any]:
    """What torch would say of the GPU."""
    known: dict[str, Any] = {}
    if gpu in _MAJOR:
        known = {"major": _MAJOR[gpu], "name": f"NVIDIA {gpu.upper()}"}
    return {
        "torch.cuda.get_device_properties": lambda evaluator, *which: Record(
            kind="?device", known=dict(known)
        )
    }


def _configuration(how: Launch) -> dict[str, Any]:
    """The command line, and what omegaconf does with dicts."""
    arguments = Record(kind="Namespace", known=dict(how.arguments))
    pair: tuple[Record, list[str]] = (arguments, [])
    returns_parser = "return parser\n" in how.tree[_PARSER]
    parser = Record(kind="Parser", known={"parse_known_args": lambda *_: pair})
    utils = "megatron.bridge.training.utils.omegaconf_utils"
    return {
        "argument_parser.parse_cli_args": lambda evaluator: parser if returns_parser else pair,
        "omegaconf.OmegaConf.load": lambda evaluator, path: yaml.safe_load(how.tree[path]),
        "omegaconf.OmegaConf.is_dict": lambda evaluator, held: isinstance(held, dict),
        "omegaconf.OmegaConf.create": lambda evaluator, held: held,
        "omegaconf.OmegaConf.to_container": lambda evaluator, held, **named: held,
        "omegaconf.OmegaConf.merge": lambda evaluator, *held: _merged(held),
        f"{utils}.create_omegaconf_dict_config": lambda evaluator, config: ({}, []),
        f"{utils}.apply_overrides": lambda evaluator, config, held, *rest: _apply(config, held),
    }


def _merged(dicts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in dicts:
        for key, value in one.items():
            before = found.get(key)
            both = isinstance(before, dict) and isinstance(value, dict)
            found[key] = _merged((before or {}, value)) if both else value
    return found


def _apply(config: Record, held: Mapping[str, Any]) -> None:
    """Put a dict of dicts on a configuration."""
    for key, value in held.items():
        inner = config.known.get(key)
        if isinstance(inner, Record) and isinstance(value, dict):
            _apply(inner, value)
        else:
            config.known[key] = value
