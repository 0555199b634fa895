"""Time a piece of work: warm-up, cold caches, repeats until the median stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any, Literal

import torch

from meshwright.trainer.profile.design import DIMS, Axes, Device, Dtype, Timing, grid
from meshwright.values.hardware.profile import Effort

__all__ = [
    "Behind",
    "Bench",
    "Caches",
    "Clock",
    "Made",
    "Measured",
    "Operator",
    "Tensor",
    "Work",
    "measure",
    "settled",
    "spread_frac",
]

Tensor = Any
"""torch.Tensor; torch may be absent where types are checked."""
Work = Callable[[], object]


Caches = Literal["cold", "warm"]
"""How a processor's caches are before each repeat. `cold`: flushed, as between two uses of a
weight, or of an activation and its gradient, lies most of a step; what `Behind` names is written
again then. `warm`: as the repeat before left them. A GPU's are always flushed."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Work that in a step comes right behind the operator that wrote some of what it reads."""

    run: Work
    written: tuple[Tensor, ...]

    def __call__(self) -> object:
        return self.run()

    def write(self) -> None:
        """Bring into the caches what the operator before wrote."""
        for tensor in self.written:
            tensor.detach().mul_(1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """How to run an operator at any shape, and at which."""

    name: str
    family: str
    """Whose shapes of a model it takes."""
    dims: tuple[str, ...]
    axes: Axes
    build: Callable[..., Work]
    """Makes the operands of a shape, one positional number per dim."""
    need_bytes: Callable[..., float]
    """Memory of a shape, operands and results."""
    caches: Caches = "cold"
    clock: Literal["work", "host", "sustained"] = "work"
    """work: until the device is done; host: until the host is free; sustained: for seconds."""


Made = tuple[Callable[[], Tensor], tuple[Tensor, ...]]
"""A call, and the inputs that gradients are wanted of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What operators are made for."""

    device: Device
    effort: Effort
    dtype: Dtype

    def random(self, *shape: int) -> Tensor:
        """Return an operand of the precision, which wants a gradient."""
        return self.device.random(*shape, dtype=self.device.torch_dtype(self.dtype), grad=True)

    def axes(self, family: str) -> Axes:
        """Return the grid of a family."""
        return grid(family, device=self.device.kind, effort=self.effort)

    def operator(self, name: str, family: str, **words: Any) -> Operator:
        """Give an operator at the grid of its family."""
        return Operator(
            name=name, family=family, dims=DIMS[family], axes=self.axes(family), **words
        )

    def with_backward(
        self,
        make: Callable[..., Made],
        need_bytes: Callable[..., float],
        *,
        name: str = "",
        family: str = "",
        written: int = 0,
        caches: Caches = "cold",
    ) -> Iterator[Operator]:
        """Give an operator, named after its maker, and its backward pass; of the inputs the
        operator before wrote the first `written`, of the backward pass the result's gradient."""
        name = name or make.__name__

        def forward(*point: int) -> Work:
            call, inputs = make(*point)
            return Behind(call, inputs[:written])

        def backward(*point: int) -> Work:
            call, inputs = make(*point)
            result = call()
            gradient = torch.ones_like(result)
            return Behind(
                lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True),
                (gradient,),
            )

        words: dict[str, Any] = {"need_bytes": need_bytes, "caches": caches}
        for label, build in ((name, forward), (f"{name}_backward", backward)):
            yield self.operator(f"{label}/{self.dtype}", family or name, build=build, **words)


_BATCH = 5
"""Repeats between two looks at the spread."""
_SHORT_S = 2e-4
"""Work that is shorter is run several times per repeat where caches may stay warm, so that the
clock's own time does not count."""
_LONG_S = 1.0
"""Work that is longer is run once more after its first runs, whatever the spread."""
_HOST_FLUSH_BYTES = 64 * 2**20
"""About what a small model's step moves between two uses of a weight."""
_DEVICE_FLUSH_BYTES = 256 * 2**20
"""More than the last cache of GPUs of the day (H100 50 MiB, B200 126 MiB, MI300X 256 MiB)."""
_SPIN_HZ = 2e9
"""Cycles per second of the device's wait, rounded up: a longer wait does no harm."""
_LONGEST_SPIN_S = 0.02
_WARM_SHARE = 0.3
"""Share of the budget before the first repeat that counts, as clocks rise."""
_SAMPLES = 20
"""Stretches of a sustained run; the second half of them counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The time of one run of some work."""

    seconds: float
    spread_frac: float
    repeats: int


def spread_frac(times: Sequence[float]) -> float:
    """Distance between the quartiles over the median."""
    if len(times) < 2:
        return 0.0
    first, middle, third = quantiles(times, n=4, method="inclusive")
    return (third - first) / middle


