"""What training software is started with beside the layout: `software/*/switches.csv` says what
each of its own words does, and `software/*/started.csv` which of them the configurations in its
public repository have.

A word is a flag of the software (`use-mc2`) or a key of its configuration files. A line without a
word holds whenever its release, number format and family of models do. `scripts/distil_recipes.py`
writes `started.csv` from a clone; no line is typed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.chip import Chip
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Precision

__all__ = [
    "Beginning",
    "Switch",
    "beginnings",
    "dims_of_model",
    "find_beginning",
    "known_words",
    "release_key",
    "switched",
    "switches_of",
]

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """What one word of a software changes in its stack."""

    stack: str
    word: str
    """Empty: it holds without a word."""
    release: str
    """Of which release it holds, by its first figures; empty: of all."""
    precision: str
    """In which number format; empty: in any."""
    family: str
    """For which models (`decoder`, `encoder`, `encoder-decoder`), several by `+`; empty: all."""
    changes: tuple[tuple[str, float | str], ...]
    """Fields of `Stack` and their values."""
    source: str

    def holds(self, stack: Stack, *, precision: str, family: str) -> bool:
        """Return whether release, number format and model are those that it is for."""
        wanted = release_key(self.release)
        return (
            (not self.release or release_key(stack.release)[: len(wanted)] == wanted)
            and self.precision in ("", precision)
            and (not self.family or family in self.family.split("+"))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """One configuration of a software's public repository, as far as a plan starts by it."""

    stack: str
    release: str
    """The repository's tag that first has it so."""
    until: str
    """The last tag that has it so."""
    model: str
    """As the repository calls it."""
    dims: tuple[int, ...]
    """Layers, hidden size, width of the feed-forward or of an expert, heads, KV heads, experts:
    what a model is known by."""
    chip: str
    """How the names of its chips begin; empty: any."""
    precision: str
    """Empty: any."""
    num_chips: int
    """0: not said."""
    seq_len: int
    """Tokens of a sequence; 0: not said."""
    words: tuple[str, ...]
    """Of the software's words those that it sets."""
    source: str
    """Its file at the tag."""


def switches_of(stack: str) -> tuple[Switch, ...]:
    """Return the lines of a stack, in the order of its file."""
    return tuple(one for one in _switches() if one.stack == stack)


def known_words(stack: str) -> tuple[str, ...]:
    """Return the words that a stack is told."""
    return tuple(dict.fromkeys(one.word for one in switches_of(stack) if one.word))


def switched(stack: Stack, *, told: Iterable[str], precision: Precision, family: str) -> Stack:
    """Return the stack with what these words change, and what holds without a word; of lines for
    one field the first counts. UnknownNameError for a word that the stack has not."""
    words, known = tuple(told), known_words(stack.name)
    for word in words:
        if word not in known:
            if not known:
                raise ConfigError(f"switches={word}: stack {stack.name} has none; leave it out")
            raise UnknownNameError(f"switch of {stack.name}", word, known)
    changes: dict[str, Any] = {}
    for one in switches_of(stack.name):
        if (not one.word or one.word in words) and one.holds(
            stack, precision=precision, family=family
        ):
            for field, value in one.changes:
                changes.setdefault(field, type(getattr(stack, field))(value))
    return replace(stack, **changes) if changes else stack


def beginnings(stack: str) -> tuple[Beginning, ...]:
    """Return the configurations of a stack, oldest last release first."""
    return tuple(one for one in _beginnings() if one.stack == stack)


def find_beginning(
    stack: Stack,
    *,
    model: ModelSpec,
    chip: Chip,
    precision: Precision,
    num_chips: int,
    seq_len: int | None = None,
) -> Beginning | None:
    """Return the configuration that a software's release starts a model by on a chip, None where
    it has none; of the newest release where the stack names none.

    Where a release lacks the model, that of the newest release before counts. Of several, of models
    that share their dims too, the one of the model's name goes first, then the one in the number
    format, then the one for the nearest length of sequences, then number of chips.
    """
    wanted, dims = release_key(stack.release), dims_of_model(model)
    fitting = [
        one
        for one in beginnings(stack.name)
        if one.dims == dims
        and chip.name.startswith(one.chip)
        and (not stack.release or release_key(one.release)[: len(wanted)] <= wanted)
    ]
    if not fitting:
        return None

    def reached(one: Beginning) -> tuple[int, ...]:
        until = release_key(one.until)
        return min(until, wanted) if wanted else until

    last = max(map(reached, fitting))
    newest = [one for one in fitting if reached(one) == last]
    return min(
        newest,
        key=lambda one: (
            _plain(model.name) not in _plain(one.model),
            one.precision not in ("", precision),
            abs(one.seq_len - (seq_len or 0)) if seq_len and one.seq_len else 0,
            abs(one.num_chips - num_chips),
            one.words,
        ),
    )


def release_key(release: str) -> tuple[int, ...]:
    """Return a release as numbers that compare: `v1.0.RC3` goes before `1.0.0`."""
    parts = re.findall(r"rc|\d+", release.lower())
    return tuple(-1 if part == "rc" else int(part) for part in parts)


def dims_of_model(model: ModelSpec) -> tuple[int, ...]:
    """Return what a configuration knows a model by: see `Beginning.dims`."""
    experts = model.moe.num_experts if model.moe else 0
    width = model.moe.expert_ffn if model.moe else model.ffn
    heads = (model.num_heads, model.num_kv_heads)
    return (model.num_layers, model.hidden, width, *heads, experts)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|(?<=\d)point(?=\d)", "", name.lower())


@cache
def _switches() -> tuple[Switch, ...]:
    return tuple(
        Switch(**{**row, "changes": _changes(row["changes"])}) for row in _rows("switches.csv")
    )


@cache
def _beginnings() -> tuple[Beginning, ...]:
    return tuple(
        Beginning(
            **{
                **row,
                "dims": tuple(int(part) for part in row["dims"].split()),
                "num_chips": int(row["num_chips"] or 0),
                "seq_len": int(row["seq_len"] or 0),
                "words": tuple(row["words"].split()),
            }
        )
        for row in _rows("started.csv")
    )


def _rows(name: str) -> list[dict[str, Any]]:
    """The lines of all files of a name."""
    software = resources.files("meshwright") / "software"
    folders = sorted((one for one in software.iterdir() if one.is_dir()), key=lambda one: one.name)
    files = [folder / name for folder in folders]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return [row for text in texts for row in csv.DictReader(text.splitlines())]


def _changes(text: str) -> tuple[tuple[str, float | str], ...]:
    pairs = (word.partition("=") for word in text.split())
    return tuple(
        (field, float(value) if _NUMBER.fullmatch(value) else value) for field, _, value in pairs
    )
