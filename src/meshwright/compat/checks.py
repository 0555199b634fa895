"""Checks of what the other tools' words and files give, in their own names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from meshwright.platforms.files import read_input
from meshwright.sizing.size import Budget
from meshwright.values.errors import ConfigError
from meshwright.values.units import DAY_S, TERA

__all__ = [
    "Sizes",
    "at_path",
    "budget_of",
    "is_whole",
    "made",
    "positive",
    "sizes",
    "text_of",
    "whole",
]

Sizes = tuple[int, ...] | Literal["auto"]


def is_whole(value: Any, *, least: int = 1, below: int = 2**40) -> bool:
    """Whether a value is a whole number in a range, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < below


def whole(value: Any, given: str, *, least: int = 1, below: int = 2**40) -> int:
    """Return a whole number; `given` is what was given, for the message, `num_nodes=x`."""
    if not is_whole(value, least=least, below=below):
        raise ConfigError(f"{given}: expected a whole number of {least} or more")
    return int(value)


def positive(value: Any, given: str) -> float:
    """Return a positive number as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{given}: expected a positive number")
    return value


def sizes(value: Any, *, least: int = 1) -> Sizes | None:
    """Return a list of sizes, each once; of one size a list of it; None where it is none."""
    if value is None or value == "auto":
        return "auto"
    found = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    valid = bool(found) and all(is_whole(size, least=least) for size in found)
    return tuple(dict.fromkeys(found)) if valid else None


def budget_of(chips: int, *, days: float, tokens_in_b: float, tflops: float) -> Budget:
    """Return what the closed form of a size or a time is asked with."""
    rate, tokens = tflops * TERA, tokens_in_b * 1e9
    return Budget(chips=chips, seconds=days * DAY_S, tokens=tokens, flops_per_s_per_chip=rate)


def at_path(tree: Any, path: str) -> Any:
    """Return what a tree of mappings holds at a dotted path; None where it is absent."""
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def made(folder: Path) -> Path:
    """Make a folder where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}") from None
    return folder


def text_of(path: str | Path, given: str, *, otherwise: str = "not a text in UTF-8") -> str:
    """Return the text of a file; ConfigError with the system's reason, or `otherwise`."""
    try:
        return read_input(Path(path)).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{given}: {getattr(error, 'strerror', None) or otherwise}") from None
