"""What attention keeps for its backward pass: all of it, and what is kept beside the inputs of
products and of the core."""

from __future__ import annotations

import numpy as np

from meshwright.cost.operators import Part, Site
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block

__all__ = ["attention_bytes", "turned_inputs"]


def turned_inputs(site: Site, block: Block) -> list[Part]:
    """Bytes alone, no time: queries and keys as they were before a rotation that keeps them; none
    where angles are enough.

    Formula:  tokens * (heads + kv_heads) * head_dim * activation_bytes, and key_tokens * kv_heads *
              head_dim * activation_bytes of the values within the projection's output, whose copy
              the core keeps
    Units:    bytes per micro batch and rank, (U,).
    Source:   a rotation's backward pass reads the angles alone (fused_rope of Transformer Engine,
              plain PyTorch), unless its operator asks for more (`Stack.rotation_keeps_input`): then
              the projection's output, of which it holds a view, stays whole beside the copy of the
              values that the core is handed.
    Valid:    multi-head and grouped attention with rotary positions.
    Checked:  tests/cost/test_kept.py
    """
    rotates = site.model.mla is None and site.model.positions == "rope"
    if not (rotates and site.stack.rotation_keeps_input):
        return []
    heads, kv_heads = site.local_heads
    turned = site.tokens(block) * (heads + kv_heads) * site.model.head_dim
    values = site.key_tokens(block) * kv_heads * site.model.head_dim
    zero = np.zeros_like(turned)
    return [
        Part(
            name="queries and keys before they turn",
            term="attention",
            forward_s=zero,
            backward_s=zero,
            kernels_forward=0,
            kernels_backward=0,
            saved_bytes=(turned + values) * site.activation_bytes,
        )
    ]


def attention_bytes(parts: tuple[tuple[Block, float, tuple[Part, ...]], ...]) -> Floats:
    """Bytes that a layer's attention modules keep of one micro batch.

    Formula:  sum over attention blocks of count * saved_bytes of their parts, the input of the norm
              in front left out
    Units:    bytes per micro batch and rank, (U,).
    Source:   MindSpeed's --swap-attention takes what the self_attention module of a layer saves
              (docs/features/swap_attention.md).
    Valid:    parts of any layer; 0 without attention.
    Checked:  tests/cost/test_kept.py
    """
    total: Floats = np.zeros(1)
    for block, count, group in parts:
        if block.kind == "attention":
            total = total + count * sum(part.saved_bytes for part in group if part.name != "norm")
    return total
