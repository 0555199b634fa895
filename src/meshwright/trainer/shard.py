"""Data parallelism: copies, or shards of optimizer states, gradients and weights, all by
fully_shard.

`none` is a copy on every rank (a shard group of one). zero1 and zero2 keep whole weights from the
first forward to the last backward of a step and split the optimizer's states; zero2 also reduces
gradients after each micro batch. zero3 gathers weights layer by layer. `hybrid` is zero3 inside
groups of `shard_size` ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from meshwright.trainer.mesh import Meshes
from meshwright.trainer.model import Chunk, MoeFeedForward
from meshwright.values.layout import Layout

__all__ = ["drop_gathered", "set_last_backward", "shard_data"]


def shard_data(
    chunk: Chunk,
    meshes: Meshes,
    *,
    compute_dtype: torch.dtype,
    fill: Callable[[nn.Module, str], None],
) -> None:
    """Wrap every layer and the rest; weights stay fp32 in their shards, compute and gathers are in
    `compute_dtype`, sums in fp32.

    `fill` gives a module on no device its weights, by the beginning of their names: each just
    before it is wrapped.
    """
    again = meshes.layout.sharding in ("zero3", "hybrid")
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for name, layer in chunk.layers.items():
        fill(layer, f"layers.{name}.")
        feedforward = layer.feedforward
        if isinstance(feedforward, MoeFeedForward):
            fully_shard(
                feedforward.experts,
                mesh=meshes.expert_sharding,
                mp_policy=policy,
                reshard_after_forward=again,
            )
        fully_shard(layer, mesh=meshes.sharding, mp_policy=policy, reshard_after_forward=again)
    for name, end in chunk.named_children():
        if end is not chunk.layers:
            fill(end, f"{name}.")
    chunk.tie()
    ends = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    fully_shard(chunk, mesh=meshes.sharding, mp_policy=ends, reshard_after_forward=again)
    for module in _units(chunk):
        module.set_gradient_divide_factor(
            1.0
        )  # the loss is divided by all tokens of the batch, so gradients are sums
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum


def set_last_backward(chunk: nn.Module, layout: Layout, *, last: bool) -> None:
    """Tell whether the next backward is the step's last: gradients are reduced, and weights
    dropped, then (zero3: each time)."""
    each_time = layout.sharding in ("zero2", "zero3", "hybrid")
    for module in _units(chunk):
        module.set_requires_gradient_sync(last or each_time, recurse=False)
        module.set_reshard_after_backward(
            last or layout.sharding in ("zero3", "hybrid"), recurse=False
        )
        module.set_is_last_backward(last)


def drop_gathered(chunk: nn.Module) -> None:
    """Keep the shards alone of weights that a forward pass without a backward left whole."""
    for module in _units(chunk):
        module.reshard()


def _units(chunk: nn.Module) -> list[FSDPModule]:
    return [module for module in chunk.modules() if isinstance(module, FSDPModule)]
