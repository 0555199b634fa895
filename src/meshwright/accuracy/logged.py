"""One run from its log: what it was, by the dump of its settings or by the user's flags, and what
its steps measured."""

from __future__ import annotations

import re
import statistics

from meshwright.accuracy.described import Described, Given, case_of
from meshwright.accuracy.measured import MeasuredRun
from meshwright.accuracy.megatron_log import describe_megatron
from meshwright.accuracy.rows import MemoryFigure
from meshwright.accuracy.torchtitan_log import describe_torchtitan
from meshwright.errors import ConfigError
from meshwright.logs import LogReading, Report, read_log, steady_reports
from meshwright.logs.lines import plain

__all__ = ["LOGS", "run_of_log"]

LOGS = "Megatron-LM, Megatron-Bridge, NeMo, torchtitan, nanotron, DeepSpeed or the embedded trainer"
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP|XPU|NPU) out of memory")
"""As torch reports it."""
_COUNT_SAMPLES = ("megatron-lm", "megatron-bridge", "nemo-1", "nemo-2")
"""Software whose logs count batches in samples."""


def run_of_log(text: str, given: Given, *, source: str) -> MeasuredRun | None:
    """Return the run; None where the text is a log of no software that is known. ConfigError says
    what is missing."""
    text = plain(text)
    reading = read_log(text)
    if reading is None:
        return None
    case = case_of(_described(text, reading), given, source=source)
    if _OUT_OF_MEMORY.search(text) and not any(report.has_rate for report in reading.reports):
        return MeasuredRun(case=case, fitted=False)
    seq_len, gbs, chips = case.workload.seq_len, case.layout.gbs, case.machines.num_chips

    def seconds(report: Report) -> float | None:
        return report.seconds(seq_len=seq_len, gbs=gbs, num_chips=chips)

    rated = [report for report in reading.reports if seconds(report)]
    times = [found for report in steady_reports(rated) if (found := seconds(report)) is not None]
    if not times:
        raise ConfigError(
            f"{source}: {len(rated)} iteration time(s) reported; the warm-up can't be told from the"
            " rest, give a longer log"
        )
    peak = (
        reading.peak_reserved_bytes
        if case.memory.kind == "reserved"
        else reading.peak_allocated_bytes
    )
    return MeasuredRun(case=case, step_s=statistics.median(times), peak_bytes=peak, fitted=True)


def _described(text: str, reading: LogReading) -> Described:
    """What the log says of its run; the batch is that of the last report, which counts where it
    grew."""
    batch = next(
        (report.batch for report in reversed(reading.reports) if report.batch is not None), None
    )
    gbs = (
        int(batch)
        if batch is not None and batch >= 1 and reading.framework in _COUNT_SAMPLES
        else None
    )
    if reading.framework in ("megatron-lm", "megatron-bridge"):
        return describe_megatron(text, gbs=gbs)
    if reading.framework == "torchtitan":
        return describe_torchtitan(text)
    kind = MemoryFigure(
        kind="allocated" if reading.peak_allocated_bytes is not None else "reserved", rank="max"
    )
    return Described(gbs=gbs, memory=kind)
