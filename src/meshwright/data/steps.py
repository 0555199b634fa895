"""One step over many shards: this rank's, by workers, each journalled before the next."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from meshwright.data.atomic import Journal, read_journals
from meshwright.data.listing import MANIFEST, FileRecord, sha256_of, write_manifest
from meshwright.data.workers import (
    Place,
    Progress,
    Totals,
    find_place,
    format_size,
    prepare_workers,
    runner_of,
    share_of,
)
from meshwright.values.errors import ConfigError, MeshwrightError
from meshwright.values.units import counted

__all__ = [
    "STATE",
    "Record",
    "ShardError",
    "ShardTask",
    "StepReport",
    "StepResult",
    "conclude",
    "is_written",
    "require_read_back",
    "run_step",
    "run_to_manifest",
    "state_folder",
]

STATE = ".meshwright"
"""Folder beside a step's outputs for its frozen list and journals."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_ENDS_ALL = {*_FULL, errno.EROFS, errno.EIO, errno.ESTALE}
"""After these the other shards would fail as well."""

Record = Mapping[str, Any]
"""What is known of a finished shard, in JSON's types."""


class ShardError(MeshwrightError):
    """A shard that can't be done; the others go on, and the step ends with code 3."""

    # by position: so an exception comes back from a worker
    def __init__(self, reason: str, kind: str = "failed") -> None:
        """Say why; `kind` is the word by which such shards are counted, such as `missing`."""
        super().__init__(reason, kind)
        self.reason, self.kind = reason, kind

    def __str__(self) -> str:
        return self.reason


class ShardTask(Protocol):
    """What one shard is; it travels to a worker, so it is small and can be pickled."""

    @property
    def name(self) -> str:
        """What it is called in the journal: the same at every start, and no other's of the step."""

    @property
    def size_bytes(self) -> int:
        """Of its input: ranks and workers share by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What a step has come to, over all starts and, as far as the journals tell, all ranks."""

    step: str
    place: Place
    records: dict[str, Record]
    """Of finished shards by name, in the order of the step's shards."""
    failed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Shards of this start that can't be done: kind and reason by name."""
    open_elsewhere: tuple[str, ...] = ()
    """Shards that other ranks have still to finish."""
    stopped: str | None = None
    """Why the step could not go on; what is done is kept."""

    @property
    def complete(self) -> bool:
        """Whether every shard of every rank is done."""
        return not self.failed and not self.open_elsewhere and self.stopped is None

    @property
    def exit_code(self) -> int:
        """0 where this rank's share is done, else 3."""
        return 3 if self.failed or self.stopped is not None else 0


def state_folder(output: Path, step: str) -> Path:
    """Return where a step keeps its list and journals; `output` is the folder of its outputs."""
    return output / STATE / step


def run_step(
    step: str,
    tasks: Sequence[ShardTask],
    work: Callable[[Any], Record],
    *,
    state: Path,
    place: Place,
    workers: int = 1,
    still_there: Callable[[Any, Record], bool],
    after: Callable[[Any, Record], None] | None = None,
    progress: bool = True,
) -> StepReport:
    """Do this rank's shards that no journal has as done: those of about one size in their order,
    the largest first.

    `work` gets a task, writes its outputs whole (`atomic.writing`) and returns the record;
    ShardError fails that shard alone. It must write the same bytes for the same task at any time,
    be a function of a module, and tell `counters.count` how far it is. `still_there` says whether
    the outputs of a record are where they were; if not, the shard is done again. `after` runs in
    this process for each finished shard of this rank, also of earlier starts, when its record is on
    the disk: the place to remove what the shard replaces. It must not mind that it was done before.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}: expected 1 or more")
    mine = set(share_of([task.size_bytes for task in tasks], place))
    done = _done(tasks, state, still_there)
    ours = [tasks[i] for i in sorted(mine)]
    if after is not None:
        for task in ours:
            if task.name in done:
                after(task, done[task.name])
    todo = [task for task in ours if task.name not in done]
    todo.sort(key=lambda task: -_rough(task.size_bytes))
    totals = _totals(step, ours, todo, place)

    def keep(task: ShardTask, record: Record) -> None:
        done[task.name] = record
        if after is not None:
            after(task, record)

    failed, stopped = _do(todo, work, keep, totals if progress else None, state, place, workers)
    others = [task for i, task in enumerate(tasks) if i not in mine and task.name not in done]
    if others:  # of ranks that end together, one sees the records of all
        done |= _done(others, state, still_there)
    return StepReport(
        step=step,
        place=place,
        records={task.name: done[task.name] for task in tasks if task.name in done},
        failed=failed,
        open_elsewhere=tuple(task.name for task in others if task.name not in done),
        stopped=stopped,
    )


def is_written(task: Any, record: Record) -> bool:
    """Whether a task's one output is there with its size."""
    path: Path = task.output
    return path.exists() and path.stat().st_size == int(record["size_bytes"])


