from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ["numpy", "yaml", "pydantic", "torch", "plotly", "jinja2"]
HELP_CPU_S = 0.3

# What the installed command does, and then what it has loaded; sys.exit of the command is the
# expected way out.
HELP = """
import sys
from meshwright.cli import main
sys.argv = ["meshwright", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
HELP_THEN_MODULES = HELP + "import json\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"


def public_modules() -> list[str]:
    found = pkgutil.walk_packages(meshwright.__path__, prefix="meshwright.")
    return [
        "meshwright",
        *(
            module.name
            for module in found
            if not any(part.startswith("_") for part in module.name.split("."))
        ),
    ]


def cpu_s_of_help() -> float:
    """User and system time of one child that prints the help."""
    child = subprocess.Popen(
        [sys.executable, "-c", HELP], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_imports_obey_the_rings() -> None:
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", lint, "--no-logo", "--no-cache"]
    result = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_help_loads_no_heavy_module() -> None:
    command = [sys.executable, "-c", HELP_THEN_MODULES]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    loaded = json.loads(result.stderr.splitlines()[-1])
    assert "meshwright.cli" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_help_is_quick() -> None:
    assert min(cpu_s_of_help() for _ in range(3)) < HELP_CPU_S


def test_public_names_are_sorted() -> None:
    """In ruff's order, so that `ruff check --fix` mends it: constants, classes, functions."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "RUF022",
        "src",
    ]
    result = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", public_modules())
def test_public_names_are_listed_and_exist(name: str) -> None:
    module = importlib.import_module(name)
    defined_here = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == name
    ]
    assert hasattr(module, "__all__") or not defined_here, f"{name}: no __all__, but {defined_here}"
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert [public for public in names if not hasattr(module, public)] == []
