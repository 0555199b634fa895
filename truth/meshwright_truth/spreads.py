"""From residuals of published runs to the width of intervals, by kind of run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.trust.intervals import (
    FALLBACKS,
    LEVELS,
    Kind,
    Level,
    Quantity,
    ServingQuantity,
    Spread,
)
from meshwright_truth.residuals import Residual

__all__ = [
    "HELD",
    "UNWIDENED",
    "Found",
    "Sample",
    "Widening",
    "fit_spreads",
    "quantiles",
    "spreads_csv",
]

HELD = 0.8
"""Share of runs that an interval is to hold."""
LEAST_GROUPS: Mapping[str, float] = {"peak_memory": 3.0}
USUAL_GROUPS = 2.0
"""Groups that a kind needs, counted by weight. Of training's memory, with fewer, the widening for
few would triple the interval."""
OTHER_TABLES = 5.0
"""Tables that the next coarser kind counts for beside a kind's own: those of k tables weigh k / (k
+ 5). Between 4 and 8 what intervals hold and their widths are the same within a hundredth."""
ROUNDING = 1e-6
Z80 = 1.2815515655446004
"""80 % of a normal distribution lie within so many standard deviations of its middle."""
LEAST_HALF_WIDTH = 0.005
"""Half a per cent: what repeated runs of one layout differ by at best."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
AnyQuantity = Quantity | ServingQuantity
Found = dict[tuple[AnyQuantity, str], Spread]


@dataclass(frozen=True, kw_only=True, slots=True)
class Widening:
    """What all widths of a quantity are multiplied by."""

    own: float = 1.0
    """Where runs of the software are known."""
    fallback: float = 1.0
    """Where its family's runs, or any, stand in for them."""

    def at(self, level: Level) -> float:
        """Return the factor of a level."""
        return self.fallback if level in FALLBACKS else self.own


UNWIDENED = Widening()


