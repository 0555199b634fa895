"""Pipeline parallelism on torch.distributed.pipelining; plain micro batches in one stage."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.tensor.parallel import loss_parallel

from meshwright.trainer.checks import stage_of
from meshwright.trainer.job import OptimizerSettings
from meshwright.trainer.mesh import Meshes
from meshwright.trainer.model import Chunk
from meshwright.trainer.optimizer import set_last_backward
from meshwright.trainer.reports import Phases
from meshwright.values.layout import Layout

__all__ = ["Runner", "Shapes", "learning_rate", "make_runner"]


def learning_rate(step: int, settings: OptimizerSettings, *, steps: int) -> float:
    """Linear warm-up, then a cosine to the least rate at the last step; `step` counts from 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    low = settings.least_learning_rate
    return low + (settings.learning_rate - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


Loss = Callable[[Tensor, Tensor], Tensor]


class Runner(Protocol):
    """Forward and backward of one step."""

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Take (local samples, tokens) twice; return this rank's part of the loss, or 0."""
        ...

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The same without gradients: forward alone, one micro batch after another."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What goes between chunks, told beforehand: experts can't be tried without values."""

    layout: Layout
    seq_len: int
    hidden: int
    vocab: int
    dtype: torch.dtype
    device: torch.device

    def entering(self, chunk: Chunk) -> Tensor:
        """Of one micro batch: ids (mbs, tokens), or hidden states (mbs, tokens, hidden)."""
        tokens = self.seq_len // self.layout.cp
        if chunk.embedding is not None:
            return torch.zeros(self.layout.mbs, tokens, dtype=torch.int64, device=self.device)
        return self._hidden().requires_grad_()

    def leaving(self, chunk: Chunk) -> Tensor:
        """Hidden states, or this rank's part of the logits, (mbs, tokens, vocab / tp)."""
        if chunk.head is None:
            return self._hidden().requires_grad_()
        shape = (self.layout.mbs, self.seq_len // self.layout.cp, self.vocab // self.layout.tp)
        return torch.zeros(shape, dtype=self.dtype, device=self.device).requires_grad_()

    def _hidden(self) -> Tensor:
        tokens = self.seq_len // self.layout.cp // (self.layout.tp if self.layout.sp else 1)
        shape = (self.layout.mbs, tokens, self.hidden)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def make_runner(
    chunks: dict[int, Chunk], meshes: Meshes, *, shapes: Shapes, loss: Loss, phases: Phases
) -> Runner:
    """Return what runs a step of the layout's schedule; chunks are by their places in the model."""
    if meshes.layout.pp == 1:
        return _MicroBatches(chunk=chunks[0], meshes=meshes, loss=loss, phases=phases)
    return _Pipeline(chunks, meshes, shapes=shapes, loss=loss, phases=phases)


def _vocabulary_cut(layout: Layout) -> AbstractContextManager[Any]:
    return loss_parallel() if layout.tp > 1 else nullcontext()


@dataclass(kw_only=True)
class _MicroBatches:
    """One stage: forward and backward of one micro batch after another."""

    chunk: Chunk
    meshes: Meshes
    loss: Loss
    phases: Phases

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        layout = self.meshes.layout
        total = torch.zeros((), device=tokens.device)
        parts = _micro_batches(tokens, targets, layout)
        for place, (ids, wanted) in enumerate(parts):
            set_last_backward(self.chunk, layout, last=place == len(parts) - 1)
            with _vocabulary_cut(layout):
                with self.phases.of("forward"):
                    part = self.loss(self.chunk(ids), wanted)
                with self.phases.of("backward"):
                    part.backward()
            total += _plain(part.detach())
        return total

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=tokens.device)
        with _vocabulary_cut(self.meshes.layout):
            for ids, wanted in _micro_batches(tokens, targets, self.meshes.layout):
                total += _plain(self.loss(self.chunk(ids), wanted))
        return total


def _micro_batches(tokens: Tensor, targets: Tensor, layout: Layout) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tokens.split(layout.mbs), targets.split(layout.mbs), strict=True))


def _plain(x: Tensor) -> Tensor:
    full = getattr(x, "full_tensor", None)
    return x if full is None else full()


