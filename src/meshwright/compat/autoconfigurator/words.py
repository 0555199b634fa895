"""Hydra words, such as `search_config=gpt3/5b`, composed over the tree into plain values."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
from meshwright.platforms.files import make_folder, put_file
from meshwright.values.errors import ConfigError, MissingExtraError, UnknownNameError, nearest_names
from meshwright.values.text import write_yaml

__all__ = ["compose", "write_tree"]

_ASSIGNMENT = re.compile(
    r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL
)
_MISSING = "???"
_MAY_MISS = ("auto_configurator_path",)
"""Where the paths that are made of it are given themselves."""


def compose(words: Sequence[str], *, config_dir: Path | None = None) -> dict[str, Any]:
    """Return the configuration of some words, every interpolation resolved; ConfigError names a
    wrong key, value or missing `???`.

    Files of `config_dir`, a tree such as the old tool's `conf`, take the place of those that ship.
    The cluster follows `cluster_type` unless a word chooses one.
    """
    try:
        import hydra
        import omegaconf  # noqa: F401  # hydra's own, named in case it alone is absent
    except ImportError:
        raise MissingExtraError("hydra-core", "nemo") from None
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such folder")
    own = {} if config_dir is None else own_files(config_dir)
    _check_words(words, own)
    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        write_tree(Path(folder))
        for name, values in own.items():
            path = Path(folder) / f"{name}.yaml"
            make_folder(path.parent)
            put_file(path, write_yaml(values), force=True)
        with hydra.initialize_config_dir(config_dir=folder, version_base="1.3"):
            return _composed(_with_cluster(words, own))


def write_tree(folder: Path, *, force: bool = False) -> list[Path]:
    """Write the tree as files, to read or to copy and change; return their paths. What a user
    changed there is kept unless `force` is given: ConfigError names it."""
    found = {"config": root()}
    found |= {f"cluster/{name}": values for name, values in clusters().items()}
    found |= {f"search_config/{name}": values for name, values in searches().items()}
    paths = []
    for name, values in found.items():
        path = folder / f"{name}.yaml"
        make_folder(path.parent)
        put_file(path, write_yaml(values), force=force)
        paths.append(path)
    return paths


def _composed(words: list[str]) -> dict[str, Any]:
    import math

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    OmegaConf.register_new_resolver("multiply", lambda x, y: x * y, replace=True)
    OmegaConf.register_new_resolver("divide_ceil", lambda x, y: math.ceil(x / y), replace=True)
    OmegaConf.register_new_resolver("divide_floor", lambda x, y: int(x // y), replace=True)
    try:
        config = hydra.compose("config", overrides=words, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        _require_complete(config)
        found = {str(key): _value(config, str(key)) for key in config if key != "hydra"}
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from None
    check_config(found)
    return found


def _value(config: Any, key: str) -> Any:
    """One entry in plain types; None where it may be missing and is."""
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(config, key):
        return None
    value = config[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _require_complete(config: Any) -> None:
    """Every `???` that the rest is made of needs a value."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    own = {key: value for key, value in plain.items() if key != "hydra"}
    for key in (path for path, value in _entries(own) if value == _MISSING):
        if f"${{{key}}}" in str(own) or key not in _MAY_MISS:
            raise ConfigError(
                f"{key}: a value is missing ({_MISSING} in config.yaml); give it as {key}=VALUE"
            )


def _with_cluster(words: Sequence[str], own: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Choose the `cluster` of the `cluster_type`, unless a word or the user's config.yaml does."""
    given = dict(_pairs(words))
    kind = given.get("cluster_type", own.get("config", {}).get("cluster_type"))
    if "cluster" in given or kind not in CLUSTERS:
        return list(words)
    return [*words, f"cluster={kind}"]


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        found = _ASSIGNMENT.fullmatch(word)
        if found is None or (found["value"] is None and found["sign"] != "~"):
            raise ConfigError(
                f"{word}: expected key=value, such as search_config.train_settings.num_nodes=8"
            )
        yield found["key"], found["value"] or ""


def _check_words(words: Sequence[str], own: Mapping[str, Mapping[str, Any]]) -> None:
    """Say which word is wrong, and the nearest that is right, before Hydra does at length."""
    given = dict(_pairs(words))
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
    known = {path for path, _ in _entries(values)}
    for key in given:
        if key not in known and not key.startswith("hydra"):
            last = {path.rsplit(".", 1)[-1]: path for path in sorted(known, reverse=True)}
            ends = nearest_names(key.rsplit(".", 1)[-1], last)
            near = nearest_names(key, known) or [last[name] for name in ends]
            raise UnknownNameError("key", key, near or known)


def _entries(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its dotted path, and its value."""
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from _entries(value, f"{prefix}{key}.")


def _one_line(error: Exception) -> str:
    stripped = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in stripped if line and not line.startswith("Set the env")]
    return " ".join(lines)[:400]
