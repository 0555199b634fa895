"""Which .bin/.idx pairs words name: prefixes, one of the two files, folders, patterns, @FILE
lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path

from meshwright.data.listing import natural_key
from meshwright.errors import ConfigError

__all__ = ["prefixes_of"]


def prefixes_of(words: Sequence[str]) -> list[str]:
    """Return the prefixes in the order of the words; those of a folder or a pattern in natural
    order.

    ConfigError for a word that names none, for half of a pair, and for a prefix that comes twice.
    """
    found: list[str] = []
    for word in words:
        for prefix in _of_word(word):
            for ending in ("idx", "bin"):
                if not Path(f"{prefix}.{ending}").is_file():
                    raise ConfigError(
                        f"{prefix}.{ending} does not exist; expected a prefix, or a folder with"
                        " pairs of .bin and .idx"
                    )
            if prefix in found:
                raise ConfigError(f"{prefix}: is named twice")
            found.append(prefix)
    return found


def _of_word(word: str) -> Iterator[str]:
    if word.startswith("@"):
        try:
            lines = Path(word[1:]).read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise ConfigError(f"{word}: {error.strerror}") from None
        for line in filter(None, map(str.strip, lines)):
            yield from _of_word(line)
    elif Path(word).is_dir():
        yield from _of_files(word, [str(path) for path in Path(word).iterdir()])
    elif has_magic(word):
        yield from _of_files(word, glob(word, recursive=True))
    else:
        yield word.removesuffix(".idx").removesuffix(".bin")


def _of_files(word: str, names: Sequence[str]) -> list[str]:
    found = {name[:-4] for name in names if name.endswith((".idx", ".bin"))}
    if not found:
        raise ConfigError(f"{word}: holds no .bin and .idx")
    return sorted(found, key=natural_key)
