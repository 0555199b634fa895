"""The order in which each pipeline stage runs its forwards, backwards and weight gradients.

An operation is one integer, `row * num_microbatches + microbatch`, and a row is `kind * chunks +
chunk`, with `chunks = pp * vpp` and chunks counted in model order. So the input of `F(chunk)` lies
one row before it and the input of `B(chunk)` one row after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "BACKWARD",
    "CLOSE",
    "FORWARD",
    "FULL",
    "KINDS",
    "OPEN",
    "PAIR",
    "WGRAD",
    "Batch",
    "PipelineSchedule",
    "chunk_stages",
    "orders",
    "programs",
    "warmup_forwards",
]

PipelineSchedule = Literal["1f1b", "interleaved", "gpipe", "zero-bubble", "dualpipev"]
"""`zero-bubble` is ZB-H1 (weight gradients put off, the memory of 1F1B); `dualpipev` folds two
chunks per stage into a V."""

KINDS = 7
FORWARD, BACKWARD, WGRAD, FULL, OPEN, PAIR, CLOSE = range(KINDS)
"""Kinds of operation. FULL is a backward whose weight gradients are not put off, in a schedule that
can put them off. A forward and a backward that run mixed layer by layer start and end together:
OPEN waits for the forward's input, PAIR runs both and hands on the gradient, CLOSE hands on the
activation; OPEN and CLOSE take no time."""

Ints = NDArray[np.int64]
SPLIT: tuple[PipelineSchedule, ...] = ("zero-bubble", "dualpipev")
"""Schedules that put weight gradients off."""
Batch = tuple[int, ...]
"""Messages that a stage posts together, each named by the operation whose result it carries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """One pipeline-parallel step: what each chunk of layers takes, and how the chunks follow each
    other.

    Chunks are counted in model order, c = 0 .. pp * vpp - 1. Chunk c is on stage c % pp, but for
    dualpipev, where chunks go down the stages and up again.
    """

    schedule: PipelineSchedule
    pp: int
    vpp: int = 1
    num_microbatches: int
    forward_s: Sequence[float]
    """Seconds of one micro batch's forward, one per chunk."""
    backward_s: Sequence[float]
    """Seconds of its whole backward, weight gradients included, one per chunk."""
    wgrad_s: Sequence[float] | None = None
    """The part of `backward_s` that computes weight gradients; zero-bubble and dualpipev put it off
    and need it, others ignore it."""
    link_s: float | Sequence[float] = 0.0
    """Seconds per message: one for all, or one per stage boundary, where the last is the way from
    the last stage to the first."""
    p2p: Literal["blocking", "overlapped"] = "overlapped"
    """`overlapped`: a message delays its receiver only, and messages of one direction queue on the
    link. `blocking`: sender and receiver meet and both stop for the transfer, as in Megatron-Core's
    1F1B; the split schedules have no such form."""
    group: int | None = None
    """Megatron's microbatch_group_size_per_vp_stage, interleaved only; None is pp."""

    def __post_init__(self) -> None:
        if self.schedule not in get_args(PipelineSchedule):
            raise UnknownNameError("pipeline schedule", self.schedule, get_args(PipelineSchedule))
        if self.pp < 1 or self.num_microbatches < 1:
            raise ConfigError(
                f"pp={self.pp}, num_microbatches={self.num_microbatches}: expected whole numbers of"
                " 1 or more"
            )
        self._check_chunks()
        self._check_times()
        if self.p2p == "blocking" and self.schedule in SPLIT:
            raise ConfigError(
                f"p2p=blocking with schedule={self.schedule}: it overlaps its messages; use"
                " p2p=overlapped"
            )

    def _check_chunks(self) -> None:
        if self.schedule == "interleaved":
            size, remainder = self.group_size, self.num_microbatches % self.group_size
            if self.pp < 2 or self.vpp < 2:
                raise ConfigError(
                    f"schedule=interleaved with pp={self.pp}, vpp={self.vpp}: both must be 2 or"
                    " more; use schedule=1f1b"
                )
            if not self.pp <= size <= self.num_microbatches:
                raise ConfigError(
                    f"group={size}: expected pp={self.pp} to"
                    f" num_microbatches={self.num_microbatches}"
                )
            if 0 < remainder < self.pp:
                raise ConfigError(
                    f"num_microbatches={self.num_microbatches}: divided by group={size} it leaves"
                    f" {remainder}; 0 or >= pp={self.pp} works"
                )
            return
        needed = 2 if self.schedule == "dualpipev" else 1
        if self.vpp != needed:
            raise ConfigError(f"vpp={self.vpp}: schedule={self.schedule} has vpp={needed}")
        if self.schedule == "dualpipev" and self.num_microbatches < 2 * self.pp:
            raise ConfigError(
                f"num_microbatches={self.num_microbatches}: dualpipev with pp={self.pp} needs"
                f" {2 * self.pp} or more"
            )

    def _check_times(self) -> None:
        wgrad_s = self.wgrad_s if self.wgrad_s is not None else ()
        if self.schedule in SPLIT and self.wgrad_s is None:
            raise ConfigError(
                f"wgrad_s=None: schedule={self.schedule} needs the seconds of the weight gradients"
            )
        for name, times in (
            ("forward_s", self.forward_s),
            ("backward_s", self.backward_s),
            ("wgrad_s", wgrad_s),
        ):
            if len(times) != self.pp * self.vpp and not (
                name == "wgrad_s" and self.wgrad_s is None
            ):
                raise ConfigError(
                    f"{name} has {len(times)} values; expected one per chunk, pp * vpp ="
                    f" {self.pp * self.vpp}"
                )
            if not all(0 <= t < float("inf") for t in times):
                raise ConfigError(f"{name}={list(times)}: expected seconds, 0 or more")
        if any(w > b for w, b in zip(wgrad_s, self.backward_s, strict=False)):
            raise ConfigError("wgrad_s is larger than backward_s, of which it is a part")
        if not isinstance(self.link_s, (int, float)) and len(self.link_s) != self.pp:
            raise ConfigError(
                f"link_s has {len(self.link_s)} values; expected one per stage boundary and the way"
                f" back, pp = {self.pp}"
            )
        if not all(0 <= p < float("inf") for p in self.links_s):
            raise ConfigError(f"link_s={self.link_s}: expected seconds, 0 or more")

    @property
    def group_size(self) -> int:
        """Micro batches that pass a chunk before the next chunk's turn."""
        return (
            self.num_microbatches
            if self.schedule != "interleaved"
            else self.group
            if self.group is not None
            else self.pp
        )

    @property
    def links_s(self) -> list[float]:
        """Seconds per message, one per stage boundary; the last is the way from the last stage to
        the first."""
        return (
            [float(self.link_s)] * self.pp
            if isinstance(self.link_s, (int, float))
            else [float(p) for p in self.link_s]
        )


