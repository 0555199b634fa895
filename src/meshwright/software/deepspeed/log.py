"""DeepSpeed's lines of steps: the pipeline engine's, the throughput timer's, and its reports of
memory.

Read from deepspeed/runtime/pipe/engine.py (`steps: 10 loss: 2.3 iter time (s): 0.5 samples/sec:
12.8`; until v0.3 its `samples/sec` lacks the number of steps, so the time is what counts),
deepspeed/utils/timer.py (`ThroughputTimer`: `SamplesPerSec` of v0.3.0 and v0.6.0, a mean since the
start; `CurrSamplesPerSec` of v0.9.0, v0.12.0 and August 2026, that of the last step),
deepspeed/runtime/utils.py (`see_memory_usage`) and the overflow lines of deepspeed/runtime/fp16.
Memory called GB is GiB. Rates are of all chips together.
"""

from __future__ import annotations

import re

from meshwright.software.folders import LogForm
from meshwright.software.log import NUMBER, Collected, Report, number
from meshwright.values.units import GIB

__all__ = ["LOG"]

_MARKS = ("iter time (s): ", "SamplesPerSec=", "Max_MA ", "DeepSpeed info: version=")

_PIPE = re.compile(
    rf"\bsteps: (?P<step>\d{{1,15}}) loss: (?P<loss>{NUMBER}) (?P<more>[^\n]{{0,400}}?)iter time"
    rf" \(s\): (?P<s>{NUMBER}) samples/sec: "
)
_TIMER = re.compile(
    rf"global_step=(?P<step>\d{{1,15}}), RunningAvgSamplesPerSec={NUMBER},"
    rf" CurrSamplesPerSec=(?P<rate>{NUMBER}),"
    rf"(?: MemAllocated={NUMBER}GB, MaxMemAllocated=(?P<gib>{NUMBER})GB\s)?"
)
_OLD_TIMER = re.compile(
    rf"\b\d{{1,9}}/\d{{1,15}}, SamplesPerSec=(?P<rate>{NUMBER})(?:\s|, MemAllocated={NUMBER}GB,"
    rf" MaxMemAllocated=(?P<gib>{NUMBER})GB)"
)
_SEEN = re.compile(
    rf"Max_MA (?P<allocated>{NUMBER}) GB(?:\s{{1,40}}CA {NUMBER} GB\s{{1,40}}Max_CA"
    rf" (?P<reserved>{NUMBER}) GB)?"
)


def _read_line(line: str, found: Collected) -> None:
    """Read a line into what was found."""
    if "DeepSpeed info: version=" in line:
        found.known = True
    if match := _PIPE.search(line):
        found.add(
            line,
            Report(step=int(match["step"]), step_s=number(match["s"]), loss=number(match["loss"])),
        )
    elif match := _TIMER.search(line):
        found.memory(allocated=_bytes(match["gib"]))
        found.add(line, Report(step=int(match["step"]), samples_per_s=number(match["rate"])))
    elif match := _OLD_TIMER.search(line):
        found.memory(allocated=_bytes(match["gib"]))
        found.add(line, Report(samples_per_s=number(match["rate"])))
    elif match := _SEEN.search(line):
        found.known = True
        found.memory(allocated=_bytes(match["allocated"]), reserved=_bytes(match["reserved"]))


def _bytes(gib: str | None) -> float | None:
    value = number(gib)
    return None if value is None else value * GIB


LOG = LogForm(
    framework="deepspeed",
    marks=_MARKS,
    read=_read_line,
    sample="steps: 2 loss: 9.5000 iter time (s): 1.500 samples/sec: 42.667\n",
)
