"""What memory makes stages recompute at least, as bounds of a block: of its slowest stage, and of
all its stages together.

A stage of k layers that holds h micro batches needs k * layer(h) + base(h) bytes if nothing is
recomputed. What that is over the chip's memory must be freed, at the seconds per byte of the way to
recompute that frees cheapest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.curves import Curve, Rows

__all__ = ["LINES", "Forced", "Places", "Room", "forced", "room_of"]

Ints = NDArray[np.int64]
NEWTON_STEPS = 6
"""Each of them bounds; what stages have room for bends where one more must recompute more."""
LINES = 5
"""Of the least time of recomputation over what it frees, which is a chain of lines; with fewer the
bound is lower."""
_NOTHING = 1e-9
"""Share of a layer's bytes below which nothing is freed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room(Rows):
    """Memory of a stage under one way to cut, columns (G,), or scalars: bytes of the quickest way
    to run its layers."""

    layer_bytes: Floats
    """Of a layer at least; and what of it each micro batch in flight adds."""
    layer_flight_bytes: Floats
    free_bytes: Floats
    """The chip's memory less what a stage holds whatever its layers, with one chunk; each micro
    batch and further chunk takes from it."""
    base_flight_bytes: Floats
    chunk_bytes: Floats
    most_freed: Floats
    """Bytes of a layer and micro batch in flight that recomputation frees at most."""
    slope: Floats
    """Seconds per byte that is freed, and seconds, by line, (G, LINES): a layer that frees x per
    micro batch takes slope x + start more."""
    start_s: Floats


def room_of(curve: Curve, *, limit_bytes: float) -> Room:
    """Return the columns of one curve."""
    # Measured from the quickest way, and of equally quick ones the smallest: what any other way
    # frees, and what it takes more.
    cheapest = np.lexsort((curve.layer_flight_bytes[:, 0], curve.backward_layer_s[:, 0]))[0]
    layer, flight = curve.layer_bytes[cheapest], curve.layer_flight_bytes[cheapest]
    extra = curve.backward_layer_s - curve.backward_layer_s.min(axis=0)
    # What a layer holds whatever is in flight counts as if one micro batch were: at least one is.
    freed = flight - curve.layer_flight_bytes + np.maximum(0.0, layer - curve.layer_bytes)
    if curve.by_block:  # and the last way with all layers run again
        extra = np.concatenate([extra, extra[-1:] + curve.redo_layer_s])
        freed = np.concatenate(
            [
                freed,
                freed[-1:]
                + curve.layer_flight_bytes[-1]
                - curve.layer_flight_bytes[curve.full_way],
            ]
        )
    useful = freed > _NOTHING * (layer + flight)
    slope, start = _hull(freed[useful], extra[useful])
    return Room(
        layer_bytes=layer.min(),
        layer_flight_bytes=flight.min(),
        free_bytes=np.asarray(limit_bytes - curve.base_bytes.min()),
        base_flight_bytes=curve.base_flight_bytes.min(),
        chunk_bytes=np.asarray(curve.chunk_bytes),
        most_freed=freed[useful].max(initial=0.0),
        slope=slope,
        start_s=start,
    )


