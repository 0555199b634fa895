"""What a run is made of: meshes, chunks of the model, optimizers, data, on this rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from meshwright.trainer._batches import StepData, open_held_out, open_samples
from meshwright.trainer._feedforward import BalanceRule
from meshwright.trainer._mesh import Meshes, make_meshes
from meshwright.trainer._model import Chunk, padded_vocab, token_loss
from meshwright.trainer._optimizer import Gradients, make_optimizer
from meshwright.trainer._phases import Phases
from meshwright.trainer._pipeline import Runner, Shapes, make_runner
from meshwright.trainer._recompute import apply_recompute
from meshwright.trainer._shard import shard_data
from meshwright.trainer._start import fill_weights
from meshwright.trainer._tensor import cut_tensors
from meshwright.trainer.job import TrainJob
from meshwright.trainer.parts import Part, is_v, own_parts

__all__ = ["Parts", "build"]


@dataclass(kw_only=True)
class Parts:
    """What a run is made of."""

    job: TrainJob
    meshes: Meshes
    device: torch.device
    chunks: list[Chunk]
    runner: Runner
    optimizers: list[torch.optim.Optimizer]
    gradients: Gradients
    ends: dist.ProcessGroup | None
    """First and last stage, where each holds a copy of one tied weight; None also where one stage
    holds both."""
    data: StepData
    held_out: StepData | None
    """What is evaluated on; None where nothing is."""
    phases: Phases


def build(job: TrainJob, device: torch.device) -> Parts:
    """Make this rank's part of the model with its first weights, and what moves them; all ranks
    call it together."""
    layout, model = job.layout, job.model
    meshes = make_meshes(
        layout, device_type=device.type, has_experts=model.moe is not None, context=job.context
    )
    own = own_parts(model, layout, meshes.place("pp"))
    chunks = [_chunk(job, meshes, part, device) for _, part in own]
    phases = Phases(device)
    shapes = Shapes(
        layout=layout,
        seq_len=job.seq_len,
        hidden=model.hidden,
        vocab=padded_vocab(model),
        dtype=_compute_dtype(job),
        device=device,
    )
    tokens = layout.gbs * job.seq_len

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        if layout.tp > 1:
            logits = DTensor.from_local(logits, meshes.tp, (Shard(-1),), run_check=False)
        return token_loss(logits, targets) / tokens

    held_out = open_held_out(job)
    return Parts(
        job=job,
        meshes=meshes,
        device=device,
        chunks=chunks,
        runner=make_runner(
            chunks, [place for place, _ in own], meshes, shapes=shapes, loss=loss, phases=phases
        ),
        optimizers=[make_optimizer(chunk, job.optimizer) for chunk in chunks],
        gradients=Gradients(chunks=chunks, meshes=meshes, tied_copies=_tied_copies(chunks, meshes)),
        ends=_ends_group(meshes) if model.tied and layout.pp > 1 and not is_v(layout) else None,
        data=StepData(open_samples(job), job, meshes, device),
        held_out=None if held_out is None else StepData(held_out, job, meshes, device),
        phases=phases,
    )


def _compute_dtype(job: TrainJob) -> torch.dtype:
    return torch.bfloat16 if job.precision == "bf16" else torch.float32


def _chunk(job: TrainJob, meshes: Meshes, part: Part, device: torch.device) -> Chunk:
    """One chunk: cut, made to recompute, compiled, then filled and sharded layer by layer, so that
    no rank ever holds all weights whole."""
    layout, model = job.layout, job.model
    balance = BalanceRule(
        weight=job.balance_weight if model.moe is not None else 0.0, sequences=layout.gbs
    )
    with torch.device("meta"):
        chunk = Chunk(model, meshes, part, balance=balance, rope_base=job.rope_base)
    cut_tensors(chunk, meshes)
    apply_recompute(chunk, layout)
    if job.compile:
        for layer in chunk.layers.values():
            layer.compile()

    def fill(part: nn.Module, prefix: str) -> None:
        part.to_empty(device=device)
        fill_weights(part, model, prefix=prefix, seed=job.seed, std=job.init_std)

    shard_data(chunk, meshes, compute_dtype=_compute_dtype(job), fill=fill)
    return chunk


def _tied_copies(chunks: Sequence[Chunk], meshes: Meshes) -> tuple[nn.Parameter, ...]:
    """The embedding on the first stage and the head on the last, where a model ties them and a
    pipeline parts them."""
    if meshes.layout.pp == 1 or not chunks[0].tied:
        return ()
    found = []
    for chunk in chunks:
        if chunk.embedding is not None:
            found.append(chunk.embedding.tokens.weight)
        if chunk.head is not None:
            found.append(chunk.head.weight)
    return tuple(found)


def _ends_group(meshes: Meshes) -> dist.ProcessGroup:
    """First and last stage of this rank's pipeline; all ranks make all of these groups together."""
    stage_ranks = dist.get_world_size() // meshes.layout.pp
    groups = [
        dist.new_group([place, place + (meshes.layout.pp - 1) * stage_ranks])
        for place in range(stage_ranks)
    ]
    return groups[dist.get_rank() % stage_ranks]
