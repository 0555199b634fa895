from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from meshwright.report.doctor import Finding, package_findings, read_requirement
from meshwright.values.errors import install_words

ROOT = Path(__file__).resolve().parents[3]
LINES = [
    "numpy>=2.0",
    "torch>=2.5; extra == 'train'",
    "psutil>=5.9; extra == 'train'",
    "wandb>=0.20; extra == 'wandb'",
]


def findings(**versions: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in package_findings(LINES, version_of=versions.get)}


def test_a_whole_extra_says_its_versions() -> None:
    found = findings(numpy="2.4.6", torch="2.13.0+cpu", psutil="6.0", wandb="0.20")
    assert {found[name].state for name in ("numpy", "train", "wandb")} == {"ok"}
    assert found["train"].words == "torch 2.13.0+cpu, psutil 6.0"


def test_what_an_extra_lacks_comes_with_the_line_that_brings_it() -> None:
    found = findings(numpy="2.4.6", psutil="6.0")["train"]
    assert (found.state, found.words, found.remedy) == (
        "absent",
        "torch is not installed",
        install_words("train"),
    )


def test_a_version_that_is_too_old_is_broken() -> None:
    assert findings(numpy="1.26.4")["numpy"].state == "broken"
    assert findings(numpy="2")["numpy"].state == "ok"
    old = findings(numpy="2.1", torch="2.4.1", psutil="6.0")["train"]
    assert (old.state, old.words) == ("broken", "torch 2.4.1 is older than 2.5")


def test_a_core_package_that_is_missing_is_broken() -> None:
    assert findings()["numpy"].remedy == "pip install 'numpy>=2.0'"
    assert findings()["numpy"].state == "broken"


def test_without_a_record_of_an_installation_that_is_said() -> None:
    found = package_findings([], version_of=lambda name: None)[-1]
    assert (found.name, found.state, found.remedy) == ("extras", "absent", "pip install .")


def test_every_line_of_the_project_is_read() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for line in lines:
            read = read_requirement(
                line if not extra else f"{line}{' and' if ';' in line else ';'} extra == '{extra}'"
            )
            assert (read.extra or "") == extra
            assert line.startswith(f"{read.name}>={read.least}")


@pytest.mark.parametrize(("below", "applies"), [("3.11", False), ("99.0", True)])
def test_a_line_for_other_pythons_does_not_apply(below: str, applies: bool) -> None:
    assert sys.version_info >= (3, 11)
    assert (
        read_requirement(
            f"backports.zstd>=1.0; python_version < '{below}' and extra == 'data'"
        ).applies
        is applies
    )
