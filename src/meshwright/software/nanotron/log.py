"""nanotron's line of an iteration and its reports of memory.

Read from src/nanotron/trainer.py (`train_step_logs`) and logging.py or logging/base.py
(`human_format`, `log_memory`, `LoggerWriter`) at v0.1, v0.4 and of April 2026. Numbers have three
significant digits and a suffix of thousands: `time_per_iteration_ms: 1.23K`, until v0.4
`elapsed_time_per_iteration_ms`. Rates of tokens are of all chips, and of one. Memory is in MiB.
"""

from __future__ import annotations

import re

from meshwright.software.folders import LogForm
from meshwright.software.log import Collected, Report, fields_by_bar, scaled
from meshwright.values.units import MIB

__all__ = ["LOG"]

_MARKS = ("time_per_iteration_ms:", " Peak allocated", " Peak reserved: ")

_ITERATION = re.compile(
    r"\biteration: (?P<step>\d{1,15}) / (?P<total>\d{1,15}) \|(?P<fields>.*)", re.DOTALL
)
_ALLOCATED = re.compile(r" Peak allocated:? (\d{1,12}\.\d{2})MiB")
_RESERVED = re.compile(r" Peak reserved: (\d{1,12}\.\d{2})MiB")


def _read_line(line: str, found: Collected) -> None:
    """Read a line into what was found."""
    allocated, reserved = _ALLOCATED.search(line), _RESERVED.search(line)
    if allocated or reserved:
        found.known = True
        found.memory(
            allocated=float(allocated[1]) * MIB if allocated else None,
            reserved=float(reserved[1]) * MIB if reserved else None,
        )
    match = _ITERATION.search(line)
    if match is None:
        return
    fields = {name: scaled(value) for name, value in fields_by_bar(match["fields"]).items()}
    ms = fields.get("time_per_iteration_ms", fields.get("elapsed_time_per_iteration_ms"))
    if ms is not None:
        found.total_steps = int(match["total"])
        found.add(
            line,
            Report(
                step=int(match["step"]),
                step_s=ms / 1e3,
                tokens_per_s=fields.get("tokens_per_sec"),
                tokens_per_s_per_gpu=fields.get("tokens_per_sec_per_gpu"),
                tflops_per_gpu=fields.get("model_tflops_per_gpu"),
                loss=fields.get("lm_loss"),
                grad_norm=fields.get("grad_norm"),
                batch=fields.get("global_batch_size"),
            ),
        )


LOG = LogForm(
    framework="nanotron",
    marks=_MARKS,
    read=_read_line,
    sample=(
        "iteration: 2 / 100 | consumed_tokens: 131K | time_per_iteration_ms: "
        "1.5K | global_batch_size: 65.5K | lm_loss: 9.5\n"
    ),
)
