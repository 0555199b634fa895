"""How often intervals hold runs of a kind that they were made without."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.trust.intervals import FALLBACKS, Quantity
from meshwright_truth.residuals import Residual
from meshwright_truth.spreads import HELD, UNWIDENED, Sample, Widening, quantiles

__all__ = [
    "LEAST_RUNS",
    "LEAVES",
    "NEVER_SHOWN",
    "WIDEST",
    "Coverage",
    "Leave",
    "TableCoverage",
    "Test",
    "coverage",
    "leave_out",
    "widening_of",
]

Leave = Literal["table", "model", "software", "family", "chip", "feature"]
LEAVES: tuple[Leave, ...] = get_args(Leave)
"""What intervals are made without: the table; the run's model in it; the table and in all others
the software, its family, the generation of chips, or each feature in turn (fp8, context and expert
parallelism, LoRA, long sequences)."""
LEAST_RUNS = 5
"""Rows of a table from which on its share says something."""
WIDEST = 0.85
"""Share of the runs left out that intervals are to hold: the most that is 80 % within 5. The
formulas know every table, so that leaving one out of the intervals alone flatters them."""
NEVER_SHOWN = 1.5
"""Errors of runs that no formula was ever shown over those of these tables, in the mean: found when
other tables were first held against the predictions."""
_VALUES: Mapping[Leave, Callable[[Residual], Iterable[str]]] = {
    "software": lambda residual: (residual.kind.stack,),
    "family": lambda residual: (residual.kind.family,),
    "chip": lambda residual: (residual.kind.generation,),
    "feature": lambda residual: residual.features,
}
"""What a residual shares with rows of other tables that are left out with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """One row against the interval that was made without it, before it is widened."""

    residual: Residual
    half_width: float
    """In ln."""
    is_fallback: bool
    """Whether no run of the software was known."""
    off: float
    """|ln(measured / predicted)|."""

    def is_held(self, widening: Widening) -> bool:
        """Whether the widened interval holds it."""
        return self.off <= self._factor(widening) * self.half_width

    def width(self, widening: Widening) -> float:
        """Upper over lower end."""
        return math.exp(2.0 * self._factor(widening) * self.half_width)

    def _factor(self, widening: Widening) -> float:
        return widening.fallback if self.is_fallback else widening.own


def leave_out(sample: Sample, leave: Leave) -> list[Test]:
    """Hold every row against the interval of its kind made without it and those like it."""
    alike: dict[str, list[int]] = defaultdict(list)
    for i, residual in enumerate(sample.residuals):
        for value in _values(residual, leave):
            alike[value].append(i)
    found: list[Test] = []
    for rows in map(np.array, alike.values()):
        for table in np.unique(sample.table[rows]):
            own = rows[sample.table[rows] == table]
            left_out = np.zeros(len(sample.residuals), dtype=np.bool_)
            left_out[own if leave == "model" else rows] = True
            if leave != "model":
                left_out |= sample.table == table
            found += _tests(sample, own, without=left_out)
    return found


def _values(residual: Residual, leave: Leave) -> Iterable[str]:
    """What rows that are left out with a residual share with it."""
    if leave == "table":
        return (residual.table,)
    return (residual.model,) if leave == "model" else _VALUES[leave](residual)


def _tests(
    sample: Sample, rows: NDArray[np.int64], *, without: NDArray[np.bool_]
) -> Iterable[Test]:
    rest = sample.without(without)
    if not rest.kept.any():
        return
    softwares = set(sample.software[rest.kept])
    for i in rows:
        residual = sample.residuals[i]
        level = rest.level_of(residual.kind)
        unknown = sample.software[i] not in softwares
        yield Test(
            residual=residual,
            half_width=rest.half_width(residual.kind, level),
            is_fallback=level in FALLBACKS,
            off=abs(residual.unknown if unknown else residual.log_ratio),
        )


