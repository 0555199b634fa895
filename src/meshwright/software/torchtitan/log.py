"""torchtitan's line of a step, whichever ranks write it.

Read from train.py at e62573d4c (April 2024: `wps`, `mfu` behind it) and 4d182a13e (November 2024:
`tps`), and components/metrics.py at 99f73969e (March 2025: `tflops`), v0.1.0, v0.2.2 (`grad_norm`)
and of August 2026 (`mfu: N/A`). `tps` are tokens a second of one device, `memory` is what its
allocator reserved at most. A loss of -1 is written by stages that have none (trainer.py,
`torch.tensor([-1.0])`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm
from meshwright.software.log import NUMBER, Collected, Report, number
from meshwright.values.units import GIB

if TYPE_CHECKING:
    from meshwright.software.described import Described

__all__ = ["LOG"]

_MARKS = (" tps: ", " wps: ", "Running with configs: {", "Running with args: {")

_STEP = re.compile(
    rf"(?<!validate )\bstep: {{1,8}}(?P<step>\d{{1,12}}) {{1,4}}loss: {{1,8}}(?P<loss>{NUMBER})"
    r" {1,4}"
    rf"(?:grad_norm: {{1,8}}(?P<norm>{NUMBER}) {{1,4}})?"
    r"memory: {1,8}(?P<gib>\d{1,6}\.\d{1,6})GiB\([^()\n]{0,12}\) {1,4}"
    r"(?:tps|wps): (?P<rate>\d{1,3}(?:,\d{3}){1,4}|\d{1,12})(?= )",
    re.IGNORECASE,
)
_VALIDATION = re.compile(
    rf"\bvalidate step: {{1,8}}(?P<step>\d{{1,12}}) {{1,4}}loss: {{1,8}}(?P<loss>{NUMBER})"
    r" {1,4}memory: ",
    re.IGNORECASE,
)
_TFLOPS = re.compile(r" tflops: (?P<tflops>[\d,]{1,15}\.\d{1,4})(?= )")
_NO_LOSS = -1.0


def _read_line(line: str, found: Collected) -> None:
    """Read a line into what was found."""
    if "Running with " in line:
        found.known = True
    if match := _VALIDATION.search(line):
        found.evaluated(int(match["step"]), number(match["loss"]))
    match = _STEP.search(line)
    if match is None:
        return
    loss, tflops = number(match["loss"]), _TFLOPS.search(line, match.end())
    found.memory(reserved=float(match["gib"]) * GIB)
    found.add(
        line,
        Report(
            step=int(match["step"]),
            tokens_per_s_per_gpu=float(match["rate"].replace(",", "")),
            tflops_per_gpu=number(tflops["tflops"].replace(",", "")) if tflops else None,
            loss=None if loss == _NO_LOSS else loss,
            grad_norm=number(match["norm"]),
        ),
    )


def _describe(text: str, _: int | None) -> Described:
    from meshwright.software.torchtitan.dump import describe_torchtitan

    return describe_torchtitan(text)


LOG = LogForm(
    framework="torchtitan",
    marks=_MARKS,
    read=_read_line,
    sample=(
        "[titan] 2026-03-01 10:00:00,123 - root - INFO - step:  2  loss:  "
        "9.5000  memory: 70.50GiB(89.13%)  tps: 8,192  tflops: 398.12  mfu: "
        "40.25%\n"
    ),
    describe=_describe,
)
