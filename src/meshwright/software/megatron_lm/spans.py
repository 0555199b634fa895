"""Where the words of a shell script stand in its text, so that some can be changed and all others
stay byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.software.megatron_lm.words import flags

__all__ = ["Block", "Site", "Span", "assignments", "blocks", "sites"]

_ENDS = {"}": "{", ")": "("}
_STOPS = re.compile(r"--|.*\[[@*]\]|\"?\$[@*]|\"?\$\{?\w*(?:ARGS|OPTS|OPTIONS)", re.IGNORECASE)
"""What stands for flags of its own behind a flag with any number of words."""


@dataclass(frozen=True, slots=True)
class Span:
    """A word: its place in the text."""

    start: int
    end: int

    def of(self, text: str) -> str:
        """Return the word as it is written."""
        return text[self.start : self.end]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Words that follow each other: a command, an array, or flags inside quotes."""

    kind: str
    """`command`, `array`, or the quote around them."""
    words: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A flag where it is given, with the words behind it."""

    flag: str
    name: Span
    values: tuple[Span, ...]
    block: Block

    @property
    def end(self) -> int:
        """Where its last word ends."""
        return self.values[-1].end if self.values else self.name.end


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a script in their order; flags in quotes are blocks of their own."""
    words: list[Span] = []
    kind = "command"
    for start, end in _tokens(text):
        word = text[start:end]
        opens = word == "(" and words and words[-1].end == start
        if opens and re.fullmatch(r"\w+\+?=", words[-1].of(text)):
            words, kind = [], "array"
        elif kind == "array" and word == ")":
            yield Block(kind=kind, words=tuple(words))
            words, kind = [], "command"
        elif word in "();&|<>\n":
            if kind == "array":
                continue
            if words:
                yield Block(kind=kind, words=tuple(words))
            words = []
        else:
            yield from _quoted(text, start, end)
            words.append(Span(start, end))
    if words:
        yield Block(kind=kind, words=tuple(words))


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """Yield words, and each sign that ends a command as a word of its own; comments are left
    out."""
    at, size = 0, len(text)
    while at < size:
        sign = text[at]
        if text.startswith("\\\n", at):
            at += 2
        elif sign in " \t\r":
            at += 1
        elif sign == "#":
            at = _line_end(text, at)
        elif sign in "();&|<>\n":
            yield at, at + 1
            at += 1
        else:
            end = _word_end(text, at)
            yield at, end
            at = end


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def _word_end(text: str, at: int) -> int:
    while at < len(text) and text[at] not in " \t\r\n();&|<>" and not text.startswith("\\\n", at):
        at = _past(text, at)
    return at


def _past(text: str, at: int) -> int:
    """Return where the sign at a place ends, with all that a quote or a bracket holds."""
    sign = text[at]
    if sign == "\\":
        return min(at + 2, len(text))
    if sign == "'":
        found = text.find("'", at + 1)
        return len(text) if found < 0 else found + 1
    if sign in '"`':
        at += 1
        while at < len(text) and text[at] != sign:
            at = at + 1 if text[at] == "'" else _past(text, at)
        return min(at + 1, len(text))
    if sign == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return _bracket_end(text, at + 1)
    return at + 1


def _bracket_end(text: str, at: int) -> int:
    opened: list[str] = []
    while at < len(text):
        sign = text[at]
        if sign in "({":
            opened.append(sign)
        elif sign in _ENDS and opened and opened[-1] == _ENDS[sign]:
            opened.pop()
            if not opened:
                return at + 1
        elif sign in "\"'`\\":
            at = _past(text, at)
            continue
        at += 1
    return at


def _quoted(text: str, start: int, end: int) -> Iterator[Block]:
    """Yield the flags inside a word's quotes: `ARGS="--tp 1 --pp 2"`, `bash -c "torchrun ..."`."""
    opening = re.match(r"(?:\w+\+?=)?([\"'])", text[start:end])
    if opening is None or "--" not in text[start:end]:
        return
    first, last = start + opening.end(), end - 1
    inner = text[first:last]
    if text[last] != opening[1] or not re.search(r"(?:^|\s)--\w", inner):
        return
    words = tuple(
        Span(first + found.start(), first + found.end())
        for found in re.finditer(r"(?:\$\{[^}]*\}|\\(?!\n).|[^\s\\])+", inner)
    )
    yield Block(kind=opening[1], words=words)


def sites(text: str) -> list[Site]:
    """Return every flag in the order of the text."""
    return [site for block in blocks(text) for site in _sites(text, block)]


def _sites(text: str, block: Block) -> Iterator[Site]:
    words = block.words
    for at, word in enumerate(words):
        flag, equals, _ = word.of(text).partition("=")
        if not re.fullmatch(r"--[a-zA-Z][\w-]*", flag):
            continue
        if equals:
            value = Span(word.start + len(flag) + 1, word.end)
            yield Site(flag=flag, name=word, values=(value,), block=block)
            continue
        most = {"switch": 0, "one": 1, "maybe": 1}.get(
            flags()[flag].kind if flag in flags() else "one", len(words)
        )
        values = []
        for value in words[at + 1 : at + 1 + most]:
            if _STOPS.match(value.of(text)):
                break
            values.append(value)
        yield Site(flag=flag, name=word, values=tuple(values), block=block)


def assignments(text: str, name: str) -> list[Span]:
    """Return where a variable gets a plain value or a default: the value in `TP=8`, `TP="8"`,
    `TP=${TP:-8}` and `TP=${1:-8}`."""
    plain = r"([\w.]+)"
    form = rf"{name}=[\"']?(?:{plain}|\$\{{\w+:?[-=]{plain}\}})[\"']?"
    found = []
    for block in blocks(text):
        for word in block.words if block.kind == "command" else ():
            if match := re.fullmatch(form, word.of(text)):
                group = 1 if match[1] is not None else 2
                found.append(Span(word.start + match.start(group), word.start + match.end(group)))
    return found
