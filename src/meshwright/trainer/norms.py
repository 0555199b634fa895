"""Normalisation, with gradients summed where each rank sees a part of the tokens or heads."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.trainer.mesh import sum_gradient
from meshwright.values.models.spec import ModelSpec

__all__ = ["Norm", "make_norm"]

EPSILON = 1e-5


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dim."""

    def __init__(self, size: int, *, centred: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size)) if centred else None

    def forward(self, x: Tensor, *, over: dist.ProcessGroup | None = None) -> Tensor:
        """Normalise; `over` names the ranks that hold other tokens (sequence parallelism) or other
        heads."""
        weight, bias = self.weight, self.bias
        if over is not None:
            weight = sum_gradient(weight, over)
            bias = None if bias is None else sum_gradient(bias, over)
        if bias is None:
            return F.rms_norm(x, x.shape[-1:], weight, EPSILON)
        return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def make_norm(model: ModelSpec, size: int) -> Norm:
    """Return the model's kind of norm."""
    return Norm(size, centred=model.norm == "layernorm")
