from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ("3.11.0", "3.12.0", "3.13.0")
WANTED: list[str] = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]


LINES = [
    Requirement(line)
    for line in (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def locked(python: str) -> dict[str, Requirement]:
    """The exact versions for one Python."""
    here = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    return {
        canonicalize_name(line.name): line
        for line in LINES
        if line.marker is None or line.marker.evaluate(here)
    }


def version_of(line: Requirement) -> str:
    [specifier] = line.specifier
    assert specifier.operator == "=="
    return specifier.version


@pytest.mark.parametrize("line", WANTED)
def test_locked_version_satisfies_requirement(line: str) -> None:
    requirement = Requirement(line)
    for python in PYTHONS:
        version = version_of(locked(python)[canonicalize_name(requirement.name)])
        assert version in requirement.specifier


@pytest.mark.parametrize("python", PYTHONS)
def test_locked_versions_install_on_every_python(python: str) -> None:
    refused = []
    for name, line in locked(python).items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        accepted = SpecifierSet(found.metadata["Requires-Python"] or "")
        same = found.version.partition("+")[0] == version_of(line)
        if same and python not in accepted:
            refused.append(f"{line}: {accepted}")
    assert refused == []
