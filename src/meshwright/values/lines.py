"""One rule of all requests for texts: what may end in a script, a file or a command is one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from meshwright.values.errors import ConfigError

__all__ = ["check_line", "check_lines", "check_no_option", "check_text"]

_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Signs at which a reader of some kind begins a new line."""


def check_text(text: str, what: str) -> None:
    """Refuse what no process can be handed: a NUL, and text that UTF-8 cannot carry."""
    if "\0" in text:
        raise ConfigError(f"{what} holds a NUL byte, which no program can be given")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} cannot be written in UTF-8: {text!r}") from None


def check_line(text: str, what: str) -> None:
    """Refuse a text that would end its line, and what `check_text` does."""
    check_text(text, what)
    if any(sign in text for sign in _ENDS):
        raise ConfigError(f"{what} must be one line, got {text[:200]!r}")


def check_lines(owner: Any, *, but: Collection[str] = ()) -> None:
    """Refuse a request with a text of several lines in any field, `but` those that take them;
    ConfigError names the field. Lists, tuples and mappings are looked into."""
    for field in fields(owner):
        if field.name not in but:
            _check(getattr(owner, field.name), field.name)


def check_no_option(owner: Any, names: Sequence[str]) -> None:
    """Refuse a value that begins with a dash: it stands behind an option, or alone, and the program
    would read it as another option."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and value.startswith("-"):
            raise ConfigError(
                f"{name}={value}: a value that begins with a dash would be read as an option"
            )


def _check(value: Any, what: str) -> None:
    if isinstance(value, str):
        check_line(value, what)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check(key, what)
            _check(inner, f"{what}: {key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner, what)
