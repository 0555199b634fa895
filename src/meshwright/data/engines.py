"""The tokenizer of a process, opened once: where workers are forked from a process of their own,
there, so that none of them opens it.

That process imports this module before it forks, and finds in its environment what to open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.encoders import (
    Encoded,
    Encoder,
    EncoderSpec,
    Engine,
    HuggingFaceEncoder,
    SentencePieceEncoder,
    TiktokenEncoder,
    joined,
    open_huggingface,
    open_sentencepiece,
    open_tiktoken,
)
from meshwright.values.errors import ConfigError, install_words

__all__ = [
    "Choice",
    "GigatokenEncoder",
    "NotTheSame",
    "Stamp",
    "asking_for",
    "choose_engine",
    "first_difference",
    "open_encoder",
    "open_gigatoken",
    "open_reference",
    "reference_of",
    "stamp_of",
]

CACHE_BYTES = 400 << 20
"""Growth of the process beyond which the cache of words is dropped: a worker stays under 1 GiB."""


class NotTheSame(Exception):
    """gigatoken can't stand in for this tokenizer; the message says why."""


class GigatokenEncoder:
    """gigatoken beside the encoder that it stands in for."""

    def __init__(self, reference: Encoder, open_backend: Callable[[], Any]) -> None:
        self.reference, self._open_backend = reference, open_backend
        self.vocab_size, self.eod = reference.vocab_size, reference.eod
        self.around, self.decode, self.specials = (
            reference.around,
            reference.decode,
            reference.specials,
        )
        self._backend = open_backend()
        self._base_bytes = _resident_bytes()

    @property
    def name(self) -> str:
        return f"gigatoken {version('gigatoken')} for {self.reference.name}"

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids, text by text: as fast as `encode_batch`, which imports awkward."""
        if _resident_bytes() > self._base_bytes + CACHE_BYTES:
            del self._backend
            self._backend = self._open_backend()
            self._base_bytes = _resident_bytes()
        return joined([self._backend.encode(text) for text in texts])


@lru_cache(maxsize=1)
def open_gigatoken(reference: Encoder) -> GigatokenEncoder:
    """Open gigatoken for a tokenizer, once, unchecked; NotTheSame where it can't stand in."""
    try:
        import gigatoken
    except ImportError:
        raise NotTheSame(f"it is not installed ({install_words('data')})") from None
    source: Any
    opener: Callable[[Any], Any]
    if isinstance(reference, HuggingFaceEncoder):
        source, opener = reference.to_json(), gigatoken.Tokenizer.from_json
    elif isinstance(reference, SentencePieceEncoder):
        source, opener = reference.path, gigatoken.Tokenizer.from_sentencepiece
    elif isinstance(reference, TiktokenEncoder) and reference.path is not None:
        source, opener = reference.path, gigatoken.Tokenizer.from_tiktoken
    else:
        raise NotTheSame("it does not know how this tokenizer cuts text")
    try:
        return GigatokenEncoder(reference, lambda: opener(source).backend)
    except Exception as error:  # it raises what it likes for tokenizers that it does not know
        raise NotTheSame(" ".join(f"it can't open this tokenizer: {error}".split())) from None


