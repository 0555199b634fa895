"""Pyodide and pydantic's compiled part, from their registries by their ordinary clients."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from meshwright.report.whatif_page.static import CORE_TAG, PYODIDE, Core, core_version, find_core
from meshwright.values.errors import ConfigError

__all__ = ["fetch_commands", "fetch_core"]

_OTHERWISE = (
    f"otherwise unpack Pyodide {PYODIDE} (npm's package pyodide) and the wheel"
    " pydantic_core-{version}-{tag} (PyPI) into a folder, and give it with --pyodide"
)


def fetch_commands() -> tuple[list[str], list[str]]:
    """Return the command lines that fetch both, into the folder where they run."""
    python, abi, platform = CORE_TAG.split("-")
    wheel = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--implementation", "cp"),
        *("--abi", abi, "--python-version", f"3.{python.removeprefix('cp3')}"),
        *("--platform", platform, f"pydantic-core=={core_version()}"),
    ]
    return ["npm", "pack", "--silent", f"pyodide@{PYODIDE}"], wheel


def fetch_core(folder: Path) -> Core:
    """Fetch both into a folder; ConfigError says what failed, and what to do instead."""
    for command in fetch_commands():
        _run(command, folder)
    for packed in folder.glob("*.tgz"):
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
    return find_core(folder)


def _run(command: list[str], folder: Path) -> None:
    otherwise = _OTHERWISE.format(version=core_version(), tag=CORE_TAG)
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]} is not installed: install it; {otherwise}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise ConfigError(f"`{' '.join(command[-2:])}` failed: {said}; {otherwise}")
