"""The decoder: layers of attention and feed-forward, and the part of it that one pipeline chunk
holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.spec import ModelSpec
from meshwright.trainer._attention import Attention, LatentAttention, Span
from meshwright.trainer._exchange import sum_gradient
from meshwright.trainer._feedforward import BalanceRule, FeedForward, MoeFeedForward
from meshwright.trainer._mesh import Meshes
from meshwright.trainer._norms import make_norm
from meshwright.trainer.checks import VOCAB_MULTIPLE
from meshwright.trainer.parts import Part

__all__ = ["Chunk", "Layer", "padded_vocab", "token_loss"]


def padded_vocab(model: ModelSpec) -> int:
    """Rows of the embedding."""
    return -(-model.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm, with residuals; in a parallel block both read
    the same input."""

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
        self.parallel, self.over = (
            model.parallel_block,
            meshes.group("tp") if meshes.layout.sp else None,
        )
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
        self.meshes, self.rope_base, self.cut = (
            meshes,
            rope_base,
            meshes.layout.tp if meshes.layout.sp else 1,
        )

    def __call__(self, x: Tensor) -> Span:
        return Span(
            runs=self.meshes.runs(x.shape[1] * self.cut * self.meshes.layout.cp),
            rope_base=self.rope_base,
        )


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
    """The layers of one pipeline chunk, with the embedding before the first and the head behind the
    last."""

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
        """Let head and embedding be one weight where the model ties them and the chunk holds
        both."""
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
        for layer in layers:
            x = layer(x)
        return x


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over tokens, in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
