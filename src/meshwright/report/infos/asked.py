"""The problem behind a request in JSON, looked up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.errors import MeshwrightError
from meshwright.report.infos.part import Block, Record, Words
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.search.problem import Problem

__all__ = ["Asked", "Resolve", "asked_of", "drawn", "present"]

Resolve = Callable[[Record], "Problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks, or why that can't be told here."""

    problem: Problem | None
    why_not: str = ""

    @property
    def limit_gib(self) -> float | None:
        """What one process may use."""
        return None if self.problem is None else self.problem.setting.limit_bytes / GIB

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader misses."""
        return (f"The cluster's line and computed charts are missing: {self.why_not}",) if self.why_not else ()


def asked_of(request: Record, resolve: Resolve) -> Asked:
    """Look a request up."""
    try:
        return Asked(problem=resolve(request))
    except MeshwrightError as error:
        return Asked(problem=None, why_not=str(error))


def drawn(block: Block | str) -> Block:
    """Return a chart, or the sentence that stands in its place."""
    return Words(lines=(block,)) if isinstance(block, str) else block


def present(block: Block | None) -> tuple[Block, ...]:
    """Return a block where there is one."""
    return () if block is None else (block,)