def _hull(freed: Floats, extra: Floats) -> tuple[Floats, Floats]:
    """Slopes and starts of the lines below all points and the origin, (LINES,) each; the first is
    level."""
    slopes, starts = np.zeros(LINES), np.zeros(LINES)
    x, y = 0.0, 0.0
    # From each corner of the hull on the flattest line to a point further right is the next one.
    for line in range(1, LINES):
        right = freed > x
        if not right.any():
            break
        steep = (extra[right] - y) / (freed[right] - x)
        at = int(np.lexsort((-freed[right], steep))[0])
        slopes[line], starts[line] = steep[at], y - steep[at] * x
        x, y = float(freed[right][at]), float(extra[right][at])
    return slopes, starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Places(Rows):
    """Blocks of stages, (P,): what is asked of each."""

    layers: Ints
    """At least."""
    stages: Ints
    """At most."""
    below: Ints
    """Stages below the block's last one, at least."""
    depth: Ints
    """Stages of the pipeline, at least."""
    num_microbatches: Ints
    vpp: Ints
    layer_s: Floats
    """The quickest layer."""
    most_s: Floats
    """What a stage may take at most."""

    def held(self, place: Ints) -> Floats:
        """Micro batches that the stage so many places before the block's last one holds, as
        `blocks.in_flight` has it."""
        below, vpp = self.below[:, None] + place, self.vpp[:, None]
        deep = (
            np.minimum(
                2 * below + (vpp - 1) * self.depth[:, None] + 1,
                self.num_microbatches[:, None] * vpp,
            )
            / vpp
        )
        return np.asarray(
            np.where(vpp > 1, deep, np.minimum(below + 1.0, self.num_microbatches[:, None]))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Forced:
    """Seconds, (P,)."""

    slowest_s: Floats
    """The slowest stage of a block at least; 0 where nothing need be recomputed."""
    extra_s: Floats
    """What its stages take together beyond their layers' quickest times."""


def forced(places: Places, rooms: Room, rows: Ints) -> Forced:
    """Bound blocks; of each its row of `rooms`, (P,).

    Formula:  a stage of k layers with h micro batches in flight takes at least t(k) = k * layer_s +
              the highest of k * start_s + slope * (k * layer_bytes - free_bytes) / h, and frees no
              more than k * h * most_freed; the slowest takes as much as makes room for all layers,
              with whole layers on each stage; together they take as much more as the layers that no
              stage has free room for cost where that is cheapest
    Units:    seconds.
    Source:   docs/heterogeneous.md, "Why the bound holds".
    Valid:    memory grows with the micro batches in flight, and freed bytes too.
    Checked:  tests/search/test_mixed_bounds.py
    """
    slowest, extra = np.zeros(len(places.layers)), np.zeros(len(places.layers))
    # Most blocks have room for an even split even where they hold most micro batches, at the first
    # stage: only the others are looked at stage by stage.
    top = places.held(np.maximum(0, places.stages - 1)[:, None])[:, 0]
    even = places.layers / np.maximum(1, places.stages)
    need = (
        even * (rooms.layer_bytes[rows] + top * rooms.layer_flight_bytes[rows])
        + top * rooms.base_flight_bytes[rows]
    )
    tight = np.flatnonzero(
        (places.layers > 0)
        & (need + (places.vpp - 1) * rooms.chunk_bytes[rows] > rooms.free_bytes[rows])
    )
    if len(tight):
        stages = _Stages(places.take(tight), rooms.take(rows[tight]))
        slowest[tight], extra[tight] = stages.slowest_s(), stages.extra_s()
    return Forced(slowest_s=slowest, extra_s=extra)


class _Stages:
    """Stages of tight blocks by place, (P, J), and by line, (P, J, LINES): seconds per layer, and
    what the line is below it at none."""

    def __init__(self, places: Places, room: Room) -> None:
        self.places = places
        number = np.arange(int(places.stages.max()))[None]
        self.there = number < places.stages[:, None]
        held = places.held(number)
        layer = room.layer_bytes[:, None] + held * room.layer_flight_bytes[:, None]
        free = (room.free_bytes - (places.vpp - 1) * room.chunk_bytes)[
            :, None
        ] - held * room.base_flight_bytes[:, None]
        kept = layer - held * room.most_freed[:, None]
        with np.errstate(divide="ignore"):
            self.most = np.maximum(0.0, np.where(kept > 0, free / kept, np.inf))
        slope = room.slope[:, None] / held[:, :, None]
        self.extra = room.start_s[:, None] + slope * layer[:, :, None]
        self.saved = slope * free[:, :, None]
        self.each = places.layer_s[:, None, None] + self.extra

    def slowest_s(self) -> Floats:
        """The slowest stage at least, infinite where there is no room for all layers."""
        wanted = self.places.layers.astype(np.float64)
        found = wanted * self.places.layer_s / self.places.stages
        # The room of all stages is concave in the slowest one's time, so that Newton's steps from
        # below never pass the time in which all layers have room: each of them is a bound.
        for _ in range(NEWTON_STEPS):
            room, rise = self._room(found)
            short = np.maximum(0.0, wanted - np.where(self.there, room, 0.0).sum(axis=1))
            total = np.where(self.there, rise, 0.0).sum(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                found = found + np.where(short > _NOTHING * wanted, short / total, 0.0)
        return self._whole(found)

    def _room(self, slowest: Floats) -> tuple[Floats, Floats]:
        """Layers that each stage has room for in so much time, and how fast they grow with it."""
        lines = (slowest[:, None, None] + self.saved) / self.each
        at = lines.argmin(axis=2)[:, :, None]
        room, each = (
            np.take_along_axis(table, at, axis=2)[:, :, 0] for table in (lines, self.each)
        )
        return np.clip(room, 0.0, self.most), np.where(room < self.most, 1.0 / each, 0.0)

    def _whole(self, found: Floats) -> Floats:
        """What the slowest stage takes at least with whole layers: those that have no room yet go
        where they take least."""
        each = np.where(
            self.there,
            np.floor(
                self._room(np.where(np.isfinite(found), found, 0.0))[0] * (1 + _NOTHING) + _NOTHING
            ),
            0.0,
        )
        # Each stage may take one or two more of the layers that are left, in order of what they
        # then take; whoever takes a third is slower than the least third.
        left = (self.places.layers - each.sum(axis=1)).astype(np.int64)
        first, second, third = (
            np.where(self.there, self._seconds(each + more), np.inf) for more in (1, 2, 3)
        )
        order = np.sort(np.concatenate([first, second], axis=1), axis=1)
        at = np.clip(left - 1, 0, order.shape[1] - 1)
        reached = np.minimum(
            np.take_along_axis(order, at[:, None], axis=1)[:, 0], third.min(axis=1)
        )
        return np.where(left > 0, np.maximum(found, reached), found)

    def _seconds(self, layers: Floats) -> Floats:
        times = (layers[:, :, None] * self.each - self.saved).max(axis=2)
        return np.where(layers <= self.most * (1 + _NOTHING), times, np.inf)

    def extra_s(self) -> Floats:
        """What all stages take together beyond their quickest times: by the line that says most."""
        with np.errstate(divide="ignore", invalid="ignore"):
            free = np.where(self.extra > 0, self.saved / self.extra, np.inf)
        # Layers that a stage keeps for nothing by a line: those that need not be freed, and no more
        # than the ceiling leaves time for. All beyond them cost the line's least.
        most = np.minimum(free, (self.places.most_s / self.places.layer_s)[:, None, None])
        room = np.where(self.there[:, :, None], np.clip(most, 0.0, None), 0.0).sum(axis=1)
        cheapest = np.where(self.there[:, :, None], self.extra, np.inf).min(axis=1)
        over = np.maximum(0.0, self.places.layers[:, None] - room)
        return np.asarray(np.where(over > 0, over * cheapest, 0.0).max(axis=1))
