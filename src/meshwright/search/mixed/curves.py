"""What a stage takes and holds, by its layers: coefficients of one kind of chip under one way to
cut the model, for all ways to recompute.

Times are affine in the layers of each of the model's segments; memory is affine in layers, in micro
batches in flight and in their product. So a few stages, priced by the cost model itself, give all
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import message_s
from meshwright.cost.memory import MESSAGE_BUFFERS
from meshwright.cost.mixed import Site, message_times_s
from meshwright.cost.once import data_exchange_s, optimizer_s
from meshwright.cost.stages import Floats, Stages
from meshwright.cost.step import StagePrices, price_stages
from meshwright.search.axes import Recomputation
from meshwright.values.layout import RECOMPUTES, Layouts
from meshwright.values.models.adapters import trainable_share

__all__ = [
    "FIRST",
    "LAST",
    "MIDDLE",
    "ROLES",
    "WHOLE",
    "Curve",
    "Once",
    "OneWay",
    "Reader",
    "Rows",
    "StageTable",
    "curves",
    "fitting_layers",
    "once_tables",
    "role_of",
    "stage_reader",
    "stage_table",
]

ROLES = ((False, False), (True, False), (False, True), (True, True))
"""Whether a stage holds the embedding, and the head."""
MIDDLE, FIRST, LAST, WHOLE = range(4)
_MAKES = {"main": (1, 0), "prefix": (1, 1), "both": (2, 1)}
"""Which of the model's segments a stage has layers of: the fewest, and those of the prefix."""
Point = tuple[int, int, int, tuple[bool, bool]]
"""Layers, those of the prefix among them, micro batches in flight, role."""


