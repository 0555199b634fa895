"""torchtune: fine-tuning by a recipe's YAML."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="torchtune",
    title="torchtune",
    order=88,
    targets=parts(__name__, "export:TORCHTUNE"),
    sources=parts(__name__, "read:TORCHTUNE_SOURCE"),
    training=(
        Training(
            name="torchtune",
            reads_indexed=False,
            source="torchtune: resume_from_checkpoint of the recipe; no limit on its time",
        ),
    ),
)