def widening_of(residuals: Sequence[Residual]) -> Widening:
    """Return the factors at which intervals hold WIDEST of the runs left out, in all ways of
    leaving out together; 1 where fewer than two tables tell, and at least.

    Where the software is known they also hold 80 % of errors NEVER_SHOWN times as large as those
    they are made of. All residuals are of one quantity. Tables with LEAST_RUNS weigh alike.
    """
    if len({residual.table for residual in residuals}) < 2:
        return UNWIDENED
    sample = Sample.of(residuals)
    return _widening(_all_tests(sample), sample)


def _all_tests(sample: Sample) -> dict[Leave, list[Test]]:
    return {leave: leave_out(sample, leave) for leave in LEAVES}


def _widening(tests: Mapping[Leave, Sequence[Test]], sample: Sample) -> Widening:
    every = [(leave, test) for leave, some in tests.items() for test in some]
    own = [(leave, test) for leave, test in every if not test.is_fallback]
    fallback = [(leave, test) for leave, test in every if test.is_fallback]
    known = [("known", test) for test in _known(sample) if not test.is_fallback]
    return Widening(
        own=max(1.0, _reach(own, WIDEST), NEVER_SHOWN * _reach(known, HELD)),
        fallback=max(1.0, _reach(fallback, WIDEST)),
    )


def _known(sample: Sample) -> Iterable[Test]:
    """Every row against the interval that it is part of."""
    for residual in sample.residuals:
        level = sample.level_of(residual.kind)
        yield Test(
            residual=residual,
            half_width=sample.half_width(residual.kind, level),
            is_fallback=level in FALLBACKS,
            off=abs(residual.log_ratio),
        )


def _reach(tests: Iterable[tuple[str, Test]], share: float) -> float:
    """The factor at which intervals hold a share of runs, sets of one name and table alike; 0
    without any set that is large enough."""
    sets: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, test in tests:
        sets[name, test.residual.table].append(test.off / test.half_width)
    enough = [reach for reach in sets.values() if len(reach) >= LEAST_RUNS]
    if not enough:
        return 0.0
    values = np.array([one for reach in enough for one in reach])
    weights = np.array([1.0 / len(reach) / len(enough) for reach in enough for _ in reach])
    return quantiles(values, weights, (share,))[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCoverage:
    """One table, held against intervals made without it."""

    runs: int
    inside: Mapping[Leave, float]
    """Share of its runs, by what else is left out; a way that leaves it nothing is not there."""
    width: float
    """Median of high over low, without the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """All tables of one quantity."""

    quantity: Quantity
    widening: Widening
    tables: Mapping[str, TableCoverage]
    means: Mapping[Leave, float]
    """Over tables of LEAST_RUNS and more, each alike."""
    widths: Mapping[Leave, float]
    """Median over rows of high over low."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return asdict(self)


def coverage(residuals: Sequence[Residual], quantity: Quantity) -> Coverage | None:
    """Return how many runs of each table lie inside intervals made without them; None where fewer
    than two tables tell.

    The two factors are found from all tables at once, so that a table hardly moves its own.
    """
    own = [residual for residual in residuals if residual.quantity == quantity]
    if len({residual.table for residual in own}) < 2:
        return None
    sample = Sample.of(own)
    tests = _all_tests(sample)
    widening = _widening(tests, sample)
    held = {leave: _by_table(some, widening) for leave, some in tests.items()}
    names = sorted(held["table"])
    return Coverage(
        quantity=quantity,
        widening=widening,
        tables={
            name: TableCoverage(
                runs=len(held["table"][name]),
                inside={leave: fmean(each[name]) for leave, each in held.items() if name in each},
                width=median(t.width(widening) for t in tests["table"] if t.residual.table == name),
            )
            for name in names
        },
        means={leave: mean for leave, each in held.items() if (mean := _mean(each)) is not None},
        widths={
            leave: median(test.width(widening) for test in some)
            for leave, some in tests.items()
            if some
        },
    )


def _by_table(tests: Iterable[Test], widening: Widening) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = defaultdict(list)
    for test in tests:
        found[test.residual.table].append(test.is_held(widening))
    return dict(found)


def _mean(held: Mapping[str, Sequence[bool]]) -> float | None:
    enough = [fmean(inside) for inside in held.values() if len(inside) >= LEAST_RUNS]
    return fmean(enough) if enough else None
