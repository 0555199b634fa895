"""Which encoder does the work: the tokenizer's own library, or gigatoken where a sample shows that
its ids are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.data.encoders.encoder import Encoder, EncoderSpec, Engine
from meshwright.data.encoders.gigatoken import NotTheSame, open_gigatoken
from meshwright.data.encoders.libraries import open_huggingface, open_sentencepiece, open_tiktoken
from meshwright.values.errors import ConfigError

__all__ = ["Choice", "choose_engine", "first_difference", "open_encoder", "open_reference"]

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
    """Open the engine that was chosen for a tokenizer; ConfigError where it can't be had on this
    machine."""
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
    user's own.

    ConfigError where the user asked for gigatoken and it does not.
    """
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
            at = next(
                (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
                min(len(left), len(right)),
            )
            return (
                f"{text[:40]!r} differs at token {at}: {left[at : at + 3].tolist()} for"
                f" {right[at : at + 3].tolist()}"
            )
    return None