def settled(times: Sequence[float], *, timing: Timing) -> bool:
    """Whether more repeats would hardly move the median."""
    enough = len(times) >= timing.least_repeats
    return enough and spread_frac(times) / len(times) ** 0.5 <= timing.goal_frac


class Clock:
    """Times work on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        is_gpu = device.kind == "cuda"
        size = _DEVICE_FLUSH_BYTES if is_gpu else _HOST_FLUSH_BYTES
        # one thread: what others did to the machine is no part of its time
        alone = not is_gpu and torch.get_num_threads() == 1
        self._now = process_time if alone else perf_counter
        self._buffer: Any = torch.zeros(size // 4, dtype=torch.int32, device=device.kind)

    def repeats(
        self,
        work: Work,
        *,
        operator: Operator,
        enqueue_s: float,
        count: int,
        twin: Work | None = None,
    ) -> list[float]:
        """Return the times of `count` repeats."""
        if operator.clock == "host":
            return [self._on_host(work, cold=False) for _ in range(count)]
        if self._device.kind == "cuda":
            return self._on_device(work, enqueue_s=enqueue_s, count=count)
        cold = operator.caches == "cold"
        inner = 1 if cold else max(1, int(_SHORT_S / max(enqueue_s, 1e-9)))
        return [self._on_host(work, cold=cold, inner=inner, twin=twin) for _ in range(count)]

    def _on_host(
        self, work: Work, *, cold: bool, inner: int = 1, twin: Work | None = None
    ) -> float:
        if cold:
            self._buffer.add_(1)
            if twin is not None:
                twin()
            if isinstance(work, Behind):
                work.write()
        start = self._now()
        for _ in range(inner):
            work()
        seconds = (self._now() - start) / inner
        self._device.synchronise()
        return seconds

    def _on_device(self, work: Work, *, enqueue_s: float, count: int) -> list[float]:
        """Between two events of the stream. The device waits until the host has queued the work, so
        that gaps of the host don't count."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        cycles = int(min(2 * enqueue_s, _LONGEST_SPIN_S) * _SPIN_HZ)
        for start, end in events:
            self._buffer.zero_()
            torch.cuda._sleep(cycles)
            start.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def stretch(self, work: Work, *, count: int) -> float:
        """Return the time of one of `count` runs in a row, nothing between them."""
        start = self._now()
        for _ in range(count):
            work()
        self._device.synchronise()
        return (self._now() - start) / count

    def enqueue_s(self, work: Work) -> float:
        """Time in which the host is done with one run, the device perhaps not."""
        self._device.synchronise()
        seconds = self._on_host(work, cold=False)
        again = seconds < _LONGEST_SPIN_S
        return min(seconds, self._on_host(work, cold=False)) if again else seconds


def measure(
    work: Work, *, operator: Operator, clock: Clock, timing: Timing, twin: Work | None = None
) -> Measured:
    """Return the median time of the work. `twin` is the same on other operands: run before, it
    leaves the work's code in the caches of a processor, where a step, which runs the operator over
    and over, has it; its data are cold."""
    work()
    enqueue_s = clock.enqueue_s(work)
    if operator.clock == "sustained":
        return _sustained(work, clock=clock, timing=timing)
    # work that took as long already is warm
    warm = perf_counter() + timing.budget_s * _WARM_SHARE - enqueue_s
    while perf_counter() < warm:
        clock.repeats(work, operator=operator, enqueue_s=enqueue_s, count=1)
    times: list[float] = []
    end = perf_counter() + timing.budget_s
    least = timing.least_repeats if enqueue_s < _LONG_S else 1
    while not settled(times, timing=timing):
        if len(times) >= timing.most_repeats or (len(times) >= least and perf_counter() > end):
            break
        count = _BATCH if len(times) >= least else least - len(times)
        count = min(count, timing.most_repeats - len(times))
        times += clock.repeats(work, operator=operator, enqueue_s=enqueue_s, count=count, twin=twin)
    return Measured(seconds=median(times), spread_frac=spread_frac(times), repeats=len(times))


def _sustained(work: Work, *, clock: Clock, timing: Timing) -> Measured:
    """Run without a pause; the median of the later half, when clocks and heat have settled."""
    rate_s = median(clock.stretch(work, count=1) for _ in range(3))
    count = max(1, round(timing.sustained_s / _SAMPLES / rate_s))
    times = [clock.stretch(work, count=count) for _ in range(_SAMPLES)][_SAMPLES // 2 :]
    repeats = count * len(times)
    return Measured(seconds=median(times), spread_frac=spread_frac(times), repeats=repeats)
