"""The problem behind a request in JSON, looked up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.report.infos.part import Block, Record, Words
from meshwright.values.errors import MeshwrightError
from meshwright.values.units import GIB

if TYPE_CHECKING:
    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.problem import Problem

__all__ = ["Asked", "Resolve", "asked_of", "drawn", "present"]

Resolve = Callable[[Record], "Problem | MixedProblem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks, or why that can't be told here."""

    problem: Problem | None = None
    mixed: MixedProblem | None = None
    """In its place, where there are several kinds of chips, or some may be left idle."""
    why_not: str = ""

    @property
    def limit_gib(self) -> float | None:
        """What one process may use."""
        return None if self.problem is None else self.problem.setting.limit_bytes / GIB

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader misses."""
        if self.mixed is not None:
            return (
                (
                    "The map of tp and pp, operators and other numbers of chips are shown for one"
                    " kind of chip whose chips are all used."
                ),
            )
        return (
            (f"The cluster's line and computed charts are missing: {self.why_not}",)
            if self.why_not
            else ()
        )


def asked_of(request: Record, resolve: Resolve) -> Asked:
    """Look a request up."""
    from meshwright.search.mixed.problem import MixedProblem

    try:
        found = resolve(request)
    except MeshwrightError as error:
        return Asked(why_not=str(error))
    return Asked(mixed=found) if isinstance(found, MixedProblem) else Asked(problem=found)


def drawn(block: Block | str) -> Block:
    """Return a chart, or the sentence that stands in its place."""
    return Words(lines=(block,)) if isinstance(block, str) else block


def present(block: Block | None) -> tuple[Block, ...]:
    """Return a block where there is one."""
    return () if block is None else (block,)
