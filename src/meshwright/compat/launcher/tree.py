"""The launcher's tree of configurations: what ships, and the user's own files before it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.settings import clusters
from meshwright.compat.checks import text_of
from meshwright.platforms.files import make_folder, put_file
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["GROUPS", "Files", "own_folder", "write_conf"]

GROUPS = ("data_preparation", "training")
"""Groups that a stage of ours reads."""
_ABSENT = "~"
_DEFAULTS = {
    "cluster": "bcm",
    "data_preparation": "gpt3/download_gpt3_pile",
    "training": "gpt3/5b",
}
"""Of NVIDIA's conf/config.yaml (26e42fa)."""


@cache
def _shipped() -> Mapping[str, dict[str, Any]]:
    """Every file of `conf.csv` by its name; folders say what most files below them have."""
    said: dict[str, dict[str, str]] = {}
    for row in package_rows("compat/launcher/conf.csv"):
        said.setdefault(row["file"], {})[row["key"]] = row["value"]
    found = {}
    for name in said:
        if name.endswith("/*"):
            continue
        parts = name.split("/")
        outer = ["/".join([*parts[:depth], "*"]) for depth in range(1, len(parts))]
        merged: dict[str, str] = {}
        for layer in (*outer, name):
            merged |= said.get(layer, {})
        found[name] = _nested(merged)
    lines = [{group: name} for group, name in _DEFAULTS.items()]
    picked = {f"{name}_config": f"${{hydra:runtime.choices.{name}}}" for name in GROUPS}
    found["config"] = {"defaults": ["_self_", *lines], **found["config"], **picked}
    return found | {f"cluster/{name}": values for name, values in clusters().items()}


def _nested(texts: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path, text in texts.items():
        if text == _ABSENT:
            continue
        *outer, last = path.split(".")
        at = values
        for part in outer:
            at = at.setdefault(part, {})
        at[last] = json.loads(text)
    return values


def own_folder(given: Path | None, scripts: str | None) -> Path | None:
    """Return the user's tree: the folder given, else `conf` of the launcher's own scripts, else
    `conf` here, where they hold trainings; ConfigError where the given one is none."""
    if given is not None:
        if not given.is_dir():
            raise ConfigError(f"--config-dir {given}: no such folder")
        return given
    usual = ([Path(scripts) / "conf"] if scripts else []) + [Path("conf")]
    return next((folder for folder in usual if (folder / "training").is_dir()), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """Configurations by their names in the tree; the user's own come before those that ship."""

    own: Mapping[str, str]
    """As texts of YAML."""

    @staticmethod
    def of(folder: Path | None) -> Files:
        """Read the user's folder, where there is one."""
        paths = [] if folder is None else sorted(folder.rglob("*.yaml"))
        return Files(
            own={
                path.relative_to(folder or "").with_suffix("").as_posix(): text_of(path, str(path))
                for path in paths
            }
        )

    def names(self, group: str) -> list[str]:
        """Return the names that a group has."""
        known = {*_shipped(), *self.own}
        return sorted(
            name.removeprefix(f"{group}/") for name in known if name.startswith(f"{group}/")
        )

    def values(self, name: str) -> Mapping[str, Any]:
        """Return what a file says; nothing where there is none."""
        if name in self.own:
            return read_yaml(self.own[name], what=name)
        return _shipped().get(name, {})

    def texts(self, names: Iterable[str]) -> dict[str, str]:
        """Return the files that ship by those names, and all of the user's."""
        shipped = {name: write_yaml(_shipped()[name]) for name in names if name in _shipped()}
        return {**shipped, **self.own}


def write_conf(folder: Path, *, force: bool = False) -> list[Path]:
    """Write the tree that ships as files, to read or to change; a file that differs is kept unless
    `force` is given."""
    paths = []
    for name, text in Files(own={}).texts(_shipped()).items():
        path = folder / f"{name}.yaml"
        make_folder(path.parent)
        put_file(path, text, force=force)
        paths.append(path)
    return paths
