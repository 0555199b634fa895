"""What the host spends on the embedded trainer's own layers: the trainer run with next to no
arithmetic, and exchanges that do nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import mul
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from meshwright.trainer.build import Parts, build
from meshwright.trainer.job import TrainJob
from meshwright.trainer.profile.design import Device
from meshwright.trainer.profile.timing import Bench, Made, Operator, Work, spread_frac
from meshwright.values.hardware.profile import Sample, Series
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec, MoeSpec

__all__ = ["end_operators", "host_series", "optimizer_operators"]

_FEW, _MANY = 1, 5
"""Layers of the two models between which one layer's time lies."""
_MICRO_BATCHES = 2
_WARM, _REPEATS = 2, 16
_LEAST_S = 1e-7
_PHASES = {"forward": "", "backward": "_backward"}
"""And the ending of their series."""
_SMALL: dict[str, Any] = {"hidden": 16, "ffn": 16, "head_dim": 4, "vocab": 128}
_SMALL |= {"num_heads": 4, "num_kv_heads": 2}
_LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"dp": 2, "sharding": "none"},
    "sharded": {"dp": 2, "sharding": "zero3"},
    "tensor": {"tp": 2},
    "sequence": {"tp": 2, "sp": 1},
    "context": {"cp": 2},
}
_EXPERTS = (2, 8, 32)
"""Of a layer on one rank, which runs them one after another."""
_BETWEEN_BYTES = 2 * 2**20
"""What a processor's caches take in between two pieces of Python: a small product's operands."""


@dataclass(kw_only=True)
class _Caches:
    """Takes the caches next to a processor's core from the interpreter, as the arithmetic of a step
    does, and keeps account of the time."""

    buffer: torch.Tensor
    seconds: float = 0.0

    def take(self, *_: object) -> None:
        """Write more than they hold."""
        start = process_time()
        self.buffer.add_(1)
        self.seconds += process_time() - start

    def take_around(self, module: nn.Module) -> None:
        """Do so before the module's forward pass, and before its backward pass."""
        module.register_forward_pre_hook(self.take)
        module.register_forward_hook(self._behind)

    def _behind(self, _module: nn.Module, _given: object, result: object) -> None:
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.register_hook(self.take)


@dataclass(kw_only=True)
class _Watch:
    """Stands in for the phases of a step: seconds of the host by phase, step after step."""

    caches: _Caches | None
    """On a processor, where others' work is no part of the time."""
    seconds: dict[str, float]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What runs inside belongs to the phase."""
        start = self._now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - start

    def _now(self) -> float:
        return perf_counter() if self.caches is None else process_time() - self.caches.seconds


Steps = list[dict[str, float]]
"""Seconds by phase of steps one after another."""


def host_series(device: Device) -> list[Series]:
    """Return host times of a layer's passes by layout, of the model's ends, and of the step."""
    dist.init_process_group("fake", store=_store(), rank=0, world_size=2)
    try:
        found: list[Series] = []
        with warnings.catch_warnings():
            # as the trainer's own: views of logits, which nothing changes in place
            warnings.simplefilter("ignore")
            for kind, words in _LAYOUTS.items():
                found += _passes(kind, *_few_and_many(words, experts=0, device=device))
            plain = _LAYOUTS["plain"]
            return found + _experts(
                {count: _few_and_many(plain, experts=count, device=device) for count in _EXPERTS}
            )
    finally:
        dist.destroy_process_group()


def _store() -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()  # torch's own tests' double of a network: exchanges return at once


def _passes(kind: str, few: Steps, many: Steps) -> list[Series]:
    found = []
    for phase, ending in _PHASES.items():
        spread = spread_frac([step[phase] for step in many])
        layer = _layer_s(phase, few, many)
        found.append(_series(f"host/{kind}{ending}", "layers", {1: layer}, spread))
        if kind in ("plain", "tensor"):
            name = "ends" if kind == "plain" else "ends_tensor"
            beyond = _typical(phase, few) / _MICRO_BATCHES - _FEW * layer
            ends = {1: max(beyond, _LEAST_S)}
            found.append(_series(f"host/{name}{ending}", "layers", ends, spread))
    if kind == "plain":
        once = {layers: _typical("once", steps) for layers, steps in ((_FEW, few), (_MANY, many))}
        spread = spread_frac([step["once"] for step in many])
        found.append(_series("host/step", "layers", once, spread))
    return found


def _experts(steps: dict[int, tuple[Steps, Steps]]) -> list[Series]:
    """A layer's passes by its experts on one rank."""
    found = []
    for phase, ending in _PHASES.items():
        times = {count: _layer_s(phase, few, many) for count, (few, many) in steps.items()}
        spread = max(spread_frac([step[phase] for step in many]) for _, many in steps.values())
        found.append(_series(f"host/routed{ending}", "experts", times, spread))
    return found


