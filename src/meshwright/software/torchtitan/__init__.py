"""torchtitan: its TOML and its Python form, written and read, and its log."""

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
    "[titan] 2026-03-01 10:00:00,123 - root - INFO - step:  2  loss:  "
    "9.5000  memory: 70.50GiB(89.13%)  tps: 8,192  tflops: 398.12  mfu: "
    "40.25%\n"
)


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.torchtitan.export import TORCHTITAN
    from meshwright.software.torchtitan.toml import TORCHTITAN_TOML

    return (TORCHTITAN, TORCHTITAN_TOML)


def _sources() -> tuple[ImportSource, ...]:
    from meshwright.software.torchtitan.read import TORCHTITAN_SOURCE

    return (TORCHTITAN_SOURCE,)


def _describe(text: str, _: int | None) -> Described:
    from meshwright.software.torchtitan.dump import describe_torchtitan

    return describe_torchtitan(text)


def _logs() -> tuple[LogForm, ...]:
    from meshwright.software.torchtitan.log import MARKS, read_torchtitan_line

    return (
        LogForm(
            framework="torchtitan",
            marks=MARKS,
            read=read_torchtitan_line,
            sample=_SAMPLE,
            describe=_describe,
        ),
    )


SOFTWARE = Software(
    name="torchtitan",
    title="torchtitan",
    order=50,
    targets=_targets,
    sources=_sources,
    logs=_logs,
    training=(
        Training(
            name="torchtitan",
            reads_indexed=False,
            keeps=10,
            source="torchtitan 0.2: checkpoint.keep_latest_k is 10, and no limit on its time",
        ),
        Training(
            name="torchtitan-toml",
            reads_indexed=False,
            keeps=10,
            source="torchtitan 0.1: checkpoint.keep_latest_k is 10, and no limit on its time",
        ),
    ),
)
