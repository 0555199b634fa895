"""This machine's cores as a cluster, probed by numpy in two seconds to begin a study with."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

from meshwright.values.hardware.profile import Machine, Profile, Sample, Series

__all__ = ["ON_PROCESSORS", "probed_processors"]

ON_PROCESSORS = {"seq_len": 128, "gbs": 8, "precision": "fp32"}
"""What a study on processors trains unless the user says otherwise: a step of tiny-llama takes half
a second on two cores."""

_ROWS, _WIDTHS = (256.0, 2048.0), (128.0, 256.0, 1024.0)
_COPY_BYTES = 2**25
"""Beyond what a core's caches hold."""
_PROBE_S = 0.06
_HOST_S = 1e-5
"""Host time of one operator, of the order that `meshwright profile` finds on 2 cores."""


def probed_processors(*, cores: int | None = None) -> Profile:
    """Return the cores that this process may use (or the first few) as devices, one process each,
    with times of fp32 products and copies.

    numpy computes on all cores together; a process of one core is taken to need as many times
    longer as there are cores.
    """
    import numpy as np

    count = min(cores or _num_cores(), _num_cores())
    wide = float(_num_cores())
    products = [
        Sample(point=(m, n, k), seconds=wide * _product_s(int(m), int(n), int(k)), repeats=1)
        for m, n, k in product(_ROWS, _WIDTHS, _WIDTHS)
    ]
    block, copy = np.ones(_COPY_BYTES, dtype=np.int8), np.empty(_COPY_BYTES, dtype=np.int8)
    copied_s = wide * _seconds(lambda: np.copyto(copy, block))
    gemm = Series(
        name="gemm/fp32",
        dims=("m", "n", "k"),
        axes=(_ROWS, _WIDTHS, _WIDTHS),
        samples=tuple(products),
    )
    series = (
        *(gemm, replace(gemm, name="gemm/bf16")),
        _one("copy/device", "bytes", float(_COPY_BYTES), seconds=copied_s, repeats=1),
        _one("launch/host", "kernels", 1.0, seconds=_HOST_S),
    )
    return Profile(machine=_machine(count), effort="quick", complete=False, series=series)


def _one(name: str, dim: str, size: float, **measured: Any) -> Series:
    """A series of one sample."""
    sample = Sample(point=(size,), **measured)
    return Series(name=name, dims=(dim,), axes=((size,),), samples=(sample,))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _product_s(m: int, n: int, k: int) -> float:
    import numpy as np

    left, right = np.ones((m, k), dtype=np.float32), np.ones((k, n), dtype=np.float32)
    return _seconds(lambda: left @ right)


def _seconds(work: Callable[[], object]) -> float:
    """The least time of one call, so that what else runs here does not count."""
    work()
    times: list[float] = []
    end = time.perf_counter() + _PROBE_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _machine(count: int) -> Machine:
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / count
    return Machine(
        device="cpu",
        device_name=f"{platform.machine()} core",
        num_devices=count,
        total_bytes=memory,
        usable_bytes=memory,
        platform=platform.platform(),
        num_threads=1,
        torch_version="none (numpy)",
        python_version=platform.python_version(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
