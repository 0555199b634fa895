"""Fused attention, causal and full, with fewer key-value heads."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F

from meshwright.hardware.profile import Effort
from meshwright.trainer.profile._design import grid
from meshwright.trainer.profile._device import Device
from meshwright.trainer.profile._operator import Operator, Tensor, Work, forward_and_backward
from meshwright.trainer.profile.request import Dtype

__all__ = ["attention_operators"]


def attention_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give attention forward and backward; 8-bit training has its attention in bf16."""
    if dtype == "fp8":
        return
    kind = device.torch_dtype(dtype)

    def attention(
        head_dim: int, group: int, heads: int, sequence: int, *, causal: bool
    ) -> tuple[Work, tuple[Tensor, ...]]:
        query = device.random(1, heads, sequence, head_dim, dtype=kind, grad=True)
        key, value = (
            device.random(1, max(1, heads // group), sequence, head_dim, dtype=kind, grad=True)
            for _ in range(2)
        )
        grouped = key.shape[1] != heads
        return (
            lambda: F.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=grouped
            )
        ), (query, key, value)

    for name, causal in (("attention", True), ("attention_full", False)):
        yield from forward_and_backward(
            name,
            kind=dtype,
            family="attention",
            dims=("head_dim", "heads_per_kv_head", "batch_heads", "sequence"),
            axes=grid("attention", device=device.kind, effort=effort),
            make=lambda dim, group, heads, sequence, causal=causal: attention(
                dim, group, heads, sequence, causal=causal
            ),
            need_bytes=lambda dim, _group, heads, sequence: 12 * 4.0 * dim * heads * sequence,
            written=3,
        )
