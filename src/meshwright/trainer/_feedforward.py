"""Dense feed-forward, and experts with dispatch over the expert-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.models.spec import ModelSpec, MoeSpec
from meshwright.trainer._exchange import gather_tokens, route, scatter_sum, sum_gradient
from meshwright.trainer._mesh import Meshes

__all__ = ["FeedForward", "MoeFeedForward"]


class Activation(nn.Module):
    """SiLU of the gate times the other half, or GELU."""

    def forward(self, up: Tensor, gate: Tensor | None) -> Tensor:
        """Both (..., ffn)."""
        return F.gelu(up, approximate="tanh") if gate is None else F.silu(gate) * up


class FeedForward(nn.Module):
    """Two products, or three with a gate."""

    def __init__(self, model: ModelSpec, ffn: int) -> None:
        super().__init__()
        self.up = nn.Linear(model.hidden, ffn, bias=model.linear_bias)
        self.gate = nn.Linear(model.hidden, ffn, bias=model.linear_bias) if model.gated else None
        self.down = nn.Linear(ffn, model.hidden, bias=model.linear_bias)
        self.activation = Activation()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden) to the same."""
        return self.down(self.activation(self.up(x), None if self.gate is None else self.gate(x)))


class Router(nn.Module):
    """Scores of the experts, in fp32."""

    def __init__(self, model: ModelSpec, moe: MoeSpec, meshes: Meshes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(moe.num_experts, model.hidden))
        self.tp, self.top_k = meshes.group("tp"), moe.top_k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (n, hidden) of this rank alone; return probabilities (n, experts), gates and
        experts (n, top_k)."""
        logits = F.linear(x.float(), sum_gradient(self.weight, self.tp).float())
        probabilities = logits.softmax(dim=-1)
        gates, chosen = probabilities.topk(self.top_k, dim=-1)
        return probabilities, gates / gates.sum(dim=-1, keepdim=True), chosen


class _Balance(torch.autograd.Function):
    """Pass x on; its backward adds the gradient of the balance loss, of which no rank ever needs
    the value to train."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.shape, ctx.dtype, ctx.device = loss.shape, loss.dtype, loss.device
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones(ctx.shape, dtype=ctx.dtype, device=ctx.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class BalanceRule:
    """How hard experts are pulled towards even loads."""

    weight: float
    """Of the loss, per sequence; 0 is off."""
    sequences: int
    """Of one global batch."""


class Experts(nn.Module):
    """The experts of this rank: weights (local experts, ...)."""

    def __init__(self, model: ModelSpec, moe: MoeSpec) -> None:
        super().__init__()
        count, ffn, hidden = moe.num_experts, moe.expert_ffn, moe.latent_dim or model.hidden
        self.up = nn.Parameter(torch.empty(count, hidden, ffn))
        self.gate = nn.Parameter(torch.empty(count, hidden, ffn)) if model.gated else None
        self.down = nn.Parameter(torch.empty(count, ffn, hidden))
        self.activation = Activation()

    def forward(self, x: Tensor, counts: list[int]) -> Tensor:
        """Rows sorted by expert, `counts` of each."""
        ups, downs = (
            _local(self.up).unbind(),
            _local(self.down).unbind(),
        )  # one gradient of all: up[expert] would make one of full size each
        gates = [None] * len(ups) if self.gate is None else _local(self.gate).unbind()
        parts = []
        for rows, up, gate, down in zip(x.split(counts), ups, gates, downs, strict=True):
            inner = self.activation(rows @ up, None if gate is None else rows @ gate)
            parts.append(inner @ down)
        return torch.cat(parts)


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


class MoeFeedForward(nn.Module):
    """Routed experts, without drops, and shared ones.

    A rank routes its own tokens. With experts cut over tp too, tp ranks first gather each other's
    tokens and sum their parts of the result; then tokens go to the ranks that hold their experts,
    and come back.
    """

    def __init__(self, model: ModelSpec, meshes: Meshes, balance: BalanceRule) -> None:
        super().__init__()
        moe = model.moe
        assert moe is not None
        assert meshes.experts is not None
        self.meshes, self.moe, self.balance = meshes, moe, balance
        self.cut, self.spread = meshes.experts.get_group("etp"), meshes.experts.get_group("ep")
        self.router = Router(model, moe, meshes)
        self.experts = Experts(model, moe)
        self.shared = FeedForward(model, moe.shared_ffn) if moe.shared_ffn else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens of this rank, hidden) to the same."""
        probabilities, gates, chosen = self.router(x.flatten(0, 1))
        if self.balance.weight:
            gates = _Balance.apply(gates, self._balance_loss(probabilities, chosen, x.shape[0]))
        rows, gates, chosen = (
            gather_tokens(part, self.cut) for part in (x.flatten(0, 1), gates, chosen)
        )
        out = scatter_sum(self._mix(rows, gates, chosen), self.cut).view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def _mix(self, rows: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        order = chosen.flatten().argsort(stable=True)
        done = self._run(rows[order // self.moe.top_k], chosen.flatten()[order])
        weighted = done * gates.flatten()[order].unsqueeze(-1).to(done.dtype)
        return torch.zeros_like(rows).index_add(0, order // self.moe.top_k, weighted)

    def _run(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Rows sorted by expert, run on the ranks that hold them, in the same order."""
        ranks = self.spread.size()
        local = self.moe.num_experts // ranks
        counts = chosen.bincount(minlength=self.moe.num_experts).view(ranks, local)
        if ranks == 1:
            return self.experts(rows, counts[0].tolist())
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.spread)
        sent, received = counts.sum(dim=1).tolist(), theirs.sum(dim=1).tolist()
        arrived = route(rows, sent=sent, received=received, group=self.spread)
        expert = (
            torch.arange(local, device=rows.device)
            .repeat(ranks)
            .repeat_interleave(theirs.flatten())
        )
        order = expert.argsort(stable=True)
        done = self.experts(arrived[order], theirs.sum(dim=0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=rows.device)
        return route(done[back], sent=received, received=sent, group=self.spread)

    def _balance_loss(self, probabilities: Tensor, chosen: Tensor, batch: int) -> Tensor:
        """Per sequence: experts * sum over experts of (share of choices) * (mean probability); 1
        where loads are even.

        It is a sum over sequences, so it does not depend on how a batch is cut; of a sequence cut
        over ranks each gives its part.
        """
        experts, layout = self.moe.num_experts, self.meshes.layout
        picks = F.one_hot(chosen.view(batch, -1), experts).sum(dim=1).to(probabilities.dtype)
        mass = probabilities.view(batch, -1, experts).sum(dim=1)
        tokens = probabilities.shape[0] // batch
        for axis in ("cp", "tp"):
            if self.meshes.group(axis).size() > 1:
                dist.all_reduce(picks, group=self.meshes.group(axis))
        tokens *= layout.cp * layout.tp
        shares = picks / (tokens * self.moe.top_k)
        return (
            self.balance.weight / self.balance.sequences * experts * (shares * mass / tokens).sum()
        )
