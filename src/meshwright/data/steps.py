"""One step over many shards: those of this rank, by one or several workers, each finished shard in
the journal before the next."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from meshwright.data.atomic import Journal, read_journals
from meshwright.data.counting import Counts, SharedCounts, count_into
from meshwright.data.progress import Progress, Totals
from meshwright.data.ranks import Place, share_of
from meshwright.values.errors import ConfigError, MeshwrightError

__all__ = [
    "STATE",
    "Record",
    "Runner",
    "ShardError",
    "ShardTask",
    "StepReport",
    "prepare_workers",
    "run_step",
    "runner_of",
    "state_folder",
]

Task = TypeVar("Task")
_LONGEST_FOLDER = 60
"""Of the folder for temporary files: the fork server's socket lies in it, and a socket's path may
have 107 bytes."""


class Runner(Protocol):
    """What does tasks and tells how far it is."""

    def counts(self) -> Counts:
        """Return what has been done so far."""

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        """Do tasks and yield each with what the function returned, as they end."""


def prepare_workers(
    modules: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Begin to import what workers will need, in a process of its own from which they are then
    forked; it goes on by itself.

    That process starts no threads and keeps no files open, so a fork of it is safe, and each worker
    begins where it is. The first call of a process counts, with what its environment says beside
    this process's own; modules that are not installed are left out.
    """
    if _method() == "forkserver":
        own = (
            ["meshwright.cli"] if "meshwright.cli" in sys.modules else []
        )  # each worker imports the program that started it
        get_context("forkserver").set_forkserver_preload([*own, *modules])
        with _born_deaf_to_interrupts():
            before = dict(os.environ)
            os.environ.update(environment)
            try:
                forkserver.ensure_running()
            finally:
                for name in environment:
                    del os.environ[name]
                os.environ.update(before)


@contextmanager
def _born_deaf_to_interrupts() -> Iterator[None]:
    """Let a process that is started here ignore Ctrl-C from its first moment; it ends with this
    one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _method() -> str:
    return "forkserver" if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER else "spawn"


class _Here:
    """Tasks one after the other in this process."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._cells = function, [0, 0, 0]
        count_into(self._cells, 0)

    def counts(self) -> Counts:
        size_bytes, documents, tokens = self._cells
        return Counts(size_bytes=size_bytes, documents=documents, tokens=tokens)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        for task in tasks:
            yield task, self._function(task)


class _Pool:
    """Tasks side by side in processes that end with this one."""

    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        context: BaseContext = get_context(_method())
        self._function, self._workers, self._counts = (
            function,
            workers,
            SharedCounts(context, workers),
        )
        shared = (self._counts.cells, self._counts.slots, dict(os.environ))
        self.pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin_worker, initargs=shared
        )

    def counts(self) -> Counts:
        return self._counts.read()

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        pending: dict[Future[Any], Task] = {}
        rest = iter(tasks)
        while True:
            while len(pending) < 2 * self._workers and (task := next(rest, None)) is not None:
                pending[self.pool.submit(self._function, task)] = task
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()


@contextmanager
def runner_of(function: Callable[[Any], Any], workers: int) -> Iterator[Runner]:
    """Give what does tasks by a function of a module: this process, or so many others."""
    if workers == 1:
        yield _Here(function)
        return
    runner = _Pool(function, workers)
    try:
        yield runner
    except BaseException:
        for process in list((runner.pool._processes or {}).values()):
            process.kill()  # what they were writing has no name yet
        raise
    finally:
        runner.pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(cells: Any, slots: Any, environment: Mapping[str, str]) -> None:
    """Set a worker up; it leaves Ctrl-C to its parent and ends when that ends, however that
    ends."""
    import gc

    gc.freeze()  # what was imported stays; to look through it again and again takes 3 % of the work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)  # the fork server may be older than what was set since
    count_into(cells, slots.get())
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


STATE = ".meshwright"
"""Folder beside a step's outputs for its frozen list and journals."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_ENDS_ALL = {*_FULL, errno.EROFS, errno.EIO, errno.ESTALE}
"""After these the other shards would fail as well."""

Record = Mapping[str, Any]
"""What is known of a finished shard, in JSON's types."""


