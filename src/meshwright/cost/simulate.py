"""Event simulation of one pipeline step: exact for any stage times, in the order in which the
training software runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.event_loops import Rows, Run, block_items, run
from meshwright.cost.event_loops import run as run_step
from meshwright.cost.schedules import (
    BACKWARD,
    FORWARD,
    FULL,
    OPEN,
    PAIR,
    SPLIT,
    WGRAD,
    Batch,
    Pipeline,
    PipelineSchedule,
    chunk_stages,
    orders,
)

__all__ = [
    "STEADY_TOLERANCE",
    "Operation",
    "Pipeline",
    "PipelineSchedule",
    "Simulation",
    "Transfer",
    "simulate",
    "steady_step_s",
    "steady_steps_s",
    "timeline",
    "transfers",
]

STEADY_TOLERANCE = 1e-9
"""Relative difference below which two periods count as the same: the extrapolated time is off by no
more than this share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What one step does; tuples have one entry per stage, and step_s = busy_s + transfer_s +
    idle_s on each."""

    step_s: float
    """From the first start to the last end."""
    busy_s: tuple[float, ...]
    """Computing."""
    transfer_s: tuple[float, ...]
    """Stopped for a message on its way; 0 where messages overlap."""
    idle_s: tuple[float, ...]
    """Waiting: the bubble."""
    peak_in_flight: tuple[int, ...]
    """Most chunk-forwards alive at once, from the start of F to the end of B, or of W where the
    schedule puts it off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation on the time line."""

    stage: int
    kind: Literal["F", "B", "W"]
    """B includes the weight gradients unless a W of the same chunk and micro batch follows."""
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Messages on their way."""

    sender: int
    receiver: int | None
    """None where they stop the sender, which then sends and receives at once."""
    start_s: float
    end_s: float


def simulate(pipeline: Pipeline) -> Simulation:
    """Run one step, operation by operation.

    Formula:  each stage runs its operations in the schedule's order; one starts when the stage is
              free and its input is there: end = max(end of the one before, arrival of the input) +
              duration.
    Units:    seconds; counts of chunk-forwards.
    Source:   orders: Megatron-Core, pipeline_parallel/schedules.py (1f1b, interleaved);
              arXiv:2401.10241 (ZB-H1); DualPipeV's own code.
    Valid:    all micro batches take the same time. Megatron's interleaved schedule waits for
              messages in warm-up and flush unless --overlap-p2p-communication-warmup-flush is
              given; `overlapped` takes it as given.
    Checked:  tests/cost/test_pipeline.py::test_closed_form_is_exact_for_even_stages,
              ::test_no_operation_starts_early
    """
    return _summary(pipeline, run_step(pipeline))


def timeline(pipeline: Pipeline) -> tuple[Operation, ...]:
    """Run one step and return every operation, stage by stage in order of time; for a trace.

    Formula:  as `simulate`.
    Units:    seconds since the first start.
    Source:   as `simulate`.
    Valid:    as `simulate`.
    Checked:  tests/cost/test_pipeline.py::test_no_operation_starts_early
    """
    run = run_step(pipeline)
    rows = Rows.of(pipeline)
    return tuple(
        op
        for stage in range(pipeline.pp)
        for op in _operations(pipeline, rows, stage, run.items[stage], run.ends[stage])
    )


