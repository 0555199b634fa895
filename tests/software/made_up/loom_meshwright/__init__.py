"""A made-up software in a package of its own, as a third party would write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import LogForm, Software, Training

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource

__all__ = ["SOFTWARE"]


def _targets() -> tuple[ExportTarget, ...]:
    from .files import LOOM

    return (LOOM,)


def _sources() -> tuple[ImportSource, ...]:
    from .files import LOOM_SOURCE

    return (LOOM_SOURCE,)


def _logs() -> tuple[LogForm, ...]:
    from .log import MARKS, read_line

    sample = "[loom] step 2 took 1.5 s, loss 9.5\n"
    return (LogForm(framework="loom", marks=MARKS, read=read_line, sample=sample),)


SOFTWARE = Software(
    name="loom",
    title="Loom",
    order=0,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(Training(name="loom", stop=("--weave-for={limit}",), source="the loom's manual"),),
)
