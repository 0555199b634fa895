"""Megatron-Bridge: recipes in Python and YAML, written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource
    from meshwright.software.described import Described

__all__ = [
    "SOFTWARE",
]

_SAMPLE = "Step Time : 1.50s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n"


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.megatron_bridge.export import MEGATRON_BRIDGE

    return (MEGATRON_BRIDGE,)


def _sources() -> tuple[ImportSource, ...]:
    from meshwright.software.megatron_bridge.read import BRIDGE_SOURCE

    return (BRIDGE_SOURCE,)


def _describe(text: str, gbs: int | None) -> Described:
    from meshwright.software.megatron_lm.dump import describe_megatron

    return describe_megatron(text, gbs=gbs)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.megatron_lm.log import BRIDGE_MARKS, read_bridge_line

    return (
        LogForm(
            framework="megatron-bridge",
            marks=BRIDGE_MARKS,
            read=read_bridge_line,
            sample=_SAMPLE,
            counts_samples=True,
            describe=_describe,
        ),
    )


SOFTWARE = Software(
    name="megatron-bridge",
    title="Megatron-Bridge",
    order=20,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(
        Training(
            name="megatron-bridge",
            stop=("train.exit_duration_in_mins={limit}", "train.exit_signal_handler=true"),
            resumes="load",
            source="megatron/bridge/training/config.py of Megatron-Bridge 0.3",
        ),
    ),
)