def chunk_stages(schedule: PipelineSchedule, *, pp: int, vpp: int) -> list[int]:
    """Return the stage of each chunk in model order: round and round, or down and up again in a
    V.

    Formula:  chunk % pp; DualPipeV: 0 to pp - 1, then back
    Units:    stages.
    Source:   Megatron-Core, interleaved schedule; DualPipeV: github.com/deepseek-ai/DualPipe.
    Valid:    any schedule.
    Checked:  tests/cost/test_pipeline.py::test_dualpipev_published_bubble
    """
    if schedule == "dualpipev":
        return [*range(pp), *reversed(range(pp))]
    return [chunk % pp for chunk in range(pp * vpp)]


def warmup_forwards(
    schedule: PipelineSchedule, *, pp: int, vpp: int, stage: int, num_microbatches: int, group: int
) -> int:
    """Chunk-forwards of a stage before its first backward, less the one that 1F1B runs right before
    it.

    Formula:  1F1B, ZB-H1: pp - stage - 1; interleaved: 2 * (pp - stage - 1) + (vpp - 1) * group;
              GPipe: all. Never more than there are.
    Units:    chunk-forwards.
    Source:   Megatron-Core, pipeline_parallel/schedules.py, get_pp_rank_microbatches. Old versions
              ran all forwards first when the interleaved schedule had just pp micro batches; that
              changes the memory, not the time of even stages.
    Valid:    any schedule but dualpipev.
    Checked:  tests/cost/test_pipeline.py::test_in_flight_peaks
    """
    total = num_microbatches * vpp
    if schedule == "gpipe":
        return total
    below = pp - stage - 1
    return min(total, 2 * below + (vpp - 1) * group if schedule == "interleaved" else below)


