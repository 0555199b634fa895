"""Weights of several .bin/.idx pairs, and how the training programs write them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Literal

from meshwright.data.indexed import IndexedFile
from meshwright.data.listing import natural_key
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted

__all__ = ["FORMS", "Blend", "By", "blend", "even_sum", "prefixes_of"]


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


By = Literal["tokens", "documents", "equal"]
_DIGITS = 6
FORMS = ("megatron", "nemo", "bridge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """A mixture."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...]
    """Shares of the samples, multiples of 0.000001 that sum to 1 exactly as they are written."""
    tokens: tuple[int, ...]

    def words(self) -> list[str]:
        """Return the weights as they are written."""
        return [f"{weight:.{_DIGITS}f}" for weight in self.weights]

    def epochs(self, train_tokens: int) -> list[float]:
        """Return how often each corpus is read in a training of so many tokens."""
        return [
            weight * train_tokens / tokens
            for weight, tokens in zip(self.weights, self.tokens, strict=True)
        ]

    def forms(self) -> dict[str, str]:
        """Return the text of each program: Megatron-LM's flag, NeMo 1.x's field,
        Megatron-Bridge's."""
        pairs = list(zip(self.words(), self.prefixes, strict=True))
        return {
            "megatron": (
                "--data-path " + " ".join(f"{weight} {_quoted(prefix)}" for weight, prefix in pairs)
            ),
            "nemo": _quoted(
                "model.data.data_prefix=["
                + ",".join(f"{weight},{prefix}" for weight, prefix in pairs)
                + "]"
            ),
            "bridge": _quoted(
                f"dataset.blend=[{json.dumps(list(self.prefixes), separators=(',', ':'))},[{','.join(self.words())}]]"  # noqa: E501
            ),
        }


def _quoted(word: str) -> str:
    return shlex.quote(word)


def blend(
    words: Sequence[str],
    *,
    by: By = "tokens",
    temperature: float = 1.0,
    weights: Sequence[float] | Mapping[str, float] | None = None,
) -> Blend:
    """Weigh pairs by their size, or by a mixture that is given.

    Args:
        words: prefixes, folders or patterns.
        by: what the weights follow where none are given.
        temperature: sizes are raised to 1 / temperature: above 1 small corpora weigh more, 1 leaves
                     them.
        weights: in the order of the pairs; any positive numbers, they are divided by their sum.

    Raises:
        ConfigError: a pair is absent, broken or empty; weights that are not one for each, or not
                     positive.
    """
    prefixes = prefixes_of(words)
    files = [IndexedFile(prefix) for prefix in prefixes]
    for file in files:
        if not file.num_tokens:
            raise ConfigError(f"{file.prefix}: holds no token")
    if not temperature > 0:
        raise ConfigError(f"--temperature {temperature}: expected more than 0")
    if weights is not None and (by, temperature) != ("tokens", 1.0):
        raise ConfigError(
            "--weights say all: --by and --temperature have no effect on them, leave them out"
        )
    if weights is None:
        sizes = {
            "tokens": [f.num_tokens for f in files],
            "documents": [f.num_documents for f in files],
            "equal": [1] * len(files),
        }
        raw = [size ** (1 / temperature) for size in sizes[by]]
    else:
        raw = _given(prefixes, weights)
    return Blend(
        prefixes=tuple(prefixes),
        weights=tuple(even_sum(raw)),
        tokens=tuple(file.num_tokens for file in files),
    )


def _given(prefixes: Sequence[str], weights: Sequence[float] | Mapping[str, float]) -> list[float]:
    given = list(weights.values()) if isinstance(weights, Mapping) else list(weights)
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in prefixes]
        if unknown:
            raise ConfigError(
                f"--weights {unknown[0]}=...: is none of the pairs: {', '.join(prefixes)}"
            )
        given = [weights[prefix] for prefix in prefixes if prefix in weights]
    if len(given) != len(prefixes):
        raise ConfigError(
            f"--weights: {len(given)} for {counted(len(prefixes), 'pair')} ({', '.join(prefixes)})"
        )
    if not all(0 < weight < float("inf") for weight in given):
        raise ConfigError(
            f"--weights {','.join(map(str, given))}: expected numbers above 0; leave out what is"
            " not to be read"
        )
    return given


def even_sum(raw: Sequence[float]) -> list[float]:
    """Round shares so that they sum to 1 as written: down, and what is left to those that lost the
    most. ConfigError where one vanishes."""
    unit = 10**_DIGITS
    exact = [weight / sum(raw) * unit for weight in raw]
    floors = [int(value) for value in exact]
    left = unit - sum(floors)
    order = sorted(range(len(raw)), key=lambda place: (floors[place] - exact[place], place))
    for place in order[:left]:
        floors[place] += 1
    if 0 in floors:
        raise ConfigError(
            f"pair {floors.index(0) + 1} would weigh less than {1 / unit:.{_DIGITS}f}; merge small"
            " corpora, or raise --temperature"
        )
    return [value / unit for value in floors]
