"""Megatron-Bridge: recipes in Python and YAML, written and read."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="megatron-bridge",
    title="Megatron-Bridge",
    order=20,
    targets=parts(__name__, "export:MEGATRON_BRIDGE"),
    sources=parts(__name__, "read:BRIDGE_SOURCE"),
    logs=parts("meshwright.software.megatron_lm", "log:BRIDGE_LOG"),
    training=(
        Training(
            name="megatron-bridge",
            stop=("train.exit_duration_in_mins={limit}", "train.exit_signal_handler=true"),
            resumes="load",
            source="megatron/bridge/training/config.py of Megatron-Bridge 0.3",
        ),
    ),
)