class _Stage(PipelineStage):
    """A stage that tells its forwards and backwards apart from the time between them."""

    phases: Phases

    def forward_one_chunk(self, *args: Any, **words: Any) -> Any:
        with self.phases.of("forward"):
            return super().forward_one_chunk(*args, **words)

    def backward_one_chunk(self, *args: Any, **words: Any) -> Any:
        with self.phases.of("backward"):
            return super().backward_one_chunk(*args, **words)

    def backward_weight_one_chunk(self, *args: Any, **words: Any) -> Any:
        with self.phases.of("backward"):
            return super().backward_weight_one_chunk(*args, **words)


class _Pipeline:
    """Several stages under one of torch's schedules."""

    def __init__(
        self,
        chunks: dict[int, Chunk],
        meshes: Meshes,
        *,
        shapes: Shapes,
        loss: Loss,
        phases: Phases,
    ) -> None:
        layout, group, count = (
            meshes.layout,
            meshes.group("pp"),
            meshes.layout.pp * meshes.layout.vpp,
        )
        self.meshes, self.phases = meshes, phases
        self.shapes, self.loss, self.by_place = shapes, loss, chunks
        stages = []
        for place, chunk in chunks.items():
            ends = {"input_args": shapes.entering(chunk), "output_args": shapes.leaving(chunk)}
            stages.append(_Stage(chunk, place, count, shapes.device, **ends, group=group))
            stages[-1].phases = phases
        kind, many = _schedule(layout)
        what: Any = stages if many else stages[0]

        def timed_loss(*args: Tensor) -> Tensor:
            with phases.of("forward"):
                return loss(*args)

        self.schedule: Any = kind(
            what, layout.num_microbatches, loss_fn=timed_loss, scale_grads=False
        )
        self.words = _kept_outputs(self.schedule.step)
        self.first, self.last = 0 in chunks, count - 1 in chunks

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        with self.phases.of("pipeline"), _vocabulary_cut(self.meshes.layout):
            inputs = (tokens,) if self.first else ()
            if self.last:
                self.schedule.step(*inputs, target=targets, losses=losses, **self.words)
            else:
                self.schedule.step(*inputs)
        parts = [_plain(part.detach()) for part in losses]
        return torch.stack(parts).sum() if parts else torch.zeros((), device=tokens.device)

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Chunks pass each micro batch on by plain messages: torch's schedules would set their
        buffers up anew for a forward alone."""
        total, group = torch.zeros((), device=tokens.device), self.meshes.group("pp")
        with _vocabulary_cut(self.meshes.layout):
            for ids, wanted in _micro_batches(tokens, targets, self.meshes.layout):
                x = ids
                for place, chunk in sorted(self.by_place.items()):
                    if place > 0 and place - 1 not in self.by_place:
                        x = torch.empty_like(self.shapes.entering(chunk), requires_grad=False)
                        dist.recv(x, self._rank_of(place - 1), group=group)
                    x = chunk(x)
                    if chunk.head is not None:
                        total += _plain(self.loss(x, wanted))
                    elif place + 1 not in self.by_place:
                        dist.send(x.contiguous(), self._rank_of(place + 1), group=group)
        return total

    def _rank_of(self, place: int) -> int:
        return dist.get_global_rank(self.meshes.group("pp"), stage_of(place, self.meshes.layout))


def _kept_outputs(step: Callable[..., Any]) -> dict[str, bool]:
    """Words that keep a schedule from gathering the logits of all micro batches for its caller, who
    has the losses; older versions of torch have none, and gather them."""
    return {"return_outputs": False} if "return_outputs" in signature(step).parameters else {}


_SCHEDULES = {
    "1f1b": ("Schedule1F1B", "ScheduleInterleaved1F1B"),
    "gpipe": ("ScheduleGPipe", "ScheduleLoopedBFS"),
    "zero-bubble": ("ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"),
}
"""Torch's classes for one chunk of a stage, and for more."""


def _schedule(layout: Layout) -> tuple[type[Any], bool]:
    """Torch's class, and whether it takes a list of stages."""
    name = _SCHEDULES[layout.schedule][layout.vpp > 1]
    return getattr(torch_schedules, name), layout.vpp > 1 or layout.schedule == "zero-bubble"
