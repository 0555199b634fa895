"""Copies, and what a launch costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch

from meshwright.hardware.profile import Effort
from meshwright.trainer.profile._design import grid
from meshwright.trainer.profile._device import Device
from meshwright.trainer.profile._operator import Caches, Operator, Tensor, Work

__all__ = ["copy_operators", "launch_operators"]

_LAUNCHES = 200
"""In a row; a CUDA stream queues about a thousand before the host has to wait."""
_TINY = 256
"""Elements of a kernel that does next to nothing."""


def copy_operators(device: Device, *, effort: Effort) -> Iterator[Operator]:
    """Give copies inside the device's memory, and on a GPU from and to pinned memory of the
    host."""

    def copy(size: int, *, source: str, target: str) -> Work:
        def tensor(place: str) -> Tensor:
            pinned = place == "cpu" and device.kind == "cuda"
            return torch.empty(
                size // 4, dtype=torch.float32, device=place, pin_memory=pinned
            ).zero_()

        origin, goal = tensor(source), tensor(target)
        return lambda: goal.copy_(origin, non_blocking=True)

    kinds = [("device", device.kind, device.kind)]
    if device.kind == "cuda":
        kinds += [("to_device", "cpu", "cuda"), ("to_host", "cuda", "cpu")]
    for name, source, target in kinds:
        yield Operator(
            name=f"copy/{name}",
            family="bytes",
            dims=("bytes",),
            axes=grid("bytes", device=device.kind, effort=effort),
            build=lambda size, source=source, target=target: copy(
                size, source=source, target=target
            ),
            need_bytes=lambda size: 2.0 * size,
        )


def launch_operators(device: Device) -> Iterator[Operator]:
    """Give the host's time per operation, alone and with autograd, a row of each; on a GPU the
    device's per empty kernel, on a processor that of one operation whose code and data are in no
    cache, as behind the arithmetic of a step.
    """

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

    def operator(
        name: str,
        build: Callable[[int], Work],
        clock: Literal["host", "work"],
        *,
        caches: Caches = "warm",
        count: int = _LAUNCHES,
    ) -> Operator:
        return Operator(
            name=f"launch/{name}",
            family="launch",
            dims=("operations",),
            axes=((count,),),
            build=build,
            need_bytes=lambda count: 4.0 * _TINY,
            caches=caches,
            clock=clock,
        )

    yield operator("host", plain, "host")
    yield operator("autograd", with_autograd, "host")
    if device.kind == "cuda":
        yield operator("device", plain, "work")
    else:
        yield operator("cold", single, "work", caches="cold", count=1)
