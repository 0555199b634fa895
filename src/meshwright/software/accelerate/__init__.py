"""Hugging Face Accelerate under transformers' Trainer: its YAML for FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget

__all__ = [
    "SOFTWARE",
]


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.accelerate.export import ACCELERATE

    return (ACCELERATE,)


SOFTWARE = Software(
    name="accelerate",
    title="Hugging Face Accelerate",
    order=80,
    targets=_targets,
    training=(
        Training(
            name="accelerate",
            reads_indexed=False,
            source="transformers' run_clm.py goes on from the last checkpoint of its output folder",
        ),
    ),
)
