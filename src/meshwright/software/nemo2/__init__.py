"""NeMo 2.0: recipes for nemo_run, written and read, and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource

__all__ = [
    "SOFTWARE",
]

_SAMPLE = (
    "Training epoch 0, iteration 1/99 | global_batch_size: 64 | "
    "global_step: 1 | reduced_train_loss: 9.5 | train_step_timing in s: 1.5\n"
)


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.nemo2.export import NEMO2

    return (NEMO2,)


def _sources() -> tuple[ImportSource, ...]:
    from meshwright.software.nemo2.read import NEMO2_SOURCE

    return (NEMO2_SOURCE,)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.nemo2.log import PRINTER_MARKS, read_printer_line

    return (
        LogForm(
            framework="nemo-2",
            marks=PRINTER_MARKS,
            read=read_printer_line,
            sample=_SAMPLE,
            counts_samples=True,
        ),
    )


SOFTWARE = Software(
    name="nemo2",
    title="NeMo 2.0",
    order=30,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(
        Training(
            name="nemo2",
            source="NeMo 2.x: resume_if_exists is in the recipe, a limit on its time is not",
        ),
    ),
)
