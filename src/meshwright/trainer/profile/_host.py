"""What the host spends on the embedded trainer's own layers: the trainer run with next to no arithmetic, and exchanges that do nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist

from meshwright.hardware.profile import Sample, Series
from meshwright.layout import Layout
from meshwright.models.spec import ModelSpec, MoeSpec
from meshwright.trainer._build import Parts, build
from meshwright.trainer.job import TrainJob
from meshwright.trainer.profile._device import Device
from meshwright.trainer.profile._timing import spread_frac

__all__ = ["host_series"]

_FEW, _MANY = 1, 4
"""Layers of the two models between which one layer's time lies."""
_MICRO_BATCHES = 2
_WARM, _REPEATS = 2, 12
_SMALL: dict[str, Any] = {"hidden": 16, "ffn": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "vocab": 128}
_LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"dp": 2, "sharding": "none"},
    "sharded": {"dp": 2, "sharding": "zero3"},
    "tensor": {"tp": 2},
    "sequence": {"tp": 2, "sp": 1},
    "context": {"cp": 2},
    "experts": {"dp": 2, "sharding": "none"},
}


@dataclass(kw_only=True)
class _Watch:
    """Stands in for the phases of a step: seconds of the host by phase, of steps one after another."""

    is_processor: bool
    seconds: dict[str, float]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What runs inside belongs to the phase; on a processor others' work is no part of it."""
        now = process_time if self.is_processor else perf_counter
        start = now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + now() - start


def host_series(device: Device) -> list[Series]:
    """Return the host time of a layer's passes by kind of layout, of both ends of the model, and of what a step does once."""
    dist.init_process_group("fake", store=_store(), rank=0, world_size=2)
    try:
        found: list[Series] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as the trainer's own: views of logits, which nothing changes in place
            for kind, words in _LAYOUTS.items():
                few, many = (_steps(kind, words, layers=layers, device=device) for layers in (_FEW, _MANY))
                found += _passes(kind, few, many)
        return found
    finally:
        dist.destroy_process_group()


def _store() -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()  # torch's own tests' double of a network: exchanges return at once


def _passes(kind: str, few: list[dict[str, float]], many: list[dict[str, float]]) -> list[Series]:
    found = []
    for phase, ending in (("forward", ""), ("backward", "_backward")):
        least, most = (_typical([step[phase] / _MICRO_BATCHES for step in steps]) for steps in (few, many))
        layer = max((most - least) / (_MANY - _FEW), 1e-7)
        spread = spread_frac([step[phase] for step in many])
        found.append(_series(f"host/{kind}{ending}", {1: layer}, spread))
        if kind in ("plain", "tensor"):
            name = "ends" if kind == "plain" else "ends_tensor"
            found.append(_series(f"host/{name}{ending}", {1: max(least - _FEW * layer, 1e-7)}, spread))
    if kind == "plain":
        once = {layers: _typical([step["once"] for step in steps]) for layers, steps in ((_FEW, few), (_MANY, many))}
        found.append(_series("host/step", once, spread_frac([step["once"] for step in many])))
    return found


def _typical(times: list[float]) -> float:
    return quantiles(times, n=4, method="inclusive")[0]


def _series(name: str, times: dict[int, float], spread: float) -> Series:
    samples = tuple(Sample(point=(layers,), seconds=seconds, spread_frac=spread, repeats=_REPEATS) for layers, seconds in times.items())
    return Series(name=name, dims=("layers",), axes=(tuple(times),), samples=samples)


def _steps(kind: str, words: dict[str, Any], *, layers: int, device: Device) -> list[dict[str, float]]:
    """Seconds by phase of some steps of a tiny model."""
    parts = build(_job(kind, words, layers=layers, device=device), torch.device(device.kind))
    found = []
    for step in range(_WARM + _REPEATS):
        watch = _Watch(is_processor=device.kind == "cpu", seconds={})
        device.synchronise()
        _step(parts, watch, step)
        found.append(watch.seconds)
    return found[_WARM:]


def _step(parts: Parts, watch: _Watch, step: int) -> None:
    setattr(parts.runner, "phases", watch)  # noqa: B010  # the runner of one stage has them
    with watch.of("once"):
        tokens, targets = parts.data.of(step)
    parts.runner.run(tokens, targets)
    with watch.of("once"):
        parts.gradients.norm()
        parts.gradients.scale(1.0)
        for optimizer in parts.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _job(kind: str, words: dict[str, Any], *, layers: int, device: Device) -> TrainJob:
    moe = MoeSpec(num_experts=4, top_k=2, expert_ffn=16) if kind == "experts" else None
    model = ModelSpec(name="host", num_layers=layers, moe=moe, **_SMALL)
    mbs = 2
    gbs = mbs * _MICRO_BATCHES * int(words.get("dp", 1))
    return TrainJob(
        model=model,
        layout=Layout(gbs=gbs, mbs=mbs, **words),
        precision="fp32" if device.kind == "cpu" else "bf16",
        steps=1,
        device=device.kind,
        seq_len=8,
        profile_step=0,
    )
