"""The embedded trainer's lines: one object of JSON per step, evaluation and checkpoint, and one at
the end.

Read from meshwright/trainer: a step's line has at least `step`, `loss` and `step_s`. What a line
has beyond, and what it lacks, does not matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from meshwright.software.folders import LogForm
from meshwright.software.log import Collected, Report

__all__ = ["LOG"]

_MARKS = ('"step_s":', '"event": "validation"', '"event": "checkpoint"')


def _read_line(line: str, found: Collected) -> None:
    """Read a line into what was found."""
    start = line.find("{")
    if start < 0:
        return
    try:
        content, _ = json.JSONDecoder().raw_decode(line, start)
    except (ValueError, RecursionError):  # cut short, or nested without end
        return
    if not isinstance(content, dict):
        return
    found.memory(
        allocated=_most(content.get("peak_allocated_bytes")),
        reserved=_most(content.get("peak_reserved_bytes")),
    )
    step, seconds = _value(content, "step"), _value(content, "step_s")
    event = content.get("event", "step")
    if event != "step":
        found.known = True
        if step is not None and 0 < step < 2**53:
            _other(event, int(step), content, found)
        return
    if step is not None and seconds is not None and 0 < step < 2**53:
        found.add(
            line,
            Report(
                step=int(step),
                step_s=seconds,
                tokens_per_s=_value(content, "tokens_per_s"),
                tokens_per_s_per_gpu=_value(content, "tokens_per_s_per_gpu"),
                tflops_per_gpu=_value(content, "tflops_per_gpu"),
                loss=_value(content, "loss"),
                grad_norm=_value(content, "gradient_norm"),
            ),
        )


def _other(event: Any, step: int, content: Mapping[str, Any], found: Collected) -> None:
    if event == "validation":
        found.evaluated(step, _value(content, "loss"))
    elif event == "checkpoint":
        found.saved_step = step


def _value(content: Mapping[str, Any], name: str) -> float | None:
    """A number, `NaN` and `Infinity` among them; None where it is none."""
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _most(value: Any) -> float | None:
    """One figure, or the largest of one per rank."""
    found = [
        item
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, int | float) and not isinstance(item, bool)
    ]
    try:
        return max(map(float, found), default=None)
    except OverflowError:
        return None


LOG = LogForm(
    framework="meshwright",
    marks=_MARKS,
    read=_read_line,
    sample='{"event": "step", "step": 2, "loss": 9.5, "gradient_norm": 2.5, "step_s": 1.5}\n',
)
