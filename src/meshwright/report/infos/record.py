"""A report's values as plain objects for --json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshwright.report.charts.forms import Grid
from meshwright.report.infos.part import Block, Part, Section, Words

__all__ = ["report_record"]


def report_record(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what `report --json` prints: by part its answer, and each table and chart as columns
    and rows."""
    return {"parts": [_part(part) for part in parts]}


def _part(part: Part) -> dict[str, Any]:
    return {
        "kind": part.kind,
        "title": part.title,
        "answer": part.answer,
        "tiles": [asdict(tile) for tile in part.tiles],
        "notes": list(part.notes),
        "sections": [_section(section) for section in part.sections],
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "key": section.key,
        "title": section.title,
        "blocks": [_block(block) for block in section.blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Words):
        return {"form": "words", "lines": list(block.lines)}
    grid = block if isinstance(block, Grid) else block.data
    return {
        "form": type(block).__name__.lower(),
        "key": block.key,
        "title": block.title,
        "sentence": block.sentence,
        "columns": [column.key for column in grid.columns],
        "rows": [list(row) for row in grid.rows],
    }
