"""Ring attention: keys and values go from rank to rank while each block of scores is computed
(arXiv:2310.01889).

Of a block only its sums and their logarithm are kept, and the backward pass computes the scores
again, as FlashAttention does (arXiv:2205.14135). Blocks are plain products in fp32, the same on
every device, masked by the places of their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Ring", "ring_attention"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """Who takes part, and what may attend to what."""

    group: dist.ProcessGroup
    runs: tuple[tuple[range, ...], ...]
    """Places of the tokens of each rank, run by run, all of one length."""
    window: int | None
    """Last tokens that are seen; None is all."""
    slopes: tuple[float, ...] | None
    """Of ALiBi, of this rank's heads."""

    def sees(self, queries: range, keys: range) -> bool:
        """Whether any of the queries may attend to any of the keys."""
        nearest = queries[0] - keys[-1]
        return queries[-1] >= keys[0] and (self.window is None or nearest < self.window)

    def bias(self, queries: range, keys: range, device: torch.device) -> Tensor:
        """What is added to scores, (heads or 1, queries, keys): -inf where nothing is seen."""
        behind = torch.arange(queries[0], queries[-1] + 1, device=device)[:, None] - torch.arange(
            keys[0], keys[-1] + 1, device=device
        )
        hidden = behind < 0
        if self.window is not None:
            hidden |= behind >= self.window
        slopes = torch.tensor(self.slopes or (0.0,), device=device)
        return (-slopes[:, None, None] * behind).masked_fill(hidden, -math.inf)

    def pass_on(self, *parts: Tensor) -> _Travelling:
        """Begin to send the tensors to the next rank, and to receive those of the rank before."""
        rank, ranks = self.group.rank(), self.group.size()
        after, before = (
            dist.get_global_rank(self.group, place % ranks) for place in (rank + 1, rank - 1)
        )
        arriving = [torch.empty_like(part) for part in parts]
        moves = [dist.P2POp(dist.isend, part, after, self.group) for part in parts]
        moves += [dist.P2POp(dist.irecv, part, before, self.group) for part in arriving]
        return _Travelling(
            arriving=arriving, works=dist.batch_isend_irecv(moves), leaving=list(parts)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Travelling:
    """Tensors on their way; those that leave must not be let go of before."""

    arriving: list[Tensor]
    leaving: list[Tensor]
    works: list[Any]

    def arrive(self) -> list[Tensor]:
        """Wait for them."""
        for work in self.works:
            work.wait()
        return self.arriving


def ring_attention(query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Tensor:
    """Attend over the sequence of all ranks: (batch, own tokens, heads, dim), fewer key-value
    heads, to (..., heads, dim of values)."""
    return _RingAttention.apply(query, key, value, ring)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Tensor:
        q, k, v = _grouped(query, key.shape[2]), _shared(key), _shared(value)
        total = q.new_full(q.shape[:-1], -math.inf)
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        for source, more in _sources(ring):
            coming = ring.pass_on(k, v) if more else None
            for rows, columns, bias in _blocks(ring, source, q):
                part, part_total = _attend(
                    q[..., rows, :], k[..., columns, :], v[..., columns, :], bias
                )
                both = torch.logaddexp(total[..., rows], part_total)
                out[..., rows, :] = _weighed(out[..., rows, :], total[..., rows], both) + _weighed(
                    part, part_total, both
                )
                total[..., rows] = both
            if coming is not None:
                k, v = coming.arrive()
        ctx.save_for_backward(query, key, value, out, total)
        ctx.ring = ring
        return _flat(out).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, total = ctx.saved_tensors
        ring: Ring = ctx.ring
        q, k, v = _grouped(query, key.shape[2]), _shared(key), _shared(value)
        grad = _grouped(grads[0], key.shape[2])
        inner = (grad * out).sum(dim=-1, keepdim=True)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        scale = q.shape[-1] ** -0.5
        for source, more in _sources(ring):
            coming = ring.pass_on(k, v) if more else None
            for rows, columns, bias in _blocks(ring, source, q):
                weights = torch.exp(
                    _scores(q[..., rows, :], k[..., columns, :], bias) - total[..., rows, None]
                )
                change = (
                    weights
                    * (grad[..., rows, :] @ v[..., columns, :].mT - inner[..., rows, :])
                    * scale
                )
                grad_q[..., rows, :] += change @ k[..., columns, :]
                grad_k[..., columns, :] += (change.mT @ q[..., rows, :]).sum(dim=2, keepdim=True)
                grad_v[..., columns, :] += (weights.mT @ grad[..., rows, :]).sum(
                    dim=2, keepdim=True
                )
            grad_k, grad_v = ring.pass_on(
                grad_k, grad_v
            ).arrive()  # after as many turns as ranks they are home
            if coming is not None:
                k, v = coming.arrive()
        return (
            _flat(grad_q).to(query.dtype),
            _flat(grad_k).to(key.dtype),
            _flat(grad_v).to(value.dtype),
            None,
        )


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, tokens, heads, dim) to (batch, kv heads, heads of one kv head, tokens, dim), in
    fp32."""
    return x.float().unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).contiguous()


def _shared(x: Tensor) -> Tensor:
    """Keys or values in that form, one for all heads of a group."""
    return _grouped(x, x.shape[2])


def _flat(x: Tensor) -> Tensor:
    """And back."""
    return x.permute(0, 3, 1, 2, 4).flatten(2, 3).contiguous()


def _scores(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores + (bias.unflatten(0, q.shape[1:3]) if len(bias) > 1 else bias)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of values by one block of scores, and the logarithm of the sum of its weights."""
    scores = _scores(q, k, bias)
    total = scores.logsumexp(dim=-1)
    return torch.exp(scores - total[..., None].clamp_min(-1e30)) @ v, total


def _weighed(x: Tensor, part: Tensor, both: Tensor) -> Tensor:
    return x * torch.exp(part - both.clamp_min(-1e30))[..., None]


def _blocks(ring: Ring, source: int, q: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows of this rank, columns of the source, and their bias: pairs of runs of which something is
    seen."""
    mine, theirs = ring.runs[ring.group.rank()], ring.runs[source]
    for row, queries in zip(_slices(mine), mine, strict=True):
        for column, keys in zip(_slices(theirs), theirs, strict=True):
            if ring.sees(queries, keys):
                yield row, column, ring.bias(queries, keys, q.device)


def _slices(runs: Sequence[range]) -> list[slice]:
    return [slice(i * len(run), (i + 1) * len(run)) for i, run in enumerate(runs)]


def _sources(ring: Ring) -> Iterator[tuple[int, bool]]:
    """Whose keys and values a rank works on, turn by turn, its own first; and whether there are
    more to come."""
    ranks = ring.group.size()
    return (((ring.group.rank() - turn) % ranks, turn < ranks - 1) for turn in range(ranks))
