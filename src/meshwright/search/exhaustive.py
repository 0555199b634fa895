"""Price every layout of a space and keep the best few."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.step import price
from meshwright.layout import Layouts
from meshwright.search.problem import Problem
from meshwright.search.space import Rejections, Space, chunks

__all__ = ["Found", "Harvest", "search_space"]

KEPT = 512
"""Best layouts kept on the way; many differ in recomputation only, of which one a group is shown."""
WORKERS = 2
"""Chunks priced at once: numpy leaves the interpreter free while it computes."""

LARGE_BYTES = 31 * 2**20
"""Just below the largest block that glibc's malloc serves from its heap (DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB on 64 bits)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Layouts with the figures they are ranked by, (N,) each."""

    layouts: Layouts
    key: Floats
    """Smaller is better: seconds per sequence, or bytes."""
    used_bytes: Floats

    def __len__(self) -> int:
        return len(self.key)

    def best(self, count: int) -> Found:
        """Return the best `count` rows, best first, equals in their order."""
        return self.take(np.argsort(self.key, kind="stable")[:count])

    def take(self, index: Any) -> Found:
        """Return some rows."""
        return Found(layouts=self.layouts.take(index), key=self.key[index], used_bytes=self.used_bytes[index])

    def and_also(self, other: Found) -> Found:
        """Return the rows of both, and of more than KEPT the best."""
        if len(self) >= KEPT and other.key[0] >= self.key[-1]:
            return self
        both = Found(
            layouts=Layouts.concat((self.layouts, other.layouts)),
            key=np.concatenate((self.key, other.key)),
            used_bytes=np.concatenate((self.used_bytes, other.used_bytes)),
        )
        return both.best(KEPT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Harvest:
    """What a search, or one chunk of it, brought: each part best first, None where there is none."""

    priced: int
    """Layouts priced."""
    fitting: Found | None
    """Those that leave the headroom free."""
    at_risk: Found | None
    """Those that need a part of the headroom."""
    misses: Found | None
    """Those that do not fit, by the memory they need."""
    too_large: int
    """Layouts that do not fit."""

    def and_also(self, other: Harvest) -> Harvest:
        """Return the best of both."""
        return Harvest(
            priced=self.priced + other.priced,
            fitting=_either(self.fitting, other.fitting),
            at_risk=_either(self.at_risk, other.at_risk),
            misses=_either(self.misses, other.misses),
            too_large=self.too_large + other.too_large,
        )


def _either(one: Found | None, other: Found | None) -> Found | None:
    return one.and_also(other) if one is not None and other is not None else one or other


def search_space(problem: Problem, space: Space, rejections: Rejections, *, progress: Callable[[int, int], None] | None = None) -> Harvest:
    """Price all layouts; `progress` is told how many are done and a bound of all."""
    _keep_pages()
    found = Harvest(priced=0, fitting=None, at_risk=None, misses=None, too_large=0)
    for part in _in_order(problem, chunks(space, rejections)):
        found = found.and_also(part)
        if progress is not None:
            progress(found.priced, space.size_bound)
    rejections.add("memory: more than a chip has", found.too_large)
    return found


def _keep_pages() -> None:
    """Free one large, untouched block: glibc then keeps freed columns for the next chunk, instead of returning their pages each time.

    Without it a third of the time goes into page faults (measured by `benchmarks/plan.py`); other allocators do not mind.
    """
    np.empty(LARGE_BYTES, dtype=np.uint8)


def _in_order(problem: Problem, pieces: Iterator[Layouts]) -> Iterator[Harvest]:
    """Price pieces in WORKERS threads, a few ahead, and yield the outcomes in their order, so that ties never depend on timing."""
    waiting: deque[Future[Harvest]] = deque()
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        for piece in pieces:
            waiting.append(pool.submit(_harvest, problem, piece))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _harvest(problem: Problem, layouts: Layouts) -> Harvest:
    setting = problem.setting
    priced = price(layouts, model=setting.model, pool=setting.pool, work=setting.work, stack=setting.stack)
    used = priced.peak_used_bytes
    key = used if problem.request.objective == "memory" else priced.step_s / layouts.gbs
    fits, free = used <= setting.limit_bytes, used <= setting.limit_bytes - problem.headroom_bytes

    def part(rows: NDArray[np.bool_], by: Floats, count: int) -> Found | None:
        index = np.flatnonzero(rows)
        if not len(index):
            return None
        if len(index) > count:
            index = index[np.sort(np.argpartition(by[index], count)[:count])]
        return Found(layouts=layouts.take(index), key=by[index], used_bytes=used[index]).best(count)

    return Harvest(
        priced=len(layouts),
        fitting=part(free, key, KEPT),
        at_risk=part(fits & ~free, key, KEPT),
        misses=part(~fits, used, 1),
        too_large=int(np.count_nonzero(~fits)),
    )
