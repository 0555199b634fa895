"""Measure every operator, one shape after another, and keep what was measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from time import perf_counter

import torch

from meshwright.trainer.profile.collectives import (
    NOT_STARTED,
    collective_series,
    copy_operators,
    is_first_rank,
    launch_operators,
    num_ranks,
)
from meshwright.trainer.profile.design import (
    EFFORTS,
    Device,
    Dtype,
    Point,
    ProfileRequest,
    free_bytes,
    grid_points,
    machine_of,
    model_points,
    num_cores,
    open_device,
)
from meshwright.trainer.profile.host import end_operators, optimizer_operators
from meshwright.trainer.profile.kernels import (
    attention_operators,
    expert_operators,
    gemm_axes,
    gemm_operators,
    pointwise_operators,
    quantise_operators,
)
from meshwright.trainer.profile.timing import Bench, Clock, Operator, measure
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.profile import Machine, Profile, Sample, Series

__all__ = ["measure_all"]

_MOST_SHARE = 0.6
"""Of the free memory; larger shapes count as out of memory untried: hosts swap or kill, they do not
refuse."""
_COLLECTIVES = "collective"
_HOST = "host/plain"
_BUSY_SHARE = 0.3
"""Of the cores: more load than this before the start is said."""


@dataclass(kw_only=True, slots=True)
class _Book:
    request: ProfileRequest
    machine: Machine
    series: dict[str, Series] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def profile(self, *, complete: bool) -> Profile:
        return Profile(
            machine=self.machine,
            effort=self.request.effort,
            complete=complete,
            series=tuple(self.series.values()),
            skipped=dict(self.skipped),
        )


def measure_all(
    request: ProfileRequest,
    *,
    earlier: Profile | None,
    tell: Callable[[str], None],
    keep: Callable[[Profile], None],
) -> Profile:
    """Measure what `request` asks for and `earlier` lacks."""
    device = open_device(request)
    machine = machine_of(device)
    book = _book(request, machine, earlier)
    load, cores = machine.load_average or 0.0, num_cores()
    if load > _BUSY_SHARE * cores:
        tell(
            f"note: {load:.1f} of {cores} cores were busy with other work; times will be too long,"
            " so measure again when idle"
        )
    try:
        _measure_collectives(book, device, tell)
        if not is_first_rank():
            if device.kind == "cuda":
                return book.profile(complete=False)
            # processes of a host share its memory: all measure, and the first one's times count
            tell, keep = _ignore, _ignore
        clock = Clock(device)
        for dtype, operator in _operators(book, device, clock):
            with _math_mode(dtype):
                _measure_series(book, operator, device=device, clock=clock, tell=tell)
            keep(book.profile(complete=False))
        _measure_host(book, device, tell)
    except KeyboardInterrupt:
        return book.profile(complete=False)
    return book.profile(complete=True)


def _book(request: ProfileRequest, machine: Machine, earlier: Profile | None) -> _Book:
    if earlier is None:
        return _Book(request=request, machine=machine)
    differences = machine.differences(earlier.machine)
    if differences:
        raise ConfigError(
            f"the profile so far is of another set-up ({'; '.join(differences)}): write to another"
            " file, or use --overwrite"
        )
    if earlier.effort != request.effort:
        raise ConfigError(
            f"the profile so far is --{earlier.effort}, asked is --{request.effort}: write to"
            " another file, or use --overwrite"
        )
    return _Book(
        request=request,
        machine=earlier.machine,
        series={s.name: s for s in earlier.series},
        skipped=dict(earlier.skipped),
    )


def _operators(book: _Book, device: Device, clock: Clock) -> Iterator[tuple[Dtype, Operator]]:
    """Every operator with the precision that it runs in, what other figures rest on first."""
    effort = book.request.effort
    first = Bench(device=device, effort=effort, dtype=device.dtypes[0])
    for operator in (*launch_operators(device), *copy_operators(first)):
        yield first.dtype, operator
    for dtype in device.dtypes:
        bench = replace(first, dtype=dtype)
        known = book.series.get(f"gemm/{dtype}")
        if known is not None:
            axes = tuple(tuple(round(point) for point in axis) for axis in known.axes)
        else:
            try:
                axes = gemm_axes(bench, clock=clock, timing=EFFORTS[effort])
            except RuntimeError as error:
                book.skipped[f"gemm/{dtype}"] = _first_line(error)
                continue
        operators = (
            *gemm_operators(device, dtype=dtype, axes=axes),
            *attention_operators(bench),
            *expert_operators(bench),
            *pointwise_operators(bench),
            *quantise_operators(bench),
            *end_operators(bench),
        )
        for operator in operators:
            yield dtype, operator
    for operator in optimizer_operators(first):
        yield first.dtype, operator


def _measure_collectives(book: _Book, device: Device, tell: Callable[[str], None]) -> None:
    if any(name.startswith(f"{_COLLECTIVES}/") for name in book.series):
        return
    if num_ranks() == 1:
        book.skipped[_COLLECTIVES] = NOT_STARTED
        return
    for series in collective_series(device, effort=book.request.effort):
        book.series[series.name] = series
        tell(f"{series.name}: {len(series.measured)} of {len(series.samples)} shapes")
    book.skipped.pop(_COLLECTIVES, None)


def _measure_host(book: _Book, device: Device, tell: Callable[[str], None]) -> None:
    """Add what the embedded trainer's layers take the host."""
    if _HOST in book.series:
        return
    try:
        from meshwright.trainer.profile.host import host_series

        found = host_series(device)
    except (RuntimeError, ImportError, AttributeError) as error:  # an older torch
        book.skipped["host"] = f"host: {_first_line(error)}"
        return
    book.series |= {series.name: series for series in found}
    tell(f"host: {len(found)} series of the embedded trainer's layers")


