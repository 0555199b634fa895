"""Collectives among the processes that torchrun started; every process calls this."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from meshwright.trainer.profile.design import DIMS, Device, grid
from meshwright.trainer.profile.timing import Bench, Operator, Tensor, Work, spread_frac
from meshwright.values.hardware.profile import Effort, Sample, Series

__all__ = [
    "NOT_STARTED",
    "collective_series",
    "copy_operators",
    "is_first_rank",
    "launch_operators",
    "num_ranks",
]

_LAUNCHES = 200
"""In a row; a CUDA stream queues about a thousand before the host has to wait."""
_TINY = 256
"""Elements of a kernel that does next to nothing."""


def copy_operators(bench: Bench) -> Iterator[Operator]:
    """Give copies inside device memory, and on a GPU from and to the host's pinned memory."""
    kind = bench.device.kind

    def copy(size: int, *, source: str, target: str) -> Work:
        def tensor(place: str) -> Tensor:
            pinned = place == "cpu" and kind == "cuda"
            empty = torch.empty(size // 4, dtype=torch.float32, device=place, pin_memory=pinned)
            return empty.zero_()

        origin, goal = tensor(source), tensor(target)
        return lambda: goal.copy_(origin, non_blocking=True)

    kinds = [("device", kind, kind)]
    if kind == "cuda":
        kinds += [("to_device", "cpu", "cuda"), ("to_host", "cuda", "cpu")]
    for name, source, target in kinds:
        build = partial(copy, source=source, target=target)
        yield bench.operator(
            f"copy/{name}", "bytes", build=build, need_bytes=lambda size: 2.0 * size
        )


def launch_operators(device: Device) -> Iterator[Operator]:
    """Give the host's time per operation, alone and with autograd, a row of each; on a GPU the
    device's per empty kernel, on a processor that of one operation whose code and data are in no
    cache, as behind the arithmetic of a step."""

    def plain(count: int) -> Work:
        tiny = torch.zeros(_TINY, device=device.kind)

        def run() -> None:
            for _ in range(count):
                tiny.add_(1.0)

        return run

    def with_autograd(count: int) -> Work:
        tiny = torch.zeros(_TINY, device=device.kind, requires_grad=True)

        def run() -> None:
            result = tiny
            for _ in range(count // 2):
                result = result * 1.0
            result.backward(tiny.detach())

        return run

    def single(_: int) -> Work:
        tiny = torch.zeros(_TINY, device=device.kind, requires_grad=True)
        return lambda: tiny * 1.0

    def operator(name: str, build: Callable[[int], Work], count: int, **words: Any) -> Operator:
        return Operator(
            name=f"launch/{name}",
            family="launch",
            dims=("operations",),
            axes=((count,),),
            build=build,
            need_bytes=lambda count: 4.0 * _TINY,
            **words,
        )

    yield operator("host", plain, _LAUNCHES, clock="host", caches="warm")
    yield operator("autograd", with_autograd, _LAUNCHES, clock="host", caches="warm")
    if device.kind == "cuda":
        yield operator("device", plain, _LAUNCHES, caches="warm")
    else:
        yield operator("cold", single, 1)


NOT_STARTED = (
    "one process: run `torchrun --nproc-per-node N -m meshwright profile ...` to measure"
    " collectives"
)
_REPEATS = {"cuda": 20, "cpu": 40}
"""The same number on every rank, or they would wait for each other in vain."""
_WARM = 3
_OWN_WORK = (512, 256, 688)
"""Rows, inner dim and columns of a product that each processor computes before an exchange: 0.2
GFLOP, a few milliseconds, as a layer of a small model does between two. Processes never end theirs
together, and gloo's threads find their caches and cores taken: in a step of two processes that is
most of what a short exchange takes."""
_STRAYS_FRAC = 0.1
"""Of a processor's repeats, the longest, which do not count; a step waits for each of the
others."""
_MESSAGE = "point_to_point"
_MOST_BYTES = 2**30
_TIMEOUT = timedelta(minutes=5)


def is_first_rank() -> bool:
    """Whether this process measures all and writes; others only take part in collectives."""
    return os.environ.get("RANK", "0") == "0"


def num_ranks() -> int:
    """Processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def collective_series(device: Device, *, effort: Effort) -> list[Series]:
    """Return times of all collectives among 2, 4, ... and all ranks, and messages of two."""
    dist.init_process_group("nccl" if device.kind == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        world = dist.get_world_size()
        counts = [*(2**power for power in range(1, 20) if 2**power < world), world]
        groups = {ranks: dist.new_group(list(range(ranks))) for ranks in counts}
        every = grid("message", device=device.kind, effort=effort)[0]
        sizes = [size for size in every if size <= _MOST_BYTES]
        found = [_series(op, device=device, groups=groups, sizes=sizes) for op in _OPS]
        return [*found, _series(_MESSAGE, device=device, groups={2: groups[2]}, sizes=sizes)]
    finally:
        dist.destroy_process_group()


def _series(op: str, *, device: Device, groups: dict[int, Any], sizes: list[int]) -> Series:
    samples, make = [], _OPS.get(op, _point_to_point)
    for ranks, group in groups.items():
        for size in sizes:
            dist.barrier()
            if dist.get_rank() < ranks:
                work = make(size // 4 // ranks * ranks, ranks, group, device.kind)
                samples.append(
                    _sample(work, point=(ranks, size), device=device, there_and_back=op == _MESSAGE)
                )
    return Series(
        name=f"collective/{op}",
        dims=DIMS["message"],
        axes=(tuple(groups), tuple(sizes)),
        samples=tuple(samples),
    )


def _sample(
    work: Callable[[], Any], *, point: tuple[int, int], device: Device, there_and_back: bool
) -> Sample:
    times, own_work = [], _own_work(device)
    try:
        for _ in range(_WARM + _REPEATS[device.kind]):
            own_work()
            device.synchronise()
            start = perf_counter()
            work()
            device.synchronise()
            times.append(perf_counter() - start)
    except RuntimeError:  # gloo lacks some
        return Sample(point=point, outcome="not supported")
    counted = [(0.5 if there_and_back else 1.0) * seconds for seconds in times[_WARM:]]
    seconds = (
        median(counted)
        if device.kind == "cuda"
        else fmean(sorted(counted)[: round(len(counted) * (1.0 - _STRAYS_FRAC))])
    )
    return Sample(
        point=point, seconds=seconds, spread_frac=spread_frac(counted), repeats=len(counted)
    )


def _own_work(device: Device) -> Callable[[], Any]:
    """What a rank does between exchanges; nothing on a GPU, where the host only launches."""
    if device.kind == "cuda":
        return lambda: None
    rows, inner, columns = _OWN_WORK
    left, right = torch.ones(rows, inner), torch.ones(inner, columns)
    return lambda: torch.mm(left, right)


def _all_reduce(elements: int, ranks: int, group: Any, place: str) -> Callable[[], Any]:
    whole = torch.zeros(elements, device=place)
    return lambda: dist.all_reduce(whole, group=group)


def _all_gather(elements: int, ranks: int, group: Any, place: str) -> Callable[[], Any]:
    whole, part = torch.zeros(elements, device=place), torch.zeros(elements // ranks, device=place)
    # the newer name first
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return lambda: gather(whole, part, group=group)


def _reduce_scatter(elements: int, ranks: int, group: Any, place: str) -> Callable[[], Any]:
    whole, part = torch.zeros(elements, device=place), torch.zeros(elements // ranks, device=place)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: scatter(part, whole, group=group)


def _all_to_all(elements: int, ranks: int, group: Any, place: str) -> Callable[[], Any]:
    sent, received = torch.zeros(elements, device=place), torch.zeros(elements, device=place)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _point_to_point(elements: int, ranks: int, group: Any, place: str) -> Callable[[], Any]:
    """A message there and back."""
    whole, other = torch.zeros(elements, device=place), 1 - dist.get_rank(group)

    def there_and_back() -> None:
        for sends in (other == 1, other == 0):
            if sends:
                dist.send(whole, group_dst=other, group=group)
            else:
                dist.recv(whole, group_src=other, group=group)

    return there_and_back


_OPS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
