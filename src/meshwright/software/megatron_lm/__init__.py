"""Megatron-LM: command lines written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource
    from meshwright.software.described import Described

__all__ = [
    "SOFTWARE",
]

_SAMPLE = (
    " [2026-03-01 10:00:00] iteration        2/     100 | consumed "
    "samples:          128 | elapsed time per iteration (ms): 1500.0 | "
    "global batch size:    64 | lm loss: 9.500000E+00 |\n"
)


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.megatron_lm.target import MEGATRON_LM

    return (MEGATRON_LM,)


def _sources() -> tuple[ImportSource, ...]:
    from meshwright.software.megatron_lm.target import MEGATRON_LM_SOURCE

    return (MEGATRON_LM_SOURCE,)


def _describe(text: str, gbs: int | None) -> Described:
    from meshwright.software.megatron_lm.dump import describe_megatron

    return describe_megatron(text, gbs=gbs)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.megatron_lm.log import MARKS, read_megatron_line

    return (
        LogForm(
            framework="megatron-lm",
            marks=MARKS,
            read=read_megatron_line,
            sample=_SAMPLE,
            counts_samples=True,
            describe=_describe,
        ),
    )


SOFTWARE = Software(
    name="megatron-lm",
    title="Megatron-LM",
    order=10,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(
        Training(
            name="megatron-lm",
            stop=("--exit-duration-in-mins", "{limit}", "--exit-signal-handler"),
            resumes="load",
            source="megatron/training/arguments.py and checkpointing.py of Megatron-LM core 0.16",
        ),
    ),
)
