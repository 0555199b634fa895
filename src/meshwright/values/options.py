"""What the fields of a request say of themselves to the doors that take them from people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from meshwright.values.errors import UnknownNameError

__all__ = ["Option", "word_of"]


@dataclass(frozen=True, slots=True)
class Option:
    """How one field is written and explained; it stands in the field's `Annotated`. The field has
    the name, the type and the default. Command line and documentation are made from both, so that
    no command says them again."""

    help: str
    names: tuple[str, ...] = ()
    """On the command line; none is `--` with the field's name."""
    metavar: str | None = None
    """What stands for a value in the help; None names the type."""
    kind: Any = None
    """What the command line takes where it is not the field's own type."""
    read: Callable[[Any], Any] | None = None
    """Makes the field's value of what the command line took."""
    usual: Any = None
    """The default as the command line takes and shows it, where the help does not tell it."""
    is_file: bool = False
    """A text that names a file."""
    is_argument: bool = False
    """Given by its place, without a name."""


def word_of(choices: Any, name: str) -> Callable[[str], Any]:
    """Return what reads a word that is one of a Literal's; UnknownNameError for another."""

    def read(word: str) -> Any:
        if word not in get_args(choices):
            raise UnknownNameError(f"value of {name}", word, get_args(choices))
        return word

    return read
