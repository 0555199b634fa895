"""Mark the functions that make the terms of a price, for whoever explains one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["makes", "terms_made"]


F = TypeVar("F", bound=Callable[..., Any])


def makes(*terms: str) -> Callable[[F], F]:
    """Mark a function that makes these terms, or a part of them; a call of it costs no more.

    Where the function has a local name `term`, a call makes that one of them alone.
    """

    def note(function: F) -> F:
        function.__dict__["makes"] = terms
        return function

    return note


def terms_made(function: object) -> tuple[str, ...]:
    """Return the terms that a function is marked with, none for all others."""
    found: tuple[str, ...] = getattr(function, "__dict__", {}).get("makes", ())
    return found