def _resident_bytes() -> int:
    """Return the memory of this process that is in use; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * 4096


PROBES = (
    "",
    " ",
    "a",
    "Hello, world!  Two  spaces,\ttab,\r\nlines\n\n\nand the end \n",
    "    indented = {'key': [1, 22, 333, 4444, 55555]}  # don't, they'll, we've, I'M, it'S\n",
    (
        "\u00a0no-break\u2003em\u3000ideographic\u200bzero width\ufeffmark\u0085next"
        " line\u2028separator"
    ),
    (
        "Grüße, naïve façade, Ελληνικά, русский текст, עברית, العربية ١٢٣, हिन्दी क्षि, ไทย,"
        " 한국어, 日本語のテキスト、中文字符。"
    ),
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u212b ﬁ ½ ² Ⅻ ǅ İ ß",
    "x" * 300 + " " * 300 + "\n" * 40 + "=-" * 60 + "7" * 50,
    "\x00\x01\x7f\x80 control",
    "<s></s><unk><pad><|endoftext|><|begin_of_text|>[CLS][SEP]",
)
"""Texts at which implementations are apt to differ: kinds of space, runs, contractions, scripts,
marks, emoji, controls, special tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What does the work, and why."""

    engine: Engine
    note: str
    """One sentence for the user."""


def open_reference(spec: EncoderSpec) -> Encoder:
    """Open a tokenizer with its own library."""
    if spec.kind == "sentencepiece":
        return open_sentencepiece(spec)
    if spec.kind == "tiktoken":
        return open_tiktoken(spec)
    return open_huggingface(spec)


def open_encoder(reference: Encoder, engine: Engine) -> Encoder:
    """Open the engine that was chosen; ConfigError where it can't be had on this machine."""
    if engine == "library":
        return reference
    try:
        return open_gigatoken(reference)
    except NotTheSame as error:
        raise ConfigError(f"the run was begun with gigatoken, and here {error}") from None


def choose_engine(
    reference: Encoder, texts: Sequence[str], *, wanted: Engine | None = None
) -> Choice:
    """Say whether gigatoken gives the ids of `reference` for hard texts and for a sample of the
    user's own. ConfigError where the user asked for gigatoken and it does not."""
    if wanted == "library":
        return Choice(engine="library", note=f"{reference.name}, as asked")
    sample = [
        *PROBES,
        *(f"a{special} {special}b\n{special}" for special in list(reference.specials())[:64]),
        *texts,
    ]
    try:
        fast = open_gigatoken(reference)
        difference = first_difference(fast, reference, sample)
        if difference is not None:
            raise NotTheSame(f"it gives other ids: {difference}")
    except NotTheSame as error:
        if wanted == "gigatoken":
            raise ConfigError(f"--engine gigatoken: {error}") from None
        return Choice(
            engine="library", note=f"{reference.name}; gigatoken is left out, since {error}"
        )
    return Choice(engine="gigatoken", note=f"{fast.name}; the same ids for {len(sample)} texts")


def first_difference(fast: Encoder, reference: Encoder, texts: Sequence[str]) -> str | None:
    """Return where the ids of two encoders first differ over some texts, or None."""
    ours, theirs = fast.encode(texts), reference.encode(texts)
    ends_ours, ends_theirs = np.cumsum(ours.lengths), np.cumsum(theirs.lengths)
    for place, text in enumerate(texts):
        left = ours.ids[ends_ours[place] - ours.lengths[place] : ends_ours[place]]
        right = theirs.ids[ends_theirs[place] - theirs.lengths[place] : ends_theirs[place]]
        if not np.array_equal(left, right):
            both = min(len(left), len(right))
            at = int(np.argmax(np.append(left[:both] != right[:both], True)))
            return (
                f"{text[:40]!r} differs at token {at}: {left[at : at + 3].tolist()} for"
                f" {right[at : at + 3].tolist()}"
            )
    return None


Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, time, size and number of each file of a tokenizer: what says that it is still the same."""
_TOKENIZER_FILES = ("tokenizer", "tokenizer_config")
_ASKED = "MESHWRIGHT_TOKENIZER"


def stamp_of(spec: EncoderSpec) -> Stamp:
    """Return what tells a tokenizer's files from later ones of the same names."""
    named = [Path(name) for name in (spec.model, spec.vocab_file, spec.merge_file) if name]
    folders = [folder for path in named for folder in (path, path.parent)]
    beside = [folder / f"{name}.json" for folder in folders for name in _TOKENIZER_FILES]
    found = []
    for path in (*named, *beside):
        with suppress(OSError):  # absent, which who opens it says, or the name of an encoding
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


@lru_cache(maxsize=1)
def reference_of(spec: EncoderSpec, stamp: Stamp) -> Encoder:
    """Return a tokenizer by its own library, opened once in a process per `stamp`."""
    return open_reference(spec)


def asking_for(spec: EncoderSpec, engine: Engine | None) -> dict[str, str]:
    """Return what tells the process that workers are forked from which tokenizer to open."""
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
