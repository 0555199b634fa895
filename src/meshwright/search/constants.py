"""The constants that a price may stand on: figures of chips, links and software, numbers of the
cost model, measured tables. Each has a name, a value, a kind, a source, and a way to be moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from meshwright.search.twin import Defined, Trace, Twin, scaled
from meshwright.trust.intervals import uncertain_constants
from meshwright.values.data import package_rows
from meshwright.values.hardware.catalogue import Row, chip_rows, host_sources, link_rows
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Host, Link, Pool
from meshwright.values.stack import Factors, Stack, figure_source
from meshwright.values.units import MICROSECOND

__all__ = ["Holders", "Kind", "Movable", "Move", "holders_of", "movables", "stack_of", "with_held"]

Kind = Literal["table", "fitted", "data sheet", "formula", "assumed"]
"""Where a constant comes from: measured tables, a fit to runs, a data sheet or documentation, a
count or a definition, an assumption."""

Holders = Mapping[str, Any]
"""What holds constants, by the name that stands before the dot: `chip`, `stack`, a link's name."""

STEP = 0.01
"""By how much a constant is moved to see what it moves: 1 %, the unit of the printed sensitivity.
A share or a size that is 0 is raised to as much, a time to a microsecond."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One constant elsewhere: the holders to price with, and the twin to price in."""

    holders: Holders
    inside: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, kw_only=True, slots=True)
class Movable:
    """A constant that can be moved."""

    name: str
    value: float | str | bool
    kind: Kind
    source: str
    unit: str
    """What the printed sensitivity is for: `1 %`, `switched`, `0 to 0.01`, `1 more`."""
    moves: tuple[tuple[float, Callable[[], Move]], ...]
    """Ways to move it, the first to be tried first, each with the sign of the step."""


def movables(holders: Holders, trace: Trace, twin: Twin) -> Iterator[Movable]:
    """Yield the constants that one pricing read, of its holders and its tables, and those of the
    modules that its code named: only they can have moved it."""
    for owner, held in holders.items():
        for one in fields(held):
            value = getattr(held, one.name)
            if (type(held), one.name) in trace.reads and isinstance(value, bool | int | float):
                yield _of_field(holders, owner, one.name, value)
    for defined in twin.defined():
        if defined.name in trace.names:
            yield _of_module(holders, defined, twin)
    for chip, grid in sorted(trace.grids):
        yield _of_table(holders, chip, grid, twin)
    if "_vendors" in trace.names:
        yield from _of_communicators(holders, twin)


def holders_of(pool: Pool, stack: Stack, *, prefix: str = "") -> dict[str, Any]:
    """Return what holds the constants of one kind of chips and of the software."""
    node = pool.node
    held = {
        f"{prefix}chip": node.chip,
        f"{prefix}domain_link": node.domain_link,
        f"{prefix}network_link": node.network_link,
        f"{prefix}pool": pool,
        **({} if node.host is None else {f"{prefix}host": node.host}),
    }
    calibrated = {} if stack.factors == Factors() else {"stack.factors": stack.factors}
    return {**held, "stack": stack, **calibrated}


def with_held(pool: Pool, holders: Holders, *, prefix: str = "") -> Pool:
    """Return a pool with the figures that the holders have."""
    links = {name: holders[f"{prefix}{name}"] for name in ("chip", "domain_link", "network_link")}
    spine = holders[f"{prefix}pool"].oversubscription
    links["host"] = holders.get(f"{prefix}host")
    return replace(pool, node=replace(pool.node, **links), oversubscription=spine)


def stack_of(holders: Holders) -> Stack:
    """Return the software with the figures that the holders have."""
    stack: Stack = holders["stack"]
    return replace(stack, factors=holders.get("stack.factors", stack.factors))


def _of_field(holders: Holders, owner: str, name: str, value: float) -> Movable:
    held = holders[owner]
    return _figure(
        f"{held.name if isinstance(held, Link) else owner}.{name}",
        value,
        _source(held, owner, name),
        lambda end: Move(holders={**holders, owner: replace(held, **{name: end})}),
    )


def _figure(name: str, value: float, source: str, at: Callable[[Any], Move]) -> Movable:
    """A figure that can be moved to where `at` says."""
    unit, ends = _ends(name, value)
    return Movable(
        name=name,
        value=value,
        kind=_kind(source),
        source=source,
        unit=unit,
        moves=tuple((sign, partial(at, end)) for sign, end in ends),
    )


def _ends(name: str, value: float) -> tuple[str, tuple[tuple[float, Any], ...]]:
    """What a constant is moved by in words, and where to, with the sign of each step."""
    if isinstance(value, bool):
        return "switched", ((1.0, not value),)
    if isinstance(value, int):
        return "1 more", ((1.0, value + 1),)
    if value == 0.0:
        end = MICROSECOND if name.endswith("_s") else STEP
        return f"0 to {end:g}", ((1.0, end),)
    return f"{STEP:.0%}".replace("%", " %"), (
        (1.0, value * (1.0 + STEP)),
        (-1.0, value * (1.0 - STEP)),
    )


def _of_module(holders: Holders, defined: Defined, twin: Twin) -> Movable:
    value = twin.module(defined.module).__dict__[defined.name]

    def moved(factor: float) -> Callable[[], Move]:
        there = scaled(value, factor)
        return lambda: Move(
            holders=holders, inside=lambda: twin.with_constant(defined.module, defined.name, there)
        )

    return Movable(
        name=f"{defined.module.removeprefix('meshwright.')}.{defined.name}",
        value=value if isinstance(value, float) else str(value),
        kind=_kind(defined.words, otherwise="formula"),
        source=defined.words or "a definition of the module",
        unit="1 %",
        moves=((1.0, moved(1.0 + STEP)), (-1.0, moved(1.0 - STEP))),
    )


