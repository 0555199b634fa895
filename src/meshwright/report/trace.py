"""Timelines in Chrome's trace format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.cost.simulate import Operation, Transfer

__all__ = ["chrome_trace", "write_trace"]

MICROSECONDS = 1e6
KIND_WORDS = {"F": "forward", "B": "backward", "W": "weight gradient"}


def chrome_trace(
    operations: Iterable[Operation],
    *,
    title: str,
    metadata: dict[str, Any] | None = None,
    transfers: Iterable[Transfer] = (),
    once_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return one step as a trace: a thread per stage and per link, an event per operation and message, a category per kind.

    `once_s` is what follows the pipeline, by name: each of it takes its turn on all stages. Counters say how many forwards a stage holds.
    Events of a thread never overlap; what is empty is the bubble.
    """
    listed, moved = list(operations), list(transfers)
    stages = sorted({operation.stage for operation in listed})
    links = sorted({(t.sender, t.receiver) for t in moved if t.receiver is not None})
    threads = {link: len(stages) + number for number, link in enumerate(links)}
    names = {**{stage: f"stage {stage}" for stage in stages}, **{tid: f"stage {a} to {b}" for (a, b), tid in threads.items()}}
    messages = [
        _span("message", "message", t.sender if t.receiver is None else threads[t.sender, t.receiver], t.start_s, t.end_s) for t in moved
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": metadata or {},
        "traceEvents": [
            _named("process_name", 0, title),
            *(_named("thread_name", tid, name) for tid, name in names.items()),
            *({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": tid, "args": {"sort_index": tid}} for tid in names),
            *(_event(operation) for operation in listed),
            *messages,
            *_after(stages, max((operation.end_s for operation in listed), default=0.0), once_s or {}),
            *(event for stage in stages for event in _held([o for o in listed if o.stage == stage], stage)),
        ],
    }


def _after(stages: list[int], end_s: float, once_s: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """What follows the pipeline, one thing after the other on all stages."""
    for name, seconds in once_s.items():
        if seconds > 0:
            yield from (_span(name, "once a step", stage, end_s, end_s + seconds) for stage in stages)
            end_s += seconds


def _held(operations: list[Operation], stage: int) -> Iterator[dict[str, Any]]:
    """How many forwards of chunks a stage holds, whenever it changes: until the backward, or the weight gradient that is put off."""
    last = "W" if any(operation.kind == "W" for operation in operations) else "B"
    changes = [(o.start_s, 1) for o in operations if o.kind == "F"] + [(o.end_s, -1) for o in operations if o.kind == last]
    count = 0
    for when_s, change in sorted(changes):
        count += change
        yield {
            "name": f"forwards held by stage {stage}",
            "ph": "C",
            "pid": 0,
            "tid": stage,
            "ts": when_s * MICROSECONDS,
            "args": {"held": count},
        }


def _named(kind: str, stage: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": stage, "args": {"name": name}}


def _span(name: str, category: str, thread: int, start_s: float, end_s: float) -> dict[str, Any]:
    ends = {"ts": start_s * MICROSECONDS, "dur": (end_s - start_s) * MICROSECONDS}
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": thread, **ends}


def _event(operation: Operation) -> dict[str, Any]:
    name = f"{operation.kind}{operation.microbatch}"
    span = _span(name, KIND_WORDS[operation.kind], operation.stage, operation.start_s, operation.end_s)
    return {**span, "args": {"chunk": operation.chunk, "microbatch": operation.microbatch}}


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace to a file; ConfigError where that cannot be."""
    from meshwright.errors import ConfigError

    try:
        path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
