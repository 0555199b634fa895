"""Megatron-LM: command lines written and read."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="megatron-lm",
    title="Megatron-LM",
    order=10,
    targets=parts(__name__, "export:MEGATRON_LM"),
    sources=parts(__name__, "read:MEGATRON_LM_SOURCE"),
    logs=parts(__name__, "log:LOG"),
    training=(
        Training(
            name="megatron-lm",
            stop=("--exit-duration-in-mins", "{limit}", "--exit-signal-handler"),
            resumes="load",
            source="megatron/training/arguments.py and checkpointing.py of Megatron-LM core 0.16",
        ),
    ),
)
