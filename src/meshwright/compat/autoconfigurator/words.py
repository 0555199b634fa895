"""Hydra words, such as `search_config=gpt3/5b`, composed over the tree into plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.conf import own_files
from meshwright.compat.autoconfigurator.folders import check_config
from meshwright.compat.autoconfigurator.settings import (
    CLUSTERS,
    clusters,
    root,
    search_names,
    searches,
)
from meshwright.compat.hydra_words import (
    compose_tree,
    entries,
    near_keys,
    read_words,
    require_hydra,
)
from meshwright.platforms.files import make_folder, put_file
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.text import write_yaml

__all__ = ["compose", "write_tree"]

_EXAMPLE = "search_config.train_settings.num_nodes=8"
_MAY_MISS = ("auto_configurator_path",)
"""Where the paths that are made of it are given themselves."""


def compose(words: Sequence[str], *, config_dir: Path | None = None) -> dict[str, Any]:
    """Return the configuration of some words, every interpolation resolved; ConfigError names a
    wrong key, value or missing `???`.

    Files of `config_dir`, a tree such as the old tool's `conf`, take the place of those that ship.
    The cluster follows `cluster_type` unless a word chooses one.
    """
    require_hydra()
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such folder")
    own = {} if config_dir is None else own_files(config_dir)
    _check_words(words, own)
    texts = {name: write_yaml(values) for name, values in {**_tree(), **own}.items()}
    found = compose_tree(texts, _with_cluster(words, own), may_miss=_MAY_MISS)
    check_config(found)
    return found


def write_tree(folder: Path, *, force: bool = False) -> list[Path]:
    """Write the tree as files, to read or to copy and change; return their paths. What a user
    changed there is kept unless `force` is given: ConfigError names it."""
    paths = []
    for name, values in _tree().items():
        path = folder / f"{name}.yaml"
        make_folder(path.parent)
        put_file(path, write_yaml(values), force=force)
        paths.append(path)
    return paths


def _tree() -> dict[str, dict[str, Any]]:
    found = {"config": root()}
    found |= {f"cluster/{name}": values for name, values in clusters().items()}
    return found | {f"search_config/{name}": values for name, values in searches().items()}


def _with_cluster(words: Sequence[str], own: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Choose the `cluster` of the `cluster_type`, unless a word or the user's config.yaml does."""
    given = _pairs(words)
    kind = given.get("cluster_type", own.get("config", {}).get("cluster_type"))
    if "cluster" in given or kind not in CLUSTERS:
        return list(words)
    return [*words, f"cluster={kind}"]


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return {word.key: word.value for word in read_words(words, example=_EXAMPLE)}


def _check_words(words: Sequence[str], own: Mapping[str, Mapping[str, Any]]) -> None:
    """Say which word is wrong, and the nearest that is right, before Hydra does at length."""
    given = _pairs(words)
    kind = given.get("cluster_type", CLUSTERS[0])
    if kind not in CLUSTERS:
        raise UnknownNameError("cluster_type", kind, CLUSTERS)
    for group, names in (("search_config", search_names()), ("cluster", CLUSTERS)):
        more = [name for name in own if name.startswith(f"{group}/")]
        known = [*names, *(name.removeprefix(f"{group}/") for name in more)]
        if group in given and given[group] not in known:
            raise UnknownNameError(group, given[group], known)
    if not own:
        _check_keys(given)


def _check_keys(given: Mapping[str, str]) -> None:
    kind = given.get("cluster", given.get("cluster_type", CLUSTERS[0]))
    search = searches()[given.get("search_config", "gpt3/5b")]
    values = {**root(), "cluster": clusters()[kind], "search_config": search}
    known = {path for path, _ in entries(values)}
    for key in given:
        if key not in known and not key.startswith("hydra"):
            raise UnknownNameError("key", key, near_keys(key, known))
