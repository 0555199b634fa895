"""NeMo 1.x: configurations of its launcher and of its scripts, written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource

__all__ = [
    "SOFTWARE",
]

_BEST = 10
"""Checkpoints that NeMo 1.x keeps beside the last."""

_SAMPLE = (
    "Epoch 0: :   2%|#     | 2/100 [00:12<03:45, reduced_train_loss=9.500, "
    "global_step=2.000, train_step_timing in s=1.500]\n"
)


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.nemo1.export import NEMO1
    from meshwright.software.nemo1.script import NEMO1_SCRIPT

    return (NEMO1, NEMO1_SCRIPT)


def _sources() -> tuple[ImportSource, ...]:
    from meshwright.software.nemo1.read import NEMO1_SOURCE

    return (NEMO1_SOURCE,)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.nemo2.log import BAR_MARKS, read_bar_line

    return (
        LogForm(
            framework="nemo-1",
            marks=BAR_MARKS,
            read=read_bar_line,
            sample=_SAMPLE,
            redraws=True,
            counts_samples=True,
        ),
    )


SOFTWARE = Software(
    name="nemo1",
    title="NeMo 1.x",
    order=40,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(
        Training(
            name="nemo1-script",
            stop=("trainer.max_time={limit}",),
            form="days:hours:minutes:seconds",
            keeps=_BEST + 1,
            source=(
                "Trainer.max_time of PyTorch Lightning, DD:HH:MM:SS; NeMo 1.x counts it"
                " anew in every job (StatelessTimer)"
            ),
        ),
    ),
)
