"""Axolotl: fine-tuning by one YAML."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="axolotl",
    title="Axolotl",
    order=84,
    targets=parts(__name__, "export:AXOLOTL"),
    sources=parts(__name__, "read:AXOLOTL_SOURCE"),
    training=(
        Training(
            name="axolotl",
            reads_indexed=False,
            source="Axolotl goes on from resume_from_checkpoint; no limit on its time",
        ),
    ),
)
