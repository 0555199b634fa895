"""What a run leaves untold: how far that moves its prediction, by `trust/assumptions.csv`, and what
was taken for it, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast, get_args

from meshwright.values.data import package_rows
from meshwright.values.layout import Layout
from meshwright.values.workload import Workload

__all__ = [
    "QUANTITIES",
    "TOGETHER",
    "Apart",
    "Assumption",
    "Doubt",
    "Quantity",
    "ServingQuantity",
    "taken_words",
    "that_widen",
    "widened",
]

Quantity = Literal["step_time", "peak_memory"]
ServingQuantity = Literal["ttft", "tpot", "e2e", "throughput", "serving_memory"]
Assumption = Literal[
    "micro batch",
    "global batch",
    "recompute",
    "sharding",
    "sequence parallelism",
    "precision",
    "sequence length",
    "number of chips",
    "parallel axes",
]
"""What a run may leave untold, so that something is taken for it."""
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """How far hiding what rows told moved their predictions."""

    quantity: Quantity
    assumption: Assumption
    half_width: float
    """85 % of rows moved by less, in ln, tables alike."""
    rows: int
    tables: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """How far apart two answers are of which either may hold, in ln: as told, and as a run that ran
    must have been where what was told does not fit."""

    step_time: float = 0.0
    peak_memory: float = 0.0

    def of(self, quantity: Quantity | ServingQuantity) -> float:
        """Return that of a quantity; none of serving."""
        found = {"step_time": self.step_time, "peak_memory": self.peak_memory}
        return found.get(quantity, 0.0)

    def __bool__(self) -> bool:
        return bool(self.step_time or self.peak_memory)


TOGETHER = Apart()
"""Where one answer alone was given."""


def widened(
    ends: tuple[float, float],
    quantity: Quantity | ServingQuantity,
    assumptions: Sequence[Assumption],
    *,
    apart: Apart = TOGETHER,
) -> tuple[float, float]:
    """Return the ends of an interval as far apart as what was assumed makes them.

    Errors of the model and of what was taken for blanks have nothing to do with each other: their
    squares add up.
    """
    extra = sum(_doubts()[quantity, each].half_width ** 2 for each in assumptions)
    extra += apart.of(quantity) ** 2
    low, high = ends
    middle, half = math.sqrt(low * high), 0.5 * math.log(high / low)
    wide = math.exp(math.sqrt(half * half + extra))
    return middle / wide, middle * wide


def that_widen(assumptions: Sequence[Assumption]) -> tuple[Assumption, ...]:
    """Return those that move a prediction where they are not told."""
    doubts = _doubts()
    return tuple(
        each for each in assumptions if any(doubts[q, each].half_width for q in QUANTITIES)
    )


@cache
def _doubts() -> Mapping[tuple[str, Assumption], Doubt]:
    found = (
        Doubt(
            quantity=cast("Quantity", line["quantity"]),
            assumption=cast("Assumption", line["assumption"]),
            half_width=float(line["half_width"]),
            rows=int(line["rows"]),
            tables=int(line["tables"]),
        )
        for line in package_rows("trust/assumptions.csv")
    )
    return {(doubt.quantity, doubt.assumption): doubt for doubt in found}


def taken_words(
    assumptions: Sequence[Assumption], layout: Layout, workload: Workload
) -> dict[Assumption, str]:
    """Return what was taken for each assumption, in words."""
    taken: Mapping[Assumption, str] = {
        "micro batch": str(layout.mbs),
        "global batch": str(layout.gbs),
        "recompute": layout.recompute,
        "sharding": layout.sharding,
        "sequence parallelism": "on" if layout.sp else "off",
        "precision": workload.precision,
        "sequence length": str(workload.seq_len),
        "number of chips": str(layout.num_chips),
        "parallel axes": f"tp={layout.tp} pp={layout.pp} cp={layout.cp} ep={layout.ep}",
    }
    return {name: taken[name] for name in assumptions}
