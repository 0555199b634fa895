"""Who does a step's shards, and how far it is: this process's rank among several, its workers,
counts that they share, and a line for people."""

from __future__ import annotations

import heapq
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from types import MappingProxyType
from typing import Any, Protocol, Self, TextIO, TypeVar

from meshwright.values.errors import ConfigError
from meshwright.values.units import DAY_S, GB, HOUR_S, MINUTE_S, TERA, counted, format_count

__all__ = [
    "ALONE",
    "Counts",
    "Place",
    "Progress",
    "Runner",
    "SharedCounts",
    "Totals",
    "count",
    "count_into",
    "find_place",
    "format_size",
    "format_span",
    "prepare_workers",
    "runner_of",
    "share_of",
]

_FIELDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What has been done so far."""

    size_bytes: int = 0
    documents: int = 0
    tokens: int = 0


class SharedCounts:
    """Three counts per worker in shared memory; only it writes them: a killed one blocks nobody."""

    def __init__(self, context: BaseContext, workers: int) -> None:
        self.cells: Any = context.RawArray("q", _FIELDS * workers)
        self.slots: Any = context.SimpleQueue()
        for worker in range(workers):
            self.slots.put(worker)

    def read(self) -> Counts:
        size_bytes, documents, tokens = (
            sum(self.cells[field::_FIELDS]) for field in range(_FIELDS)
        )
        return Counts(size_bytes=size_bytes, documents=documents, tokens=tokens)


_cells: Any = [0] * _FIELDS
_at = 0


def count_into(cells: Any, slot: int) -> None:
    """Say where the counts of this process go."""
    global _cells, _at
    _cells, _at = cells, slot * _FIELDS


def count(*, size_bytes: int = 0, documents: int = 0, tokens: int = 0) -> None:
    """Add to the shard at hand: input bytes read, documents and tokens written."""
    _cells[_at] += size_bytes
    _cells[_at + 1] += documents
    _cells[_at + 2] += tokens


PLAIN_EVERY_S = 30.0
"""Between two lines in a log: an hour makes 120 of them."""
LIVE_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """What this process has to do, and what earlier starts did of it."""

    title: str
    files: int
    size_bytes: int
    done_files: int = 0
    done_bytes: int = 0


class Progress:
    """Prints while a block runs; `read` returns files and counts of this start."""

    def __init__(
        self,
        totals: Totals,
        read: Callable[[], tuple[int, Counts]],
        *,
        stream: TextIO | None = None,
    ) -> None:
        self.totals, self._read = totals, read
        self._stream = stream or sys.stderr
        self._live: Any = None
        self._begin_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def line(self) -> str:
        files, counts = self._read()
        return progress_line(self.totals, files, counts, elapsed_s=time.monotonic() - self._begin_s)

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(file=self._stream),
                get_renderable=self._text,
                refresh_per_second=1 / LIVE_EVERY_S,
            )
            self._live.start()
        else:
            self._thread.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._over.set()
        if self._live is not None:
            self._live.stop()
            return
        self._thread.join()
        print(self.line(), file=self._stream, flush=True)

    def _text(self) -> Any:
        from rich.text import Text

        return Text(self.line(), overflow="ellipsis", no_wrap=True)

    def _watch(self) -> None:
        while not self._over.wait(PLAIN_EVERY_S):
            print(self.line(), file=self._stream, flush=True)


def progress_line(totals: Totals, files: int, counts: Counts, *, elapsed_s: float) -> str:
    """Return files, bytes, rates, and the time left by bytes, or by files without sizes."""
    all_files, all_bytes = totals.done_files + files, totals.done_bytes + counts.size_bytes
    if totals.size_bytes:
        all_bytes = min(all_bytes, totals.size_bytes)
    of_bytes = f"/{format_size(totals.size_bytes)}" if totals.size_bytes else ""
    head = f"{totals.title}: {all_files:,}/{counted(totals.files, 'file')}"
    parts = [head, f"{format_size(all_bytes)}{of_bytes}"]
    if elapsed_s > 0:
        parts.append(f"{format_size(counts.size_bytes / elapsed_s)}/s")
        if counts.tokens:
            parts.append(f"{format_count(counts.tokens / elapsed_s)} tokens/s")
    did, left = files, totals.files - all_files
    if totals.size_bytes:
        did, left = counts.size_bytes, totals.size_bytes - all_bytes
    if left > 0 and did > 0 and all_files < totals.files:
        parts.append(f"{format_span(elapsed_s * left / did)} left")
    return ", ".join(parts)


def format_size(size_bytes: float) -> str:
    """Write bytes on a disk in three digits, decimal, as disks are sold: `947 GB`."""
    for unit, size in (("TB", TERA), ("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= 0.9995 * size:
            digits = ".3g" if size_bytes < 999.5 * size else ",.0f"
            return f"{size_bytes / size:{digits}} {unit}"
    return f"{size_bytes:.0f} B"


def format_span(seconds: float) -> str:
    """Write a time that is left with two units at most: `2d03h`, `4h07m`, `12m`, `40s`."""
    if seconds >= DAY_S:
        return f"{seconds // DAY_S:.0f}d{seconds % DAY_S // HOUR_S:02.0f}h"
    if seconds >= HOUR_S:
        return f"{seconds // HOUR_S:.0f}h{seconds % HOUR_S // MINUTE_S:02.0f}m"
    return f"{seconds / MINUTE_S:.0f}m" if seconds >= 2 * MINUTE_S else f"{seconds:.0f}s"


_PAIRS = (
    ("RANK", ("WORLD_SIZE",)),
    ("NODE_RANK", ("NNODES",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("JOB_COMPLETION_INDEX", ("JOB_COMPLETIONS", "WORLD_SIZE")),
    ("NGC_ARRAY_INDEX", ("NGC_ARRAY_SIZE",)),
)
"""Rank and number of ranks by platform, the first pair that is set wins: torchrun and bcprun, our
own job scripts, Slurm's srun, Open MPI, an indexed Job of Kubernetes (which has no variable for the
number of its pods: set JOB_COMPLETIONS), an array of Base Command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where this process stands among those that share a step."""

    rank: int
    """From 0."""
    world_size: int
    source: str
    """The variables that said so, or why there are none."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"{self.source}: rank {self.rank} of {self.world_size}: expected a rank from 0 to"
                f" {self.world_size - 1}"
            )


