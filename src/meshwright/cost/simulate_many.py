"""Event simulation of many pipelines of one shape at once: the order of events is the shape's,
their times are columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._engine import Rows, block_items, run
from meshwright.cost._schedules import Pipeline, PipelineSchedule, orders
from meshwright.cost.simulate import STEADY_TOLERANCE, steady_step_s

__all__ = ["steady_steps_s"]

Floats = NDArray[np.float64]


def steady_steps_s(
    shape: Pipeline, *, forward_s: Floats, backward_s: Floats, links_s: Floats
) -> Floats:
    """Return the steps' seconds, (N,), of pipelines like `shape` with the times of chunks, (N,
    chunks), and links, (N, pp), of each.

    Formula:  as `steady_step_s`; pipelines that are not steady after so many micro batches go on
              with more
    Units:    seconds.
    Source:   as `steady_step_s`.
    Valid:    1f1b and interleaved with overlapped messages; others go one by one.
    Checked:  tests/cost/test_simulate_many.py
    """
    if shape.p2p == "blocking" or shape.schedule not in ("1f1b", "interleaved"):
        rows = zip(forward_s.tolist(), backward_s.tolist(), links_s.tolist(), strict=True)
        return np.array(
            [steady_step_s(replace(shape, forward_s=f, backward_s=b, link_s=p)) for f, b, p in rows]
        )
    block = shape.group_size if shape.schedule == "interleaved" else shape.pp
    times = _Times(duration_s=np.concatenate([forward_s.T, backward_s.T]), link_s=links_s.T)
    found, left, blocks = np.zeros(len(forward_s)), np.arange(len(forward_s)), 8
    while len(left) and shape.num_microbatches > 2 * blocks * block:
        micro = shape.num_microbatches % block + blocks * block
        order = _order(shape.schedule, shape.pp, shape.vpp, micro, shape.group_size)
        events = _events(order, times.take(left))
        period_s = _periods_s(order, events, block)
        steady = np.isfinite(period_s)
        found[left[steady]] = (
            events.last_s[steady] + (shape.num_microbatches - micro) // block * period_s[steady]
        )
        left, blocks = left[~steady], 2 * blocks
    if len(left):
        whole = _order(
            shape.schedule, shape.pp, shape.vpp, shape.num_microbatches, shape.group_size
        )
        found[left] = _events(whole, times.take(left)).last_s
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Times:
    """Seconds of each operation by its row (forwards, then backwards, of all chunks), (rows, N),
    and of messages by link, (pp, N)."""

    duration_s: Floats
    link_s: Floats

    def take(self, columns: NDArray[np.int64]) -> _Times:
        return _Times(duration_s=self.duration_s[:, columns], link_s=self.link_s[:, columns])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """What does not hang on times."""

    pipeline: Pipeline
    items: tuple[tuple[int, ...], ...]
    """Operations of each stage, in its order."""
    steps: tuple[tuple[int, int, int, int, int, int], ...]
    """All operations, each behind those that it waits for: stage, row, number, number of its input
    or -1, its message's way or -1, link."""


@lru_cache(maxsize=64)
def _order(schedule: PipelineSchedule, pp: int, vpp: int, micro: int, group: int) -> _Order:
    times = [1.0] * (pp * vpp)
    pipeline = Pipeline(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        num_microbatches=micro,
        forward_s=times,
        backward_s=times,
        group=group if schedule == "interleaved" else None,
    )
    listed = orders(schedule, pp=pp, vpp=vpp, num_microbatches=micro, group=pipeline.group_size)
    items = tuple(tuple(order.tolist()) for order in listed)
    # where all operations take as long and messages nothing, each ends after what it waits for: so
    # they stand in an order for any times
    ends = run(pipeline).ends
    when = sorted(
        (end, stage, op)
        for stage, own in enumerate(items)
        for op, end in zip(own, ends[stage], strict=True)
    )
    rows = Rows.of(
        replace(pipeline, link_s=[float(link) for link in range(pp)])
    )  # a message takes the number of its link
    steps = []
    for _, stage, op in when:
        row = op // micro
        shift = rows.input_shift[row]
        steps.append(
            (stage, row, op, op + shift if shift else -1, rows.link[row], int(rows.message_s[row]))
        )
    return _Order(pipeline=pipeline, items=items, steps=tuple(steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Events:
    """When each operation ended and its message arrived, by its number, (N,) each."""

    ended_s: list[Floats]
    arrived_s: list[Floats]
    last_s: Floats


def _events(order: _Order, times: _Times) -> _Events:
    """As `_engine._run_overlapped`, all columns at once."""
    pipeline, nothing = order.pipeline, np.zeros(times.duration_s.shape[1])
    now_s = [nothing] * pipeline.pp
    free_s = [nothing] * pipeline.pp**2
    ended: list[Floats] = [nothing] * (2 * pipeline.pp * pipeline.vpp * pipeline.num_microbatches)
    arrived = list(ended)
    duration, message = list(times.duration_s), list(times.link_s)
    queues = bool(
        (times.link_s.max(axis=0) > times.duration_s.min(axis=0)).any()
    )  # else a link is free before the next message
    for stage, row, op, source, way, link in order.steps:
        start = now_s[stage] if source < 0 else np.maximum(now_s[stage], arrived[source])
        end = start + duration[row]
        now_s[stage] = ended[op] = end
        if way < 0:
            arrived[op] = end
        elif queues:
            free_s[way] = arrived[op] = np.maximum(free_s[way], end) + message[link]
        else:
            arrived[op] = end + message[link]
    return _Events(ended_s=ended, arrived_s=arrived, last_s=np.max(now_s, axis=0))


def _periods_s(order: _Order, events: _Events, block: int) -> Floats:
    """Seconds by which everything recurs `block` micro batches later, (N,), as `simulate._period_s`
    has it; NaN where it does not."""
    shifts = []
    for stage, own in enumerate(order.items):
        end, length = block_items(order.pipeline, order.items, block, stage)
        for times in (events.ended_s, events.arrived_s):
            window = np.array([times[op] for op in own[end - 3 * length : end]])
            shifts.append(window[length:] - window[:-length])
    every = np.concatenate(shifts)
    period_s = every.max(axis=0)
    return np.asarray(
        np.where(period_s - every.min(axis=0) <= STEADY_TOLERANCE * period_s, period_s, np.nan)
    )