@dataclass(slots=True)
class Sample:
    """Residuals of one quantity as columns, and what was found of their kinds."""

    residuals: Sequence[Residual]
    table: Ints
    group: Ints
    """(table, model)."""
    run: Ints
    software: Ints
    log: Floats
    members: Mapping[tuple[Level, str], Ints]
    kept: NDArray[np.bool_]
    _known: dict[tuple[Level, str], bool] = field(default_factory=dict)
    _mixed: dict[tuple[Level, str], tuple[Ints, Floats]] = field(default_factory=dict)
    _width: dict[tuple[Level, str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, residuals: Sequence[Residual]) -> Sample:
        """Return residuals of one quantity, all kept."""
        members: dict[tuple[Level, str], list[int]] = {}
        for i, residual in enumerate(residuals):
            for level in LEVELS:
                if name := residual.kind.at(level):
                    members.setdefault((level, name), []).append(i)
        return cls(
            residuals=residuals,
            table=_codes(r.table for r in residuals),
            group=_codes((r.table, r.model) for r in residuals),
            run=_codes((r.table, r.model, r.run) for r in residuals),
            software=_codes(r.kind.stack for r in residuals),
            log=np.array([r.log_ratio for r in residuals]),
            members={name: np.array(some) for name, some in members.items()},
            kept=np.ones(len(residuals), dtype=np.bool_),
        )

    def without(self, left_out: NDArray[np.bool_]) -> Sample:
        """Return the same less some rows."""
        return replace(self, kept=self.kept & ~left_out, _known={}, _mixed={}, _width={})

    @property
    def quantity(self) -> AnyQuantity:
        """What the residuals are of."""
        return self.residuals[0].quantity

    def rows(self, level: Level, name: str) -> Ints:
        """Return the places of a kind's rows."""
        some = self.members.get((level, name), np.zeros(0, dtype=np.int64))
        return some[self.kept[some]]

    def is_known(self, level: Level, name: str) -> bool:
        """Whether a kind has groups enough for an interval."""
        key = level, name
        if key not in self._known:
            rows = self.rows(level, name)
            least = LEAST_GROUPS.get(self.quantity, USUAL_GROUPS) - ROUNDING
            self._known[key] = (
                bool(len(rows)) and self.effective_groups(rows, self.weights(rows)) >= least
            )
        return self._known[key]

    def level_of(self, kind: Kind, *, above: Level | None = None) -> Level:
        """Return the finest level at which a kind is known, or the next coarser one."""
        levels = LEVELS if above is None else LEVELS[LEVELS.index(above) + 1 :]
        return next(one for one in levels if one == "all" or self.is_known(one, kind.at(one)))

    def half_width(self, kind: Kind, level: Level) -> float:
        """Return how far in ln 80 % of a kind's runs lie from the prediction at the most, widened
        for how few they are."""
        key = level, kind.at(level)
        if key not in self._width:
            rows, weights = self._mixture(kind, level)
            [size] = quantiles(np.abs(self.log[rows]), weights, (HELD,))
            few = _few_groups(self.effective_groups(rows, weights))
            self._width[key] = few * max(size, LEAST_HALF_WIDTH)
        return self._width[key]

    def _mixture(self, kind: Kind, level: Level) -> tuple[Ints, Floats]:
        """Runs that say what others of a kind will do, and their weights: its own, and the next
        coarser kind's."""
        key = level, kind.at(level)
        if key not in self._mixed:
            rows = self.rows(*key)
            weights = self.weights(rows)
            if level != "all":
                others, theirs = self._mixture(kind, self.level_of(kind, above=level))
                tables = len(np.unique(self.table[rows]))
                own = tables / (tables + OTHER_TABLES)
                rows = np.concatenate([rows, others])
                weights = np.concatenate([own * weights, (1.0 - own) * theirs])
            self._mixed[key] = rows, weights
        return self._mixed[key]

    def weights(self, rows: Ints) -> Floats:
        """Return the weight of each row, (N,), summing to 1: repeats of a run count once, models of
        a table weigh alike, and a table weighs the root of its models."""
        repeats = np.bincount(self.run[rows])[self.run[rows]]
        runs = np.unique(self.run[rows], return_index=True)[1]
        group = self.group[rows]
        runs_of = np.bincount(group[runs])[group]
        groups = np.unique(group, return_index=True)[1]
        table = self.table[rows]
        models_of = np.bincount(table[groups])[table]
        each: Floats = 1.0 / np.sqrt(models_of) / runs_of / repeats
        shares: Floats = each / each.sum()
        return shares

    def effective_groups(self, rows: Ints, weights: Floats) -> float:
        """Return how many equal (table, model) groups would have as even a say: 1 / sum of squared
        shares (Kish)."""
        shares = np.bincount(self.group[rows], weights=weights)
        return float(1.0 / (shares * shares).sum())


def _codes(names: Iterable[object]) -> Ints:
    known: dict[object, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def quantiles(values: Floats, weights: Floats, at: Iterable[float]) -> list[float]:
    """Return quantiles of weighted values, between the middles of their weights by straight
    lines."""
    order = np.argsort(values, kind="stable")
    middles = np.cumsum(weights[order]) - weights[order] / 2
    return [float(np.interp(q, middles, values[order])) for q in at]


def _few_groups(groups: float) -> float:
    """What a quantile of so few groups is too narrow by: Student's t over the normal quantile, and
    the error of the mean."""
    return _t90(max(groups - 1.0, 0.5)) / Z80 * math.sqrt(1.0 + 1.0 / groups)


def _t90(freedom: float) -> float:
    """The 90 % quantile of Student's t by its expansion around the normal's (Abramowitz and Stegun
    26.7.5); 1 % low at 2."""
    z, v = Z80, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def fit_spreads(
    residuals: Sequence[Residual], *, factors: Mapping[Any, Widening] | None = None
) -> Found:
    """Return the spread of every kind that has enough groups, at every level."""
    found: Found = {}
    for quantity in dict.fromkeys(residual.quantity for residual in residuals):
        sample = Sample.of([r for r in residuals if r.quantity == quantity])
        widening = (factors or {}).get(quantity, UNWIDENED)
        for level, name in sample.members:
            if level == "all" or sample.is_known(level, name):
                found[quantity, name] = _spread(sample, level, name, widening)
    return found


def _spread(sample: Sample, level: Level, name: str, widening: Widening) -> Spread:
    rows = sample.rows(level, name)
    some = [sample.residuals[i] for i in rows]
    points = quantiles(sample.log[rows], sample.weights(rows), (0.1, 0.25, 0.5, 0.75, 0.9))
    half = widening.at(level) * sample.half_width(some[0].kind, level)
    named = dict(zip(("p10", "p25", "p50", "p75", "p90"), points, strict=True))
    return Spread(
        quantity=sample.quantity,
        level=level,
        kind=name,
        **{point: math.exp(value) for point, value in named.items()},
        low=math.exp(-half),
        high=math.exp(half),
        runs=len({(r.table, r.model, r.run) for r in some}),
        models=len({(r.table, r.model) for r in some}),
        tables=len({r.table for r in some}),
    )


def spreads_csv(spreads: Found) -> str:
    """Return `trust/residuals.csv`: quantities, then levels from fine to coarse, then kinds by
    name."""
    out = io.StringIO()
    names = [each.name for each in fields(Spread)]
    writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_lines(spreads, names))
    return out.getvalue()


def _lines(spreads: Found, names: Sequence[str]) -> Iterator[dict[str, object]]:
    quantities = list(dict.fromkeys(spread.quantity for spread in spreads.values()))

    def place(spread: Spread) -> tuple[int, int, str]:
        return quantities.index(spread.quantity), LEVELS.index(spread.level), spread.kind

    for spread in sorted(spreads.values(), key=place):
        values = {name: getattr(spread, name) for name in names}
        yield {n: f"{v:.4f}" if isinstance(v, float) else v for n, v in values.items()}
