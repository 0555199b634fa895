"""How far each prediction of a published run was off, with the kind of the run."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import fit_known, peak_memory_of, step_time_of
from meshwright.runs.measured.predict import Answers, Prediction
from meshwright.runs.measured.rows import Case, Unanswerable
from meshwright.trust.intervals import LEVELS, Kind, Level, Quantity, Spread
from meshwright.values.units import GIB
from meshwright_truth.score import comparison_of

__all__ = [
    "HELD",
    "LEAST_SHARE",
    "Coverage",
    "FitOutcome",
    "Found",
    "Read",
    "Residual",
    "TableCoverage",
    "coverage",
    "fit_outcomes",
    "fit_spreads",
    "residuals_of",
    "spreads_csv",
    "widening_of",
]

LEAST_SHARE = 0.1
"""Share of a chip's memory that a run must be predicted to use for its memory to say something of
runs that fill a chip: below it, buffers and contexts that every run has outweigh what is
predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One published run of one quantity."""

    quantity: Quantity
    table: str
    model: str
    """As the row names it."""
    run: str
    """Rows that agree in it are repeats of one run."""
    kind: Kind
    log_ratio: float
    """ln(measured / predicted)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOutcome:
    """A published run that is known to fit or not."""

    table: str
    kind: Kind
    used_bytes: float
    """Predicted."""
    limit_bytes: float
    fitted: bool
    compared: tuple[str, ...] = ()
    """Runs that agree in it differ in layout alone."""
    predicted_s: float = math.inf
    measured_s: float | None = None
    """None where it ran out of memory, or its time is doubtful."""


Read = Sequence[tuple[TruthTable, Sequence[Case | Unanswerable]]]
"""Tables with a case per row."""


def residuals_of(read: Read, answers: Answers) -> list[Residual]:
    """Return the residuals of every answered row with a measured time or memory that can be
    compared."""
    found = []
    for row, case, prediction in _answered(read, answers):
        kind, run = case.kind, _run(case)
        for quantity, ratio in _ratios(row, case, prediction):
            residual = Residual(
                quantity=quantity,
                table=case.source,
                model=row["model"],
                run=run,
                kind=kind.of(quantity),
                log_ratio=math.log(ratio),
            )
            found.append(residual)
    return found


def fit_outcomes(read: Read, answers: Answers) -> list[FitOutcome]:
    """Return every answered row that is known to fit or not."""
    return [
        FitOutcome(
            table=case.source,
            kind=case.kind,
            used_bytes=found.used_bytes,
            limit_bytes=_usable(case),
            fitted=fitted,
            compared=comparison_of(row),
            predicted_s=found.step_s,
            measured_s=step_time_of(case.source, row),
        )
        for row, case, found in _answered(read, answers)
        if (fitted := fit_known(row)) is not None
    ]


def _answered(read: Read, answers: Answers) -> Iterable[tuple[Mapping[str, str], Case, Prediction]]:
    made = {(p.source, p.row_id): p for p in answers.predictions}
    for table, cases in read:
        for row, case in zip(table.rows, cases, strict=True):
            prediction = made.get((case.source, case.row_id))
            if isinstance(case, Case) and prediction is not None:
                yield row, case, prediction


def _ratios(
    row: Mapping[str, str], case: Case, found: Prediction
) -> Iterable[tuple[Quantity, float]]:
    """Measured over predicted."""
    step_s, peak_gib = step_time_of(case.source, row), peak_memory_of(row)
    if step_s is not None:
        yield "step_time", step_s / found.step_s
    if peak_gib is not None and found.peak_memory_bytes >= LEAST_SHARE * _usable(case):
        yield "peak_memory", peak_gib * GIB / found.peak_memory_bytes


def _usable(case: Case) -> float:
    return case.machines.nodes[0].chip.usable_bytes


def _run(case: Case) -> str:
    """Everything of a run but the release of its software."""
    return repr((case.machines.pools, case.layout, case.workload, case.stack_changes, case.memory))


