"""Secrets of this process's environment, hidden in what is printed and written."""

from __future__ import annotations

import os

from meshwright.values.secrets import is_secret, masked

__all__ = ["hide"]


def hide(text: str) -> str:
    """Return a text without values of secrets: those that this process's environment holds, and
    those that stand behind a secret's name."""
    known = [value for name, value in os.environ.items() if is_secret(name)]
    return masked(text, known)
