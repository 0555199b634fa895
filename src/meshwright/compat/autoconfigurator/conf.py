"""The user's own tree of configurations, over the one that ships."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.settings import clusters, root, searches
from meshwright.compat.checks import text_of
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

__all__ = ["conf_differences", "conf_here", "own_files"]

_MISSING = "???"
_TREE = ("config.yaml", "cluster", "search_config")
_OURS = ("chip", "model", "series", "global_batch_size", "precision")
"""Keys of `train_settings` that NVIDIA's files have not."""
_SIZES = ("context_parallel_sizes", "expert_parallel_sizes")
_OURS_OF_RUN = ("engine", "model_path", "container")


def conf_here(given: Path | None) -> Path | None:
    """Return the folder of configurations: the given one, else `conf` here where it holds
    searches; ConfigError where the given one is none."""
    if given is not None:
        if not given.is_dir():
            raise ConfigError(f"--config-dir {given}: no such folder")
        return given
    usual = Path("conf")
    return usual if (usual / "search_config").is_dir() else None


def own_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the user's configurations by their names in the tree, `search_config/gpt3/5b`, each
    with the keys of ours that it leaves out; ConfigError for one that is no YAML."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        if name.parts[0] not in _TREE:
            continue
        key = name.with_suffix("").as_posix()
        values = read_yaml(text_of(path, str(path)), what=str(path))
        # What builds on another file by Hydra's defaults has the other's keys.
        alone = key == "config" or "defaults" not in values
        found[key] = _completed(key, values) if alone else values
    return found


def _completed(name: str, values: dict[str, Any]) -> dict[str, Any]:
    if name == "config":
        said = {key: value for key, value in values.items() if value != _MISSING}
        return {**root(), **said, **_kept(values)}
    group, _, search = name.partition("/")
    if group == "cluster":
        return {**clusters().get(search, {}), **values}
    train = values.get("train_settings")
    if not isinstance(train, Mapping):
        return values
    found = {**values, "train_settings": {**_train(search, train), **train}}
    inference = values.get("inference_settings")
    if isinstance(inference, Mapping) and isinstance(inference.get("run"), Mapping):
        run = {"engine": "auto", **dict.fromkeys(_OURS_OF_RUN[1:]), **inference["run"]}
        found["inference_settings"] = {**inference, "run": run}
    return found


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is missing by the user's word and by ours as well."""
    ours = root()
    return {key: _MISSING for key, value in values.items() if value == _MISSING and key not in ours}


def _train(search: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of ours by their defaults; the shape of the predefined search holds while its size
    does."""
    ours = searches().get(search, {}).get("train_settings", {})
    found = dict.fromkeys(_OURS, "auto") | {"model": None, "series": search.partition("/")[0]}
    found |= {"series": ours["series"]} if ours else {}
    found |= {name: ours.get(name, [1]) for name in _SIZES}
    same = ours and ours["model_size_in_b"] == given.get("model_size_in_b")
    if same and not given.get("custom_config"):
        found["model"] = ours["model"]
    return found


def conf_differences(folder: Path) -> list[str]:
    """Return what a user's tree says otherwise than ours, one line per key that it has; ConfigError
    where the folder holds none."""
    if not folder.is_dir():
        raise ConfigError(f"--diff-conf {folder}: no such folder")
    own = own_files(folder)
    if not own:
        raise ConfigError(
            f"--diff-conf {folder}: it has no config.yaml, cluster/ or search_config/"
        )
    ours = {"config": root()}
    ours |= {f"cluster/{name}": values for name, values in clusters().items()}
    ours |= {f"search_config/{name}": values for name, values in searches().items()}
    lines = []
    for name, values in own.items():
        if name not in ours:
            lines.append(f"{name}: not in ours")
            continue
        known = dict(_leaves(ours[name]))
        for key, value in _leaves(values):
            if key.startswith("hydra.") or (key in known and known[key] == value):
                continue
            said = repr(known[key]) if key in known else "nothing"
            lines.append(f"{name}: {key}: {value!r}, ours {said}")
    return lines


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
