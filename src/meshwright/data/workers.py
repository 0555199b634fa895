"""The processes in which a step's shards are done side by side: they end with the one that started
them, however that ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from meshwright.data.counters import Counts, SharedCounts, count_into

__all__ = ["Runner", "prepare_workers", "runner_of"]

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
