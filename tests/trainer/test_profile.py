"""Measuring on the CPU; needs torch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest

pytest.importorskip("torch", reason="measures with torch: pip install 'meshwright[train]'")

from meshwright.cli import run
from meshwright.platforms.given import load_profile
from meshwright.trainer.profile import design as _design
from meshwright.trainer.profile import host as _host
from meshwright.trainer.profile import profile_device
from meshwright.trainer.profile import run as _run
from meshwright.trainer.profile.design import Device, ProfileRequest, open_device
from meshwright.trainer.profile.timing import (
    Behind,
    Clock,
    Measured,
    Operator,
    measure,
    settled,
    spread_frac,
)
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.profile import Profile, Sample, Series
from meshwright.values.hardware.profile_chip import measured_chip
from meshwright.values.hardware.profile_tables import profile_tables

QUICK = ProfileRequest(device="cpu", effort="quick")
FAST = _design.Timing(
    budget_s=0.0, least_repeats=1, most_repeats=1, goal_frac=1.0, sustained_s=0.001, longest_s=1e6
)
TINY: dict[str, _design.Axes] = {
    "gemm": ((16, 32), (32,), (32,)),
    "grouped_gemm": ((16,), (2,), (32,), (32,)),
    "experts": ((16,), (2,), (32,), (32,)),
    "attention": ((32,), (1, 2), (4,), (32, 64)),
    "norm": ((16,), (32,)),
    "elements": ((4096,),),
    "cross_entropy": ((16,), (64,)),
    "embedding": ((16,), (32,), (64,)),
    "parameters": ((4096,),),
    "bytes": ((4096, 65536),),
}
HOST = Series(
    name="host/plain",
    dims=("layers",),
    axes=((1,),),
    samples=(Sample(point=(1,), seconds=1e-3, repeats=1),),
)
SERIES = {
    *(
        "host/plain",
        "launch/host",
        "launch/autograd",
        "launch/cold",
        "copy/device",
        "adam/fp32",
        "gradient_norm/fp32",
    ),
    *(
        "gemm/fp32",
        "gemm_dgrad/fp32",
        "gemm_wgrad/fp32",
        "gemm_main_grad/fp32",
        "gemm_sustained/fp32",
    ),
    *(
        f"{name}{way}/fp32"
        for name in ("attention", "attention_full", "grouped_gemm", "experts")
        for way in ("", "_backward")
    ),
    *(
        f"{name}{way}/fp32"
        for name in ("rmsnorm", "layernorm", "swiglu", "gelu", "residual", "rotary")
        for way in ("", "_backward")
    ),
    *(f"{name}{way}/fp32" for name in ("cross_entropy", "embedding") for way in ("", "_backward")),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids of a few small shapes, one repeat."""
    monkeypatch.setitem(_design._GRIDS["cpu"], "quick", TINY)
    monkeypatch.setitem(_design.EFFORTS, "quick", FAST)
    monkeypatch.setattr("meshwright.trainer.profile.kernels._TRIAL", {"cpu": 32})
    monkeypatch.setattr(_host, "host_series", lambda _: [HOST])


@pytest.mark.usefixtures("tiny")
def test_every_series_is_measured() -> None:
    lines: list[str] = []
    found = profile_device(QUICK, tell=lines.append)
    assert found.complete and {series.name for series in found.series} == SERIES
    assert set(found.skipped) == {"collective"}
    assert all(
        sample.outcome == "measured" and sample.repeats > 0
        for series in found.series
        for sample in series.samples
    )
    assert len([line for line in lines if not line.startswith("note:")]) == len(SERIES)
    assert set(profile_tables(found).grids) == SERIES
    assert measured_chip(found).memory_bytes_per_s > 0


