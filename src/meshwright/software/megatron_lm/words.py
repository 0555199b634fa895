"""Which layers have experts, as Megatron-LM's --moe-layer-freq says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from meshwright.search.rules.software import NEWEST_MEGATRON, parse_version
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.units import counted

__all__ = [
    "NAME",
    "Args",
    "Bound",
    "Flag",
    "Words",
    "bound_flags",
    "dead_flags",
    "expert_layers",
    "flags",
    "minor",
]

NAME = "megatron-lm"
_OLDEST = (0, 12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag of Megatron-LM's parser; `software/megatron_lm/megatron_flags.csv` was read from the
    parsers of core 0.12.0 to 0.20."""

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
    """A flag that holds one field of a plan as it is; a row of
    `software/megatron_lm/megatron_words.csv`."""

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
                nearest = f"{self.field}={next(iter(self.choices))}"
                raise CannotExpress(NAME, f"{self.flag} has no word for {value}", nearest=nearest)
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
        reason = f"{bound.flag} takes whole numbers, not {value}"
        raise CannotExpress(NAME, reason, nearest=f"{bound.field}={round(value)}")
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
            reason = f"core {_text(self.version)} has no {flag}"
            raise CannotExpress(NAME, reason, nearest=f"megatron_version={nearest}")
        self.groups.setdefault(group, []).append((flag, *(str(value) for value in values)))

    def put(self, group: str, flags: Mapping[str, object]) -> None:
        """Append flags with their values, True without one; None and False leave a flag out."""
        for flag, value in flags.items():
            if value is not None and value is not False:
                self.add(group, flag, *(() if value is True else (value,)))

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
        nearest = _text(_OLDEST) if found < _OLDEST else NEWEST_MEGATRON
        raise CannotExpress(NAME, words, nearest=f"megatron_version={nearest}")
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
        for row in _rows("flags")
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
        for row in _rows("words")
    )


def _rows(table: str) -> Iterable[Any]:
    return package_rows(f"software/megatron_lm/megatron_{table}.csv")


class Args:
    """Words behind each flag; each flag is taken once."""

    def __init__(self, given: dict[str, tuple[str, ...]]) -> None:
        self._given = dict(given)
        self.warnings: list[str] = []
        self.passed: list[str] = []

    def has(self, flag: str) -> bool:
        """Whether a flag is still there."""
        return flag in self._given

    def has_words(self, flag: str, *words: str) -> bool:
        """Whether a flag is still there with these words."""
        return self._given.get(flag) == words

    def words(self, flag: str) -> tuple[str, ...] | None:
        """Take the words behind a flag; None where it is not given."""
        found = self._given.pop(flag, None)
        if (
            found is not None
            and not found
            and flag in flags()
            and flags()[flag].kind in ("one", "many")
        ):
            raise ConfigError(f"{flag}: expected a value behind it")
        return found

    def switch(self, flag: str) -> bool:
        """Take a flag without words."""
        return self._given.pop(flag, None) is not None

    def text(self, flag: str) -> str | None:
        """Take one word; ConfigError where a variable of the script stands there that nothing
        sets."""
        found = self.words(flag)
        return None if found is None else found[0]

    def count(self, flag: str) -> int | None:
        """Take a whole number."""
        word = self.text(flag)
        if word is None:
            return None
        try:
            return int(word)
        except ValueError:
            raise ConfigError(
                f"{flag} {word}: expected a whole number{variable_hint(word)}"
            ) from None

    def number(self, flag: str) -> float | None:
        """Take a number."""
        word = self.text(flag)
        if word is None:
            return None
        try:
            return float(word)
        except ValueError:
            raise ConfigError(f"{flag} {word}: expected a number{variable_hint(word)}") from None

    def drop(self, flag: str, *usual: str) -> bool:
        """Take a flag away where its words are those that an export writes, and say whether; else
        it is handed on."""
        if not self.has_words(flag, *usual):
            return False
        del self._given[flag]
        return True

    def hand_on(self, flag: str, *words: str) -> None:
        """Keep words that say more than a plan does."""
        self.passed += [flag, *words]

    def hand_on_rest(self) -> None:
        """Hand on what was not taken, and warn of what no version has."""
        for flag, words in self._given.items():
            if flag in dead_flags():
                why = dead_flags()[flag]
                self.warnings.append(f"{flag} no longer exists ({why}); it is left out")
                continue
            if flag not in flags():
                self.warnings.append(
                    f"{flag} is no flag of Megatron-LM core 0.12 to 0.20; it is passed through"
                )
            self.hand_on(flag, *words)
        self._given.clear()


def variable_hint(word: str) -> str:
    """Say which variable of a script is not set."""
    found = re.search(r"\$\{?=?(\w+)", word)
    return f"; the script does not set {found[1]}" if found else ""


@cache
def dead_flags() -> dict[str, str]:
    """Return the flags that no version has any more, with why."""
    return {row["flag"]: row["why"] for row in _rows("dead_flags")}


_MOST_LAYERS = 10_000


def expert_layers(text: str, layers: int) -> tuple[int, int]:
    """Return leading dense layers and one-in-how-many of the others, from `([0]*3+[1]*58)` or a
    number; ConfigError for what is neither."""
    try:
        kinds = _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"--moe-layer-freq {text[:60]!r}: expected a number or a list such as ([0]*3+[1]*58)"
        ) from None
    if isinstance(kinds, int):
        kinds = [int(layer % max(kinds, 1) == 0) for layer in range(layers)]
    if len(kinds) != layers or set(kinds) - {0, 1}:
        raise ConfigError(
            f"--moe-layer-freq {text[:60]!r}: {counted(len(kinds), 'layer')} of {layers}; expected"
            " 0 or 1 for each"
        )
    for first in range(layers):
        for every in range(1, 9):
            rest = layers - first
            if (
                sum(kinds[:first]) == 0
                and sum(kinds) == rest // every
                and _spread(kinds[first:], every)
            ):
                return first, every
    raise ConfigError(
        f"--moe-layer-freq {text[:60]!r}: a plan knows leading dense layers and one layer in so"
        " many with experts"
    )


def _spread(kinds: list[int], every: int) -> bool:
    """Whether each whole round of `every` layers has one with experts."""
    rounds = len(kinds) // every
    return all(sum(kinds[i * every : (i + 1) * every]) == 1 for i in range(rounds))


def _evaluated(node: ast.expr) -> Any:
    """Evaluate numbers, lists, + and * of a bounded length."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int)
        and 0 <= node.value <= _MOST_LAYERS
    ):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluated(entry) for entry in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if (
            isinstance(node.op, ast.Mult)
            and isinstance(left, list)
            and isinstance(right, int)
            and len(left) * right <= _MOST_LAYERS
        ):
            return left * right
    raise ValueError
