"""What a log says of its run beside its steps: a dump of arguments, as each software's reader of it
returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ALLOCATED", "Described", "MemoryFigure", "MemoryKind", "StackChanges"]

MemoryKind = Literal["allocated", "first-step", "reserved", "used", "states", "after-backward"]
"""By tensors; by tensors in the first step, whose backward pass comes before Adam's moments; by the
allocator, by the driver; weights, optimizer and activations only; or by tensors when no activation
is left."""
StackChanges = tuple[tuple[str, float | str], ...]
"""Fields of Stack and their values, later ones first read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFigure:
    """Which memory figure a row or a log tells."""

    kind: MemoryKind
    rank: Literal["max", "first", "last"]
    """Of the fullest rank, or of a rank in the first or last stage."""


ALLOCATED = MemoryFigure(kind="allocated", rank="max")


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What a log says of its run; None is nothing."""

    model: str | Mapping[str, Any] | None = None
    chip: str | None = None
    num_chips: int | None = None
    stack: str | None = None
    stack_changes: StackChanges = ()
    seq_len: int | None = None
    gbs: int | None = None
    precision: str = "bf16"
    attention: str = "flash"
    dropout: bool = False
    layout: Mapping[str, Any] | None = None
    """Fields of Layout; None where the log has no description at all."""
    memory: MemoryFigure = field(default=ALLOCATED)