class Rows:
    """Columns of equal length, or of none but the rows' own shape."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def take(self, index: Any) -> Self:
        """Return some rows."""
        return type(self)(**{name: getattr(self, name)[index] for name in self._names()})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of several."""
        return cls(
            **{name: np.concatenate([getattr(p, name) for p in parts]) for name in cls._names()}
        )

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(cls.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Once:
    """What a step takes once, by the layers of the fullest stage (0 .. L)."""

    reduce_s: Floats
    gather_s: Floats
    optimizer_s: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One kind of chip under one (tp, cp, ep, dp, mbs); W ways to recompute, the last one `block`
    of no layer where there is one."""

    ways: tuple[Recomputation, ...]
    by_block: bool
    """Whether the last way is block recompute, priced for 0 layers."""
    forward_base_s: Floats
    """By role, (4,)."""
    forward_layer_s: Floats
    """Of a main layer and one of the prefix, (2,)."""
    backward_base_s: Floats
    """(W, 4)."""
    backward_layer_s: Floats
    """(W, 2)."""
    redo_layer_s: Floats
    """What block recompute adds per layer, (2,)."""
    base_bytes: Floats
    """By way, make and role, (W, 3, 4); and what of it each micro batch in flight adds."""
    base_flight_bytes: Floats
    layer_bytes: Floats
    """(W, 2); and what of it each micro batch in flight adds."""
    layer_flight_bytes: Floats
    chunk_bytes: float
    """What each chunk of layers beyond the first adds."""
    params: tuple[Floats, Floats]
    """Dense and expert parameters: base by role, then per main and per prefix layer, (6,) each."""
    message_s: float
    """One message inside the pool."""
    cross_message_s: float
    """One message to another pool."""
    near_message_s: float
    """One message where the whole pipeline lies in one fast domain."""

    @property
    def full_way(self) -> int:
        """The way that runs all layers again as the last one, block recompute, does with some."""
        return next(
            i
            for i, way in enumerate(self.ways)
            if not way.block and way.layers < 0 and way.kind == self.ways[-1].kind
        )


def curves(
    layouts: Layouts, ways: Sequence[Recomputation], *, pool: int, site: Site, piped: bool
) -> list[Curve]:
    """Return the curve of each layout, of which tp, sp, cp, ep, etp, dp, mbs, gbs, vpp and sharding
    count.

    `piped`: for stages of a pipeline; else for the one stage of a model that is not cut.
    """
    whole = next(
        (w for w in ways if w.kind == RECOMPUTES.index("full") and not w.block and w.layers < 0),
        None,
    )
    by_block = whole is not None and any(w.block and w.eighths for w in ways)
    plain = [w for w in ways if not (w.block and w.eighths)]
    listed = [*plain, _BLOCK_OF_NONE] if by_block else plain
    base = replace(layouts, pp=np.full(len(layouts), 2 if piped else 1))
    rows = _with_ways(base, listed)
    reader = stage_reader(rows, pool=pool, site=site)
    size = reader.message_bytes[:: len(listed)]
    chunk = MESSAGE_BUFFERS * site.stack.factors.states * size
    messages = np.stack(_messages(base, size, pool=pool, site=site), axis=1).tolist()
    full = plain.index(whole) if by_block and whole is not None else None
    columns = _Columns(reader)
    return [
        columns.curve(i * len(listed), listed, full, float(chunk[i]), messages[i])
        for i in range(len(layouts))
    ]


def stage_reader(layouts: Layouts, *, pool: int, site: Site) -> Reader:
    """Return the prices of the stages from which all coefficients follow."""
    points = _points(len(site.model.segments))
    priced = price_stages(
        layouts,
        _stages(points, len(layouts)),
        model=site.model,
        pool=site.cluster.pools[pool],
        work=site.work,
        stack=site.stack,
    )
    return Reader(points, priced)


_BLOCK_OF_NONE = Recomputation(kind=RECOMPUTES.index("full"), block=1, layers=0)


def _with_ways(base: Layouts, ways: Sequence[Recomputation]) -> Layouts:
    spread = base.take(np.repeat(np.arange(len(base)), len(ways)))
    kinds, block, layers, modules = (
        np.tile(np.array([getattr(w, name) for w in ways], dtype=np.int64), len(base))
        for name in ("kind", "block", "layers", "modules")
    )
    return replace(
        spread,
        recompute=kinds,
        block_recompute=block,
        recompute_layers=layers,
        recompute_modules=modules,
    )


def _points(segments: int) -> list[Point]:
    """Stages from which all coefficients follow."""
    makes = [(1, 0), (2, 0)] + ([(1, 1), (2, 2), (2, 1)] if segments > 1 else [])
    return [
        (layers, prefix, flight, role)
        for layers, prefix in makes
        for flight in (1, 2)
        for role in ROLES
    ]


def _stages(points: list[Point], rows: int) -> Stages:
    def spread(values: Sequence[Any], kind: type[Any]) -> Any:
        return np.broadcast_to(np.array(values, dtype=kind), (rows, len(points)))

    layers, prefix, flight, roles = zip(*points, strict=True)
    last = spread([is_last for _, is_last in roles], bool)
    return Stages(
        index=spread([not is_first for is_first, _ in roles], np.int64),
        layers=spread(layers, np.int64),
        prefix_layers=spread(prefix, np.float64),
        last=last,
        mtp=last,
        in_flight=spread(flight, np.float64),
        real=spread([True] * len(points), bool),
    )


class Reader:
    """Finds the price of a point."""

    def __init__(self, points: list[Point], priced: StagePrices) -> None:
        self.at = {point: i for i, point in enumerate(points)}
        self.has_prefix = any(point[1] for point in points)
        self.forward, self.backward = priced.times.forward_s, priced.times.backward_s
        self.used, self.message_bytes = priced.memory.used, priced.message_bytes
        self.dense, self.expert = priced.params.dense, priced.params.expert

    def slopes(self, table: Floats, flight: int = 1) -> Floats:
        """What a main layer and one of the prefix add, (R, 2)."""

        def added(prefix: int) -> Floats:
            one, two = (
                table[:, self.at[layers, prefix * layers, flight, ROLES[MIDDLE]]]
                for layers in (1, 2)
            )
            return np.asarray(two - one)

        return np.stack([added(0), added(int(self.has_prefix))], axis=-1)

    def bases(self, table: Floats, slopes: Floats, make: str = "main", flight: int = 1) -> Floats:
        """What a stage of no layer would take by role, (R, 4)."""
        layers, prefix = _MAKES[make if self.has_prefix else "main"]
        of_layers = (layers - prefix) * slopes[:, 0] + prefix * slopes[:, 1]
        return np.stack(
            [table[:, self.at[layers, prefix, flight, role]] - of_layers for role in ROLES], axis=-1
        )


class _Columns:
    """Coefficients of all rows, (R, ...)."""

    def __init__(self, reader: Reader) -> None:
        self.forward_layer, self.backward_layer = (
            reader.slopes(table) for table in (reader.forward, reader.backward)
        )
        self.forward_base = reader.bases(reader.forward, self.forward_layer)
        self.backward_base = reader.bases(reader.backward, self.backward_layer)
        # Memory at one and at two micro batches in flight: the difference is what each adds.
        self.bytes_of_one, self.bytes_of_two = (
            reader.slopes(reader.used, flight) for flight in (1, 2)
        )
        self.base_of_one, self.base_of_two = (
            np.stack([reader.bases(reader.used, slopes, make, flight) for make in _MAKES], axis=1)
            for slopes, flight in ((self.bytes_of_one, 1), (self.bytes_of_two, 2))
        )
        self.params = []
        for table in (reader.dense, reader.expert):
            slopes = reader.slopes(table)
            self.params.append(np.concatenate([reader.bases(table, slopes), slopes], axis=1))

    def curve(
        self,
        start: int,
        ways: Sequence[Recomputation],
        full: int | None,
        chunk_bytes: float,
        messages: list[float],
    ) -> Curve:
        """The curve of the rows from `start`, one per way; `full` recomputes all layers where the
        last way is block recompute."""
        rows = slice(start, start + len(ways))
        backward = self.backward_layer[rows]
        return Curve(
            ways=tuple(ways),
            by_block=full is not None,
            forward_base_s=self.forward_base[start],
            forward_layer_s=self.forward_layer[start],
            backward_base_s=self.backward_base[rows],
            backward_layer_s=backward,
            redo_layer_s=backward[full] - backward[-1] if full is not None else np.zeros(2),
            base_bytes=2 * self.base_of_one[rows] - self.base_of_two[rows],
            base_flight_bytes=self.base_of_two[rows] - self.base_of_one[rows],
            layer_bytes=2 * self.bytes_of_one[rows] - self.bytes_of_two[rows],
            layer_flight_bytes=self.bytes_of_two[rows] - self.bytes_of_one[rows],
            chunk_bytes=chunk_bytes,
            params=(self.params[0][start], self.params[1][start]),
            message_s=messages[0],
            cross_message_s=messages[1],
            near_message_s=messages[2],
        )


def _messages(base: Layouts, size: Floats, *, pool: int, site: Site) -> list[Floats]:
    """One message of a pipeline that is longer than a domain, to another pool, and inside a domain.

    The first goes over the network, or where a domain holds several stages is the mean of that and
    one inside, as in `message_s`.
    """
    own = site.cluster.pools[pool]
    near = replace(own, node=replace(own.node, domain_size=2**40))
    far = replace(own, node=replace(own.node, domain_size=1))
    across = message_times_s(base, size, pool=pool, site=site)[1]
    outside, inside = (
        message_s(base, size, pool=own, stack=site.stack, way=way) for way in (far, near)
    )
    border = base.tp * base.cp * base.dp < own.node.domain_size
    return [np.where(border, (inside + outside) / 2.0, outside), across, inside]


def once_tables(
    found: Sequence[Curve], layouts: Layouts, *, pool: int, site: Site, most: int
) -> list[tuple[Once, ...]]:
    """What a step takes once if the fullest stage has 0 .. `most` main layers, by role, for each
    curve and its layout."""
    layers = np.arange(most + 1, dtype=np.float64)
    shape = (len(found), len(ROLES), most + 1)
    share = trainable_share(site.model, site.work)
    dense, expert = (
        share
        * np.stack(
            [
                curve.params[kind][: len(ROLES), None] + curve.params[kind][len(ROLES)] * layers
                for curve in found
            ]
        ).ravel()
        for kind in (0, 1)
    )
    rows = layouts.take(np.repeat(np.arange(len(found)), len(ROLES) * (most + 1)))
    own = site.cluster.pools[pool]
    exchange = data_exchange_s(
        rows, dense, expert, pool=own, stack=site.stack, precision=site.work.precision
    )
    reduce, gather = (each.reshape(shape) for each in exchange)
    optimizer = optimizer_s(rows, dense, expert, pool=own, stack=site.stack).reshape(shape)
    return [
        tuple(
            Once(reduce_s=reduce[i, r], gather_s=gather[i, r], optimizer_s=optimizer[i, r])
            for r in range(len(ROLES))
        )
        for i in range(len(found))
    ]


def fitting_layers(curve: Curve, *, limit_bytes: float, most: int) -> NDArray[np.int64]:
    """Layers of a middle stage that fit at most, by micro batches in flight 0 .. `most`, whatever
    is recomputed, (most + 1,)."""
    flight = np.arange(most + 1, dtype=np.float64)
    base = (
        curve.base_bytes[:, :, MIDDLE, None] + curve.base_flight_bytes[:, :, MIDDLE, None] * flight
    ).min(axis=1)
    layer = (curve.layer_bytes[:, :, None] + curve.layer_flight_bytes[:, :, None] * flight).min(
        axis=1
    )
    fits = np.floor((limit_bytes - base) / layer).max(axis=0)
    return np.asarray(np.clip(fits, 0, most), dtype=np.int64)


Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTable:
    """Stages of one place in the pipeline, one entry per count of layers; seconds are infinite
    where none of them fits."""

    forward_s: Floats
    backward_s: Floats
    way: Ints
    """Index into the curve's ways."""
    redone: Ints
    """With block recompute: layers per chunk that run again."""


def role_of(stage: int, pp: int) -> int:
    """Return the index into ROLES of a place in a pipeline."""
    return ROLES.index((stage == 0, stage == pp - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class OneWay:
    """A way to recompute that all stages of a block share."""

    way: int
    """Index into the curve's ways."""
    redone: int = 0
    """With block recompute: layers per chunk that run again, all where a chunk has fewer."""


def stage_table(
    curve: Curve,
    *,
    layers: Ints,
    prefix: Ints,
    role: int,
    in_flight: float,
    vpp: int,
    limit_bytes: float,
    only: OneWay | None = None,
) -> StageTable:
    """Choose for each count of layers, (n,), of which `prefix` are of the model's first segment,
    the recomputation that costs least.

    Formula:  all ways are priced, or `only` one; block recompute runs again the fewest layers per
              chunk that bring the stage under the limit
    """
    main = layers - prefix
    counts = np.stack([main, prefix]).astype(np.float64)
    make = np.where(prefix == 0, 0, np.where(main == 0, 1, 2))
    forward = curve.forward_base_s[role] + curve.forward_layer_s @ counts
    backward = curve.backward_base_s[:, role, None] + curve.backward_layer_s @ counts
    held = _held_bytes(curve, counts, make, role, in_flight) + (vpp - 1) * curve.chunk_bytes
    fits = held <= limit_bytes
    redone = np.zeros(len(layers), dtype=np.int64)
    if curve.by_block:
        freed = _freed_bytes(curve, counts, in_flight)
        if only is None:
            redone, fits[-1] = _block(held[-1] - limit_bytes, freed, layers / vpp)
        else:
            redone = np.minimum(only.redone, -(-layers // vpp))
            fits[-1] = held[-1] - freed * np.minimum(1.0, redone * vpp / layers) <= limit_bytes
        backward[-1] += np.minimum(1.0, redone * vpp / layers) * (curve.redo_layer_s @ counts)
    if only is not None:
        fits &= np.arange(len(fits))[:, None] == only.way
    backward = np.where(fits, backward, np.inf)
    way = backward.argmin(axis=0)
    least = np.take_along_axis(backward, way[None], axis=0)[0]
    return StageTable(
        forward_s=np.where(np.isinf(least), np.inf, forward),
        backward_s=least,
        way=way,
        redone=np.where(way == len(curve.ways) - 1, redone, 0),
    )


def _held_bytes(curve: Curve, counts: Floats, make: Ints, role: int, in_flight: float) -> Floats:
    base = curve.base_bytes[:, :, role] + in_flight * curve.base_flight_bytes[:, :, role]
    return np.asarray(
        base[:, make] + (curve.layer_bytes + in_flight * curve.layer_flight_bytes) @ counts
    )


def _freed_bytes(curve: Curve, counts: Floats, in_flight: float) -> Floats:
    """What full recompute of all layers keeps less of than block recompute of none."""
    return np.asarray(
        in_flight
        * (curve.layer_flight_bytes[-1] - curve.layer_flight_bytes[curve.full_way])
        @ counts
    )


def _block(over: Floats, freed: Floats, per_chunk: Floats) -> tuple[Ints, NDArray[Any]]:
    """Layers per chunk that block recompute runs again at least, and whether they do: fewer than
    all, which is full recompute."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.ceil(np.maximum(over, 0.0) / freed * per_chunk - 1e-9)
    good = np.isfinite(wanted) & (wanted >= 1) & (wanted < per_chunk)
    return np.where(good, wanted, 0).astype(np.int64), good
