"""DeepSpeed under transformers' Trainer: its JSON and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget

__all__ = [
    "SOFTWARE",
]

_SAMPLE = "steps: 2 loss: 9.5000 iter time (s): 1.500 samples/sec: 42.667\n"


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.deepspeed.export import DEEPSPEED

    return (DEEPSPEED,)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.deepspeed.log import MARKS, read_deepspeed_line

    return (LogForm(framework="deepspeed", marks=MARKS, read=read_deepspeed_line, sample=_SAMPLE),)


SOFTWARE = Software(
    name="deepspeed",
    title="DeepSpeed",
    order=70,
    targets=_targets,
    logs=_logs,
    training=(
        Training(
            name="deepspeed",
            reads_indexed=False,
            source="transformers' run_clm.py goes on from the last checkpoint of its output folder",
        ),
    ),
)
