"""AdamW on shards, the gradient norm over all ranks, and data parallelism by fully_shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate

from meshwright.trainer.job import OptimizerSettings
from meshwright.trainer.mesh import Meshes
from meshwright.trainer.model import Chunk, MoeFeedForward
from meshwright.values.layout import Layout

__all__ = ["Gradients", "drop_gathered", "make_optimizer", "set_last_backward", "shard_data"]


def make_optimizer(chunk: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """AdamW; norms and biases do not decay. Weights of unlike meshes are groups apart, as fused
    kernels need."""
    groups: dict[tuple[bool, int, int], list[nn.Parameter]] = {}
    for weight in _weights([chunk]):
        mesh = id(weight.device_mesh) if isinstance(weight, DTensor) else 0
        rank = len(weight.placements) if isinstance(weight, DTensor) else 0
        groups.setdefault((weight.ndim > 1, mesh, rank), []).append(weight)
    return torch.optim.AdamW(
        [
            {"params": weights, "weight_decay": settings.weight_decay if decays else 0.0}
            for (decays, _, _), weights in groups.items()
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def _weights(chunks: Iterable[nn.Module]) -> list[nn.Parameter]:
    every = (weight for chunk in chunks for weight in chunk.parameters())
    return list({id(weight): weight for weight in every if weight.requires_grad}.values())


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """All gradients of this rank's chunks."""

    chunks: Sequence[nn.Module]
    meshes: Meshes
    tied_copies: tuple[nn.Parameter, ...] = ()
    """Weights that two stages hold: their gradients are the same on both, and count once."""

    def norm(self) -> float:
        """The 2-norm over the whole model.

        Formula:  sqrt(sum over ranks and weights of |local part|^2 / ranks that hold the same part)
        """
        stage_ranks = self.meshes.layout.dp * self.meshes.layout.cp * self.meshes.layout.tp
        tied = {id(weight) for weight in self.tied_copies}
        known, gradients = self._known()
        own = torch.zeros((), dtype=torch.float64, device=self.meshes.device_type)
        if known:
            norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
            copies = [
                stage_ranks // _pieces(weight) * (2 if id(weight) in tied else 1)
                for weight in known
            ]
            own = (norms.square() / norms.new_tensor(copies)).sum()
        dist.all_reduce(own)
        return math.sqrt(float(own))

    def scale(self, factor: float) -> None:
        _, gradients = self._known()
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def _known(self) -> tuple[list[nn.Parameter], list[Tensor]]:
        """Weights that have a gradient, and this rank's parts of those."""
        known = [weight for weight in _weights(self.chunks) if weight.grad is not None]
        return known, [_local(weight.grad) for weight in known if weight.grad is not None]


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _pieces(weight: Tensor) -> int:
    """Different parts that the ranks of one stage hold of a weight."""
    if not isinstance(weight, DTensor):
        return 1
    sizes = (
        weight.device_mesh.size(axis)
        for axis, place in enumerate(weight.placements)
        if not isinstance(place, Replicate)
    )
    return math.prod(sizes)


def shard_data(
    chunk: Chunk,
    meshes: Meshes,
    *,
    compute_dtype: torch.dtype,
    fill: Callable[[nn.Module, str], None],
) -> None:
    """Wrap every layer and the rest; weights stay fp32 in their shards, compute and gathers are in
    `compute_dtype`, sums in fp32.

    `none` is a copy on every rank (a shard group of one). zero1 and zero2 keep whole weights from
    the first forward to the last backward of a step and split the optimizer's states; zero2 also
    reduces gradients after each micro batch. zero3 gathers weights layer by layer. `hybrid` is
    zero3 inside groups of `shard_size` ranks.

    `fill` gives a module on no device its weights, by the beginning of their names: each just
    before it is wrapped.
    """
    again = meshes.layout.sharding in ("zero3", "hybrid")
    types: dict[str, Any] = {"param_dtype": compute_dtype, "reduce_dtype": torch.float32}
    words: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(**types),
        "reshard_after_forward": again,
    }
    for name, layer in chunk.layers.items():
        fill(layer, f"layers.{name}.")
        feedforward = layer.feedforward
        if isinstance(feedforward, MoeFeedForward):
            fully_shard(feedforward.experts, mesh=meshes.expert_sharding, **words)
        fully_shard(layer, mesh=meshes.sharding, **words)
    for name, end in chunk.named_children():
        if end is not chunk.layers:
            fill(end, f"{name}.")
    chunk.tie()
    ends = MixedPrecisionPolicy(**types, cast_forward_inputs=False)
    fully_shard(chunk, mesh=meshes.sharding, mp_policy=ends, reshard_after_forward=again)
    for module in _units(chunk):
        # the loss is divided by all tokens of the batch, so gradients are sums
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum


def set_last_backward(chunk: nn.Module, layout: Layout, *, last: bool) -> None:
    """Tell whether this backward is the step's last: gradients are then reduced."""
    reshards = last or layout.sharding in ("zero3", "hybrid")
    reduces = reshards or layout.sharding == "zero2"
    for module in _units(chunk):
        module.set_requires_gradient_sync(reduces, recurse=False)
        module.set_reshard_after_backward(reshards, recurse=False)
        module.set_is_last_backward(last)


def drop_gathered(chunk: nn.Module) -> None:
    """Keep the shards alone of weights that a forward pass without a backward left whole."""
    for module in _units(chunk):
        module.reshard()


def _units(chunk: nn.Module) -> list[FSDPModule]:
    return [module for module in chunk.modules() if isinstance(module, FSDPModule)]
