"""Words of a flag that takes one of a few."""

from __future__ import annotations

from typing import Any, get_args

from meshwright.errors import UnknownNameError

__all__ = ["choice"]


def choice(word: str | None, choices: Any, flag: str) -> Any:
    """Return a word that is one of a Literal's; UnknownNameError where it is not."""
    if word is not None and word not in get_args(choices):
        raise UnknownNameError(f"value of {flag}", word, get_args(choices))
    return word
