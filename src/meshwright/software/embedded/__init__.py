"""The embedded trainer: its log."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["LAST", "SOFTWARE"]

LAST = 2
"""Newest checkpoints that it keeps beside its best."""

SOFTWARE = Software(
    name="meshwright",
    title="the embedded trainer",
    order=0,
    logs=parts(__name__, "log:LOG"),
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
