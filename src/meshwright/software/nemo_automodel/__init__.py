"""NeMo AutoModel: fine-tuning of Hugging Face's models by one YAML."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="nemo-automodel",
    title="NeMo AutoModel",
    order=89,
    targets=parts(__name__, "export:NEMO_AUTOMODEL"),
    training=(
        Training(
            name="nemo-automodel",
            reads_indexed=False,
            source="NeMo AutoModel goes on from its newest checkpoint; no limit on its time",
        ),
    ),
)
