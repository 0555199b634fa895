"""`Checked:` in a docstring of the cost model names tests that are there."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import meshwright.cost

ROOT = Path(__file__).resolve().parents[2]


def checked() -> Iterator[tuple[str, str, str]]:
    """Yield every function that names a test, the file, and the rest of the line."""
    for module in pkgutil.iter_modules(meshwright.cost.__path__, "meshwright.cost."):
        for name, function in inspect.getmembers(import_module(module.name), inspect.isfunction):
            found = re.search(r"Checked:\s+(tests/\S+?\.py)(.*)", function.__doc__ or "")
            if found is not None and function.__module__ == module.name:
                yield name, found[1], found[2]


@pytest.mark.parametrize(("function", "path", "rest"), list(checked()))
def test_named_tests_are_there(function: str, path: str, rest: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    named = re.findall(r"::(\w+)", rest)
    for name in named:
        assert f"def {name}(" in text, f"{path} has no {name}"
    assert named or re.search(rf"\b{function}\b", text), f"{path} does not use {function}"


def test_every_room_of_the_cost_model_names_tests() -> None:
    assert len(list(checked())) >= 25