def orders(
    schedule: PipelineSchedule, *, pp: int, vpp: int, num_microbatches: int, group: int
) -> list[Ints]:
    """Return the operations of each stage in the order in which it runs them.

    Formula:  warm-up forwards, then one forward and one backward in turn, then the backwards left
    Units:    operations, numbered by kind, chunk, stage and micro batch.
    Source:   Megatron-Core, pipeline_parallel/schedules.py; each schedule's own function.
    Valid:    any schedule.
    Checked:  tests/cost/test_pipeline.py::test_in_flight_peaks
    """
    return [
        _order(
            schedule, pp=pp, vpp=vpp, num_microbatches=num_microbatches, group=group, stage=stage
        )
        for stage in range(pp)
    ]


def _order(
    schedule: PipelineSchedule, *, pp: int, vpp: int, num_microbatches: int, group: int, stage: int
) -> Ints:
    if schedule == "dualpipev":
        return np.fromiter(_dualpipev(pp, num_microbatches, stage), dtype=np.int64)
    forwards, backwards = _sequences(
        pp=pp, vpp=vpp, num_microbatches=num_microbatches, group=group, stage=stage
    )
    warmup = warmup_forwards(
        schedule, pp=pp, vpp=vpp, stage=stage, num_microbatches=num_microbatches, group=group
    )
    # After the warm-up each forward is followed by a backward, so that no more are held; as many
    # backwards as the warm-up had forwards are left for the drain.
    steady = len(forwards) - warmup
    pairs = np.stack([forwards[warmup:], backwards[:steady]], axis=1).ravel()
    order = np.concatenate([forwards[:warmup], pairs, backwards[steady:]])
    return (
        _with_wgrads(order, backwards, chunks=pp * vpp, lag=stage)
        if schedule == "zero-bubble"
        else order
    )


def _sequences(
    *, pp: int, vpp: int, num_microbatches: int, group: int, stage: int
) -> tuple[Ints, Ints]:
    """Forwards and backwards of one stage, each in its own order: groups of micro batches pass
    chunk after chunk."""
    micro = np.arange(num_microbatches)
    starts = range(0, num_microbatches, group)
    microbatch = np.concatenate([np.tile(micro[a : a + group], vpp) for a in starts])
    local = np.concatenate([np.repeat(np.arange(vpp), len(micro[a : a + group])) for a in starts])
    # Backwards pass the chunks from the last to the first: the last one's gradients come first.
    forwards = (local * pp + stage) * num_microbatches + microbatch
    backwards = (
        BACKWARD * pp * vpp + (vpp - 1 - local) * pp + stage
    ) * num_microbatches + microbatch
    return forwards, backwards


def _with_wgrads(order: Ints, backwards: Ints, *, chunks: int, lag: int) -> Ints:
    """Put the weight gradients of micro batch i right after backward i + lag, and the last ones at
    the end."""
    # A weight gradient has its backward's number, some rows on. Stage s can put s of them off
    # without holding more than stage 0; behind the last backward there is nothing to wait for.
    shift = (WGRAD - BACKWARD) * chunks * len(backwards)
    places = np.full(len(backwards), len(order))
    at = np.nonzero(np.isin(order, backwards))[0]
    if lag < len(backwards):
        places[: len(backwards) - lag] = at[lag:] + 1
    return np.insert(order, places, backwards + shift)