def test_host_times_of_the_trainers_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer and both ends take time forward and backward; a step's own work is told for few and
    many layers."""
    monkeypatch.setattr(
        _host, "_LAYOUTS", {"plain": {"dp": 2, "sharding": "none"}, "context": {"cp": 2}}
    )
    monkeypatch.setattr(_host, "_REPEATS", 2)
    monkeypatch.setattr(_host, "_EXPERTS", (2, 4))
    found = {
        series.name: series for series in _host.host_series(Device(kind="cpu", dtypes=("fp32",)))
    }
    names = ("plain", "context", "routed", "ends")
    assert set(found) == {f"host/{name}{way}" for name in names for way in ("", "_backward")} | {
        "host/step"
    }
    assert [sample.point for sample in found["host/step"].samples] == [(1,), (5,)]
    assert [sample.point for sample in found["host/routed"].samples] == [(2,), (4,)] and found[
        "host/routed"
    ].dims == ("experts",)
    assert all(
        sample.seconds and sample.seconds < 10
        for series in found.values()
        for sample in series.samples
    )


@pytest.mark.usefixtures("tiny")
def test_half_precision_and_eight_bits() -> None:
    found = profile_device(ProfileRequest(device="cpu", effort="quick", dtypes=("bf16", "fp8")))
    names = {series.name for series in found.series}
    assert {"gemm/bf16", "gemm_main_grad/bf16", "attention_backward/bf16", "cast/bf16"} <= names
    assert ("gemm/fp8" in names) != ("gemm/fp8" in found.skipped)
    assert "gemm_main_grad_fused/bf16" in (*names, *found.skipped)


@pytest.mark.usefixtures("tiny")
def test_an_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "measure", interrupted_after(12))
    partial = profile_device(QUICK)
    assert not partial.complete and partial.num_measured == 12
    monkeypatch.undo()


@pytest.mark.usefixtures("tiny")
def test_the_command_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", "--device", "cpu", "--quick", "-o", str(tmp_path / "here.npz")]
    with monkeypatch.context() as patch:
        patch.setattr(_run, "measure", interrupted_after(12))
        assert run(command) == 130
    assert "partial: the same command again measures the rest" in capsys.readouterr().out
    partial = load_profile(tmp_path / "here.npz")
    assert run([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    whole = load_profile(tmp_path / "here.npz")
    assert (
        answer["complete"]
        and whole.complete
        and answer["series"]["gemm/fp32"] == {"shapes": 2, "measured": 2}
    )
    for series in partial.series:
        again = whole.find(series.name)
        assert again is not None and again.samples[: len(series.samples)] == series.samples
    with monkeypatch.context() as patch:
        patch.setattr(_run, "measure", interrupted_after(0))
        assert run(command) == 0, "nothing is left to measure"
    assert [file.name for file in tmp_path.iterdir()] == ["here.npz"]


def interrupted_after(count: int) -> Callable[..., Measured]:
    left = [count]

    def stand_in(*_: Any, **__: Any) -> Measured:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return Measured(seconds=1e-3, spread_frac=0.0, repeats=1)

    return stand_in


@pytest.mark.usefixtures("tiny")
def test_another_set_up_is_refused() -> None:
    found = profile_device(QUICK)
    with pytest.raises(ConfigError, match="the profile so far is --quick, asked is --full"):
        profile_device(ProfileRequest(device="cpu", effort="full"), earlier=found)
    other = Profile(
        machine=type(found.machine)(**{**_fields(found.machine), "torch_version": "1.0"}),
        effort="quick",
        complete=True,
        series=found.series,
    )
    with pytest.raises(ConfigError, match=r"torch_version .* is 1\.0 there"):
        profile_device(QUICK, earlier=other)


def _fields(machine: object) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(machine)  # type: ignore[call-overload, no-any-return]


@pytest.mark.usefixtures("tiny")
def test_shapes_that_do_not_fit_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "free_bytes", lambda device: 100e3)
    found = profile_device(QUICK)
    copies = found.find("copy/device")
    assert copies is not None
    assert [sample.outcome for sample in copies.samples] == ["measured", "out of memory"]


def test_an_operator_that_torch_lacks_is_skipped_with_its_reason() -> None:
    def lacking(size: int) -> Callable[[], object]:
        def work() -> None:
            raise NotImplementedError("no such kernel\nand much more")

        return work

    device = open_device(QUICK)
    book = _run._book(QUICK, _design.machine_of(device), None)
    operator = operator_of(lacking)
    _run._measure_series(book, operator, device=device, clock=Clock(device), tell=pytest.fail)
    assert book.series == {} and book.skipped == {"some/fp32": "some/fp32 at [1]: no such kernel"}


def operator_of(build: Callable[[int], Callable[[], object]], clock: Any = "work") -> Operator:
    return Operator(
        name="some/fp32",
        family="some",
        dims=("size",),
        axes=((1, 2),),
        build=build,
        need_bytes=lambda size: 0.0,
        caches="warm",
        clock=clock,
    )


def _work_for(seconds: float) -> None:
    """Keep a core busy: with one thread a processor's clock counts no sleep."""
    end = process_time() + seconds
    while process_time() < end:
        pass