def _layer_s(phase: str, few: Steps, many: Steps) -> float:
    """One layer and micro batch."""
    more = _typical(phase, many) - _typical(phase, few)
    return max(more / _MICRO_BATCHES / (_MANY - _FEW), _LEAST_S)


def _typical(phase: str, steps: Steps) -> float:
    return median(step[phase] for step in steps)


def _series(name: str, dim: str, times: dict[int, float], spread: float) -> Series:
    samples = tuple(
        Sample(point=(place,), seconds=seconds, spread_frac=spread, repeats=_REPEATS)
        for place, seconds in times.items()
    )
    return Series(name=name, dims=(dim,), axes=(tuple(times),), samples=samples)


def _few_and_many(words: dict[str, Any], *, experts: int, device: Device) -> tuple[Steps, Steps]:
    """Steps of a tiny model of few layers and of many, in turn, so that noise falls on both."""
    jobs = [_job(words, experts=experts, layers=layers, device=device) for layers in (_FEW, _MANY)]
    models = [build(job, torch.device(device.kind)) for job in jobs]
    caches = None
    if device.kind == "cpu":
        caches = _Caches(buffer=torch.zeros(_BETWEEN_BYTES // 4, dtype=torch.int32))
        chunks = (chunk for parts in models for chunk in parts.chunks)
        for module in (module for chunk in chunks for module in chunk.modules()):
            if not list(module.children()):
                caches.take_around(module)
    found: tuple[Steps, Steps] = ([], [])
    for step in range(_WARM + _REPEATS):
        for parts, steps in zip(models, found, strict=True):
            watch = _Watch(caches=caches, seconds={})
            device.synchronise()
            _step(parts, watch, step)
            steps.append(watch.seconds)
    return found[0][_WARM:], found[1][_WARM:]


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


def _job(words: dict[str, Any], *, experts: int, layers: int, device: Device) -> TrainJob:
    moe = MoeSpec(num_experts=experts, top_k=2, expert_ffn=16) if experts else None
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


_ADAM_BYTES = 4 * 4.0
"""Per parameter: weight, gradient and two moments in fp32."""


def end_operators(bench: Bench) -> Iterator[Operator]:
    """Give embedding and cross-entropy; the loss is in fp32 from logits of the precision."""
    if bench.dtype in ("fp8", "tf32"):
        return

    def cross_entropy(tokens: int, vocab: int) -> Made:
        logits = bench.random(tokens, vocab)
        labels = torch.randint(vocab, (tokens,), device=bench.device.kind)
        return (lambda: F.cross_entropy(logits.float(), labels)), (logits,)

    def embedding(tokens: int, hidden: int, vocab: int) -> Made:
        table = bench.random(vocab, hidden)
        words = torch.randint(vocab, (tokens,), device=bench.device.kind)
        return (lambda: F.embedding(words, table)), (table,)

    yield from bench.with_backward(
        cross_entropy,
        lambda tokens, vocab: 20.0 * tokens * vocab,
        # the head wrote the logits, and the loss's backward pass follows its forward pass
        caches="warm",
    )
    yield from bench.with_backward(
        embedding, lambda tokens, hidden, vocab: 8.0 * hidden * (vocab + tokens)
    )


def optimizer_operators(bench: Bench) -> Iterator[Operator]:
    """Give a step of fused AdamW and the norm of gradients, both in fp32 on one flat buffer."""

    def adam(parameters: int) -> Work:
        weight = torch.nn.Parameter(bench.device.random(parameters, dtype=torch.float32))
        weight.grad = bench.device.random(parameters, dtype=torch.float32)
        optimizer = torch.optim.AdamW([weight], fused=True)
        step: Work = optimizer.step
        return step

    def norm(parameters: int) -> Work:
        gradient = bench.device.random(parameters, dtype=torch.float32)
        return lambda: torch.linalg.vector_norm(gradient)

    for name, made, size in (("adam", adam, _ADAM_BYTES), ("gradient_norm", norm, 4.0)):
        need_bytes = partial(mul, size)
        yield bench.operator(f"{name}/fp32", "parameters", build=made, need_bytes=need_bytes)
