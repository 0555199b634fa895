"""nanotron: its YAML, written and read, and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource

__all__ = [
    "SOFTWARE",
]

_SAMPLE = (
    "iteration: 2 / 100 | consumed_tokens: 131K | time_per_iteration_ms: "
    "1.5K | global_batch_size: 65.5K | lm_loss: 9.5\n"
)


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.nanotron.export import NANOTRON

    return (NANOTRON,)


def _sources() -> tuple[ImportSource, ...]:
    from meshwright.software.nanotron.read import NANOTRON_SOURCE

    return (NANOTRON_SOURCE,)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.nanotron.log import MARKS, read_nanotron_line

    return (LogForm(framework="nanotron", marks=MARKS, read=read_nanotron_line, sample=_SAMPLE),)


SOFTWARE = Software(
    name="nanotron",
    title="nanotron",
    order=60,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(
        Training(
            name="nanotron",
            resumes="load",
            reads_indexed=False,
            source="nanotron: resume_checkpoint_path; no limit on its time",
        ),
    ),
)
