"""Rows of Megatron-Bridge's table: recipes of all releases, with our names beside theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.recipes.bridge import FOLDERS, Found, read_recipes
from scripts.recipes.trees import Tree, read_tree, release_tags

from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_model

__all__ = ["bridge_rows", "containers", "rows_of_release"]

_PRECISIONS = {
    "bf16": "bf16",
    "fp8_cs": "fp8",
    "fp8_ds": "fp8",
    "fp8_mx": "mxfp8",
    "fp8_sc": "fp8-blockwise",
    "nvfp4": "nvfp4",
}
"""Our word of each precision: current and delayed scaling have one scale per tensor, subchannel
scaling has blocks."""
_KEY = ("model", "task", "gpu", "precision", "variant", "num_gpus")
_VERSIONS = "docs/versions1.json"
_PAIR = re.compile(r"(\d+\.\d+\.\d+)\D.*?(\d\d\.\d\d[.\d]*)$")
"""0.4.2 (latest) · 26.04.01"""


def bridge_rows(repository: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of all releases, oldest first, and what could not be evaluated.

    Of a release that mends another (v0.4.2) only lines that differ from the release before are
    kept: a reader takes an older line where a release has none.
    """
    tags = release_tags(repository)
    trees = {tag: read_tree(repository, tag, folders=FOLDERS) for tag in tags}
    shipped = containers(trees)
    rows: list[dict[str, str]] = []
    failed: list[str] = []
    before: dict[tuple[str, ...], dict[str, str]] = {}
    for tag in tags:
        if not any(path.startswith("scripts/performance/") for path in trees[tag]):
            continue
        found, problems = read_recipes(trees[tag])
        failed += [f"{tag} {problem}" for problem in problems]
        fresh = rows_of_release(found, release=tag, container=shipped.get(tag, ""))
        mends = not tag.endswith(".0") and "rc" not in tag
        rows += [row for row in fresh if not (mends and _same(row, before.get(_key(row))))]
        before = {_key(row): row for row in fresh}
    return rows, failed


def rows_of_release(
    found: Sequence[Found], *, release: str, container: str
) -> list[dict[str, str]]:
    """Return the rows of one release, sorted."""
    sparse = {one.model for one in found if one.settings.get("ep", "1") not in ("", "1")}
    rows = [_row(one, release=release, container=container, sparse=sparse) for one in found]
    return sorted(rows, key=lambda row: (*_key(row)[:-1], int(row["num_gpus"])))


def _row(found: Found, *, release: str, container: str, sparse: set[str]) -> dict[str, str]:
    settings = dict(found.settings)
    if found.model not in sparse:  # a dense model has no use for a dispatcher's name
        settings["dispatcher"] = settings["router_fusion"] = settings["etp"] = ""
    return {
        "release": release,
        "container": container,
        "model": found.model,
        "meshwright_model": _our_name(found.model),
        "task": found.task,
        "gpu": found.gpu,
        "precision": _PRECISIONS[found.compute_dtype],
        "variant": found.variant,
        "is_default": "1" if found.is_default else "",
        "num_gpus": str(found.num_gpus),
        **settings,
        "source": found.source,
    }


def _our_name(model: str) -> str:
    """The catalogue's name, blank where it has none."""
    dotted = re.sub(r"^(llama3|glm5|qwen3)(\d)_?", r"\1.\2-", model)
    for name in (model, dotted, model.replace("nemotronh", "nemotron-h")):
        try:
            return find_model(name).name
        except UnknownNameError:
            continue
    return ""


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in _KEY)


def _same(row: Mapping[str, str], before: Mapping[str, str] | None) -> bool:
    if before is None:
        return False
    return all(row[name] == before[name] for name in row if name not in ("release", "container"))


def containers(trees: Mapping[str, Tree]) -> dict[str, str]:
    """Return the NeMo container that ships each tag's release, blank where none is named.

    The newest list of versions of the documentation pairs them; a tag of a candidate stands for its
    version.
    """
    pages = [tree[_VERSIONS] for tree in trees.values() if _VERSIONS in tree]
    listed = [one.get("name", "") for one in json.loads(pages[-1])] if pages else []
    pairs = [_PAIR.match(name) for name in listed]
    shipped = {pair[1]: pair[2] for pair in pairs if pair}
    return {tag: shipped.get(tag.removeprefix("v").partition("rc")[0], "") for tag in trees}
