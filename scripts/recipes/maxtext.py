"""MaxText's benchmark configurations: what each keeps, runs again and offloads. They are in its own
repository up to 2025, and in AI-Hypercomputer/tpu-recipes since."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.recipes.trees import commit_of, read_tree, tags_like

from meshwright.values.errors import UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model

__all__ = ["maxtext_rows"]

_FILES = {
    "benchmarks/maxtext_trillium_model_configs.py": "tpu-v6e",
    "benchmarks/maxtext_v5e_model_configs.py": "tpu-v5e",
    "benchmarks/maxtext_v5p_model_configs.py": "tpu-v5p",
}
_MODELS = {
    "deepseek3-671b": "deepseek-v3",
    "llama4-17b-16e": "llama4-scout",
    "llama4-17b-128e": "llama4-maverick",
}
"""MaxText's names that the catalogue writes in another way."""
_SCRIPT = re.compile(r"/\d+k-(?P<precision>bf16|fp8)-(?P<chip>tpu7x)-[\dx]+[^/]*/")
_TAG = re.compile(r"tpu-recipes-v(\d+)\.(\d+)\.(\d+)")


def maxtext_rows(*repositories: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of MaxText's repository, and of a clone of tpu-recipes behind it where one is
    given, and a line for each configuration that was not read."""
    rows, failed = _benchmark_rows(repositories[0])
    return [*rows, *(row for clone in repositories[1:] for row in _script_rows(clone))], failed


def _script_rows(repository: Path) -> list[dict[str, str]]:
    """A row for each script of the newest commit; the repository has no tags."""
    release = f"tpu-recipes@{commit_of(repository)}"
    tree = read_tree(repository, "HEAD", folders=("training",), endings=("run_recipe.sh",))
    return [
        _script_row(text, named, release=release, path=path)
        for path, text in tree.items()
        if (named := _SCRIPT.search(path))
    ]


def _script_row(text: str, named: re.Match[str], *, release: str, path: str) -> dict[str, str]:
    """Its settings are lines `name=value` of one command."""
    tuned = dict(re.findall(r"^(\w+)=(\S+) \\$", text, re.MULTILINE))
    return {
        "release": release,
        "model": tuned["model_name"],
        "meshwright_model": _catalogue(tuned["model_name"]),
        "gpu": find_chip(named["chip"]).name,
        "precision": named["precision"],
        "seq_len": tuned.get("max_target_length", ""),
        "mbs": tuned.get("per_device_batch_size", ""),
        "remat_policy": tuned.get("remat_policy", ""),
        "offloaded": " ".join(key for key, value in tuned.items() if value == "offload"),
        "on_device": " ".join(key for key, value in tuned.items() if value == "device"),
        "source": path,
    }


def _benchmark_rows(repository: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each configuration of each release, and a line for each that was not read;
    those of model_type `default` are of no published model and left out."""
    rows: list[dict[str, str]] = []
    failed: list[str] = []
    for tag in tags_like(repository, _TAG):
        for path, text in read_tree(repository, tag, folders=("benchmarks",)).items():
            if path in _FILES:
                for model in _models(text):
                    try:
                        rows.append(_row(model, tag=tag, path=path))
                    except (KeyError, ValueError) as error:
                        failed.append(f"{tag} {path}:{model.lineno}: {error}")
    return [row for row in rows if row["model"] != "default"], failed


def _models(text: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MaxTextModel":
            yield node


def _row(call: ast.Call, *, tag: str, path: str) -> dict[str, str]:
    words = {word.arg: word.value for word in call.keywords}
    tuned: dict[str, Any] = {
        str(key.value): value.value
        for key, value in _pairs(words["tuning_params"])
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }
    name = str(ast.literal_eval(words["model_type"]))
    return {
        "release": tag,
        "model": name,
        "meshwright_model": _catalogue(name),
        "gpu": _FILES[path],
        "precision": "",
        "seq_len": str(tuned.get("max_target_length", "")),
        "mbs": str(tuned.get("per_device_batch_size", "")),
        "remat_policy": str(tuned.get("remat_policy", "")),
        "offloaded": " ".join(key for key, value in tuned.items() if value == "offload"),
        "on_device": " ".join(key for key, value in tuned.items() if value == "device"),
        "source": path,
    }


def _pairs(node: ast.expr) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    assert isinstance(node, ast.Dict)
    return zip(node.keys, node.values, strict=True)


def _catalogue(name: str) -> str:
    try:
        return find_model(_MODELS.get(name, name)).name
    except UnknownNameError:
        return ""