HELD = 0.8
"""Share of runs that an interval is to hold."""
LEAST_GROUPS: Mapping[Quantity, float] = {"step_time": 2.0, "peak_memory": 3.0}
"""Groups that a kind needs, counted by weight. Of memory, with fewer, the widening alone would
triple the interval; of step times the coarser kinds are in it as well."""
OTHER_TABLES = 5.0
"""Tables that the next coarser kind counts for beside a kind's own: those of k tables weigh k / (k
+ 5). Intervals that hold 80 % of the runs of tables left out are then x1.53 wide in the mean, where
they were x1.61 with 1 in place of 5 and nothing mixed from the third table on; tables held less
than 80 % miss 11 points of it in the mean square (13), and of models left out 84 % are held (83).
Between 4 and 8 all of these are within a hundredth."""
MIXED: tuple[Quantity, ...] = ("step_time",)
"""Quantities of which kinds are mixed. Memory follows the software more than the laboratory: mixed,
its intervals hold 88 % of the runs whose model was left out, alone 90 %."""
ROUNDING = 1e-6
Z90 = 1.2815515655446004
"""The normal distribution's 90 % quantile."""
LEAST_HALF_WIDTH = 0.005
"""Half a per cent: what repeated runs of one layout differ by at best."""

Floats = NDArray[np.float64]
Found = dict[tuple[Quantity, str], Spread]
Members = dict[tuple[Quantity, Level, str], list[Residual]]
Unit = tuple[str, ...]
"""What is left out together: a table, or a model of a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCoverage:
    """One table, held against intervals made without it, or without the model of the run."""

    runs: int
    without_table: float
    """Share of its runs inside."""
    without_model: float | None
    """None where the table has one model."""
    width: float
    """Geometric mean of high over low, made without the table."""
    models: int
    """Models of the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """All tables of one quantity."""

    quantity: Quantity
    widening: float
    """The factor that was found for all intervals of the quantity."""
    tables: dict[str, TableCoverage]

    @property
    def without_table(self) -> float:
        """Mean over tables, each with its weight."""
        return self._mean({name: table.without_table for name, table in self.tables.items()})

    @property
    def without_model(self) -> float:
        """The same without the model alone, over tables with several."""
        shares = {name: table.without_model for name, table in self.tables.items()}
        return self._mean({name: one for name, one in shares.items() if one is not None})

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        means = {"without_table": self.without_table, "without_model": self.without_model}
        return {**asdict(self), **means}

    def _mean(self, shares: dict[str, float]) -> float:
        weights = [math.sqrt(self.tables[name].models) for name in shares]
        return float(np.average(list(shares.values()), weights=weights)) if shares else math.nan


def fit_spreads(
    residuals: Sequence[Residual], *, factors: Mapping[Quantity, float] | None = None
) -> Found:
    """Return the spread of every kind that has enough groups, at every level; `factors` widen all
    intervals of a quantity."""
    found, members = {}, _members(residuals)
    for (quantity, level, name), some in members.items():
        if _known(some) or level == "all":
            factor = (factors or {}).get(quantity, 1.0)
            found[quantity, name] = _spread(members, quantity, some[0].kind, level, factor=factor)
    return found


def _members(residuals: Sequence[Residual]) -> Members:
    found: Members = defaultdict(list)
    for residual in residuals:
        for level in LEVELS:
            found[residual.quantity, level, residual.kind.at(level)].append(residual)
    return found


def _known(some: Sequence[Residual]) -> bool:
    """Whether a kind has groups enough for an interval; all residuals are of one quantity."""
    return (
        bool(some)
        and _effective_groups(some, _weights(some)) >= LEAST_GROUPS[some[0].quantity] - ROUNDING
    )


def _spread(
    members: Members, quantity: Quantity, kind: Kind, level: Level, *, factor: float
) -> Spread:
    some = members[quantity, level, kind.at(level)]
    p10, p25, p50, p75, p90 = _quantiles(_logs(some), _weights(some), (0.1, 0.25, 0.5, 0.75, 0.9))
    low, _, high = _limits(*_mixture(members, quantity, kind, level), factor=factor)
    points = {"p10": p10, "p25": p25, "p50": p50, "p75": p75, "p90": p90}
    points |= {"low": min(low, p10), "high": max(high, p90)}
    return Spread(
        quantity=quantity,
        level=level,
        kind=kind.at(level),
        **{point: math.exp(value) for point, value in points.items()},
        runs=len({(r.table, r.model, r.run) for r in some}),
        models=len({(r.table, r.model) for r in some}),
        tables=len({r.table for r in some}),
    )


