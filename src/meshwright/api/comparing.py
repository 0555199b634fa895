"""One training on several clusters: the function behind `meshwright compare`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from meshwright.api.catalogues import list_prices
from meshwright.api.problems import read_text
from meshwright.search.problem import Problem
from meshwright.search.request import PlanRequest
from meshwright.sizing.chips import Tried, chips_for
from meshwright.sizing.duration import Duration, Training
from meshwright.sizing.estimate import Limits, RunEstimate
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.units import DAY_S

__all__ = [
    "KINDS",
    "ComparedRow",
    "Price",
    "PriceKind",
    "catalogue_prices",
    "compare",
    "compared_record",
    "read_prices",
]

PriceKind = Literal["on-demand", "spot", "reserved"]
KINDS: tuple[PriceKind, ...] = get_args(PriceKind)
_COLUMNS = ("chip", "kind", "usd_per_hour", "provider", "date", "source")


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What an hour of one chip costs somewhere, on some day."""

    chip: str
    kind: PriceKind
    usd_per_hour: float
    provider: str
    date: str
    """As the source has it."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """The training on one cluster."""

    cluster: str
    layout: str | None
    """Of its best plan; None where nothing fits, and so are the figures."""
    days: float | None
    days_interval: tuple[float, float] | None
    usd: float | None
    """At the lowest of `prices` of `price_kind`; None without one."""
    price_kind: PriceKind | None
    """The kind that was asked for; another where none of that is listed."""
    kwh: float | None
    kg_co2: float | None
    prices: tuple[tuple[Price, float], ...]
    """Each price of this chip with the cost of the run, the lowest first."""
    on_front: bool = False
    """Whether no other cluster is both faster and cheaper."""
    broken: tuple[str, ...] = ()
    """Limits that it breaks, in words."""

    def usd_at(self, kind: PriceKind) -> float | None:
        """Return what the run costs at the lowest price of a kind; None where none is listed."""
        return next((usd for price, usd in self.prices if price.kind == kind), None)

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        named = {name: getattr(self, name) for name in ("cluster", "layout", "days")}
        return {
            **named,
            "interval": None if self.days_interval is None else {"days": list(self.days_interval)},
            "usd": self.usd,
            "price_kind": self.price_kind,
            "kwh": self.kwh,
            "kg_co2": self.kg_co2,
            "prices": [{**asdict(price), "usd": usd} for price, usd in self.prices],
            "on_front": self.on_front,
            "broken_limits": list(self.broken),
        }


def catalogue_prices() -> list[Price]:
    """Return the catalogue's prices: on demand, spot and reserved, where one is public."""
    return [
        Price(
            chip=row.chip,
            kind=row.kind,
            usd_per_hour=row.usd_per_hour,
            provider=row.provider,
            date=row.date,
            source=row.source,
        )
        for row in list_prices()
    ]


def read_prices(path: Path) -> list[Price]:
    """Read a CSV of prices that takes the catalogue's place; ConfigError for anything broken."""
    reader = csv.DictReader(io.StringIO(read_text(path, str(path))))
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            f"{path}: no column {', '.join(missing)}; a file of prices has {', '.join(_COLUMNS)}"
        )
    return [_price(cells, f"{path}, row {number}") for number, cells in enumerate(reader, start=2)]


def _price(cells: Mapping[str, str], place: str) -> Price:
    kind = cells["kind"]
    if kind not in KINDS:
        raise UnknownNameError(f"kind of price in {place}", kind, KINDS)
    try:
        usd = float(cells["usd_per_hour"])
    except (TypeError, ValueError):
        usd = math.nan
    if not 0 < usd < math.inf:
        raise ConfigError(f"{place}: usd_per_hour={cells['usd_per_hour']}: expected dollars")
    if not (cells["date"] and cells["source"]):
        raise ConfigError(f"{place}: a price needs its date and its source")
    words = {name: cells[name] or "" for name in ("provider", "date", "source")}
    return Price(chip=find_chip(cells["chip"]).name, kind=kind, usd_per_hour=usd, **words)