class ShardError(MeshwrightError):
    """A shard that can't be done; the others go on, and the step ends with code 3."""

    def __init__(
        self, reason: str, kind: str = "failed"
    ) -> None:  # by position: so an exception comes back from a worker
        """Say why; `kind` is one word by which such shards are counted (`missing` for a file that
        does not exist)."""
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
    known = _known(state)
    mine = set(share_of([task.size_bytes for task in tasks], place))
    done = {
        task.name: known[task.name]
        for task in tasks
        if task.name in known and still_there(task, known[task.name])
    }
    ours = [tasks[i] for i in sorted(mine)]
    if after is not None:
        for task in ours:
            if task.name in done:
                after(task, done[task.name])
    todo = sorted(
        (task for task in ours if task.name not in done), key=lambda task: -_rough(task.size_bytes)
    )
    failed, stopped = _do(
        step,
        ours,
        todo,
        work,
        state=state,
        place=place,
        workers=workers,
        done=done,
        after=after,
        progress=progress,
    )
    if len(done) + len(failed) < len(
        tasks
    ):  # ranks that ran meanwhile: of those that end together, one sees the records of all
        known = _known(state)
        others = [
            task
            for i, task in enumerate(tasks)
            if i not in mine and task.name not in done and task.name in known
        ]
        done |= {
            task.name: known[task.name] for task in others if still_there(task, known[task.name])
        }
    elsewhere = [
        task.name for i, task in enumerate(tasks) if i not in mine and task.name not in done
    ]
    records = {task.name: done[task.name] for task in tasks if task.name in done}
    return StepReport(
        step=step,
        place=place,
        records=records,
        failed=failed,
        open_elsewhere=tuple(elsewhere),
        stopped=stopped,
    )


def _rough(size_bytes: int) -> int:
    """Return a size by its first four binary digits, so that shards of about one size are done in
    their order."""
    dropped = max(0, size_bytes.bit_length() - 4)
    return size_bytes >> dropped << dropped


def _known(state: Path) -> dict[str, Record]:
    """Return the last record of each shard."""
    return {
        str(record["shard"]): record
        for record in read_journals(state / "journal")
        if "shard" in record
    }


def _do(
    step: str,
    ours: Sequence[ShardTask],
    todo: Sequence[ShardTask],
    work: Callable[[Any], Record],
    *,
    state: Path,
    place: Place,
    workers: int,
    done: dict[str, Record],
    after: Callable[[Any, Record], None] | None,
    progress: bool,
) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Do the shards; new records go to `done`."""
    failed: dict[str, tuple[str, str]] = {}
    if not todo:
        return failed, None
    workers = min(workers, len(todo))
    if workers > 1:
        prepare_workers([work.__module__])
    open_bytes = sum(task.size_bytes for task in todo)
    all_bytes = sum(task.size_bytes for task in ours)
    title = step if place.world_size == 1 else f"{step} (rank {place.rank} of {place.world_size})"
    totals = Totals(
        title=title,
        files=len(ours),
        size_bytes=all_bytes,
        done_files=len(ours) - len(todo),
        done_bytes=all_bytes - open_bytes,
    )
    finished = 0
    try:
        with (
            Journal(state / "journal", place) as journal,
            runner_of(partial(_attempt, work), workers) as runner,
            _shown(Progress(totals, lambda: (finished, runner.counts())), progress),
        ):
            for task, outcome in runner.outcomes(todo):
                finished += 1
                if isinstance(outcome, ShardError):
                    failed[task.name] = (outcome.kind, outcome.reason)
                    continue
                record = {"shard": task.name, **outcome}
                journal.append(record)
                done[task.name] = record
                if after is not None:
                    after(task, record)
    except BrokenProcessPool:
        return (
            failed,
            (
                "a worker was killed, most likely for want of memory; start again with fewer"
                " workers to go on"
            ),
        )
    except OSError as error:
        if error.errno not in _ENDS_ALL:
            raise
        where = f"{error.filename}: " if error.filename else ""
        advice = (
            "free some space and start again to go on"
            if error.errno in _FULL
            else "start again to go on"
        )
        return failed, f"{where}{error.strerror}; {advice}"
    return failed, None


@contextmanager
def _shown(progress: Progress, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with progress:
        yield


def _attempt(work: Callable[[Any], Record], task: Any) -> Record | ShardError:
    try:
        return work(task)
    except ShardError as error:
        return error
