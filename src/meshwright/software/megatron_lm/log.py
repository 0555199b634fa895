"""Megatron-LM and Megatron-Bridge: the line of an iteration, Bridge's `Step Time`, the reports of
memory.

Read from Megatron-LM's `training_log` (megatron/training.py at v1.0, v2.0, v2.5 and 23.04;
megatron/training/training.py at core_v0.6.0, core_v0.9.0, core_v0.13.0 and of August 2026) and
`report_memory` (megatron/utils.py, megatron/training/utils.py,
megatron/training/utils/common_utils.py at the same versions), and from Megatron-Bridge's
training/utils/train_utils.py at v0.1.0rc4, v0.2.0, v0.3.0 and of August 2026. Over the years the
line got a date in front (0.6), `throughput per GPU (TFLOP/s/GPU)` (0.6), `skipped samples` (0.9),
energy and power (0.13); fields stand between bars, so what is new does not matter.
Megatron-DeepSpeed writes the same line with its own fields. A loss that is no number is not written
at all (`if avg > 0.0`): it shows in `number of nan iterations` alone. ` validation loss at
iteration N on validation set | lm loss value: ...` is of the same files'
`evaluate_and_print_results`. Of megatron/checkpointing.py and megatron/training/checkpointing.py
are `saving checkpoint at iteration N to ...` and `successfully saved checkpoint from iteration N to
...`. Megatron-LM's `memory (MB)` are MiB, Bridge's `memory (GB)` are 10^9 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm
from meshwright.software.log import NUMBER, Collected, Report, count, fields_by_bar, number
from meshwright.values.units import GB, MIB

if TYPE_CHECKING:
    from meshwright.software.described import Described

__all__ = ["BRIDGE_LOG", "LOG"]

_MARKS = (
    "elapsed time per iteration (ms)",
    "end of arguments --",
    "memory (MB) |",
    "memory (GB) |",
    " validation loss at iteration ",
    "successfully saved checkpoint from iteration ",
    "saving checkpoint at iteration ",
)

_ITERATION = re.compile(r"iteration\s{1,20}(?P<step>\d{1,15})/\s{0,20}(?P<total>\d{1,15}) \|")
_VALIDATION = re.compile(
    r" validation loss at iteration (?P<step>\d{1,15})(?: on validation set)? \| lm loss value:"
    rf" (?P<loss>{NUMBER}) \|",
    re.IGNORECASE,
)
_SAVED = re.compile(r"successfully saved checkpoint from iteration {1,10}(?P<step>\d{1,15}) to ")
_SAVING = re.compile(r"\bsaving checkpoint at iteration {1,10}(?P<step>\d{1,15}) to ")
_MEMORY = re.compile(
    r"\(?after \d{1,15} iterations\)? memory \((?P<unit>MB|GB)\) \|(?P<fields>.*)", re.DOTALL
)
_BRIDGE_STEP = re.compile(
    rf"Step Time : (?P<s>{NUMBER})s GPU utilization: (?P<tflops>{NUMBER})(?:MODEL_)?TFLOP/s/GPU"
)
_UNITS = {"MB": float(MIB), "GB": float(GB)}
_ALLOCATED = ("max allocated", "mem-max-allocated-gigabytes", "peak_allocated_mem")
_RESERVED = ("max reserved", "mem-max-reserved-gigabytes", "peak_reserved_mem")
_LOSSES = ("lm loss", "loss", "reduced_train_loss")


def _read_line(line: str, found: Collected) -> None:
    """Read a line into what was found."""
    if "end of arguments --" in line:
        found.known = True
    if "iterations" in line and (memory := _MEMORY.search(line)):
        found.known = True
        fields, unit = fields_by_bar(memory["fields"]), _UNITS[memory["unit"]]
        found.memory(
            allocated=_bytes(fields, _ALLOCATED, unit), reserved=_bytes(fields, _RESERVED, unit)
        )
        return
    if "validation loss" in line and (match := _VALIDATION.search(line)):
        found.evaluated(int(match["step"]), number(match["loss"]))
    if "successfully saved" in line and (match := _SAVED.search(line)):
        found.known, found.saved_step = True, int(match["step"])
    elif "saving checkpoint" in line and (match := _SAVING.search(line)):
        found.known, found.saving_step = True, int(match["step"])
    matches = list(_ITERATION.finditer(line))
    starts = [(match.start(), match.end(), int(match["step"])) for match in matches]
    for index, (_, end, step) in enumerate(starts):  # two ranks may write into one line
        following = starts[index + 1][0] if index + 1 < len(starts) else len(line)
        report = _report(step, fields_by_bar(line[end:following]))
        if report is not None:
            found.total_steps = int(matches[index]["total"])
            found.add(line, report)


def _read_bridge_line(line: str, found: Collected) -> None:
    """Read rank 0's line of a step, which is there whether or not the last rank's is."""
    for match in _BRIDGE_STEP.finditer(line):
        found.add(line, Report(step_s=number(match["s"]), tflops_per_gpu=number(match["tflops"])))


def _report(step: int, fields: Mapping[str, str]) -> Report | None:
    ms = number(fields.get("elapsed time per iteration (ms)"))
    if ms is None:
        return None
    loss = next((number(fields[name]) for name in _LOSSES if name in fields), None)
    nan = count(fields.get("number of nan iterations"))
    return Report(
        step=step,
        step_s=ms / 1e3,
        tflops_per_gpu=number(fields.get("throughput per GPU (TFLOP/s/GPU)", fields.get("TFLOPs"))),
        loss=math.nan if loss is None and nan else loss,
        grad_norm=number(fields.get("grad norm")),
        batch=number(fields.get("global batch size")),
        skipped=count(fields.get("number of skipped iterations")),
        nan=nan,
    )


def _bytes(fields: Mapping[str, str], names: tuple[str, ...], unit: float) -> float | None:
    value = next((found for name in names if (found := number(fields.get(name))) is not None), None)
    return None if value is None else value * unit


def _describe(text: str, gbs: int | None) -> Described:
    from meshwright.software.megatron_lm.dump import describe_megatron

    return describe_megatron(text, gbs=gbs)


LOG = LogForm(
    framework="megatron-lm",
    marks=_MARKS,
    read=_read_line,
    sample=(
        " [2026-03-01 10:00:00] iteration        2/     100 | consumed "
        "samples:          128 | elapsed time per iteration (ms): 1500.0 | "
        "global batch size:    64 | lm loss: 9.500000E+00 |\n"
    ),
    counts_samples=True,
    describe=_describe,
)
BRIDGE_LOG = LogForm(
    framework="megatron-bridge",
    marks=("Step Time :",),
    read=_read_bridge_line,
    sample="Step Time : 1.50s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n",
    counts_samples=True,
    describe=_describe,
)