def compare(
    requests: Sequence[PlanRequest],
    *,
    training: Training,
    limits: Limits,
    prices: Iterable[Price] | None = None,
    pay: PriceKind = "on-demand",
    sized: Container[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[ComparedRow]:
    """Return the training on each request's cluster, the cheapest first, those of unknown cost
    behind and those that nothing fits on last.

    `pay` is the kind of price that dollars are counted at, another where a chip has none of it.
    Clusters named in `sized` take the number of chips that suits the limits (`chips_for`) in place
    of their own. Every name is looked up before anything is searched. `progress` is told how many
    clusters are done, and of how many.
    """
    from meshwright import api

    known = list(catalogue_prices() if prices is None else prices)
    problems = [api.problem_of(request) for request in requests]
    asked = _Asked(prices=known, training=training, limits=limits, pay=pay)
    rows: list[ComparedRow] = []
    for request, problem in zip(requests, problems, strict=True):
        row = _sized_row if request.cluster in sized else _row
        rows.append(row(request, problem, asked))
        if progress is not None:
            progress(len(rows), len(requests))
    return sorted(_with_front(rows), key=_order)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    prices: list[Price]
    training: Training
    limits: Limits
    pay: PriceKind


def compared_record(
    rows: Sequence[ComparedRow],
    *,
    model: str | Mapping[str, Any],
    training: Training,
    limits: Limits,
    pay: PriceKind = "on-demand",
) -> dict[str, Any]:
    """Return the object that `compare --json` prints, which `report` reads."""
    return {
        "model": model if isinstance(model, str) else model.get("name"),
        "tokens": training.tokens,
        "budget_usd": limits.usd,
        "deadline_days": None if limits.wall_s is None else limits.wall_s / DAY_S,
        "pay": pay,
        "rows": [row.to_dict() for row in rows],
    }


def _sized_row(request: PlanRequest, problem: Problem, asked: _Asked) -> ComparedRow:
    """The row of the number of chips that suits the limits."""
    kind = request.cluster.rpartition(":")[0]
    rows: dict[int, ComparedRow | None] = {}

    def tried(chips: int) -> Tried | None:
        if chips not in rows:
            other = request.model_copy(update={"cluster": f"{kind}:{chips}"})
            try:
                rows[chips] = _row(other, problem, asked)
            except ConfigError:  # No layout of the software divides so many.
                rows[chips] = None
        row = rows[chips]
        return None if row is None or row.days is None else Tried(row.days * DAY_S, row.usd)

    chosen = chips_for(asked.limits, tried)
    row = None if chosen is None else rows[chosen]
    return _row(request, problem, asked) if row is None else row


def _row(request: PlanRequest, problem: Problem, asked: _Asked) -> ComparedRow:
    from meshwright import api

    found: RunEstimate = api.estimate(request, training=asked.training)
    run, chip = found.run, problem.setting.pool.node.chip.name
    if run is None or found.plan is None:
        return ComparedRow(
            cluster=request.cluster,
            layout=None,
            days=None,
            days_interval=None,
            usd=None,
            price_kind=None,
            kwh=None,
            kg_co2=None,
            prices=(),
            broken=("nothing fits",),
        )
    mine = sorted(
        (
            (price, run.chip_hours * price.usd_per_hour)
            for price in asked.prices
            if price.chip == chip
        ),
        key=lambda pair: pair[1],
    )
    paid = next((pair for pair in mine if pair[0].kind == asked.pay), mine[0] if mine else None)
    usd = None if paid is None else paid[1]
    return ComparedRow(
        cluster=request.cluster,
        layout=found.plan.layout.words(),
        days=run.wall_s / DAY_S,
        days_interval=(run.interval_s[0] / DAY_S, run.interval_s[1] / DAY_S),
        usd=usd,
        price_kind=None if paid is None else paid[0].kind,
        kwh=run.kwh,
        kg_co2=run.kg_co2,
        prices=tuple(mine),
        broken=tuple(_broken(run, usd, asked.limits)),
    )


def _broken(run: Duration, usd: float | None, limits: Limits) -> list[str]:
    found = []
    if limits.wall_s is not None and run.wall_s > limits.wall_s:
        found.append("too long")
    if limits.usd is not None and usd is not None and usd > limits.usd:
        found.append("too dear")
    if limits.usd is not None and usd is None:
        found.append("no price")
    return found


def _with_front(rows: list[ComparedRow]) -> list[ComparedRow]:
    """Mark the rows of which no other is both faster and cheaper."""
    known = [(row.days, row.usd) for row in rows if row.days is not None and row.usd is not None]
    return [
        replace(
            row,
            on_front=row.days is not None
            and row.usd is not None
            and not any(
                days <= row.days and usd <= row.usd and (days, usd) != (row.days, row.usd)
                for days, usd in known
            ),
        )
        for row in rows
    ]


def _order(row: ComparedRow) -> tuple[bool, float, float]:
    return (
        row.days is None,
        math.inf if row.usd is None else row.usd,
        math.inf if row.days is None else row.days,
    )
