"""Flags of a command line from which values are taken one by one, so that what is left can be
handed on."""

from __future__ import annotations

import csv
import pkgutil
import re
from functools import cache

from meshwright.errors import ConfigError
from meshwright.exports.megatron_lm._tables import flags

__all__ = ["Args"]


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
            if flag in _dead():
                self.warnings.append(f"{flag} no longer exists ({_dead()[flag]}); it is left out")
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
def _dead() -> dict[str, str]:
    table = pkgutil.get_data("meshwright", "presets/megatron_dead_flags.csv")
    assert table is not None, "the package is installed without presets/megatron_dead_flags.csv"
    return {row["flag"]: row["why"] for row in csv.DictReader(table.decode().splitlines())}
