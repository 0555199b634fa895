"""How many chips a training wants under a deadline or a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.sizing.estimate import Limits

__all__ = ["SIZES", "Tried", "chips_for"]

SIZES: tuple[int, ...] = tuple(2**power for power in range(3, 13))
"""Chips of a cluster that are tried, 8 to 4096: the sizes that batches and layers divide by."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A run on some number of chips."""

    wall_s: float
    usd: float | None
    """None where no price is listed."""


_Estimate = Callable[[int], Tried | None]


def chips_for(limits: Limits, tried: _Estimate) -> int | None:
    """Return the cheapest of SIZES that keeps the deadline; without a deadline the fastest that
    keeps the budget. None without either, where nothing fits on any, or where a budget alone is
    given and no price is listed.

    `tried` estimates the run on a number of chips, None where nothing fits. More chips are taken to
    be faster and to cost more, so that few sizes need an estimate; for a deadline the next larger
    ones are looked at too while they cost less. Where no size keeps the limit, the nearest to it
    of those looked at is returned: the fastest for a deadline, the cheapest for a budget.
    """
    if limits.wall_s is not None:
        return _for_deadline(limits.wall_s, tried)
    return None if limits.usd is None else _for_budget(limits.usd, tried)


def _for_deadline(wall_s: float, tried: _Estimate) -> int | None:
    runs: dict[int, Tried | None] = {}

    def keeps(size: int) -> bool:
        run = runs[size] = tried(size)
        return run is not None and run.wall_s <= wall_s

    place = _first(keeps)
    while place + 1 < len(SIZES) and keeps(SIZES[place + 1]):
        if _usd(runs[SIZES[place + 1]]) >= _usd(runs[SIZES[place]]):
            break
        place += 1
    if place < len(SIZES):
        return SIZES[place]
    fitting = _fitting(runs)
    return min(fitting, key=lambda pair: pair[1].wall_s)[0] if fitting else None


def _for_budget(usd: float, tried: _Estimate) -> int | None:
    runs: dict[int, Tried | None] = {}

    def is_over(size: int) -> bool:
        run = runs[size] = tried(size)
        return run is not None and _usd(run) > usd

    _first(is_over)
    priced = [(size, run) for size, run in _fitting(runs) if run.usd is not None]
    keeping = [(size, run) for size, run in priced if _usd(run) <= usd]
    if keeping:
        return min(keeping, key=lambda pair: pair[1].wall_s)[0]
    return min(priced, key=lambda pair: _usd(pair[1]), default=(None, None))[0]


def _first(holds: Callable[[int], bool]) -> int:
    """The place in SIZES of the first for which something holds that keeps holding; their number
    for none."""
    low, high = 0, len(SIZES)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(SIZES[middle]) else (middle + 1, high)
    return low


def _fitting(runs: Mapping[int, Tried | None]) -> list[tuple[int, Tried]]:
    return [(size, run) for size, run in runs.items() if run is not None]


def _usd(run: Tried | None) -> float:
    return float("inf") if run is None or run.usd is None else run.usd
