"""The options of inference engines, by engine and version: `options.csv` of each engine's folder,
written by scripts/distil_engine_options.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshwright.software.serving import engines
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["EngineOption", "check_keys", "check_words", "engine_options", "engine_version"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOption:
    """One flag of a command line (`--tensor-parallel-size`), or one key of a YAML file
    (`kv_cache_config.dtype`)."""

    engine: str
    version: str
    """Of the engine whose source the row was read from."""
    option: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...]
    """Empty: any value, or none."""
    source: str


@cache
def engine_options(engine: str) -> Mapping[str, EngineOption]:
    """Return the options of an engine by every name that they have."""
    found: dict[str, EngineOption] = {}
    for option in _table():
        if option.engine == engine:
            found |= dict.fromkeys((option.option, *option.aliases), option)
    if not found:
        raise UnknownNameError(
            "engine with a table of options", engine, sorted({option.engine for option in _table()})
        )
    return found


def engine_version(engine: str) -> str:
    """Return the version of an engine that its options were read from."""
    return next(iter(engine_options(engine).values())).version


def check_words(words: Sequence[str], *, engines: Sequence[str]) -> None:
    """Refuse a command line with a flag that none of these engines has, or a value that is none of
    its choices.

    Several engines where one hands on what it does not know, as Dynamo's workers do.
    """
    known = {
        name: option
        for engine in reversed(engines)
        for name, option in engine_options(engine).items()
    }
    said = " and ".join(f"{engine} {engine_version(engine)}" for engine in engines)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or _is_number(name):
            continue
        option = known.get(name) or known.get(name.replace("--no-", "--", 1))
        if option is None:
            raise UnknownNameError(f"option of {said}", name, known)
        follows = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if option.choices and follows not in option.choices:
            raise ConfigError(
                f"{said}: {name} {follows}: expected one of {', '.join(option.choices)}"
            )


def check_keys(content: Mapping[str, Any], *, engine: str) -> None:
    """Refuse a YAML file with a key that the engine does not have; keys of a part are
    `part.key`."""
    known = engine_options(engine)
    for name, value in _flat(content):
        option = known.get(name)
        if option is None:
            raise UnknownNameError(f"key of {engine} {engine_version(engine)}", name, known)
        if option.choices and str(value) not in option.choices:
            raise ConfigError(
                f"{engine} {engine_version(engine)}: {name}: {value}: expected one of"
                f" {', '.join(option.choices)}"
            )


def _flat(content: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()


@cache
def _table() -> tuple[EngineOption, ...]:
    return tuple(
        EngineOption(
            engine=row["engine"],
            version=row["version"],
            option=row["option"],
            aliases=tuple(row["aliases"].split()),
            choices=tuple(row["choices"].split("|")) if row["choices"] else (),
            source=row["source"],
        )
        for engine in engines().values()
        for row in engine.options
    )
