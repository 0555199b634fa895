"""TRL: fine-tuning by Hugging Face's SFTTrainer."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="trl",
    title="TRL",
    order=82,
    targets=parts(__name__, "export:TRL"),
    sources=parts(__name__, "read:TRL_SOURCE"),
    training=(
        Training(
            name="trl",
            reads_indexed=False,
            source="TRL's sft.py goes on from resume_from_checkpoint; no limit on its time",
        ),
    ),
)
