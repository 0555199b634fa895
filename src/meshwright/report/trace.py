"""Timelines in Chrome's trace format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from meshwright.cost.schedules import chunk_stages
from meshwright.cost.simulate import Operation, Transfer, timeline, transfers
from meshwright.platforms.files import put_file
from meshwright.search.traced import TracedChunk, TracedStep
from meshwright.values.units import GIB

__all__ = ["chrome_trace", "write_trace"]

MICROSECONDS = 1e6
KIND_WORDS = {"F": "forward", "B": "backward", "W": "weight gradient"}
NOTHING = 1e-9
"""Share of a step below which a gap is rounding."""
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    """Something that takes time on a track."""

    name: str
    category: str
    start_s: float
    end_s: float
    chunk: int | None = None
    microbatch: int | None = None

    def event(self, thread: int) -> Event:
        """As a complete event, with what it belongs to."""
        about = {"chunk": self.chunk, "microbatch": self.microbatch}
        args = {key: value for key, value in about.items() if value is not None}
        return {
            "name": self.name,
            "cat": self.category,
            "ph": "X",
            "pid": 0,
            "tid": thread,
            "ts": self.start_s * MICROSECONDS,
            "dur": (self.end_s - self.start_s) * MICROSECONDS,
            **({"args": args} if args else {}),
        }


def chrome_trace(
    step: TracedStep, *, title: str, metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return one step as a trace.

    Tracks: one per stage; where stages have several chunks one per chunk (virtual stage); one per
            stage with the messages inside its
    passes; one per link on which messages overlap with compute. A pass's messages are drawn
    together at its end, though they are spread over its layers, and recomputation before its
    backward. What a step takes once follows on all stages. Counters: memory of each stage, and how
    many forwards it holds.

    Events of a track never overlap. The last one ends with the step.
    """
    operations, moved = timeline(step.pipeline), transfers(step.pipeline)
    end_s = max(operation.end_s for operation in operations)
    tracks: list[tuple[str, Iterable[_Span]]] = []
    beside: list[tuple[str, Iterable[_Span]]] = []
    for number, stage in enumerate(step.stages):
        own = [operation for operation in operations if operation.stage == number]
        stops = [t for t in moved if t.sender == number and t.receiver is None]
        spans = [*_filled(own, stops, step.chunks, end_s), *_after(step, end_s)]
        tracks.append((stage.name, spans))
        beside += _beside(number, own, step)
    for sender, receiver in sorted(
        {(t.sender, t.receiver) for t in moved if t.receiver is not None}
    ):
        sent = [_message(t) for t in moved if (t.sender, t.receiver) == (sender, receiver)]
        beside.append((f"stage {sender} to {receiver}", sent))
    listed = [*tracks, *beside]
    return {
        "displayTimeUnit": "ms",
        "otherData": metadata or {},
        "traceEvents": [
            _about("process_name", 0, name=title),
            *(_about("thread_name", tid, name=name) for tid, (name, _) in enumerate(listed)),
            *(_about("thread_sort_index", tid, sort_index=tid) for tid in range(len(listed))),
            *(span.event(tid) for tid, (_, spans) in enumerate(listed) for span in spans),
            *(
                event
                for number in range(len(step.stages))
                for event in _counters(number, operations, step)
            ),
        ],
    }


def _passes(operation: Operation, chunk: TracedChunk) -> Iterator[_Span]:
    """The operation; a backward after what it recomputes."""
    start_s, name = operation.start_s, f"{operation.kind}{operation.microbatch}"
    about = {"chunk": operation.chunk, "microbatch": operation.microbatch}
    if operation.kind == "B" and chunk.recompute_s > 0:
        middle_s = min(operation.end_s, start_s + chunk.recompute_s)
        yield _Span(
            name=f"R{operation.microbatch}",
            category="recompute",
            start_s=start_s,
            end_s=middle_s,
            **about,
        )
        start_s = middle_s
    yield _Span(
        name=name,
        category=KIND_WORDS[operation.kind],
        start_s=start_s,
        end_s=operation.end_s,
        **about,
    )


def _filled(
    own: Sequence[Operation], stops: Sequence[Transfer], chunks: Sequence[TracedChunk], end_s: float
) -> list[_Span]:
    """Everything on a stage until the pipeline ends, the bubbles too."""
    spans = [span for operation in own for span in _passes(operation, chunks[operation.chunk])] + [
        _message(stop) for stop in stops
    ]
    spans.sort(key=lambda span: span.start_s)
    edges = [(0.0, 0.0), *((span.start_s, span.end_s) for span in spans), (end_s, end_s)]
    gaps = [
        (before, start)
        for (_, before), (start, _) in pairwise(edges)
        if start - before > NOTHING * end_s
    ]
    return [
        *spans,
        *(_Span(name="bubble", category="bubble", start_s=start, end_s=end) for start, end in gaps),
    ]


