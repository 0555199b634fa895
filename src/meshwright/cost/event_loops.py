"""The event loops behind `simulate.py`: when each operation of each stage ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.cost.schedules import (
    BACKWARD,
    CLOSE,
    FORWARD,
    FULL,
    KINDS,
    OPEN,
    PAIR,
    SPLIT,
    WGRAD,
    Batch,
    Pipeline,
    chunk_stages,
    orders,
    programs,
)

__all__ = [
    "Rows",
    "Run",
    "block_items",
    "run",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Raw outcome: per stage its items (operations, and batches of messages when blocking), when
    each ended, when its message arrived."""

    items: Sequence[Sequence[int | Batch]]
    ends: list[list[float]]
    arrivals: list[list[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Per row (kind and chunk, see `schedules.py`): duration, distance to the input, place of the
    result, link of its message."""

    chunks: int
    duration_s: list[float]
    input_shift: list[int]
    """From the operation's number to that of its input; 0 where nothing but the stage's own order
    precedes it."""
    output_shift: list[int]
    """From the operation's number to the slot of its result: F, B, or one of W, which nothing
    reads."""
    link: list[int]
    """Number of the directed link that carries the result; -1 where it stays on the stage or ends
    there."""
    message_s: list[float]

    @staticmethod
    def of(pipeline: Pipeline) -> Rows:
        """Tabulate one pipeline."""
        count, micro = pipeline.pp * pipeline.vpp, pipeline.num_microbatches
        split = pipeline.schedule in SPLIT
        forward_s, full_s = (
            [float(f) for f in pipeline.forward_s],
            [float(b) for b in pipeline.backward_s],
        )
        wgrad_s = (
            [float(w) for w in pipeline.wgrad_s]
            if split and pipeline.wgrad_s is not None
            else [0.0] * count
        )
        dgrad_s = [b - w for b, w in zip(full_s, wgrad_s, strict=True)]
        # a forward of one side runs mixed with the backward of the chunk that mirrors it in the V
        pair_s = [b + f for b, f in zip(full_s, reversed(forward_s), strict=True)]
        nothing, nowhere = [0.0] * count, [-1] * count
        down, down_s = _messages(pipeline, 1)
        up, up_s = _messages(pipeline, -1)
        # a forward waits for the chunk before it, a backward for the one behind; the ends for none
        before, after = [0] + [-micro] * (count - 1), [micro] * (count - 1) + [0]

        # what is found among operations of another kind lies that many kinds of rows away
        def moved(shifts: list[int], kind: int, to: int) -> list[int]:
            return [shift and shift + (to - kind) * count * micro for shift in shifts]

        places = {
            FORWARD: FORWARD,
            BACKWARD: BACKWARD,
            WGRAD: WGRAD,
            FULL: BACKWARD,
            OPEN: WGRAD,
            PAIR: BACKWARD,
            CLOSE: FORWARD,
        }
        return Rows(
            chunks=count,
            duration_s=[*forward_s, *dgrad_s, *wgrad_s, *full_s, *nothing, *pair_s, *nothing],
            input_shift=[
                *(*before, *after, *[0] * count, *moved(after, FULL, BACKWARD)),
                *(*moved(before, OPEN, FORWARD), *moved(after, PAIR, BACKWARD), *[0] * count),
            ],
            output_shift=[
                (places[kind] - kind) * count * micro for kind in range(KINDS) for _ in range(count)
            ],
            link=[*down, *up, *nowhere, *up, *nowhere, *up, *down],
            message_s=[*down_s, *up_s, *nothing, *up_s, *nothing, *up_s, *down_s],
        )


def _messages(pipeline: Pipeline, step: Literal[1, -1]) -> tuple[list[int], list[float]]:
    """Directed link (sender * pp + receiver, -1 for none) and seconds of what each chunk sends to
    the next one or the one before."""
    pp, stages, links_s = (
        pipeline.pp,
        chunk_stages(pipeline.schedule, pp=pipeline.pp, vpp=pipeline.vpp),
        pipeline.links_s,
    )
    link, message_s = [-1] * len(stages), [0.0] * len(stages)
    for chunk, here in enumerate(stages):
        if not 0 <= chunk + step < len(stages) or stages[chunk + step] == here:
            continue
        # a stage sends nothing to itself, nor beyond the model's ends; interleaved chunks go round
        # by the way back, and neighbours share the link of the upper one
        there = stages[chunk + step]
        is_way_back = pipeline.schedule == "interleaved" and max(chunk, chunk + step) % pp == 0
        link[chunk] = here * pp + there
        message_s[chunk] = links_s[pp - 1 if is_way_back else min(here, there)]
    return link, message_s


def run(pipeline: Pipeline) -> Run:
    """Run one step and keep when everything ended.

    Formula:  an operation starts when its stage is free and its inputs are there; with blocking
              messages, when its neighbours have met it too
    Units:    seconds.
    Source:   definition of the schedule's orders, `schedules.orders`.
    Valid:    any stage and link times.
    Checked:  tests/cost/test_pipeline.py::test_no_operation_starts_early
    """
    return _run_blocking(pipeline) if pipeline.p2p == "blocking" else _run_overlapped(pipeline)


def _run_overlapped(pipeline: Pipeline) -> Run:
    """Advance each stage as far as its inputs are there; a stage that waits is woken by the
    operation it waits for."""
    micro, pp = pipeline.num_microbatches, pipeline.pp
    rows = Rows.of(pipeline)
    listed = orders(
        pipeline.schedule,
        pp=pp,
        vpp=pipeline.vpp,
        num_microbatches=micro,
        group=pipeline.group_size,
    )
    items: list[list[int]] = [order.tolist() for order in listed]
    columns = list(
        zip(
            rows.duration_s,
            rows.input_shift,
            rows.output_shift,
            rows.link,
            rows.message_s,
            strict=True,
        )
    )
    # -1 is not there yet; forwards, backwards and weight gradients have a slot each
    arrived = [-1.0] * (3 * rows.chunks * micro)
    free_s = [0.0] * (pp * pp)
    ends: list[list[float]] = [[] for _ in range(pp)]
    arrivals: list[list[float]] = [[] for _ in range(pp)]
    waiting: dict[int, int] = {}
    ready = list(range(pp))
    while ready:
        stage = ready.pop()
        todo, done, sent = items[stage], ends[stage], arrivals[stage]
        now = done[-1] if done else 0.0
        for index in range(len(done), len(todo)):
            op = todo[index]
            duration_s, input_shift, output_shift, link, message_s = columns[op // micro]
            # its input may still be under way: then the operation that makes it wakes this stage
            if input_shift:
                arrival = arrived[op + input_shift]
                if arrival < 0:
                    waiting[op + input_shift] = stage
                    break
                now = arrival if arrival > now else now
            now += duration_s
            done.append(now)
            # messages of one direction queue: one starts when the link is free
            arrival = now
            if link >= 0:
                arrival = message_s + (free_s[link] if free_s[link] > arrival else arrival)
                free_s[link] = arrival
            sent.append(arrival)
            # whoever waits for this result can go on
            slot = op + output_shift
            arrived[slot] = arrival
            if slot in waiting:
                ready.append(waiting.pop(slot))
    assert not waiting, "the order of operations deadlocks"
    return Run(items=items, ends=ends, arrivals=arrivals)


def _run_blocking(pipeline: Pipeline) -> Run:
    """As `_run_overlapped`, but data moves in batches: a message starts when both ends have posted
    it, a batch ends with its last one."""
    micro, pp = pipeline.num_microbatches, pipeline.pp
    rows = Rows.of(pipeline)
    duration_s, message_s = rows.duration_s, rows.message_s
    items = programs(
        pipeline.schedule,
        pp=pp,
        vpp=pipeline.vpp,
        num_microbatches=micro,
        group=pipeline.group_size,
    )
    posted: dict[int, float] = {}  # when the first of a message's two ends came to it
    moved: dict[int, float] = {}  # when it was there
    ends: list[list[float]] = [[] for _ in range(pp)]
    is_posted = [False] * pp
    waiting: dict[int, int] = {}
    ready = list(range(pp))
    while ready:
        stage = ready.pop()
        todo, done = items[stage], ends[stage]
        now = done[-1] if done else 0.0
        for index in range(len(done), len(todo)):
            item = todo[index]
            if not isinstance(item, tuple):
                now += duration_s[item // micro]
                done.append(now)
                continue
            # a batch is posted once, however often its stage is woken; a message whose other end
            # has come starts now, and whoever waits for it can go on
            if not is_posted[stage]:
                is_posted[stage] = True
                for message in item:
                    earlier = posted.pop(message, None)
                    if earlier is None:
                        posted[message] = now
                        continue
                    moved[message] = (now if now > earlier else earlier) + message_s[
                        message // micro
                    ]
                    if message in waiting:
                        ready.append(waiting.pop(message))
            # the batch ends with its last message; without one of them the stage sleeps
            latest = now
            for message in item:
                arrival = moved.get(message, -1.0)
                if arrival < 0:
                    waiting[message] = stage
                    break
                latest = arrival if arrival > latest else latest
            else:
                is_posted[stage] = False
                now = latest
                done.append(now)
                continue
            break
    assert not waiting, "the exchanges deadlock"
    return Run(items=items, ends=ends, arrivals=ends)


def block_items(
    pipeline: Pipeline, items: Sequence[Sequence[int | Batch]], block: int, stage: int
) -> tuple[int, int]:
    """Return where a stage runs its last forward of its first chunk, and how many items lie between
    that and the one a block earlier.

    Formula:  place(last forward); place(last forward) - place(forward `block` micro batches before)
    Units:    items of a stage's order.
    Source:   definition.
    Valid:    blocks of fewer micro batches than the step has.
    Checked:  tests/cost/test_pipeline.py::test_steady_shortcut_equals_the_whole_step
    """
    kind = OPEN if pipeline.schedule == "dualpipev" else FORWARD
    last = (kind * pipeline.pp * pipeline.vpp + stage + 1) * pipeline.num_microbatches - 1
    end = items[stage].index(last)
    return end, end - items[stage].index(last - block)