def _mixture(
    members: Members, quantity: Quantity, kind: Kind, level: Level
) -> tuple[list[Residual], Floats]:
    """Runs that say what others of a kind will do, and their weights: its own, and the next coarser
    kind's."""
    some = members[quantity, level, kind.at(level)]
    weights, tables = _weights(some), len({r.table for r in some})
    if level == "all" or quantity not in MIXED:
        return some, weights
    coarser = LEVELS[LEVELS.index(level) + 1 :]
    above = next(
        each for each in coarser if each == "all" or _known(members[quantity, each, kind.at(each)])
    )
    others, theirs = _mixture(members, quantity, kind, above)
    own = tables / (tables + OTHER_TABLES)
    return [*some, *others], np.concatenate([own * weights, (1.0 - own) * theirs])


def _limits(
    some: Sequence[Residual], weights: Floats, *, factor: float
) -> tuple[float, float, float]:
    """Low end, median and high end of an interval, in logarithms."""
    p10, p50, p90 = _quantiles(_logs(some), weights, (0.1, 0.5, 0.9))
    wide = factor * _few_groups(_effective_groups(some, weights))
    return (
        p50 - wide * max(p50 - p10, LEAST_HALF_WIDTH),
        p50,
        p50 + wide * max(p90 - p50, LEAST_HALF_WIDTH),
    )


def _logs(some: Sequence[Residual]) -> Floats:
    return np.array([residual.log_ratio for residual in some])


def _weights(some: Sequence[Residual]) -> Floats:
    """Weight of each row, (N,), summing to 1."""
    rows = Counter((r.table, r.model, r.run) for r in some)
    runs = Counter((table, model) for table, model, _ in rows)
    models = Counter(table for table, _ in runs)
    each = [
        1.0 / math.sqrt(models[r.table]) / runs[r.table, r.model] / rows[r.table, r.model, r.run]
        for r in some
    ]
    return np.asarray(each) / sum(each)


def _effective_groups(some: Sequence[Residual], weights: Floats) -> float:
    """How many equal (table, model) groups would have as even a say: 1 / sum of squared shares
    (Kish)."""
    shares: dict[tuple[str, str], float] = defaultdict(float)
    for residual, weight in zip(some, weights, strict=True):
        shares[residual.table, residual.model] += float(weight)
    return 1.0 / sum(share * share for share in shares.values())


def _quantiles(values: Floats, weights: Floats, at: Iterable[float]) -> list[float]:
    """Quantiles of weighted values, between the middles of their weights by straight lines."""
    order = np.argsort(values, kind="stable")
    middles = np.cumsum(weights[order]) - weights[order] / 2
    return [float(np.interp(q, middles, values[order])) for q in at]


def _few_groups(groups: float) -> float:
    """What a quantile of so few groups is too narrow by: Student's t over the normal quantile, and
    the error of the mean."""
    return _t90(max(groups - 1.0, 0.5)) / Z90 * math.sqrt(1.0 + 1.0 / groups)


def _t90(freedom: float) -> float:
    """The 90 % quantile of Student's t by its expansion around the normal's (Abramowitz and Stegun
    26.7.5); 1 % low at 2."""
    z, v = Z90, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Test:
    """One row against the interval that was made without it, before the common factor."""

    residual: Residual
    weight: float
    reach: float
    """Factor at which the interval just holds it."""
    half_widths: float
    """ln(high / low)."""


def _tests(residuals: Sequence[Residual], unit_of: Callable[[Residual], Unit]) -> list[_Test]:
    """Hold every row against the spread of its kind made without its unit."""
    members = _members(residuals)
    units: dict[Unit, list[Residual]] = defaultdict(list)
    for residual in residuals:
        units[unit_of(residual)].append(residual)
    found = []
    for unit, held in units.items():
        quantity, kinds = held[0].quantity, {r.kind for r in held}
        names: set[tuple[Quantity, Level, str]] = {
            (quantity, level, kind.at(level)) for kind in kinds for level in LEVELS
        }
        rest = {name: [r for r in members[name] if unit_of(r) != unit] for name in names}
        limits = {kind: _limits_of(rest, quantity, kind) for kind in kinds}
        found += [
            _test(r, weight, limits[r.kind]) for r, weight in zip(held, _weights(held), strict=True)
        ]
    return found


