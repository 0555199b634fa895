"""The validation loss: of batches that no step trains on, the same ones each time, forward
alone."""

from __future__ import annotations

from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.trainer._build import Parts
from meshwright.trainer._shard import drop_gathered
from meshwright.trainer.reports import ValidationReport

__all__ = ["total_loss", "validate"]


def validate(parts: Parts, done: int) -> ValidationReport:
    """Mean cross-entropy of the held-out batches, on every rank; weights and optimizer states stay
    as they are."""
    assert parts.held_out is not None
    began, batches = perf_counter(), parts.job.valid.batches
    loss = torch.zeros((), device=parts.device)
    with torch.no_grad():
        for batch in range(batches):
            loss += parts.runner.evaluate(*parts.held_out.of(batch))
    for chunk in parts.chunks:
        drop_gathered(chunk)
    total = total_loss(parts, loss) / batches
    return ValidationReport(
        step=done,
        loss=total,
        tokens=batches * parts.job.layout.gbs * parts.job.seq_len,
        seconds=perf_counter() - began,
    )


def total_loss(parts: Parts, part: Tensor) -> float:
    """Sum over data and context ranks, on every rank: tensor-parallel ranks have the same part
    each."""
    total = part.detach().double() / parts.meshes.layout.tp
    dist.all_reduce(total)
    return float(total)
