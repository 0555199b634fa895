"""LLaMA-Factory: fine-tuning by one YAML, with a JSON of DeepSpeed where weights are sharded."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="llamafactory",
    title="LLaMA-Factory",
    order=86,
    targets=parts(__name__, "export:LLAMAFACTORY"),
    sources=parts(__name__, "read:LLAMAFACTORY_SOURCE"),
    training=(
        Training(
            name="llamafactory",
            reads_indexed=False,
            source="LLaMA-Factory goes on from resume_from_checkpoint; no limit on its time",
        ),
    ),
)
