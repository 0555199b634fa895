"""nanotron: its YAML, written and read, and its log."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="nanotron",
    title="nanotron",
    order=60,
    targets=parts(__name__, "export:NANOTRON"),
    sources=parts(__name__, "mend:NANOTRON_SOURCE"),
    logs=parts(__name__, "log:LOG"),
    training=(
        Training(
            name="nanotron",
            resumes="load",
            reads_indexed=False,
            source="nanotron: resume_checkpoint_path; no limit on its time",
        ),
    ),
)
