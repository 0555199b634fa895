"""What is known of Megatron-LM's flags: which version has them, and which field of a plan they
hold."""

from __future__ import annotations

import csv
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from meshwright.errors import CannotExpress, ConfigError
from meshwright.rules.software import NEWEST_MEGATRON, parse_version

__all__ = ["NAME", "Bound", "Flag", "Words", "bound_flags", "flags", "minor"]

NAME = "megatron-lm"
_OLDEST = (0, 12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag of Megatron-LM's parser; `presets/megatron_flags.csv` was read from the parsers of
    core 0.12.0 to 0.20."""

    flag: str
    kind: Literal["switch", "one", "many", "maybe"]
    """How many words follow: none, one, any number, none or one."""
    since: tuple[int, ...] | None
    """Version that brought it; None is 0.12 or before."""
    last: tuple[int, ...] | None
    """Last version that has it; None has it still."""

    def lacks(self, version: tuple[int, ...]) -> str | None:
        """Return the nearest version that has the flag, where this one lacks it."""
        if self.since is not None and version < self.since:
            return _text(self.since)
        return _text(self.last) if self.last is not None and version > self.last else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A flag that holds one field of a plan as it is; a row of `presets/megatron_words.csv`."""

    group: str
    flag: str
    field: str
    """Path such as `model.mla.kv_lora_rank`."""
    form: Literal["int", "positive", "float", "text", "choice", "switch", "off", "shares"]
    """positive: an int that is left out where it is 0; off: the flag stands for no; shares: numbers
    joined by commas."""
    choices: dict[str, str]
    """Ours to theirs."""
    default: str
    """What the program takes where the flag is not given; empty where that is nothing, or no."""

    def words(self, value: Any) -> tuple[str, ...] | None:
        """Return the words behind the flag, or None where the value is written by leaving the flag
        out."""
        if self.form in _SWITCHES:
            return () if bool(value) is _SWITCHES[self.form] else None
        if value is None or (self.form == "positive" and not value):
            return None
        if self.form == "choice":
            if value not in self.choices:
                raise CannotExpress(
                    NAME,
                    f"{self.flag} has no word for {value}",
                    nearest=f"{self.field}={next(iter(self.choices))}",
                )
            return (self.choices[value],)
        if self.form == "shares":
            return (",".join(f"{share:g}" for share in value),)
        return (
            (_number(self, value),) if self.form in ("int", "positive", "float") else (str(value),)
        )

    def value(self, words: tuple[str, ...]) -> Any:
        """Return the value that the words behind the flag say; ConfigError where they are none."""
        if self.form in _SWITCHES:
            return _SWITCHES[self.form]
        word = words[0]
        try:
            if self.form == "shares":
                return tuple(float(share) for share in " ".join(words).replace(",", " ").split())
            if self.form in ("int", "positive"):
                return float(int(word)) if self.field.startswith("details.rope") else int(word)
            if self.form == "float":
                return float(word)
        except ValueError:
            raise ConfigError(f"{self.flag} {word}: expected a number") from None
        if self.form == "text":
            return word
        back = {theirs: ours for ours, theirs in self.choices.items()}
        if word not in back:
            raise ConfigError(f"{self.flag} {word}: expected {', '.join(back)}")
        return back[word]


_SWITCHES = {"switch": True, "off": False}


def _number(bound: Bound, value: Any) -> str:
    if bound.form == "float":
        return repr(float(value))
    if value != int(value):
        raise CannotExpress(
            NAME,
            f"{bound.flag} takes whole numbers, not {value}",
            nearest=f"{bound.field}={round(value)}",
        )
    return str(int(value))


class Words:
    """Flags in groups, each held against the version."""

    def __init__(self, version: str) -> None:
        self.version = minor(version)
        self.groups: dict[str, list[tuple[str, ...]]] = {}

    def add(self, group: str, flag: str, *values: object) -> None:
        """Append a flag; CannotExpress with the nearest version where this one lacks it."""
        known = flags()[flag]
        if (nearest := known.lacks(self.version)) is not None:
            raise CannotExpress(
                NAME,
                f"core {_text(self.version)} has no {flag}",
                nearest=f"megatron_version={nearest}",
            )
        self.groups.setdefault(group, []).append((flag, *(str(value) for value in values)))

    def has(self, flag: str) -> bool:
        """Whether the version has a flag."""
        return flags()[flag].lacks(self.version) is None


def minor(version: str) -> tuple[int, ...]:
    """Return the two leading numbers of a version; CannotExpress where it was never looked at."""
    found = (*parse_version(version), 0)[:2]
    if not _OLDEST <= found <= parse_version(NEWEST_MEGATRON):
        words = (
            f"its flags were read from core {_text(_OLDEST)} to {NEWEST_MEGATRON}, not from"
            f" {version}"
        )
        raise CannotExpress(
            NAME,
            words,
            nearest=f"megatron_version={_text(_OLDEST) if found < _OLDEST else NEWEST_MEGATRON}",
        )
    return found


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@cache
def flags() -> dict[str, Flag]:
    """Return every flag that any version from 0.12 on has."""
    return {
        row["flag"]: Flag(
            flag=row["flag"],
            kind=row["kind"],
            since=parse_version(row["since"]) if row["since"] else None,
            last=parse_version(row["last"]) if row["last"] else None,
        )
        for row in _rows("megatron_flags.csv")
    }


@cache
def bound_flags() -> tuple[Bound, ...]:
    """Return the flags that hold one field each, in the order in which they are written."""
    return tuple(
        Bound(
            group=row["group"],
            flag=row["flag"],
            field=row["field"],
            form=row["form"],
            choices=dict(pair.split(":") for pair in row["choices"].split()),
            default=row["default"],
        )
        for row in _rows("megatron_words.csv")
    )


def _rows(name: str) -> list[dict[str, Any]]:
    table = pkgutil.get_data("meshwright", f"presets/{name}")
    assert table is not None, f"the package is installed without presets/{name}"
    return list(csv.DictReader(table.decode().splitlines()))