def _of_table(holders: Holders, chip: str, grid: str, twin: Twin) -> Movable:
    shipped = twin.tables(chip)
    assert shipped is not None

    def moved(how: Callable[[Any], Any]) -> Callable[[], Move]:
        def tables_of(name: str) -> Any:
            tables = twin.tables(name)
            if name != chip or tables is None:
                return tables
            return replace(tables, grids={**tables.grids, grid: how(tables.grids[grid])})

        return lambda: Move(holders=holders, inside=lambda: twin.with_tables(tables_of))

    return Movable(
        name=f"table {chip} {grid}",
        value=f"{shipped.grids[grid].log_seconds.size:,} shapes",
        kind="table",
        source=f"{shipped.meta['source']}, docs/operators.md",
        unit="1 %",
        moves=((1.0, moved(_longer)), (0.0, moved(_bent))),
    )


def _longer(grid: Any) -> Any:
    return replace(grid, log_seconds=grid.log_seconds + np.log1p(STEP))


def _bent(grid: Any) -> Any:
    """The table with its times longer towards one corner: where a chip borrows a table's shape
    alone, a table that is longer everywhere changes nothing."""
    slopes = np.indices(grid.log_seconds.shape).sum(axis=0, dtype=np.float64)
    return replace(grid, log_seconds=grid.log_seconds + np.log1p(STEP) * slopes / slopes.max())


def _of_communicators(holders: Holders, twin: Twin) -> Iterator[Movable]:
    """Buffers of communicators, `cost/communicators.csv`, of the vendors of the holders' chips."""
    weights = twin.module("meshwright.cost.weights").__dict__
    known, sources = weights["_vendors"](), _communicator_sources()
    vendors = {held.vendor.lower() for held in holders.values() if isinstance(held, Chip)}
    for vendor in sorted(each if each in known else "" for each in vendors):
        row = known[vendor]
        for one in fields(row):
            value = getattr(row, one.name)
            if isinstance(value, float):
                yield _of_buffer(holders, twin, known, vendor, one.name, sources[vendor])


def _of_buffer(
    holders: Holders, twin: Twin, known: Mapping[str, Any], vendor: str, name: str, source: str
) -> Movable:
    def moved(end: float) -> Move:
        there = {**known, vendor: replace(known[vendor], **{name: end})}
        module = "meshwright.cost.weights"
        return Move(
            holders=holders, inside=lambda: twin.with_constant(module, "_vendors", lambda: there)
        )

    value = getattr(known[vendor], name)
    return _figure(f"communicators.{vendor or 'others'}.{name}", value, source, moved)


@cache
def _communicator_sources() -> dict[str, str]:
    return {row["vendor"]: row["source"] for row in package_rows("cost/communicators.csv")}


_SOURCE_COLUMNS = {
    "usable_bytes": "usable_source",
    "sustained_share": "sustained_source",
    "narrow_sustained_share": "sustained_source",
    "matmul_efficiency": "matmul_source",
    "fp8_matmul_efficiency": "matmul_source",
    "kin_speed": "matmul_source",
    "attention_forward_efficiency": "attention_source",
    "attention_backward_efficiency": "attention_source",
    "flash2_share": "attention_source",
    "memory_efficiency": "memory_efficiency_source",
    "launch_s": "launch_source",
    "ramp_s": "launch_source",
    "gemm_workspace_bytes": "launch_source",
    "usd_per_hour": "price_source",
    "efficiency": "efficiency_source",
    "pair_efficiency": "efficiency_source",
    "pairwise_share": "efficiency_source",
    "latency_s": "latency_source",
    "setup_s": "latency_source",
}
"""Column of a catalogue that holds a figure's source, where it is not `source`."""


def _source(held: Any, owner: str, name: str) -> str:
    """Return where a figure comes from; what is in no catalogue is the user's own."""
    if isinstance(held, Factors):
        return "fitted to the user's own runs: calibration"
    if isinstance(held, Stack):
        listed = {each.constant: each.source for each in uncertain_constants()}.get(f"stack.{name}")
        source = figure_source(held.name, name) or held.source
        return listed or f"stack {held.name}: {source}".rstrip(": ")
    if isinstance(held, Host):
        return host_sources(held).get(name, "given by the user")
    if isinstance(held, Pool):
        return "the cluster, as asked"
    cells = _cells(held)
    return (
        getattr(held, "source", "") * (not cells)
        or cells.get(_SOURCE_COLUMNS.get(name, "source"), "")
        or cells.get("source", "")
        or "given by the user"
    )


def _cells(held: Any) -> Row:
    rows: dict[str, Row] = {}
    if isinstance(held, Chip):
        rows = {row.chip.name: row.cells for row in chip_rows()}
    elif isinstance(held, Link):
        rows = {row.link.name: row.cells for row in link_rows()}
    return rows.get(getattr(held, "name", ""), {})


_ASSUMED = ("assumed", "taken to be", "taken as", "guess", "nobody", "no published")
_FITTED = ("fitted", "fits ", "fit to", "fit of")


def _kind(source: str, *, otherwise: Kind = "data sheet") -> Kind:
    """What a source's own words say of it."""
    words = source.lower()
    if any(mark in words for mark in _FITTED):
        return "fitted"
    return "assumed" if any(mark in words for mark in _ASSUMED) else otherwise
