"""Collectives with their gradients: what goes forward as a gather comes back as a scatter."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["gather_tokens", "route", "scatter_sum", "sum_gradient", "swap_dims"]


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def sum_gradient(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return x; its gradient is summed over the group, whose ranks each use x on other tokens or
    heads."""
    return x if group.size() == 1 else _SumGradient.apply(x, group)


def _gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def _scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _scatter(grads[0], ctx.group), None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.group), None


def gather_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all ranks, (ranks * n, ...); gradients, partial on each rank, are summed
    back to (n, ...)."""
    return x if group.size() == 1 else _GatherTokens.apply(x, group)


def scatter_sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's rows of the sum over ranks, (n / ranks, ...)."""
    return x if group.size() == 1 else _ScatterSum.apply(x, group)


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _all_to_all(
    x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


def route(x: Tensor, *, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send the first `sent[0]` rows to rank 0, the next to rank 1, ...; return what arrives,
    (sum(received), ...)."""
    return x if group.size() == 1 else _Route.apply(x, sent, received, group)


class _SwapDims(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
        ctx.split, ctx.join, ctx.group = split, join, group
        return _swap(x, split, join, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _swap(grads[0], ctx.join, ctx.split, ctx.group), None, None, None


def _swap(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    parts = torch.stack(x.chunk(group.size(), dim=split)).contiguous()
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group)
    return torch.cat(out.unbind(0), dim=join)


def swap_dims(x: Tensor, *, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """Cut dim `split` over the ranks and join dim `join` from them: from a part of the sequence of
    all heads to all of some heads'."""
    return x if group.size() == 1 else _SwapDims.apply(x, split, join, group)
