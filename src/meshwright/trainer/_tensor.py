"""Tensor and expert parallelism: which weight is cut along which dim."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from meshwright.trainer._attention import LatentAttention
from meshwright.trainer._feedforward import Experts, FeedForward
from meshwright.trainer._mesh import Meshes
from meshwright.trainer._model import Chunk, Layer

__all__ = ["cut_tensors"]


def cut_tensors(chunk: Chunk, meshes: Meshes) -> None:
    """Make the weights that tp, etp and ep cut into DTensors, in place; the rest stays whole on
    every rank."""
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
    """How hidden states lie between the blocks: cut by tokens with sequence parallelism, else
    whole."""
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
            setattr(experts, name, nn.Parameter(_cut(weight, mesh, (Shard(0), Shard(inner)))))


def _cut(weight: nn.Parameter, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    return distribute_tensor(weight.detach(), mesh, placements, src_data_rank=None)
