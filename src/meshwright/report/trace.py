"""Timelines in Chrome's trace format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.cost.simulate import Operation

__all__ = ["chrome_trace", "write_trace"]

MICROSECONDS = 1e6
KIND_WORDS = {"F": "forward", "B": "backward", "W": "weight gradient"}


def chrome_trace(operations: Iterable[Operation], *, title: str, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one step as a trace: a thread per stage, an event per operation, a category per kind."""
    listed = list(operations)
    stages = sorted({operation.stage for operation in listed})
    names = [_named("process_name", 0, title), *(_named("thread_name", stage, f"stage {stage}") for stage in stages)]
    order = [{"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": stage, "args": {"sort_index": stage}} for stage in stages]
    return {
        "displayTimeUnit": "ms",
        "otherData": metadata or {},
        "traceEvents": [*names, *order, *(_event(operation) for operation in listed)],
    }


def _named(kind: str, stage: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": stage, "args": {"name": name}}


def _event(operation: Operation) -> dict[str, Any]:
    return {
        "name": f"{operation.kind}{operation.microbatch}",
        "cat": KIND_WORDS[operation.kind],
        "ph": "X",
        "pid": 0,
        "tid": operation.stage,
        "ts": operation.start_s * MICROSECONDS,
        "dur": (operation.end_s - operation.start_s) * MICROSECONDS,
        "args": {"chunk": operation.chunk, "microbatch": operation.microbatch},
    }


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace to a file; ConfigError where that cannot be."""
    from meshwright.errors import ConfigError

    try:
        path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
