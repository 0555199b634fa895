"""What a run is made of: meshes, chunks of the model, optimizers, data, on this rank."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from meshwright.data.atomic import locked
from meshwright.trainer.attention import LatentAttention
from meshwright.trainer.batches import StepData, open_held_out, open_samples
from meshwright.trainer.checks import Part, is_v, own_parts
from meshwright.trainer.job import TrainJob
from meshwright.trainer.mesh import Meshes, make_meshes
from meshwright.trainer.model import (
    BalanceRule,
    Chunk,
    Experts,
    FeedForward,
    Layer,
    apply_recompute,
    padded_vocab,
    token_loss,
)
from meshwright.trainer.optimizer import Gradients, make_optimizer, shard_data
from meshwright.trainer.pipeline import Runner, Shapes, make_runner
from meshwright.trainer.reports import Phases
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec

__all__ = ["Parts", "build", "cut_tensors", "fill_weights", "held"]

_FILE = ".in-use"
_WAIT_S = 10.0
"""A restarted training may begin before the system has taken down the killed one."""


@contextmanager
def held(folder: Path, *, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Hold a folder that is there; ConfigError where another training has it for longer than
    `wait_s`. The system frees it with the process. A file system without locks is taken as free."""
    path, until = folder / _FILE, monotonic() + wait_s
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(path))
                break
            except ConfigError:
                if monotonic() > until:
                    raise ConfigError(
                        f"save.folder={folder}: another training writes there; end it, or give"
                        " another folder"
                    ) from None
                sleep(0.1)
            except OSError as error:
                raise ConfigError(f"save.folder={folder}: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def cut_tensors(chunk: Chunk, meshes: Meshes) -> None:
    """Make the weights that tp, etp and ep cut into DTensors, in place; the rest stays whole."""
    for module in chunk.modules():
        if isinstance(module, Experts):
            _cut_experts(module, meshes)
    if meshes.layout.tp == 1:
        return
    for layer in chunk.layers.values():
        assert isinstance(layer, Layer)
        parallelize_module(layer, meshes.tp, _layer_plan(layer, _between(meshes)))
    if chunk.embedding is not None:
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=_between(meshes))
        parallelize_module(chunk.embedding, meshes.tp, {"tokens": style})
    if chunk.head is not None:
        style_out = ColwiseParallel(input_layouts=_between(meshes), output_layouts=Shard(-1))
        parallelize_module(chunk, meshes.tp, {"head": style_out})
    chunk.tie()


def _between(meshes: Meshes) -> Placement:
    """How hidden states lie between blocks: cut by tokens with sequence parallelism, else whole."""
    return Shard(1) if meshes.layout.sp else Replicate()


def _layer_plan(layer: Layer, between: Placement) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(
            input_layouts=(between, None), desired_input_layouts=(Replicate(), None)
        ),
        "attention.out": RowwiseParallel(output_layouts=between),
    }
    if isinstance(layer.attention, LatentAttention):
        cut = ["attention.up.query", "attention.up.key_value"]
    else:
        cut = ["attention.query", "attention.key", "attention.value"]
    plan |= {name: ColwiseParallel() for name in cut}
    if isinstance(layer.feedforward, FeedForward):
        plan |= _feedforward_plan(layer.feedforward, "feedforward", between)
    elif layer.feedforward.shared is not None:
        plan |= _feedforward_plan(layer.feedforward.shared, "feedforward.shared", between)
    return plan


def _feedforward_plan(
    module: FeedForward, name: str, between: Placement
) -> dict[str, ParallelStyle]:
    return {
        name: PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        f"{name}.up": ColwiseParallel(),
        **({f"{name}.gate": ColwiseParallel()} if module.gate is not None else {}),
        f"{name}.down": RowwiseParallel(output_layouts=between),
    }


def _cut_experts(experts: Experts, meshes: Meshes) -> None:
    """Experts over ep, and each one's inner width over etp."""
    assert meshes.experts is not None
    if meshes.layout.ep == 1 and meshes.layout.expert_tp == 1:
        return
    mesh = meshes.experts["ep", "etp"]
    for name, inner in (("up", 2), ("gate", 2), ("down", 1)):
        weight = getattr(experts, name)
        if weight is not None:
            places = (Shard(0), Shard(inner))
            part = distribute_tensor(weight.detach(), mesh, places, src_data_rank=None)
            setattr(experts, name, nn.Parameter(part))


RESIDUAL_OUTPUTS = (
    "attention.out.weight",
    "feedforward.down.weight",
    "shared.down.weight",
    "experts.down",
)
"""Weights that write into the residual stream; their spread shrinks with depth (GPT-2)."""


def fill_weights(
    module: nn.Module, model: ModelSpec, *, prefix: str, seed: int, std: float
) -> None:
    """Set every weight: matrices normal, norms one, biases zero. `prefix` and its name in the
    module are its name in the model."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            values = _first_values(prefix + name, weight, model, seed=seed, std=std)
            if isinstance(weight, DTensor):
                cut = (weight.device_mesh, weight.placements)
                values = distribute_tensor(values, *cut, src_data_rank=None)
            weight.copy_(values)


def _first_values(name: str, weight: Tensor, model: ModelSpec, *, seed: int, std: float) -> Tensor:
    shape, device = tuple(weight.shape), weight.device
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    spread = std / math.sqrt(2 * model.num_layers) if name.endswith(RESIDUAL_OUTPUTS) else std
    own_seed = (seed << 32) ^ zlib.crc32(_plain(name, model).encode())
    generator = torch.Generator(device).manual_seed(own_seed)
    return torch.randn(shape, device=device, generator=generator) * spread


def _plain(name: str, model: ModelSpec) -> str:
    """The name in the whole model: a tied head on a stage of its own has the embedding's values."""
    name = name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
    return "embedding.tokens.weight" if name == "head.weight" and model.tied else name


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
    """First and last stage, where each holds a copy of one tied weight; else None."""
    data: StepData
    held_out: StepData | None
    """What is evaluated on; None where nothing is."""
    phases: Phases


def build(job: TrainJob, device: torch.device) -> Parts:
    """Make this rank's part of the model and its optimizer; all ranks call it together."""
    layout, model = job.layout, job.model
    meshes = make_meshes(
        layout, device_type=device.type, has_experts=model.moe is not None, context=job.context
    )
    own = own_parts(model, layout, meshes.place("pp"))
    placed = {place: _chunk(job, meshes, part, device) for place, part in own}
    chunks = list(placed.values())
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
        runner=make_runner(placed, meshes, shapes=shapes, loss=loss, phases=phases),
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
    """One chunk, filled and sharded layer by layer: no rank ever holds all weights whole."""
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
    """The embedding on the first stage and the head on the last, where tied but parted."""
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
    last = (meshes.layout.pp - 1) * stage_ranks
    groups = [dist.new_group([place, place + last]) for place in range(stage_ranks)]
    return groups[dist.get_rank() % stage_ranks]
