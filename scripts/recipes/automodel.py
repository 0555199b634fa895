"""NeMo AutoModel's benchmarks of pre-training: what carries experts' tokens in each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from scripts.recipes.spans import spans
from scripts.recipes.trees import read_tree, release_tags

from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.switches import dims_of_model, known_words

__all__ = ["automodel_rows"]

_FOLDERS = ("examples/benchmark", "examples/llm_benchmark")
_ADAPTERS = re.compile(r"lora|peft")
_CHIPS = {989: "h100", 2500: "gb200", 5000: "gb200"}
"""Of `benchmark.peak_tflops`, the chip whose peak it is, of bf16 or 8 bits."""
_FORMATS = {"current": "fp8", "block": "fp8-blockwise", "mxfp8": "mxfp8"}
"""Of `te_fp8.recipe`."""


def automodel_rows(repository: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each pre-training benchmark as long as releases have it so, and a line for
    each whose model the catalogue lacks."""
    rows: list[dict[str, str]] = []
    failed: list[str] = []
    for tag in release_tags(repository):
        tree = read_tree(repository, tag, folders=_FOLDERS, endings=(".yaml",))
        for path, text in tree.items():
            if _ADAPTERS.search(path):
                continue
            try:
                rows.append(_row(yaml.safe_load(text), tag=tag, path=path))
            except (UnknownNameError, KeyError, TypeError) as error:
                failed.append(f"{tag} {path}: {error}")
    return spans(rows), failed


def _row(given: dict[str, Any], *, tag: str, path: str) -> dict[str, str]:
    config = given["model"]["config"]
    named = str(config["pretrained_model_name_or_path"]).rpartition("/")[2].lower()
    model = find_model(re.sub(r"-(instruct|base)$", "", named))
    backend = given["model"].get("backend", {})
    usual = "deepep" if backend.get("enable_deepep") else "torch"
    dispatcher = backend.get("dispatcher", usual)
    words = [f"dispatcher={dispatcher}"] if model.moe is not None else []
    benchmark = given["benchmark"]
    return {
        "stack": "nemo-automodel",
        "release": tag,
        "model": named,
        "dims": " ".join(map(str, dims_of_model(model))),
        "chip": _CHIPS[int(benchmark["peak_tflops"])],
        "precision": _precision(backend.get("te_fp8")),
        "num_chips": "",
        "seq_len": "",
        "words": " ".join(word for word in words if word in known_words("nemo-automodel")),
        "source": path,
    }


def _precision(given: dict[str, Any] | None) -> str:
    """What the products compute in; blank where the recipe is another one."""
    return _FORMATS.get(str(given.get("recipe", "")), "") if given else "bf16"