def _ignore(_: object) -> None:
    """Take no notice."""


@contextmanager
def _math_mode(dtype: Dtype) -> Iterator[None]:
    """Let fp32 products run on the tf32 unit where that is what is measured."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _measure_series(
    book: _Book, operator: Operator, *, device: Device, clock: Clock, tell: Callable[[str], None]
) -> None:
    """Measure the missing shapes; what there is goes into the book whatever happens."""
    series = book.series.get(operator.name) or Series(
        name=operator.name, dims=operator.dims, axes=operator.axes
    )
    known = {sample.point for sample in series.samples}
    further = model_points(book.request.model, device=device.kind).get(operator.family, [])
    asked = dict.fromkeys((*grid_points(operator.axes), *further))
    points = [point for point in asked if point not in known]
    start, samples = perf_counter(), list(series.samples)
    if points:
        book.skipped.pop(operator.name, None)
    try:
        for point in points:
            samples.append(_measure_point(book, operator, point, device=device, clock=clock))
            if samples[-1].outcome == "not supported" and len(samples) == 1:
                return
    finally:
        if any(sample.outcome != "not supported" for sample in samples):
            book.series[operator.name] = replace(series, samples=tuple(samples))
    if points:
        tell(_line(book.series[operator.name], new=len(points), seconds=perf_counter() - start))


def _measure_point(
    book: _Book, operator: Operator, point: Point, *, device: Device, clock: Clock
) -> Sample:
    copies = 2 if device.kind == "cpu" and operator.caches == "cold" else 1
    if copies * operator.need_bytes(*point) > _MOST_SHARE * free_bytes(device):
        return Sample(point=point, outcome="out of memory")
    try:
        work, *twin = (operator.build(*point) for _ in range(copies))
        found = measure(
            work,
            operator=operator,
            clock=clock,
            timing=EFFORTS[book.request.effort],
            twin=twin[0] if twin else None,
        )
    except torch.OutOfMemoryError:
        return Sample(point=point, outcome="out of memory")
    except (RuntimeError, TypeError, AttributeError) as error:  # older versions lack words
        if "CUDA error" in str(error):  # the context is lost: no later figure would mean anything
            raise
        if "can't allocate memory" in str(error):
            return Sample(point=point, outcome="out of memory")
        book.skipped[operator.name] = f"{operator.name} at {list(point)}: {_first_line(error)}"
        return Sample(point=point, outcome="not supported")
    finally:
        _free(device)
    return Sample(
        point=point, seconds=found.seconds, spread_frac=found.spread_frac, repeats=found.repeats
    )


def _free(device: Device) -> None:
    """Give memory back, since the next shape may need all of it."""
    gc.collect(0)
    if device.kind == "cuda" and torch.cuda.memory_reserved() > _MOST_SHARE * free_bytes(device):
        torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _line(series: Series, *, new: int, seconds: float) -> str:
    lost = len(series.samples) - len(series.measured)
    note = f", {lost} without a time" if lost else ""
    largest = max(series.measured, key=lambda sample: prod(sample.point), default=None)
    shape = "" if largest is None else f", the largest {1e3 * (largest.seconds or 0):.3g} ms"
    return f"{series.name}: {new} shapes in {seconds:.1f} s{shape}{note}"
