"""What is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from meshwright.trainer.attention import Core, LatentUp
from meshwright.trainer.model import Activation, Chunk, FeedForward, Layer, MoeFeedForward
from meshwright.trainer.norms import Norm
from meshwright.values.layout import Layout

__all__ = ["apply_recompute"]

_KINDS: dict[str, Callable[[nn.Module, nn.Module], bool]] = {
    "core_attn": lambda module, parent: isinstance(module, Core),
    "layernorm": lambda module, parent: isinstance(module, Norm) and isinstance(parent, Layer),
    "mlp": lambda module, parent: isinstance(module, FeedForward) and isinstance(parent, Layer),
    "moe": lambda module, parent: isinstance(module, MoeFeedForward),
    "moe_act": lambda module, parent: (
        isinstance(module, Activation) and not isinstance(parent, FeedForward)
    ),
    "mla_up_proj": lambda module, parent: isinstance(module, LatentUp),
    "shared_experts": lambda module, parent: (
        isinstance(module, FeedForward) and isinstance(parent, MoeFeedForward)
    ),
    "mlp_act": lambda module, parent: (
        isinstance(module, Activation) and isinstance(parent, FeedForward)
    ),
}
"""Modules that each name of `recompute_modules` computes again; `ops` is a policy instead."""


def apply_recompute(chunk: Chunk, layout: Layout) -> None:
    """Make the chunk forget what the layout recomputes."""
    if layout.recompute == "full":
        chunk.run = partial(_run_units, units=_units(len(chunk.layers), layout))  # type: ignore[method-assign]
    if layout.recompute == "selective":
        for layer in chunk.layers.values():
            _forget_parts(layer, layout.recompute_modules or ("core_attn",))


def _units(layers: int, layout: Layout) -> list[tuple[int, bool]]:
    """Runs of layers, and whether each is recomputed as one unit."""
    if layout.recompute_method == "block":
        count = layers if layout.recompute_layers is None else min(layout.recompute_layers, layers)
        return [(1, place < count) for place in range(layers)]
    size = layout.recompute_layers or 1
    return [(min(size, layers - start), True) for start in range(0, layers, size)]


def _run_units(layers: Sequence[nn.Module], x: Tensor, *, units: list[tuple[int, bool]]) -> Tensor:
    start = 0
    for size, again in units:
        part = layers[start : start + size]
        x = (
            checkpoint(_in_turn, part, x, use_reentrant=False, preserve_rng_state=False)
            if again
            else _in_turn(part, x)
        )
        start += size
    return x


def _in_turn(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _forget_parts(layer: nn.Module, names: Sequence[str]) -> None:
    if "ops" in names:
        layer.forward = _again(layer.forward, context_fn=_every_second_product)
    for parent in list(layer.modules()):
        for child in parent.children():
            if any(name in _KINDS and _KINDS[name](child, parent) for name in names):
                child.forward = _again(child.forward)


def _again(forward: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def run(*args: Any, **words: Any) -> Any:
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=False, **options, **words
        )

    return run


def _every_second_product() -> Any:
    """Keep attention's output and every second matrix product, compute the rest again (torchtitan's
    per-op policy)."""
    products = {"forward": 0, "recompute": 0}

    def policy(ctx: Any, op: Any, *args: Any, **words: Any) -> CheckpointPolicy:
        if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            mode = "recompute" if ctx.is_recompute else "forward"
            products[mode] += 1
            return (
                CheckpointPolicy.MUST_SAVE
                if products[mode] % 2
                else CheckpointPolicy.PREFER_RECOMPUTE
            )
        return (
            CheckpointPolicy.MUST_SAVE
            if "attention" in str(op)
            else CheckpointPolicy.PREFER_RECOMPUTE
        )

    return create_selective_checkpoint_contexts(policy)
