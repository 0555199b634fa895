"""Flags of a launch script set, added and removed in its own text; all else stays byte for byte.

Each change is tried where the script says the value: in the variable, in the array, on the line.
What is tried is read again, and holds where the flag then says what was wanted and every other flag
what it said before. So a variable that also names a checkpoint's folder is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from meshwright.software.megatron_lm.export import split_words
from meshwright.software.megatron_lm.shell import read_script
from meshwright.software.megatron_lm.spans import Block, Site, Span, assignments, sites
from meshwright.software.megatron_lm.words import flags
from meshwright.values.errors import ConfigError

__all__ = ["Edits", "edited", "given_flags"]

Edits = Mapping[str, tuple[str, ...] | None]
"""The words behind each flag; None takes the flag out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """What a script says to the launcher and to the program."""

    launcher: dict[str, tuple[str, ...]]
    program: dict[str, tuple[str, ...]]

    def says(self, flag: str) -> tuple[str, ...] | None:
        return self.program.get(flag, self.launcher.get(flag))

    def others(self, flag: str) -> tuple[dict[str, tuple[str, ...]], ...]:
        return tuple(
            {name: words for name, words in part.items() if name != flag}
            for part in (self.launcher, self.program)
        )


def _state(text: str) -> _State:
    script = read_script(text)
    return _State(launcher=split_words(script.launcher), program=split_words(script.words))


def given_flags(text: str) -> dict[str, tuple[str, ...]]:
    """Return the words behind each flag of a script, the launcher's too."""
    state = _state(text)
    return {**state.launcher, **state.program}


def edited(text: str, edits: Edits) -> str:
    """Return the script with its flags changed; ConfigError where a flag can't be."""
    for flag, words in edits.items():
        text = _with_flag(text, flag, words)
    return text


def _with_flag(text: str, flag: str, words: tuple[str, ...] | None) -> str:
    before = _state(text)
    if before.says(flag) == words:
        return text
    for tried in _ways(text, flag, words):
        after = _tried(tried)
        if (
            after is not None
            and after.says(flag) == words
            and after.others(flag) == before.others(flag)
        ):
            return tried
    wanted = "is to go" if words is None else f"is to say {' '.join(words)}"
    raise ConfigError(
        f"{flag} {wanted}, and no edit of the script does that alone: change it by hand"
    )


def _tried(text: str) -> _State | None:
    try:
        return _state(text)
    except ConfigError:
        return None


def _ways(text: str, flag: str, words: tuple[str, ...] | None) -> Iterator[str]:
    """Yield texts with a flag changed, the smallest change first."""
    found = [site for site in sites(text) if site.flag == flag]
    if words is None:
        yield from (_without(text, [site]) for site in reversed(found))
        yield _without(text, found)
        return
    if not found:
        yield from _added(text, " ".join((flag, *words)))
        return
    for site in reversed(found):
        if len(words) == len(site.values) == 1:
            yield from _in_variable(text, site.values[0], words[0])
        yield _replaced(text, [site], words)
    yield _replaced(text, found, words)


def _in_variable(text: str, value: Span, word: str) -> Iterator[str]:
    """Yield texts with the variable changed that a value consists of, or its default there."""
    written = value.of(text)
    if inner := re.fullmatch(r"\"?\$\{\w+:?-([\w.]+)\}\"?", written):
        at = value.start + inner.start(1)
        yield text[:at] + word + text[at + len(inner[1]) :]
    if name := re.fullmatch(r"\"?\$\{?(\w+)(?::?-[^}]*)?\}?\"?", written):
        for place in reversed(assignments(text, name[1])):
            yield text[: place.start] + word + text[place.end :]


def _replaced(text: str, found: Iterable[Site], words: tuple[str, ...]) -> str:
    for site in reversed(list(found)):
        if len(words) == len(site.values):
            for span, word in zip(reversed(site.values), reversed(words), strict=True):
                text = text[: span.start] + word + text[span.end :]
        else:
            text = text[: site.name.start] + " ".join((site.flag, *words)) + text[site.end :]
    return text


def _without(text: str, found: Iterable[Site]) -> str:
    for site in reversed(list(found)):
        text = _cut(text, site.name.start, site.end)
    return text


def _cut(text: str, start: int, end: int) -> str:
    """Take words out; a line that held nothing else goes with them."""
    line = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    before, behind = text[line:start], text[end:stop]
    if before.strip() or behind.strip() not in ("", "\\"):
        if not before.strip():
            return text[:start] + text[end:stop].lstrip() + text[stop:]
        return text[:start].rstrip(" \t") + text[end:]
    if not behind.strip() and text[:line].endswith("\\\n"):
        # the last line of a command: the line before it now ends the command
        return text[: line - 2].rstrip(" \t") + text[stop:]
    return text[:line] + text[stop + 1 :]


def _added(text: str, words: str) -> Iterator[str]:
    """Yield texts with a flag at the end of a block: that with most flags of the layout first."""
    ranked: dict[Block, list[Site]] = {}
    for site in sites(text):
        if site.flag in flags():
            ranked.setdefault(site.block, []).append(site)
    for group in sorted(ranked.values(), key=_rank, reverse=True):
        yield _behind(text, group[-1], words)


def _rank(group: list[Site]) -> tuple[int, int, int]:
    of_layout = sum(site.flag in _LAYOUT for site in group)
    of_batch = sum(site.flag == "--micro-batch-size" for site in group)
    return of_layout, of_batch, len(group)


_LAYOUT = {
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--sequence-parallel"),
    *("--context-parallel-size", "--expert-model-parallel-size", "--use-distributed-optimizer"),
    *("--expert-tensor-parallel-size", "--num-layers-per-virtual-pipeline-stage"),
}


def _behind(text: str, site: Site, words: str) -> str:
    """Add words behind a block's last flag, on a line of their own where its flags have such."""
    block = site.block
    line = text.rfind("\n", 0, site.name.start) + 1
    stop = text.find("\n", site.end)
    stop = len(text) if stop < 0 else stop
    alone = not text[line : site.name.start].strip()
    indent = text[line : site.name.start] if alone else ""
    body = text[block.words[0].start : block.words[-1].end]
    behind = text[site.end : stop]
    if block.kind == "array" and alone and (not behind.strip() or behind.strip()[0] in "#\\"):
        ending = " \\" if behind.rstrip().endswith("\\") else ""
        return text[:stop] + f"\n{indent}{words}{ending}" + text[stop:]
    if alone and "\n" in body and block.kind != "'":
        joint = " \\\n" if "\\\n" in body or block.kind == "command" else "\n"
        return text[: site.end] + f"{joint}{indent}{words}" + text[site.end :]
    return text[: site.end] + f" {words}" + text[site.end :]
