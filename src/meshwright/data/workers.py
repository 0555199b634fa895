"""Who does a step's shards: this process's rank among several, and its worker processes."""

from __future__ import annotations

import heapq
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from meshwright.data.progress import Counts, SharedCounts, count_into
from meshwright.values.errors import ConfigError

__all__ = ["ALONE", "Place", "Runner", "find_place", "prepare_workers", "runner_of", "share_of"]

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
