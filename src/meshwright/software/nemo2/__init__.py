"""NeMo 2.0: recipes for nemo_run, written and read, and its log."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="nemo2",
    title="NeMo 2.0",
    order=30,
    targets=parts(__name__, "export:NEMO2"),
    sources=parts(__name__, "read:NEMO2_SOURCE"),
    logs=parts(__name__, "log:LOG"),
    training=(
        Training(
            name="nemo2",
            source="NeMo 2.x: resume_if_exists is in the recipe, a limit on its time is not",
        ),
    ),
)
