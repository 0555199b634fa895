"""The embedded trainer: its log."""

from __future__ import annotations

from meshwright.software.folders import LogForm, Software, Training

__all__ = [
    "LAST",
    "SOFTWARE",
]

LAST = 2
"""Newest checkpoints that it keeps beside its best."""

_SAMPLE = '{"event": "step", "step": 2, "loss": 9.5, "gradient_norm": 2.5, "step_s": 1.5}\n'


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.embedded.log import MARKS, read_own_line

    return (LogForm(framework="meshwright", marks=MARKS, read=read_own_line, sample=_SAMPLE),)


SOFTWARE = Software(
    name="meshwright",
    title="the embedded trainer",
    order=0,
    logs=_logs,
    training=(
        Training(
            name="meshwright",
            stop=("minutes={limit}",),
            form="decimal minutes",
            keeps=LAST,
            source="docs/trainer.md",
        ),
    ),
)