def _beside(
    number: int, own: Sequence[Operation], step: TracedStep
) -> Iterator[tuple[str, list[_Span]]]:
    """Tracks beside a stage's: its chunks if several, and the messages inside its passes."""
    stages = chunk_stages(step.pipeline.schedule, pp=step.pipeline.pp, vpp=step.pipeline.vpp)
    mine = [chunk for chunk, stage in enumerate(stages) if stage == number]
    for order, chunk in enumerate(mine if len(mine) > 1 else ()):
        passes = [
            span
            for operation in own
            if operation.chunk == chunk
            for span in _passes(operation, step.chunks[chunk])
        ]
        yield f"stage {number}, virtual stage {order}: {step.chunks[chunk].layers} layers", passes
    messages = [
        span for operation in own for span in _inside(operation, step.chunks[operation.chunk])
    ]
    if messages:
        yield f"stage {number}: communication", messages


def _inside(operation: Operation, chunk: TracedChunk) -> Iterator[_Span]:
    """The messages of a pass, one after the other up to its end."""
    if operation.kind == "W":
        return
    messages = chunk.forward_messages_s if operation.kind == "F" else chunk.backward_messages_s
    whole_s, least_s = sum(messages.values()), operation.end_s - operation.start_s
    scale = (
        min(1.0, least_s / whole_s) if whole_s > 0 else 0.0
    )  # a backward whose weight gradients are put off may be shorter
    start_s = operation.end_s - scale * whole_s
    for name, seconds in messages.items():
        end_s = min(operation.end_s, start_s + scale * seconds)
        yield _Span(
            name=name,
            category="communication",
            start_s=start_s,
            end_s=end_s,
            chunk=operation.chunk,
            microbatch=operation.microbatch,
        )
        start_s = end_s


def _message(transfer: Transfer) -> _Span:
    return _Span(name="message", category="message", start_s=transfer.start_s, end_s=transfer.end_s)


def _after(step: TracedStep, end_s: float) -> Iterator[_Span]:
    """What follows the pipeline, one thing after the other."""
    for name, seconds in step.once_s.items():
        if seconds > 0:
            yield _Span(name=name, category="once a step", start_s=end_s, end_s=end_s + seconds)
            end_s += seconds


def _counters(number: int, operations: Sequence[Operation], step: TracedStep) -> Iterator[Event]:
    """A stage's memory, and how many forwards of chunks it holds, whenever that changes.

    A forward is held until its backward ends, or its weight gradient where that is put off. Memory
    goes by the layers of the chunks that are held, up to the peak of the plan.
    """
    own = [operation for operation in operations if operation.stage == number]
    last = "W" if any(operation.kind == "W" for operation in own) else "B"
    changes = [(o.start_s, 1, step.chunks[o.chunk].layers) for o in own if o.kind == "F"]
    changes += [(o.end_s, -1, -step.chunks[o.chunk].layers) for o in own if o.kind == last]
    changes.sort()
    forwards_held, layers_held = (
        list(accumulate(change[part] for change in changes)) for part in (1, 2)
    )
    most, stage = max(layers_held), step.stages[number]
    for when_s, forwards, layers in zip(
        [0.0, *(c[0] for c in changes)], [0, *forwards_held], [0, *layers_held], strict=True
    ):
        size = stage.peak_bytes - stage.passing_bytes * (1 - layers / max(most, 1))
        yield _counter(f"forwards held by stage {number}", number, when_s, {"held": forwards})
        yield _counter(f"memory of stage {number}", number, when_s, {"GiB": size / GIB})


def _counter(name: str, stage: int, when_s: float, values: dict[str, float]) -> Event:
    return {
        "name": name,
        "ph": "C",
        "pid": 0,
        "tid": stage,
        "ts": when_s * MICROSECONDS,
        "args": values,
    }


def _about(kind: str, thread: int, **args: Any) -> Event:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": args}


_FIRST = '"otherData":{"layout"'
"""Near the start of each trace that the commands write."""


def write_trace(path: Path, trace: dict[str, Any], *, force: bool = False) -> None:
    """Write a trace to a file; ConfigError where that cannot be, or over another's."""
    put_file(path, json.dumps(trace, separators=(",", ":")), mark=_FIRST, force=force)
