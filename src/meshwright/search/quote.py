"""Quotes: what one layout costs in a given setting, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Which
from meshwright.cost.step import Priced, price
from meshwright.search.rules.check import check_layout
from meshwright.search.rules.rule import RuleCase, Violation
from meshwright.search.rules.software import NEWEST_MEGATRON
from meshwright.trust.calibration import Calibration, own_intervals
from meshwright.trust.intervals import (
    Assumption,
    Fits,
    Intervals,
    Kind,
    fits_within,
    intervals_of,
    kind_of,
)
from meshwright.trust.untold import TOGETHER, Apart
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.start import Start
from meshwright.values.units import GIB
from meshwright.values.workload import Workload

__all__ = ["Quote", "Setting", "StageQuote", "host_holds", "host_words", "price_in", "quotes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Everything but the layout."""

    model: ModelSpec
    pool: Pool
    work: Workload
    stack: Stack
    limit_bytes: float
    """What one chip's process may use."""
    headroom_bytes: float = 0.0
    """Of the limit, what a layout leaves free to fit with certainty."""
    megatron_version: str = NEWEST_MEGATRON
    """Whose rules hold in a Megatron stack."""
    calibration: Calibration | None = None
    """What the pool's and the stack's figures were fitted by."""
    start: Start | None = None
    """What the software's recipe switches on, which exports write; None where it has none."""
    started_by: str = ""
    """The recipe that the software's release starts this model by, for people."""
    assumptions: tuple[Assumption, ...] = ()
    """What was not told of the layout that is asked for; it widens the intervals."""
    apart: Apart = TOGETHER
    """How far what is taken for a run that ran is from what was told of it; it widens them too."""

    @property
    def kind(self) -> Kind:
        """Which published runs say how far off an estimate may be."""
        return kind_of(model=self.model, chip=self.pool.node.chip, stack=self.stack, work=self.work)

    @property
    def case(self) -> RuleCase:
        """What layouts are held against."""
        return RuleCase(
            model=self.model,
            work=self.work,
            num_chips=self.pool.num_chips,
            stack=self.stack,
            megatron_version=self.megatron_version,
        )

    def intervals(self, quote: Quote) -> Intervals:
        """Return the 80 % intervals of a quote made here."""
        return self.intervals_at(step_s=quote.step_s, peak_bytes=quote.peak_bytes)

    def intervals_at(self, *, step_s: float, peak_bytes: float) -> Intervals:
        """Return the 80 % intervals of figures found here: by the user's own runs where there are
        enough, else by published ones."""
        published = intervals_of(
            self.kind,
            step_s=step_s,
            peak_bytes=peak_bytes,
            assumptions=self.assumptions,
            apart=self.apart,
        )
        return (
            published
            if self.calibration is None
            else own_intervals(self.calibration, published, step_s=step_s, peak_bytes=peak_bytes)
        )

    def broken_rules(self, layout: Layout) -> list[Violation]:
        """Return the rules that a layout breaks here."""
        return check_layout(layout, self.case)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageQuote:
    """Memory of one rank of one stage."""

    stage: int
    num_layers: int
    in_flight: float
    """Micro batches whose activations it holds at its peak."""
    memory_bytes: dict[str, float]
    """By term."""

    @property
    def used_bytes(self) -> float:
        """The sum of the terms."""
        return sum(self.memory_bytes.values())

    @property
    def largest_term(self) -> str:
        """The term that takes most."""
        return max(self.memory_bytes, key=lambda term: self.memory_bytes[term])


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """Time and memory of one layout."""

    layout: Layout
    time_s: dict[str, float]
    """Seconds of one optimizer step by term."""
    stages: tuple[StageQuote, ...]
    limit_bytes: float
    headroom_bytes: float = 0.0
    pipeline: str = "closed form"
    """How the bubble was found."""
    host_bytes: tuple[float, float] = (0.0, 0.0)
    """Of the fullest host, in main memory and on drives."""
    host_over: bool = False
    """Whether its host has less."""

    @property
    def step_s(self) -> float:
        """The sum of the terms."""
        return sum(self.time_s.values())

    @property
    def fullest(self) -> StageQuote:
        """The stage that uses most memory, the earliest of equals."""
        return max(self.stages, key=lambda stage: stage.used_bytes)

    @property
    def peak_bytes(self) -> float:
        """What the fullest chip shows."""
        return self.fullest.used_bytes

    @property
    def over_bytes(self) -> float:
        """How much too much it needs; negative is headroom."""
        return self.peak_bytes - self.limit_bytes

    @property
    def fits(self) -> bool:
        """Whether every stage stays within the limit."""
        return self.over_bytes <= 0 and not self.host_over

    @property
    def verdict(self) -> Fits:
        """`at risk` where it fits by less than the headroom, or is beyond the limit by what the
        allocator gives back."""
        if self.host_over:
            return "no"
        needed = max(stage.used_bytes - stage.memory_bytes["slack"] for stage in self.stages)
        return fits_within(
            self.peak_bytes,
            limit_bytes=self.limit_bytes,
            headroom_bytes=self.headroom_bytes,
            slack_bytes=self.peak_bytes - needed,
        )


def price_in(setting: Setting, layouts: Layouts, *, which: Which = "representative") -> Priced:
    """Price layouts in a setting.

    It is no method of the setting: provenance prices a setting with a copy of this module.
    """
    return price(
        layouts,
        model=setting.model,
        pool=setting.pool,
        work=setting.work,
        stack=setting.stack,
        which=which,
    )


def host_words(quote: Quote) -> str:
    """Say what a layout keeps on a host, in words."""
    memory, drives = (size / GIB for size in quote.host_bytes)
    on_drives = f", and {drives:.1f} GiB of its drives" if drives else ""
    return f"{memory:.1f} GiB of a server's main memory{on_drives}, more than it has"


def host_holds(pool: Pool, priced: Priced) -> NDArray[np.bool_]:
    """Say which layouts leave no more on a server's host than it has, (N,)."""
    host = pool.node.host
    has = (0.0, 0.0) if host is None else (host.memory_bytes, host.nvme_bytes)
    memory, drives = priced.host_bytes
    return np.asarray((memory <= has[0]) & (drives <= has[1]))


def quotes(layouts: Iterable[Layout], setting: Setting) -> list[Quote]:
    """Price some layouts at once, every stage of each."""
    rows = list(layouts)
    if not rows:
        return []
    priced = price_in(setting, Layouts.of(rows), which="all")
    hosted = host_holds(setting.pool, priced)
    return [
        Quote(
            layout=layout,
            time_s={term: float(seconds[index]) for term, seconds in priced.time.items()},
            stages=tuple(_stage(priced, index, stage) for stage in range(layout.pp)),
            limit_bytes=setting.limit_bytes,
            headroom_bytes=setting.headroom_bytes,
            host_bytes=(float(priced.host_bytes[0][index]), float(priced.host_bytes[1][index])),
            host_over=not hosted[index],
        )
        for index, layout in enumerate(rows)
    ]


def _stage(priced: Priced, index: int, stage: int) -> StageQuote:
    return StageQuote(
        stage=stage,
        num_layers=int(priced.stages.layers[index, stage]),
        in_flight=float(priced.stages.in_flight[index, stage]),
        memory_bytes={
            term: float(held[index, stage]) for term, held in priced.memory.terms.items()
        },
    )
