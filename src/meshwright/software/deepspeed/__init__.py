"""DeepSpeed under transformers' Trainer: its JSON and its log."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="deepspeed",
    title="DeepSpeed",
    order=70,
    targets=parts(__name__, "export:DEEPSPEED"),
    sources=parts(__name__, "read:DEEPSPEED_SOURCE"),
    logs=parts(__name__, "log:LOG"),
    training=(
        Training(
            name="deepspeed",
            reads_indexed=False,
            source="transformers' run_clm.py goes on from the last checkpoint of its output folder",
        ),
    ),
)
