"""NeMo 1.x: configurations of its launcher and of its scripts, written and read."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

_BEST = 10
"""Checkpoints that NeMo 1.x keeps beside the last."""

SOFTWARE = Software(
    name="nemo1",
    title="NeMo 1.x",
    order=40,
    targets=parts(__name__, "export:NEMO1", "export:NEMO1_SCRIPT"),
    sources=parts(__name__, "read:NEMO1_SOURCE"),
    logs=parts("meshwright.software.nemo2", "log:BAR_LOG"),
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