def transfers(pipeline: Pipeline) -> tuple[Transfer, ...]:
    """Run one step and return its messages: those that stop a stage, else one by one on the link
    between two stages; for a trace.

    Formula:  as `simulate`; a link carries one message at a time, each way.
    Units:    seconds since the first start.
    Source:   as `simulate`.
    Valid:    as `simulate`.
    Checked:  tests/cost/test_pipeline.py::test_transfers_lie_between_the_operations
    """
    run = run_step(pipeline)
    rows, micro = Rows.of(pipeline), pipeline.num_microbatches
    found: list[Transfer] = []
    for stage, (items, ends) in enumerate(zip(run.items, run.ends, strict=True)):
        for number, (item, end_s) in enumerate(zip(items, ends, strict=True)):
            if isinstance(item, tuple):
                took_s, receiver = (
                    max((rows.message_s[message // micro] for message in item), default=0.0),
                    None,
                )
            elif pipeline.p2p == "blocking":
                continue
            else:
                took_s, receiver = (
                    rows.message_s[item // micro],
                    rows.link[item // micro] % pipeline.pp,
                )
            if took_s > 0:
                there_s = end_s if receiver is None else run.arrivals[stage][number]
                found.append(
                    Transfer(
                        sender=stage, receiver=receiver, start_s=there_s - took_s, end_s=there_s
                    )
                )
    return tuple(found)


def _operations(
    pipeline: Pipeline, rows: Rows, stage: int, items: Sequence[int | Batch], ends: Sequence[float]
) -> Iterator[Operation]:
    """Operations of one stage; a forward and a backward that run mixed are drawn one after the
    other."""
    names: dict[int, Literal["F", "B", "W"]] = {
        FORWARD: "F",
        BACKWARD: "B",
        WGRAD: "W",
        FULL: "B",
        PAIR: "B",
    }
    opened = 0  # micro batch of the forward that runs mixed
    for item, end_s in zip(items, ends, strict=True):
        if isinstance(item, tuple):
            continue
        row, microbatch = divmod(item, pipeline.num_microbatches)
        kind, chunk = divmod(row, rows.chunks)
        start_s = end_s - rows.duration_s[row]
        if kind == OPEN:
            opened = microbatch
        if kind == PAIR:
            other = rows.chunks - 1 - chunk
            middle_s = start_s + float(pipeline.forward_s[other])
            yield Operation(
                stage=stage,
                kind="F",
                chunk=other,
                microbatch=opened,
                start_s=start_s,
                end_s=middle_s,
            )
            start_s = middle_s
        if kind in names:
            yield Operation(
                stage=stage,
                kind=names[kind],
                chunk=chunk,
                microbatch=microbatch,
                start_s=start_s,
                end_s=end_s,
            )


@makes("bubble", "pp_comm")
def steady_step_s(pipeline: Pipeline) -> float:
    """Return the step's seconds that `simulate` finds, from a shorter step where the steady state
    provably repeats.

    Formula:  T(M) = T(M0) + (M - M0) / n * period, with n = the group of micro batches (pp) and M0
              = M modulo n. Once every event of a window of operations recurs n micro batches later,
              shifted by one and the same period, on all stages, it goes on so until the forwards
              run out, and the drain starts from the same state: each event is a maximum of sums of
              earlier events of the window. The window is two periods long; inputs lie less than one
              period back.
    Units:    seconds.
    Source:   max-plus linear systems are periodic after a transient; here the period is looked for,
              and used only when found.
    Valid:    as `simulate`; equal to it within 1e-9 of the step. GPipe has two steady states and is
              always run whole.
    Checked:  tests/cost/test_pipeline.py::test_steady_shortcut_equals_the_whole_step
    """
    block = pipeline.group_size if pipeline.schedule == "interleaved" else pipeline.pp
    blocks = (
        4 if pipeline.schedule == "1f1b" else 8
    )  # its warm-up is over within one; others need longer to be steady
    while pipeline.schedule != "gpipe" and pipeline.num_microbatches > 2 * blocks * block:
        short = replace(
            pipeline, num_microbatches=pipeline.num_microbatches % block + blocks * block
        )
        run = run_step(short)
        period_s = _period_s(short, run, block)
        if period_s is not None:
            return (
                _last_end_s(run)
                + (pipeline.num_microbatches - short.num_microbatches) // block * period_s
            )
        blocks *= 2
    return _last_end_s(run_step(pipeline))


def _last_end_s(run: Run) -> float:
    return max(ends[-1] for ends in run.ends)


def _summary(pipeline: Pipeline, run: Run) -> Simulation:
    """Times of each stage from one run.

    Formula:  busy = M * sum of its chunks' forward + backward; idle = max(0, step - busy -
              transfer)
    Units:    seconds, one a stage.
    Source:   definition: a stage works, holds a message, or waits.
    """
    step_s = _last_end_s(run)
    busy_s = [0.0] * pipeline.pp
    for chunk, stage in enumerate(
        chunk_stages(pipeline.schedule, pp=pipeline.pp, vpp=pipeline.vpp)
    ):
        busy_s[stage] += pipeline.num_microbatches * (
            float(pipeline.forward_s[chunk]) + float(pipeline.backward_s[chunk])
        )
    rows = Rows.of(pipeline)
    transfer_s = [_transfer_s(rows, items, pipeline.num_microbatches) for items in run.items]
    return Simulation(
        step_s=step_s,
        busy_s=tuple(busy_s),
        transfer_s=tuple(transfer_s),
        idle_s=tuple(
            max(0.0, step_s - busy - transfer)
            for busy, transfer in zip(busy_s, transfer_s, strict=True)
        ),
        peak_in_flight=tuple(_peak_in_flight(pipeline, items) for items in run.items),
    )


def _peak_in_flight(pipeline: Pipeline, items: Sequence[int | Batch]) -> int:
    """Most chunk-forwards alive at once on one stage, which runs one operation at a time: the order
    alone decides."""
    # a chunk's activations live from its forward to the operation that reads them last: the weight
    # gradient where it is put off, else the backward
    span = pipeline.pp * pipeline.vpp * pipeline.num_microbatches
    kinds = (
        np.array([item for item in items if not isinstance(item, tuple)], dtype=np.int64) // span
    )
    last_kind = WGRAD if pipeline.schedule in SPLIT else BACKWARD
    change = np.isin(kinds, (FORWARD, OPEN)).astype(np.int64) - np.isin(
        kinds, (last_kind, FULL, PAIR)
    )
    return int(change.cumsum().max())


def _transfer_s(rows: Rows, items: Sequence[int | Batch], micro: int) -> float:
    """Time for which the batches of a stage hold it, waiting left out: the longest message of
    each."""
    return sum(
        max(rows.message_s[message // micro] for message in item)
        for item in items
        if isinstance(item, tuple)
    )


def _period_s(pipeline: Pipeline, run: Run, block: int) -> float | None:
    """Seconds by which everything recurs `block` micro batches later, once the pipeline is steady;
    None when it is not."""
    # Two blocks of every stage against the two one block later: all ends and arrivals must have
    # moved by the same time, or the state is not the same and nothing repeats.
    shifts = []
    for stage in range(pipeline.pp):
        end, length = block_items(pipeline, run.items, block, stage)
        for times in (run.ends[stage], run.arrivals[stage]):
            window = np.array(times[end - 3 * length : end])
            shifts.append(window[length:] - window[:-length])
    every = np.concatenate(shifts)
    period_s = float(every.max())
    return period_s if period_s - float(every.min()) <= STEADY_TOLERANCE * period_s else None


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
    # Twice as many blocks for those that were not steady yet; what is left runs whole.
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
    """As `event_loops._run_overlapped`, all columns at once."""
    pipeline, nothing = order.pipeline, np.zeros(times.duration_s.shape[1])
    now_s = [nothing] * pipeline.pp
    free_s = [nothing] * pipeline.pp**2
    ended: list[Floats] = [nothing] * (2 * pipeline.pp * pipeline.vpp * pipeline.num_microbatches)
    arrived = list(ended)
    duration, message = list(times.duration_s), list(times.link_s)
    queues = bool(
        (times.link_s.max(axis=0) > times.duration_s.min(axis=0)).any()
    )  # else a link is free before the next message
    # An operation starts when its stage is free and its input is there; every source stands before
    # it in the order, so that one pass over it is enough.
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
    shifts = []  # as in `_period_s`, a column for each pipeline
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