def _dualpipev(pp: int, num_microbatches: int, stage: int) -> Iterator[int]:
    """DualPipeV on one stage: side 0 is the way down the V, side 1 the way up; a forward of one and
    a backward of the other run mixed.

    Source: the eight steps of dualpipev.py, github.com/deepseek-ai/DualPipe (arXiv:2412.19437).
    """
    below = pp - stage - 1
    chunk = (stage, 2 * pp - 1 - stage)
    forwards, backwards = [count(), count()], [count(), count()]
    owed: list[int] = []  # weight gradients put off, oldest first

    def number(kind: int, side: int, microbatch: int) -> int:
        return (kind * 2 * pp + chunk[side]) * num_microbatches + microbatch

    def op(kind: int, side: int) -> int:
        microbatch = next(forwards[side] if kind == FORWARD else backwards[side])
        if kind == BACKWARD:
            owed.append(number(WGRAD, side, microbatch))
        return number(kind, side, microbatch)

    def mixed(side: int) -> Iterator[int]:
        """The forward of one side with the backward of the other."""
        microbatch = next(forwards[side])
        yield number(OPEN, side, microbatch)
        yield number(PAIR, 1 - side, next(backwards[1 - side]))
        yield number(CLOSE, side, microbatch)

    # Fill: forwards go down the V to the last stage and up again before the first backward comes.
    for _ in range(2 * below):
        yield op(FORWARD, 0)
    # The way up has reached this stage: forwards of either side in turn.
    for _ in range(stage + 1):
        yield op(FORWARD, 0)
        yield op(FORWARD, 1)
    # First backwards: the gradient goes on at once, its weights' part fills the wait for the next.
    for _ in range(below):
        yield op(BACKWARD, 1)
        yield owed.pop(0)
        yield op(FORWARD, 1)
    # Steady state: each forward runs mixed with a backward of the other side.
    for repeat in range(num_microbatches - 2 * pp + stage + 1):
        # the last stage's very first ones run apart, which shortens the bubble
        if repeat == 0 and below == 0:
            yield op(FORWARD, 0)
            yield op(FULL, 1)
        else:
            yield from mixed(0)
        yield from mixed(1)
    # The way down has no forwards left; the way up still has.
    for _ in range(below):
        yield op(FULL, 1)
        yield from mixed(1)
    # The second half puts its weight gradients off, into the drain.
    for repeat in range(2 * (stage + 1)):
        yield op(FULL if repeat < stage + 1 else BACKWARD, 1 - repeat % 2)
    # Drain: weight gradients put off fill the waits for the last backwards; the rest ends the step.
    for _ in range(below):
        yield owed.pop(0)
        yield op(BACKWARD, 0)
    yield from owed


@lru_cache(maxsize=4)
def programs(
    schedule: PipelineSchedule, *, pp: int, vpp: int, num_microbatches: int, group: int
) -> list[list[int | Batch]]:
    """Return the orders of 1f1b, gpipe or interleaved with the message batches at which a stage
    stops and waits; not to be changed.

    Formula:  the stage's order, with a batch of messages wherever the software sends and receives
    Units:    operations and batches.
    Source:   Megatron-Core, pipeline_parallel/schedules.py and p2p_communication.py.
    Valid:    1f1b, gpipe and interleaved, with blocking messages.
    Checked:  tests/cost/test_pipeline.py::test_larger_groups_and_remainders_run
    """
    result = []
    for stage, order in enumerate(
        orders(schedule, pp=pp, vpp=vpp, num_microbatches=num_microbatches, group=group)
    ):
        if schedule == "interleaved":
            warmup = warmup_forwards(
                schedule,
                pp=pp,
                vpp=vpp,
                stage=stage,
                num_microbatches=num_microbatches,
                group=group,
            )
            items = _stepwise(
                order.tolist(),
                pp=pp,
                vpp=vpp,
                num_microbatches=num_microbatches,
                stage=stage,
                warmup=warmup,
            )
        else:
            items = _neighbourly(
                order.tolist(), pp=pp, num_microbatches=num_microbatches, stage=stage
            )
        result.append([item for item in items if item != ()])
    return result


