"""The tokenizer of a process, opened once: where workers are forked from a process of their own,
there, so that none of them opens it.

That process imports this module before it forks, and finds in its environment what to open.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from meshwright.data.encoders.choose import open_encoder, open_reference
from meshwright.data.encoders.encoder import Encoder, EncoderSpec, Engine

__all__ = ["Stamp", "asking_for", "reference_of", "stamp_of"]

Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, time, size and number of each file of a tokenizer: what says that it is still the same."""
_ASKED = "MESHWRIGHT_TOKENIZER"


def stamp_of(spec: EncoderSpec) -> Stamp:
    """Return what tells a tokenizer's files from later ones of the same names."""
    named = [
        Path(name) for name in (spec.model, spec.vocab_file, spec.merge_file) if name is not None
    ]
    beside = [
        folder / name
        for path in named
        for folder in (path, path.parent)
        for name in ("tokenizer.json", "tokenizer_config.json")
    ]
    return tuple(found for path in (*named, *beside) for found in _identity(path))


def _identity(path: Path) -> list[tuple[str, int, int, int]]:
    try:
        found = path.stat()
    except (
        OSError
    ):  # it is the name of an encoding, or the file is absent, which the one that opens it says
        return []
    return [(str(path), found.st_mtime_ns, found.st_size, found.st_ino)]


@lru_cache(maxsize=1)
def reference_of(spec: EncoderSpec, stamp: Stamp) -> Encoder:
    """Return a tokenizer with its own library, opened once in a process while its files stay as
    `stamp` has them."""
    return open_reference(spec)


def asking_for(spec: EncoderSpec, engine: Engine | None) -> dict[str, str]:
    """Return the environment by which the process that workers are forked from opens a tokenizer;
    engine None: most likely gigatoken."""
    return {_ASKED: json.dumps([asdict(spec), engine or "gigatoken"])}


def _open_as_asked() -> None:
    """Open what the environment asks for; what goes wrong is for a worker to say."""
    asked = os.environ.pop(_ASKED, None)
    if asked is None:
        return
    with suppress(Exception):
        values, engine = json.loads(asked)
        spec = EncoderSpec(**values)
        open_encoder(reference_of(spec, stamp_of(spec)), engine).encode(["a"])


_open_as_asked()
