"""Primus's pre-training configurations for Megatron: where each leaves what all others have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from scripts.recipes.spans import spans
from scripts.recipes.trees import read_tree, tags_like

from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.switches import dims_of_model, known_words

__all__ = ["primus_rows"]

_TAG = re.compile(r"v(\d+)\.(\d+)(?:\.(\d+))?")
_FOLDER = "examples/megatron/configs"
_NAME = re.compile(rf"{_FOLDER}/(MI\d+X)/([\w.]+)-(BF16|FP8|MXFP8)-pretrain\.yaml")
_MODELS = {"llama4-17b16e": "llama4-scout", "llama4-17b128e": "llama4-maverick"}
"""Primus's names that the catalogue writes in another way."""
_OF_EXPERTS = ("use_turbo_deepep", "moe_use_fused_router_with_aux_score")
"""Keys without effect on a model without experts."""


def primus_rows(repository: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each configuration as long as releases have it so, and a line for each
    whose model the catalogue lacks."""
    rows: list[dict[str, str]] = []
    failed: list[str] = []
    for tag in tags_like(repository, _TAG):
        tree = read_tree(repository, tag, folders=(_FOLDER,), endings=("-pretrain.yaml",))
        for path, text in tree.items():
            named = _NAME.fullmatch(path)
            if named is None:
                continue
            try:
                rows.append(_row(text, *named.groups(), tag=tag, path=path))
            except (UnknownNameError, KeyError) as error:
                failed.append(f"{tag} {path}: {error}")
    return spans(rows), failed


def _row(
    text: str, chip: str, model: str, precision: str, *, tag: str, path: str
) -> dict[str, str]:
    plain = re.sub(r"-v0\.1$", "", model.lower().replace("_", "-"))
    found = find_model(_MODELS.get(plain, plain))
    given: dict[str, Any] = yaml.safe_load(text)["modules"]["pre_trainer"]["overrides"]
    experts = found.moe is not None
    return {
        "stack": "primus",
        "release": tag,
        "model": plain,
        "dims": " ".join(map(str, dims_of_model(found))),
        "chip": chip.lower(),
        "precision": precision.lower(),
        "num_chips": "",
        "seq_len": _number(given.get("seq_length", "")),
        "words": " ".join(
            word for word in known_words("primus") if _holds(word, given, experts=experts)
        ),
        "source": path,
    }


def _holds(word: str, given: dict[str, Any], *, experts: bool) -> bool:
    """Whether a configuration has the value that the word names; a key that is left out is off, and
    Megatron's own fusion of gradients on."""
    key, _, value = word.partition("=")
    if key in _OF_EXPERTS and not experts:
        return False
    has = given.get(key, key == "gradient_accumulation_fusion")
    return bool(has) == (value == "true")


def _number(text: object) -> str:
    """`4096`, or `${PRIMUS_SEQ_LENGTH:4096}`."""
    found = re.search(r"(\d+)\}?$", str(text))
    return found[1] if found else ""
