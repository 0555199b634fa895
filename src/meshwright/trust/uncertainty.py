"""How far constants that decide between layouts may be off: `trust/uncertainties.csv`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout
from meshwright.values.stack import Stack

__all__ = ["Site", "Uncertain", "uncertain_constants"]

_UNCUT = (1, "none", "zero1")
"""Values of an axis that cut nothing, and kinds of sharding that leave the weights whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What holds the constants: the machines and the software."""

    pool: Pool
    stack: Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertain:
    """One constant and how far it may be off."""

    constant: str
    """Where it is, and its field: `stack.tp_overlap`."""
    title: str
    """Its meaning in words."""
    change: Literal["times", "plus"]
    """Whether the ends multiply the constant or are added to it."""
    low: float
    high: float
    axis: str
    """The field of a layout that says whether it plays a part; empty where it always does."""
    source: str

    def matters_to(self, layout: Layout) -> bool:
        """Whether the constant can change the price of a layout."""
        return not self.axis or getattr(layout, self.axis) not in _UNCUT

    def value(self, site: Site) -> float:
        """Return the constant's present value."""
        return float(getattr(_holder(site, self._place), self._field))

    def ends(self, site: Site) -> Iterator[tuple[float, Site]]:
        """Yield both ends of its interval, and the site with the constant there; an end that
        changes nothing is left out."""
        now = self.value(site)
        for step in (self.low, self.high):
            moved = now * step if self.change == "times" else now + step
            moved = max(0.0, moved) if self._field.endswith("_s") else min(1.0, max(0.0, moved))
            if moved != now:
                yield (
                    moved,
                    _with(
                        site,
                        self._place,
                        {self._field: moved, **self._companions(site, moved / now if now else 1.0)},
                    ),
                )

    def _companions(self, site: Site, factor: float) -> dict[str, float]:
        """Fields that move along: the narrow formats' own sustained share."""
        if self.constant != "chip.sustained_share":
            return {}
        share = getattr(site.pool.node.chip, "narrow_sustained_share", None)
        return {} if share is None else {"narrow_sustained_share": min(1.0, share * factor)}

    @property
    def _place(self) -> str:
        return self.constant.partition(".")[0]

    @property
    def _field(self) -> str:
        return self.constant.partition(".")[2]


def _holder(site: Site, place: str) -> Any:
    if place == "stack":
        return site.stack
    return site.pool.node.chip if place == "chip" else getattr(site.pool.node, place)


def _with(site: Site, place: str, changes: dict[str, float]) -> Site:
    holder = replace(_holder(site, place), **changes)
    if place == "stack":
        return replace(site, stack=holder)
    parts: dict[str, Any] = {place: holder}
    return replace(site, pool=replace(site.pool, node=replace(site.pool.node, **parts)))


@cache
def uncertain_constants() -> tuple[Uncertain, ...]:
    """Return every constant of the table."""
    text = (
        resources.files("meshwright")
        .joinpath("trust", "uncertainties.csv")
        .read_text(encoding="utf-8")
    )
    names = [field.name for field in fields(Uncertain)]
    return tuple(
        _uncertain({name: line[name] for name in names})
        for line in csv.DictReader(text.splitlines())
    )


def _uncertain(line: dict[str, str]) -> Uncertain:
    return Uncertain(
        constant=line["constant"],
        title=line["title"],
        change=cast("Literal['times', 'plus']", line["change"]),
        low=float(line["low"]),
        high=float(line["high"]),
        axis=line["axis"],
        source=line["source"],
    )
