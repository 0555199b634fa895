"""The decoder: layers of attention and feed-forward, one pipeline chunk of it, and recompute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from meshwright.trainer.attention import (
    Attention,
    Core,
    LatentAttention,
    LatentUp,
    Norm,
    Span,
    make_norm,
)
from meshwright.trainer.checks import VOCAB_MULTIPLE, Part
from meshwright.trainer.mesh import Meshes, gather_tokens, route, scatter_sum, sum_gradient
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec, MoeSpec

__all__ = [
    "Chunk",
    "FeedForward",
    "Layer",
    "MoeFeedForward",
    "apply_recompute",
    "padded_vocab",
    "token_loss",
]


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
        """(n, hidden) to probabilities (n, experts), gates and experts (n, top_k)."""
        logits = F.linear(x.float(), sum_gradient(self.weight, self.tp).float())
        probabilities = logits.softmax(dim=-1)
        gates, chosen = probabilities.topk(self.top_k, dim=-1)
        return probabilities, gates / gates.sum(dim=-1, keepdim=True), chosen


class _Balance(torch.autograd.Function):
    """Pass x on; its backward adds the balance loss's gradient, as its value is not needed."""

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
        # one gradient of all: up[expert] would make one of full size each
        ups, downs = _local(self.up).unbind(), _local(self.down).unbind()
        gates = [None] * len(ups) if self.gate is None else _local(self.gate).unbind()
        parts = []
        for rows, up, gate, down in zip(x.split(counts), ups, gates, downs, strict=True):
            inner = self.activation(rows @ up, None if gate is None else rows @ gate)
            parts.append(inner @ down)
        return torch.cat(parts)


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


