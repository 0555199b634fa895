"""What a report is made of: a part for each RESULT, in sections of charts, tables and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.report.charts.forms import Chart, Grid

__all__ = ["Block", "Part", "Record", "Section", "Tile", "Words"]

Record = Mapping[str, Any]
"""The object that a command prints with --json."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Paragraphs, or a list where there are several."""

    lines: tuple[str, ...]


Block = Chart | Grid | Words


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One figure of an answer."""

    title: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Blocks that answer one question."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One RESULT."""

    kind: str
    """The command that made it."""
    title: str
    answer: str
    """In one sentence."""
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    """What could not be shown, and why; what was computed for the page."""

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Every chart, in its order."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if not isinstance(block, Grid | Words)
        )
