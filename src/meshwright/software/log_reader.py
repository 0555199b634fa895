"""Which software wrote a log, and what it says: every reader sees the lines that carry its marks,
the one that finds most has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from meshwright.software.folders import log_forms
from meshwright.software.log import Collected, LogReading, lines_of, whole_lines

__all__ = ["LogReader", "read_chunks", "read_log"]


@dataclass(slots=True)
class LogReader:
    """Reads a log block by block, so that one of any size takes little memory."""

    found: dict[str, Collected] = field(
        default_factory=lambda: {
            form.framework: Collected(form.framework, redraws=form.redraws)
            for form in log_forms().values()
        }
    )

    def feed(self, block: str) -> None:
        """Read a block of whole lines, as `whole_lines` makes them."""
        for form in log_forms().values():
            marks = [mark for mark in form.marks if mark in block]
            if not marks:
                continue
            found = self.found[form.framework]
            for line in lines_of(block):
                if any(mark in line for mark in marks):
                    form.read(line, found)

    @property
    def num_reports(self) -> int:
        """Reports of steps so far, of all ranks and forms."""
        return sum(
            rank.num_reports for found in self.found.values() for rank in found.ranks.values()
        )

    def reading(self) -> LogReading | None:
        """Return what was read so far; None where no line was of a software that is known."""
        readings = {
            name: found.reading()
            for name, found in self.found.items()
            if found.known or found.ranks
        }
        if not readings:
            return None
        best = max(readings, key=lambda name: readings[name].num_reports)
        if (
            "megatron-bridge" in readings
            and "megatron-lm" in readings
            and best in ("megatron-bridge", "megatron-lm")
        ):
            return _of_bridge(readings["megatron-bridge"], readings["megatron-lm"])
        return readings[best]


def _of_bridge(by_step_time: LogReading, by_iteration: LogReading) -> LogReading:
    """Bridge writes Megatron's line on the last rank, which says more, and its own on rank 0: take
    the one, else the other."""
    if by_iteration.reports:
        return replace(by_iteration, framework="megatron-bridge")
    return replace(
        by_step_time,
        peak_allocated_bytes=by_iteration.peak_allocated_bytes,
        peak_reserved_bytes=by_iteration.peak_reserved_bytes,
    )


def read_chunks(chunks: Iterable[str]) -> LogReading | None:
    """Read a log that comes in pieces; None where it is of no known software. Any text is read or
    passed over, none raises."""
    reader = LogReader()
    for block in whole_lines(chunks):
        reader.feed(block)
    return reader.reading()


def read_log(text: str) -> LogReading | None:
    """Read a whole log; None where it is of no known software."""
    return read_chunks([text])
