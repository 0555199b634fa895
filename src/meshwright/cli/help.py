"""How help reads: commands in groups, whole sentences, the options that matter first."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer.core

from meshwright.cli.panels import FEW, PANELS, first_of, panel_of

__all__ = ["HELP_ALL", "Command", "first_sentence", "write_commands"]

_EXAMPLES = "Examples:"
HELP_ALL = "--help-all"


def first_sentence(text: str) -> str:
    """Return the first sentence of a help, whole."""
    paragraph = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.split(r"(?<=[a-z0-9)`])\. (?=[A-Z])", paragraph, maxsplit=1)[0].rstrip(".") + "."


def write_commands(formatter: Any, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the names of each group with a sentence each, all in one column."""
    longest = max(len(name) for names in groups.values() for name in names)
    for title, names in groups.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(longest), words) for name, words in names.items()])


class Command(typer.core.TyperCommand):
    """A command with a short help, `--help`, and all of it, `--help-all`."""

    path = ""
    """Its words behind `meshwright`."""

    @property
    def _is_long(self) -> bool:
        return sum(parameter.param_type_name == "option" for parameter in self.params) > FEW

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short help, or all where it was asked for."""
        whole = not self._is_long or ctx.find_root().obj == HELP_ALL
        paragraphs = (self.help or "").split("\n\n")
        examples = [p for p in paragraphs if p.strip().startswith("meshwright ")]
        words = [p for p in paragraphs if p not in examples and p.strip() != _EXAMPLES]
        self.format_usage(ctx, formatter)
        for paragraph in words if whole else words[:1]:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(" ".join(paragraph.split()))
        with formatter.section(_EXAMPLES.rstrip(":")):
            for example in examples:
                for line in _command_lines(example, width=formatter.width):
                    formatter.write(f"{line}\n")
        self._write_options(ctx, formatter, whole=whole)
        self.format_epilog(ctx, formatter)

    def _write_options(self, ctx: Any, formatter: Any, *, whole: bool) -> None:
        rows: dict[str, tuple[str, str]] = {}
        arguments = []
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(row)
            else:
                rows[parameter.name] = row
        if self._is_long:
            words = f"All {len(rows)} options in groups, and how the answer is found."
            rows[HELP_ALL] = (HELP_ALL, words)
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        for title, names in self._sections(rows, whole=whole):
            with formatter.section(title):
                formatter.write_dl([rows[name] for name in names])

    def _sections(self, rows: Iterable[str], *, whole: bool) -> Iterator[tuple[str, list[str]]]:
        """Yield titles with the options under each."""
        own = [name for name in rows if name not in ("help", HELP_ALL)]
        last = [name for name in rows if name not in own]
        if not self._is_long:
            yield "Options", [*own, *last]
        elif not whole:
            yield "Options", [*first_of(self.path, own), *last]
        else:
            for title, names in PANELS.items():
                shown = [name for name in own if panel_of(self.path, name) == title]
                places = {name.rpartition(":")[2]: place for place, name in enumerate(names)}
                if shown:
                    yield title, sorted(shown, key=lambda name: places[name])
            others = [name for name in own if panel_of(self.path, name) is None]
            yield "Others" if others else "Help", [*others, *last]


def _command_lines(example: str, *, width: int) -> list[str]:
    """Return an example that can be copied: lines that are continued end in a backslash."""
    lines, line = [], "  "
    for word in _words(" ".join(example.split())):
        if len(line) + len(word) + 3 > width and line.strip():
            lines.append(f"{line.rstrip()} \\")
            line = "      "
        line += f"{word} "
    return [*lines, line.rstrip()]


def _words(example: str) -> list[str]:
    """Return an option with its value as one word."""
    found: list[str] = []
    for word in shlex.split(example, posix=False):
        if found and found[-1].startswith("-") and " " not in found[-1] and word[0] != "-":
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found
