from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WANTED: list[str] = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]


def locked_versions() -> dict[str, str]:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("line", WANTED)
def test_locked_version_satisfies_requirement(line: str) -> None:
    requirement = Requirement(line)
    version = locked_versions()[canonicalize_name(requirement.name)]
    assert version in requirement.specifier
