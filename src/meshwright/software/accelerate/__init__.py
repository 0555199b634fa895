"""Hugging Face Accelerate under transformers' Trainer: its YAML for FSDP2."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="accelerate",
    title="Hugging Face Accelerate",
    order=80,
    targets=parts(__name__, "export:ACCELERATE"),
    sources=parts(__name__, "read:ACCELERATE_SOURCE"),
    training=(
        Training(
            name="accelerate",
            reads_indexed=False,
            source="transformers' run_clm.py goes on from the last checkpoint of its output folder",
        ),
    ),
)