def require_read_back(output: Path, sha256: str, *, kept: str) -> None:
    """Read an output back; ShardError where it is not what was written, and `kept` stays."""
    if sha256_of(output) != sha256:
        reason = f"{output}: read back, it is not what was written; {kept}"
        raise ShardError(reason, "verification")


def _rough(size_bytes: int) -> int:
    """Return a size by its first four bits, so that shards of about one size keep their order."""
    dropped = max(0, size_bytes.bit_length() - 4)
    return size_bytes >> dropped << dropped


def _done(
    tasks: Sequence[ShardTask], state: Path, still_there: Callable[[Any, Record], bool]
) -> dict[str, Record]:
    """Return the last record of each shard that is still there."""
    known = {str(row["shard"]): row for row in read_journals(state / "journal") if "shard" in row}
    pairs = [(task, known[task.name]) for task in tasks if task.name in known]
    return {task.name: record for task, record in pairs if still_there(task, record)}


def _totals(
    step: str, ours: Sequence[ShardTask], todo: Sequence[ShardTask], place: Place
) -> Totals:
    all_bytes = sum(task.size_bytes for task in ours)
    rank = f" (rank {place.rank} of {place.world_size})" if place.world_size > 1 else ""
    return Totals(
        title=f"{step}{rank}",
        files=len(ours),
        size_bytes=all_bytes,
        done_files=len(ours) - len(todo),
        done_bytes=all_bytes - sum(task.size_bytes for task in todo),
    )


def _do(
    todo: Sequence[ShardTask],
    work: Callable[[Any], Record],
    keep: Callable[[ShardTask, Record], None],
    totals: Totals | None,
    state: Path,
    place: Place,
    workers: int,
) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Do the shards and `keep` what is known of each; return what failed, and what ended it."""
    failed: dict[str, tuple[str, str]] = {}
    if not todo:
        return failed, None
    workers = min(workers, len(todo))
    if workers > 1:
        prepare_workers([work.__module__])
    finished = 0
    try:
        with (
            Journal(state / "journal", place) as journal,
            runner_of(partial(_attempt, work), workers) as runner,
            Progress(totals, lambda: (finished, runner.counts())) if totals else nullcontext(),
        ):
            for task, outcome in runner.outcomes(todo):
                finished += 1
                if isinstance(outcome, ShardError):
                    failed[task.name] = (outcome.kind, outcome.reason)
                    continue
                record = {"shard": task.name, **outcome}
                journal.append(record)
                keep(task, record)
    except BrokenProcessPool:
        cause = "a worker was killed, most likely for want of memory"
        return failed, f"{cause}; start again with fewer workers to go on"
    except OSError as error:
        if error.errno not in _ENDS_ALL:
            raise
        where = f"{error.filename}: " if error.filename else ""
        advice = "free some space and " if error.errno in _FULL else ""
        return failed, f"{where}{error.strerror}; {advice}start again to go on"
    return failed, None


def _attempt(work: Callable[[Any], Record], task: Any) -> Record | ShardError:
    try:
        return work(task)
    except ShardError as error:
        return error


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
        return sum(file.size_bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
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
        report = self.report
        found = [
            f"{report.step}: {counted(len(self.files), 'file')}, {format_size(self.size_bytes)} in"
            f" {self.output}"
        ]
        shown = islice(report.failed.items(), _SHOWN)
        found += [f"  {kind}: {name}: {reason}" for name, (kind, reason) in shown]
        if len(report.failed) > _SHOWN:
            found.append(f"  and {len(report.failed) - _SHOWN:,} more, all of them in --json")
        kinds = Counter(kind for kind, _ in report.failed.values())
        if kinds:
            counts = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
            found.append(f"not done: {counts}; start again to try them again")
        if report.open_elsewhere:
            found.append(
                f"{counted(len(report.open_elsewhere), 'file')} of other ranks not done yet; the"
                " last rank writes the manifest"
            )
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


def run_to_manifest(
    step: str,
    tasks: Sequence[ShardTask],
    work: Callable[[Any], Record],
    *,
    output: Path,
    settings: Mapping[str, Any],
    place: Place | None,
    notes_of: Callable[[StepReport], tuple[str, ...]] = lambda _: (),
    still_there: Callable[[Any, Record], bool] = is_written,
    **options: Any,
) -> StepResult:
    """Run a step whose outputs lie in one folder, and conclude it; `options` as of `run_step`."""
    report = run_step(
        step,
        tasks,
        work,
        state=state_folder(output, step),
        place=place or find_place(os.environ),
        still_there=still_there,
        **options,
    )
    return conclude(report, output=output, settings=settings, notes=notes_of(report))


def _file_of(name: str, record: Record) -> FileRecord:
    known = {key: value for key, value in record.items() if key in _FILE_FIELDS}
    return FileRecord(**{"name": name, **known})
