"""What a step says when it ends: totals, what failed and why, and the manifest where all ranks are
done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from meshwright.data.manifest import MANIFEST, FileRecord, write_manifest
from meshwright.data.progress import format_size
from meshwright.data.steps import Record, StepReport
from meshwright.values.units import counted

__all__ = ["StepResult", "conclude"]

_FILE_FIELDS = {field.name for field in fields(FileRecord)}
_SHOWN = 20
"""Failures that are printed; all of them are in the JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """A step's end, for people and programs."""

    report: StepReport
    output: Path
    files: tuple[FileRecord, ...]
    manifest: Path | None
    """None until every shard of every rank is done."""
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where this rank's share is done, else 3."""
        return self.report.exit_code

    @property
    def size_bytes(self) -> int:
        """Of all files so far."""
        return sum(file.size_bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        report = self.report
        documents = [file.documents for file in self.files if file.documents is not None]
        return {
            "step": report.step,
            "rank": report.place.rank,
            "world_size": report.place.world_size,
            "output": str(self.output),
            "complete": report.complete,
            "files": len(self.files),
            "size_bytes": self.size_bytes,
            "documents": sum(documents) if documents else None,
            "failed": {
                name: {"kind": kind, "reason": reason}
                for name, (kind, reason) in report.failed.items()
            },
            "open_elsewhere": len(report.open_elsewhere),
            "stopped": report.stopped,
            "manifest": None if self.manifest is None else str(self.manifest),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return it in words."""
        report = self.report
        found = [
            f"{report.step}: {counted(len(self.files), 'file')}, {format_size(self.size_bytes)} in"
            f" {self.output}"
        ]
        found += [
            f"  {kind}: {name}: {reason}"
            for name, (kind, reason) in list(report.failed.items())[:_SHOWN]
        ]
        if len(report.failed) > _SHOWN:
            found.append(f"  and {len(report.failed) - _SHOWN:,} more, all of them in --json")
        kinds: dict[str, int] = {}
        for kind, _ in report.failed.values():
            kinds[kind] = kinds.get(kind, 0) + 1
        if kinds:
            found.append(
                f"not done: {', '.join(f'{number:,} {kind}' for kind, number in kinds.items())};"
                " start again to try them again"
            )
        if report.open_elsewhere:
            found.append(
                f"{counted(len(report.open_elsewhere), 'file')} of other ranks not done yet; the"
                " last rank writes the manifest"
            )
        if report.stopped is not None:
            found.append(f"stopped: {report.stopped}")
        found += self.notes
        return found


def conclude(
    report: StepReport, *, output: Path, settings: Mapping[str, Any], notes: tuple[str, ...] = ()
) -> StepResult:
    """Return a step's result, and write the manifest when the step is complete."""
    files = tuple(_file_of(name, record) for name, record in report.records.items())
    if report.complete:
        write_manifest(output, step=report.step, settings=dict(settings), files=files)
    return StepResult(
        report=report,
        output=output,
        files=files,
        manifest=output / MANIFEST if report.complete else None,
        notes=notes,
    )


def _file_of(name: str, record: Record) -> FileRecord:
    known = {key: value for key, value in record.items() if key in _FILE_FIELDS}
    return FileRecord(**{"name": name, **known})