def _batch(*messages: int | None) -> Batch:
    return tuple(m for m in messages if m is not None)


def _neighbourly(
    ops: list[int], *, pp: int, num_microbatches: int, stage: int
) -> Iterator[int | Batch]:
    """Megatron-Core without interleaving: a send, and the receive that follows it from the same
    neighbour, are one exchange."""
    total = pp * num_microbatches

    def received(op: int) -> int | None:
        if op < total:
            return None if stage == 0 else op - num_microbatches
        return None if stage == pp - 1 else op + num_microbatches

    def sent(op: int) -> int | None:
        return None if stage == (pp - 1 if op < total else 0) else op

    yield _batch(received(ops[0]))
    for op, after in pairwise(ops):
        yield op
        # Forward then backward, or the other way round: both messages are the same neighbour's.
        if (op < total) != (after < total):
            yield _batch(sent(op), received(after))
        else:
            yield _batch(sent(op))
            yield _batch(received(after))
    yield ops[-1]
    yield _batch(sent(ops[-1]))


def _stepwise(
    ops: list[int], *, pp: int, vpp: int, num_microbatches: int, stage: int, warmup: int
) -> Iterator[int | Batch]:
    """Megatron-Core, interleaved without overlap: one batch with both neighbours after each
    forward, backward or pair of them."""
    total = pp * vpp * num_microbatches
    far = (
        (pp - 1) * num_microbatches
    )  # from a chunk on the first stage to the one on the last stage in the same round
    last_chunk = total - num_microbatches
    forwards = [op for op in ops if op < total]
    backwards = [op for op in ops if op >= total]

    def next_forward(index: int) -> int | None:
        """The message for a later forward that is posted after forward `index`; the first stage
        hears from the last one."""
        if stage > 0:
            return forwards[index + 1] - num_microbatches if index + 1 < len(forwards) else None
        # The last stage is pp - 1 forwards behind; its last chunk sends nothing on.
        behind = index - (pp - 1)
        return (
            forwards[behind] + far if behind >= 0 and forwards[behind] + far < last_chunk else None
        )

    def next_backward(index: int) -> int | None:
        if stage < pp - 1:
            return backwards[index + 1] + num_microbatches if index + 1 < len(backwards) else None
        behind = index - (pp - 1)
        return (
            backwards[behind] - far
            if behind >= 0 and backwards[behind] - far >= total + num_microbatches
            else None
        )

    def sent(op: int) -> int | None:
        return None if last_chunk <= op < total + num_microbatches else op

    # Warm-up: with its last forward a stage also asks for its first gradient.
    yield _batch(None if stage == 0 else forwards[0] - num_microbatches)
    for index in range(warmup):
        yield forwards[index]
        opening = next_backward(-1) if index == warmup - 1 and warmup < len(forwards) else None
        yield _batch(sent(forwards[index]), next_forward(index), opening)
    if warmup == len(forwards):
        yield _batch(next_backward(-1))
    # Steady state: one batch for a forward and a backward; the drain has backwards alone.
    for index, backward in enumerate(backwards):
        forward = index + warmup
        if forward < len(forwards):
            yield forwards[forward]
            yield backward
            yield _batch(
                sent(forwards[forward]), next_forward(forward), sent(backward), next_backward(index)
            )
        else:
            yield backward
            yield _batch(sent(backward), next_backward(index))