ALONE = Place(rank=0, world_size=1, source="one process")


def find_place(environment: Mapping[str, str]) -> Place:
    """Read rank and number of ranks from the environment; one process where none is set. The shell
    of a Slurm batch script has a rank and a number of tasks too, but is no task: without srun it
    does all the work. ConfigError for a rank without the number of ranks, or one that is no
    number."""
    for rank_name, size_names in _PAIRS:
        in_vain = rank_name == "SLURM_PROCID" and _is_batch_shell(environment)
        if rank_name not in environment or in_vain:
            continue
        size_name = next((name for name in size_names if name in environment), None)
        if size_name is None:
            raise ConfigError(
                f"{rank_name}={environment[rank_name]} is set without {size_names[0]}: set it to"
                " the number of processes"
            )
        rank, size = (_number(environment, name) for name in (rank_name, size_name))
        source = f"{rank_name}={environment[rank_name]} {size_name}={environment[size_name]}"
        return Place(rank=rank, world_size=size, source=source)
    return ALONE


def _is_batch_shell(environment: Mapping[str, str]) -> bool:
    of_step = {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"}
    return "SLURM_JOB_ID" in environment and not of_step & environment.keys()


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ConfigError(f"{name}={environment[name]}: expected a whole number") from None


def share_of(sizes: Sequence[int], place: Place) -> list[int]:
    """Return the indices of this rank's shards, ascending: largest first, each to the rank with the
    fewest bytes so far. A pure function of sizes and place, so that ranks agree without talking. An
    empty shard counts as one byte, so that many spread too."""
    heap = [(0, rank) for rank in range(place.world_size)]
    mine = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        total, rank = heap[0]
        heapq.heapreplace(heap, (total + max(1, sizes[index]), rank))
        if rank == place.rank:
            mine.append(index)
    return sorted(mine)


Task = TypeVar("Task")
_LONGEST_FOLDER = 60
"""Of the temporary folder: the fork server's socket lies in it, and may have 107 bytes."""


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
    forked; it goes on by itself. That process starts no threads and keeps no files open, so a fork
    of it is safe, and each worker begins where it is. The first call of a process counts, with what
    its environment says beside this process's own; modules that are not installed are left out."""
    if _method() == "forkserver":
        # each worker imports the program that started it
        own = ["meshwright.cli"] if "meshwright.cli" in sys.modules else []
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
    """Let a process that is started here ignore Ctrl-C from its first moment."""
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
        self._function, self._workers = function, workers
        self._counts = SharedCounts(context, workers)
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
    """Set a worker up; it leaves Ctrl-C to its parent and ends whenever that ends."""
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
