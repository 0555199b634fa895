"""The ends of a step: embedding, cross-entropy, optimizer, norm of the gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from meshwright.hardware.profile import Effort
from meshwright.trainer.profile._design import grid
from meshwright.trainer.profile._device import Device
from meshwright.trainer.profile._operator import Operator, Tensor, Work, forward_and_backward
from meshwright.trainer.profile.request import Dtype

__all__ = ["end_operators", "optimizer_operators"]

_ADAM_BYTES = 4 * 4.0
"""Per parameter: weight, gradient and two moments in fp32."""


def end_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give embedding and cross-entropy; the loss is computed in fp32 from logits of the
    precision."""
    if dtype in ("fp8", "tf32"):
        return
    kind = device.torch_dtype(dtype)

    def cross_entropy(tokens: int, vocab: int) -> tuple[Work, tuple[Tensor, ...]]:
        logits = device.random(tokens, vocab, dtype=kind, grad=True)
        labels = torch.randint(vocab, (tokens,), device=device.kind)
        return (lambda: F.cross_entropy(logits.float(), labels)), (logits,)

    def embedding(tokens: int, hidden: int, vocab: int) -> tuple[Work, tuple[Tensor, ...]]:
        table = device.random(vocab, hidden, dtype=kind, grad=True)
        words = torch.randint(vocab, (tokens,), device=device.kind)
        return (lambda: F.embedding(words, table)), (table,)

    yield from forward_and_backward(
        "cross_entropy",
        kind=dtype,
        family="cross_entropy",
        dims=("tokens", "vocab"),
        axes=grid("cross_entropy", device=device.kind, effort=effort),
        make=cross_entropy,
        need_bytes=lambda tokens, vocab: 20.0 * tokens * vocab,
        # the head wrote the logits, and the loss's backward pass follows its forward pass
        caches="warm",
    )
    yield from forward_and_backward(
        "embedding",
        kind=dtype,
        family="embedding",
        dims=("tokens", "hidden", "vocab"),
        axes=grid("embedding", device=device.kind, effort=effort),
        make=embedding,
        need_bytes=lambda tokens, hidden, vocab: 8.0 * hidden * (vocab + tokens),
    )


def optimizer_operators(device: Device, *, effort: Effort) -> Iterator[Operator]:
    """Give a step of fused AdamW and the norm of gradients, both in fp32 on one flat buffer."""

    def adam(parameters: int) -> Work:
        weight = torch.nn.Parameter(device.random(parameters, dtype=torch.float32))
        weight.grad = device.random(parameters, dtype=torch.float32)
        optimizer = torch.optim.AdamW([weight], fused=True)
        step: Work = optimizer.step
        return step

    def norm(parameters: int) -> Work:
        gradient = device.random(parameters, dtype=torch.float32)
        return lambda: torch.linalg.vector_norm(gradient)

    axes = grid("parameters", device=device.kind, effort=effort)
    for name, build, size in (("adam", adam, _ADAM_BYTES), ("gradient_norm", norm, 4.0)):
        yield Operator(
            name=f"{name}/fp32",
            family="parameters",
            dims=("parameters",),
            axes=axes,
            build=build,
            need_bytes=lambda parameters, size=size: size * parameters,
        )
