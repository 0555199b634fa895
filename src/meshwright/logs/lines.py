"""Text of logs in blocks of whole lines: colours and carriage returns gone, memory bounded whatever
comes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator

__all__ = ["LONGEST_LINE", "lines_of", "plain", "rank_of", "whole_lines", "without_rank"]

LONGEST_LINE = 2**17
"""Characters; what a longer line has beyond is dropped. A dump of a large configuration in one line
is shorter."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""ECMA-48: colours and cursors (CSI), titles and links (OSC), single ones."""
_PREFIX = re.compile(
    r"""\s{0,8}(?:
      (?P<plain>\d{1,7}):\ ?                            # srun --label
      | \[[A-Za-z_]{1,30}(?P<elastic>\d{1,7})\]:\ ?     # torchrun --tee, `[default0]:`; torch's own errors, `[rank0]:`
      | \[\d{1,5},(?P<mpi>\d{1,7})\]<std\w{3}>:\ ?      # mpirun --tag-output
      | \[pod/(?P<pod>[\w./-]{1,200})\]\ ?              # kubectl logs --prefix
      | (?P<torchx>[A-Za-z][\w.-]{0,100}/\d{1,7})\ (?=\[)  # torchx and NeMo-Run, in front of torchrun's
      | (?P<worker>worker-\d{1,5}):\ ?                  # deepspeed over pdsh
    )""",  # noqa: E501
    re.VERBOSE,
)
_DEEPEST = 4
"""Prefixes that may stand one behind the other: a launcher's inside a launcher's."""


def plain(text: str) -> str:
    r"""Return a text without colours, with `\n` alone at the ends of lines: a progress bar is a
    line for each time it was drawn."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def whole_lines(chunks: Iterable[str]) -> Iterator[str]:
    r"""Yield a text again in blocks that end with a line, the last one perhaps without its `\n`;
    colours and carriage returns gone."""
    rest = ""
    for chunk in chunks:
        text = rest + chunk
        end = len(text) - text.endswith("\r")  # `\r\n` may be cut in two
        cut = max(text.rfind("\n"), text.rfind("\r", 0, end)) + 1
        if cut:
            yield _bounded(plain(text[:cut]))
        rest = (
            text[cut:]
            if len(text) - cut <= LONGEST_LINE
            else text[cut : cut + LONGEST_LINE] + text[-1]
        )
    if rest:
        yield _bounded(plain(rest))


def lines_of(block: str) -> Iterator[str]:
    r"""Yield the lines of a block, each with its `\n`; other separators of Unicode do not end a
    line."""
    return iter(io.StringIO(block))


def _bounded(text: str) -> str:
    """Cut the lines that are too long."""
    if len(text) <= LONGEST_LINE:
        return text
    return "".join(
        line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "\n" for line in lines_of(text)
    )


def rank_of(line: str) -> str:
    """Name who wrote a line, by the launcher's prefix; empty where there is none."""
    return "/".join(
        next(group for group in match.groups() if group is not None) for match in _prefixes(line)
    )


def without_rank(line: str) -> str:
    """Return a line without the launcher's prefixes, and without spaces in front."""
    end = 0
    for match in _prefixes(line):
        end = match.end()
    return line[end:].lstrip(" \t")


def _prefixes(line: str) -> Iterator[re.Match[str]]:
    at = 0
    for _ in range(_DEEPEST):
        match = _PREFIX.match(line, at)
        if match is None:
            return
        yield match
        at = match.end()
