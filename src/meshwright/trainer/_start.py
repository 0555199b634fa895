"""First values of the weights: from the seed and the weight's name alone, so that every layout
starts the same."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from meshwright.models.spec import ModelSpec

__all__ = ["fill_weights"]

RESIDUAL_OUTPUTS = (
    "attention.out.weight",
    "feedforward.down.weight",
    "shared.down.weight",
    "experts.down",
)
"""Weights that write into the residual stream; their spread shrinks with depth (GPT-2,
Megatron-LM)."""


def fill_weights(
    module: nn.Module, model: ModelSpec, *, prefix: str, seed: int, std: float
) -> None:
    """Set every weight: matrices normal, norms one, biases zero. `prefix` and its name in the
    module are its name in the model."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            whole = _first_values(prefix + name, weight, model, seed=seed, std=std)
            if isinstance(weight, DTensor):
                whole = distribute_tensor(
                    whole, weight.device_mesh, weight.placements, src_data_rank=None
                )
            weight.copy_(whole)


def _first_values(name: str, weight: Tensor, model: ModelSpec, *, seed: int, std: float) -> Tensor:
    shape, device = tuple(weight.shape), weight.device
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    spread = std / math.sqrt(2 * model.num_layers) if name.endswith(RESIDUAL_OUTPUTS) else std
    generator = torch.Generator(device).manual_seed(
        (seed << 32) ^ zlib.crc32(_plain(name, model).encode())
    )
    return torch.randn(shape, device=device, generator=generator) * spread


def _plain(name: str, model: ModelSpec) -> str:
    """The name in the whole model: a tied head on a stage of its own has the embedding's values."""
    name = name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
    return "embedding.tokens.weight" if name == "head.weight" and model.tied else name