def _limits_of(rest: Members, quantity: Quantity, kind: Kind) -> tuple[float, float, float]:
    """The interval of the finest level at which the other units know a kind."""
    level = next(
        level for level in LEVELS if level == "all" or _known(rest[quantity, level, kind.at(level)])
    )
    return _limits(*_mixture(rest, quantity, kind, level), factor=1.0)


def _test(residual: Residual, weight: float, limits: tuple[float, float, float]) -> _Test:
    low, middle, high = limits
    off = residual.log_ratio - middle
    return _Test(
        residual=residual,
        weight=weight,
        reach=off / (high - middle) if off > 0 else off / (low - middle),
        half_widths=high - low,
    )


def _without_table(residual: Residual) -> Unit:
    return (residual.table,)


def _without_model(residual: Residual) -> Unit:
    return residual.table, residual.model


def widening_of(residuals: Sequence[Residual]) -> float:
    """Return the factor at which intervals made without a table hold HELD of its runs, at least 1;
    1 where there is one table.

    All residuals are of one quantity. Tables weigh as in a fit.
    """
    if len({residual.table for residual in residuals}) > 1:
        return _widening(_tests(residuals, _without_table))
    return 1.0


def _widening(tests: Sequence[_Test]) -> float:
    models = _models(tests)
    weights = np.array([test.weight * math.sqrt(models[test.residual.table]) for test in tests])
    [factor] = _quantiles(
        np.array([test.reach for test in tests]), weights / weights.sum(), (HELD,)
    )
    return max(1.0, factor)


def _models(tests: Sequence[_Test]) -> dict[str, int]:
    return Counter(
        table for table, _ in {(test.residual.table, test.residual.model) for test in tests}
    )


def coverage(residuals: Sequence[Residual], quantity: Quantity) -> Coverage | None:
    """Return how many runs of each table lie inside intervals made without it; None where fewer
    than two tables tell.

    The factor is found from all tables at once; it is one number, so that a table hardly moves its
    own.
    """
    own = [residual for residual in residuals if residual.quantity == quantity]
    if len({residual.table for residual in own}) < 2:
        return None
    tests, closer = _tests(own, _without_table), _tests(own, _without_model)
    factor, models = _widening(tests), _models(tests)
    tables = {
        name: _table_coverage(name, tests, closer, factor=factor, models=models[name])
        for name in sorted(models)
    }
    return Coverage(quantity=quantity, widening=factor, tables=tables)


def _table_coverage(
    name: str, tests: Sequence[_Test], closer: Sequence[_Test], *, factor: float, models: int
) -> TableCoverage:
    mine = [test for test in tests if test.residual.table == name]
    near = [test for test in closer if test.residual.table == name]
    return TableCoverage(
        runs=len({(t.residual.model, t.residual.run) for t in mine}),
        without_table=_share(mine, factor),
        without_model=_share(near, factor) if models > 1 else None,
        width=math.exp(factor * sum(t.weight * t.half_widths for t in mine)),
        models=models,
    )


def _share(tests: Sequence[_Test], factor: float) -> float:
    return sum(t.weight for t in tests if t.reach <= factor) / sum(t.weight for t in tests)


def spreads_csv(spreads: Found) -> str:
    """Return `trust/residuals.csv`: quantities, then levels from fine to coarse, then kinds by
    name."""
    out = io.StringIO()
    names = [field.name for field in fields(Spread)]
    writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    for spread in sorted(
        spreads.values(), key=lambda s: (s.quantity != "step_time", LEVELS.index(s.level), s.kind)
    ):
        values = {name: getattr(spread, name) for name in names}
        writer.writerow(
            {
                name: f"{value:.4f}" if isinstance(value, float) else value
                for name, value in values.items()
            }
        )
    return out.getvalue()
