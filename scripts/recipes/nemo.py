"""NeMo 2.0's recommended configurations (scripts/performance): which of them capture graphs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from scripts.recipes.spans import spans
from scripts.recipes.trees import read_tree, tags_like

from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.switches import dims_of_model

__all__ = ["nemo_rows"]

_TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:rc\d+)?")
_FOLDER = "scripts/performance/recommended_model_configs"
_MODELS = {"llama4-e16": "llama4-scout", "llama4-e128": "llama4-maverick"}
"""NeMo's names that the catalogue writes in another way."""
_TASK = "pre_train"


def nemo_rows(repository: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each pre-training configuration as long as releases have it so, and a line
    for each model that the catalogue lacks."""
    rows: list[dict[str, str]] = []
    failed: list[str] = []
    for tag in tags_like(repository, _TAG):
        tree = read_tree(repository, tag, folders=(_FOLDER,), endings=(".csv",))
        for path, text in tree.items():
            for cells in csv.DictReader(text.splitlines()):
                if cells["task"] != _TASK:
                    continue
                try:
                    rows.append(_row(cells, tag=tag, path=path))
                except UnknownNameError as error:
                    failed.append(f"{tag} {path}: {error}")
    return spans(rows), failed


def _row(cells: dict[str, str], *, tag: str, path: str) -> dict[str, str]:
    name = f"{cells['model']}-{cells['size']}".replace("_", "-")
    dotted = re.sub(r"^llama31-", "llama3.1-", name).replace("nemotronh-", "nemotron-h-")
    model = find_model(_MODELS.get(name, dotted))
    return {
        "stack": "nemo",
        "release": tag,
        "model": name,
        "dims": " ".join(map(str, dims_of_model(model))),
        "chip": cells["system"],
        "precision": cells["dtype"],
        "num_chips": str(int(float(cells["num_gpus"]))),
        "seq_len": str(int(float(cells["seq_len"]))),
        "words": "cuda_graphs" if float(cells.get("cuda_graphs") or 0) else "",
        "source": path,
    }