@pytest.mark.parametrize("clock", ["work", "host", "sustained"])
def test_a_known_time_is_measured(clock: str) -> None:
    timing = _design.Timing(
        budget_s=0.05,
        least_repeats=3,
        most_repeats=9,
        goal_frac=0.0,
        sustained_s=0.1,
        longest_s=1.0,
    )
    device = Device(kind="cpu", dtypes=("fp32",))
    started = time.perf_counter()
    found = measure(
        lambda: _work_for(0.005),
        operator=operator_of(lambda _: lambda: None, clock),
        clock=Clock(device),
        timing=timing,
    )
    took_s = time.perf_counter() - started
    assert (
        0.005 <= found.seconds <= 2 * took_s / found.repeats
    )  # a median is at most twice the mean, however busy the machine
    assert found.repeats >= 3


def test_before_each_repeat_a_step_is_stood_in_for() -> None:
    """The twin brings the code, then what the operator before wrote is written again, and then the
    work is timed."""
    done: list[str] = []

    class Operand:
        def detach(self) -> Operand:
            return self

        def mul_(self, _: float) -> None:
            done.append("written")

    device, timing = (
        Device(kind="cpu", dtypes=("fp32",)),
        replace(FAST, least_repeats=2, most_repeats=2, goal_frac=-1.0),
    )
    work = Behind(lambda: done.append("timed"), (Operand(),))
    operator = replace(operator_of(lambda _: lambda: None), caches="cold")
    assert (
        measure(
            work,
            operator=operator,
            clock=Clock(device),
            timing=timing,
            twin=lambda: done.append("twin"),
        ).repeats
        == 2
    )
    assert done[-6:] == ["twin", "written", "timed"] * 2


def test_spread_and_when_it_is_small_enough() -> None:
    timing = _design.EFFORTS["standard"]
    assert spread_frac([1.0]) == 0.0
    assert spread_frac([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert settled([1.0] * timing.least_repeats, timing=timing)
    assert not settled([1.0] * (timing.least_repeats - 1), timing=timing)
    assert not settled([1.0, 2.0] * timing.least_repeats, timing=timing)


def test_devices_that_are_not_here() -> None:
    import torch

    with pytest.raises(ConfigError, match="the CPU has no tf32 unit"):
        open_device(ProfileRequest(device="cpu", dtypes=("tf32",)))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="--device cuda: "):
            open_device(ProfileRequest(device="cuda"))


def test_the_machine_is_described() -> None:
    machine = _design.machine_of(open_device(QUICK))
    assert machine.device == "cpu" and machine.torch_version and machine.driver is None
    assert 0 < machine.usable_bytes < math.inf
    assert machine.differences(machine) == []
    assert Sample(point=(1.0,), seconds=1.0).outcome == "measured"