class MoeFeedForward(nn.Module):
    """Routed experts, without drops, and shared ones. A rank routes its own tokens. With experts
    cut over tp too, tp ranks first gather each other's tokens and sum their parts of the result;
    then tokens go to the ranks that hold their experts, and come back."""

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
        experts = torch.arange(local, device=rows.device).repeat(ranks)
        expert = experts.repeat_interleave(theirs.flatten())
        order = expert.argsort(stable=True)
        done = self.experts(arrived[order], theirs.sum(dim=0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=rows.device)
        return route(done[back], sent=received, received=sent, group=self.spread)

    def _balance_loss(self, probabilities: Tensor, chosen: Tensor, batch: int) -> Tensor:
        """Per sequence: experts * sum over experts of (share of choices) * (mean probability); 1
        where loads are even. It is a sum over sequences, so it does not depend on how a batch is
        cut; of a sequence cut over ranks each gives its part."""
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


def padded_vocab(model: ModelSpec) -> int:
    """Rows of the embedding."""
    return -(-model.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm, with residuals; parallel: of one input."""

    def __init__(
        self,
        model: ModelSpec,
        meshes: Meshes,
        index: int,
        *,
        balance: BalanceRule,
        rope_base: float,
    ) -> None:
        super().__init__()
        self.parallel = model.parallel_block
        self.over = meshes.group("tp") if meshes.layout.sp else None
        self.span = _SpanOf(meshes, rope_base)
        self.attention_norm = make_norm(model, model.hidden)
        shared_norm = model.parallel_block and model.norms_per_layer == 1
        self.feedforward_norm = None if shared_norm else make_norm(model, model.hidden)
        behind = model.norms_per_layer == 4  # Gemma 2 and 3
        self.behind_attention = make_norm(model, model.hidden) if behind else None
        self.behind_feedforward = make_norm(model, model.hidden) if behind else None
        kind = Attention if model.mla is None else LatentAttention
        self.attention = kind(model, meshes, window=_window_of(model, index))
        self.feedforward = (
            MoeFeedForward(model, meshes, balance)
            if _has_experts(model, index)
            else FeedForward(model, model.ffn)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens of this rank, hidden) to the same."""
        normed = self.attention_norm(x, over=self.over)
        attended = self.attention(normed, self.span(x))
        if self.behind_attention is not None:
            attended = self.behind_attention(attended, over=self.over)
        base = x if self.parallel else x + attended
        if self.feedforward_norm is not None:
            normed = self.feedforward_norm(base, over=self.over)
        done = self.feedforward(normed)
        if self.behind_feedforward is not None:
            done = self.behind_feedforward(done, over=self.over)
        return base + done + attended if self.parallel else base + done


class _SpanOf:
    """The tokens of a context-parallel rank, from the shape of what it holds."""

    def __init__(self, meshes: Meshes, rope_base: float) -> None:
        self.meshes, self.rope_base = meshes, rope_base
        self.cut = meshes.layout.tp if meshes.layout.sp else 1

    def __call__(self, x: Tensor) -> Span:
        tokens = x.shape[1] * self.cut * self.meshes.layout.cp
        return Span(runs=self.meshes.runs(tokens), rope_base=self.rope_base)


def _window_of(model: ModelSpec, index: int) -> int | None:
    """Every `global_every`-th layer sees everything."""
    everything = model.global_every != 0 and (index + 1) % model.global_every == 0
    return None if everything else model.window


def _has_experts(model: ModelSpec, index: int) -> bool:
    if model.moe is None or index < model.moe.first_dense_layers:
        return False
    behind = index - model.moe.first_dense_layers
    return (behind + 1) % model.moe.layer_frequency == 0


class Embedding(nn.Module):
    """Tokens, and positions where they are learned."""

    def __init__(self, model: ModelSpec, meshes: Meshes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(padded_vocab(model), model.hidden)
        learned = model.positions == "learned"
        self.positions = (
            nn.Parameter(torch.empty(max(model.max_positions, 1), model.hidden))
            if learned
            else None
        )
        self.meshes = meshes

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, tokens of this context rank) to (batch, tokens of this rank, hidden)."""
        x = self.tokens(ids)
        if self.positions is None:
            return x
        meshes, table = self.meshes, self.positions
        places = Span(runs=meshes.runs(ids.shape[1] * meshes.layout.cp)).places(ids.device)
        if meshes.layout.sp:
            table = sum_gradient(table, meshes.group("tp"))
            places = places.chunk(meshes.layout.tp)[meshes.place("tp")]
        return x + F.embedding(places, table).to(x.dtype)


class Chunk(nn.Module):
    """The layers of one pipeline chunk, embedding before the first, head behind the last."""

    def __init__(
        self,
        model: ModelSpec,
        meshes: Meshes,
        part: Part,
        *,
        balance: BalanceRule,
        rope_base: float,
    ) -> None:
        super().__init__()
        self.tied = model.tied
        self.over = meshes.group("tp") if meshes.layout.sp else None
        self.embedding = Embedding(model, meshes) if part.first else None
        self.layers = nn.ModuleDict(
            {
                str(i): Layer(model, meshes, i, balance=balance, rope_base=rope_base)
                for i in part.layers
            }
        )
        self.norm = make_norm(model, model.hidden) if part.last else None
        self.head = nn.Linear(model.hidden, padded_vocab(model), bias=False) if part.last else None
        self.tie()

    def tie(self) -> None:
        """Let head and embedding be one weight where the model ties them and both are here."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Token ids or hidden states to hidden states or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.run(list(self.layers.values()), x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x, over=self.over))
        return x

    def run(self, layers: Sequence[nn.Module], x: Tensor) -> Tensor:
        """Apply layers one after another; recomputation replaces this."""
        return _in_turn(layers, x)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over tokens, in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


_KINDS: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "core_attn": (Core, nn.Module),
    "layernorm": (Norm, Layer),
    "mlp": (FeedForward, Layer),
    "moe": (MoeFeedForward, nn.Module),
    "moe_act": (Activation, Experts),
    "mla_up_proj": (LatentUp, nn.Module),
    "shared_experts": (FeedForward, MoeFeedForward),
    "mlp_act": (Activation, FeedForward),
}
"""Modules, and what holds them, that each name of `recompute_modules` computes again; `ops` is a
policy instead."""


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
        run = _again(_in_turn) if again else _in_turn
        x = run(layers[start : start + size], x)
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
            kinds = (_KINDS[name] for name in names if name in _KINDS)
            if any(isinstance(child, one) and isinstance(parent, of) for one, of in kinds):
                child.forward = _again(child.forward)


def _again(forward: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def run(*args: Any, **words: Any) -> Any:
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=False, **options, **words
        )

    return run


def _every_second_product() -> Any:
    """Keep attention's output and every second matrix product (torchtitan's per-op policy)."""
    products = {"forward": 0, "recompute": 0}

    def policy(ctx: Any, op: Any, *args: Any, **words: Any) -> CheckpointPolicy:
        keeps = "attention" in str(op)
        if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            mode = "recompute" if ctx.is_recompute else "forward"
            products[mode] += 1
            keeps = products[mode] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
