"""Norms, and self-attention: grouped heads, rotary positions, windows, context parallelism."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwright.trainer.job import ROPE_BASE
from meshwright.trainer.mesh import Meshes, sum_gradient, swap_dims
from meshwright.values.models.spec import ModelSpec

__all__ = ["Attention", "LatentAttention", "Norm", "Ring", "Span", "make_norm", "ring_attention"]

EPSILON = 1e-5


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dim."""

    def __init__(self, size: int, *, centred: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size)) if centred else None

    def forward(self, x: Tensor, *, over: dist.ProcessGroup | None = None) -> Tensor:
        """Normalise; `over` names the ranks that hold other tokens or other heads."""
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
        rows, columns = (
            torch.arange(run[0], run[-1] + 1, device=device) for run in (queries, keys)
        )
        behind = rows[:, None] - columns
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
        works = dist.batch_isend_irecv(moves)
        return _Travelling(arriving=arriving, works=works, leaving=list(parts))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Travelling:
    """Tensors on their way; those that leave must not be let go of before."""

    arriving: list[Tensor]
    leaving: list[Tensor]
    works: list[Any]

    def arrive(self) -> list[Tensor]:
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
                keys, values = k[..., columns, :], v[..., columns, :]
                part, part_total = _attend(q[..., rows, :], keys, values, bias)
                both = torch.logaddexp(total[..., rows], part_total)
                before = _weighed(out[..., rows, :], total[..., rows], both)
                out[..., rows, :] = before + _weighed(part, part_total, both)
                total[..., rows] = both
            if coming is not None:
                k, v = coming.arrive()
        ctx.save_for_backward(query, key, value, out, total)
        ctx.ring = ring
        return _flat(out).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
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
                queries, keys, theirs = q[..., rows, :], k[..., columns, :], grad[..., rows, :]
                weights = torch.exp(_scores(queries, keys, bias) - total[..., rows, None])
                change = weights * (theirs @ v[..., columns, :].mT - inner[..., rows, :]) * scale
                grad_q[..., rows, :] += change @ keys
                grad_k[..., columns, :] += (change.mT @ queries).sum(dim=2, keepdim=True)
                grad_v[..., columns, :] += (weights.mT @ theirs).sum(dim=2, keepdim=True)
            # after as many turns as ranks they are home
            grad_k, grad_v = ring.pass_on(grad_k, grad_v).arrive()
            if coming is not None:
                k, v = coming.arrive()
        pairs = ((grad_q, query), (grad_k, key), (grad_v, value))
        return *(_flat(gradient).to(one.dtype) for gradient, one in pairs), None


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, tokens, heads, dim) to (batch, kv heads, heads per kv head, tokens, dim), fp32."""
    return x.float().unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).contiguous()


def _shared(x: Tensor) -> Tensor:
    return _grouped(x, x.shape[2])


def _flat(x: Tensor) -> Tensor:
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
    """Own rows, the source's columns, and their bias: pairs of runs of which something is seen."""
    mine, theirs = ring.runs[ring.group.rank()], ring.runs[source]
    for row, queries in zip(_slices(mine), mine, strict=True):
        for column, keys in zip(_slices(theirs), theirs, strict=True):
            if ring.sees(queries, keys):
                yield row, column, ring.bias(queries, keys, q.device)


def _slices(runs: Sequence[range]) -> list[slice]:
    return [slice(i * len(run), (i + 1) * len(run)) for i, run in enumerate(runs)]


def _sources(ring: Ring) -> Iterator[tuple[int, bool]]:
    """Whose keys and values a rank works on, turn by turn, and whether more are to come."""
    ranks = ring.group.size()
    return (((ring.group.rank() - turn) % ranks, turn < ranks - 1) for turn in range(ranks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Which tokens of a sequence this rank holds."""

    runs: tuple[range, ...]
    rope_base: float = ROPE_BASE

    def places(self, device: torch.device) -> Tensor:
        """The place of each token in its sequence, (tokens,)."""
        return torch.cat([torch.arange(run.start, run.stop, device=device) for run in self.runs])


def rotate(x: Tensor, span: Span) -> Tensor:
    """Rotate pairs of the last dim by position; x is (batch, tokens, heads, even dim)."""
    half = x.shape[-1] // 2
    speeds = span.rope_base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(span.places(x.device).float(), speeds)[None, :, None, :]
    left, right = x.float().chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    turned = (left * cosine - right * sine, right * cosine + left * sine)
    return torch.cat(turned, dim=-1).to(x.dtype)


class Core(nn.Module):
    """Softmax attention: (batch, tokens, heads, dim) to the same of the values' dim. The tokens are
    whole sequences, unless keys and values go round a ring of context-parallel ranks."""

    def __init__(
        self, meshes: Meshes, *, window: int | None, slopes: tuple[float, ...] | None
    ) -> None:
        super().__init__()
        self.window, self.meshes = window, meshes
        self.slopes = None if slopes is None else _own_heads(slopes, meshes)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal; a window shows its last tokens only; slopes weigh nearer tokens more (ALiBi)."""
        if _goes_round(self.meshes):
            return ring_attention(query, key, value, self._ring(query.shape[1]))
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        mask, grouped = self._mask(query), key.shape[1] != query.shape[1]
        words = {"attn_mask": mask, "is_causal": mask is None, "enable_gqa": grouped}
        return F.scaled_dot_product_attention(query, key, value, **words).transpose(1, 2)

    def _ring(self, tokens: int) -> Ring:
        ranks = self.meshes.layout.cp
        runs = tuple(self.meshes.runs(tokens * ranks, place=place) for place in range(ranks))
        return Ring(
            group=self.meshes.group("cp"), runs=runs, window=self.window, slopes=self.slopes
        )

    def _mask(self, query: Tensor) -> Tensor | None:
        tokens = query.shape[2]
        if self.slopes is None and (self.window is None or self.window >= tokens):
            return None
        places = torch.arange(tokens, device=query.device)
        behind = places[:, None] - places[None, :]
        seen = behind >= 0
        if self.window is not None:
            seen &= behind < self.window
        if self.slopes is None:
            return seen
        slopes = torch.tensor(self.slopes, device=query.device)
        bias = -slopes[:, None, None] * behind
        return bias.masked_fill(~seen, -math.inf).to(query.dtype)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi, arXiv:2108.12409: 2 ** (-8 i / heads) for powers of two, and every second of
    the next power's for the rest."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    more = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(heads - power)]
    return (*first, *more)


class Attention(nn.Module):
    """Grouped-query attention. Under tensor parallelism this rank holds some heads; under context
    parallelism some tokens, which are swapped for heads around the core (all-to-all,
    arXiv:2309.14509), or whose keys and values go round."""

    def __init__(self, model: ModelSpec, meshes: Meshes, *, window: int | None) -> None:
        super().__init__()
        self.head_dim, self.tp = model.head_dim, meshes.group("tp")
        bias = model.linear_bias or model.qkv_bias
        self.query = nn.Linear(model.hidden, model.num_heads * model.head_dim, bias=bias)
        self.key = nn.Linear(model.hidden, model.num_kv_heads * model.head_dim, bias=bias)
        self.value = nn.Linear(model.hidden, model.num_kv_heads * model.head_dim, bias=bias)
        self.out = nn.Linear(model.num_heads * model.head_dim, model.hidden, bias=model.linear_bias)
        self.query_norm = make_norm(model, model.head_dim) if model.qk_norm else None
        self.key_norm = make_norm(model, model.head_dim) if model.qk_norm else None
        self.rotary = model.positions == "rope"
        slopes = alibi_slopes(model.num_heads) if model.positions == "alibi" else None
        self.core = Core(meshes, window=window, slopes=slopes)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        """(batch, tokens of this context rank, hidden) to the same."""
        parts = (self.query(x), self.key(x), self.value(x))
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query, over=self.tp), self.key_norm(key, over=self.tp)
        if self.rotary:
            query, key = rotate(query, span), rotate(key, span)
        return self.out(attend(self.core, query, key, value).flatten(2))


def attend(core: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Run the core on a ring; or on whole sequences of a part of the heads, and swap back:
    key-value heads are repeated where there are too few."""
    if _goes_round(core.meshes):
        return core(query, key, value)
    cp = core.meshes.group("cp")
    repeats = max(1, cp.size() // key.shape[2])
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
    query, key, value = (swap_dims(x, split=2, join=1, group=cp) for x in (query, key, value))
    return swap_dims(core(query, key, value), split=1, join=2, group=cp)


def _goes_round(meshes: Meshes) -> bool:
    return meshes.context == "ring" and meshes.layout.cp > 1


def _own_heads(slopes: tuple[float, ...], meshes: Meshes) -> tuple[float, ...]:
    """The slopes of the heads that the core of this rank works on: its tensor-parallel part, and of
    that, unless keys and values go round, its context-parallel one."""
    parts, place = meshes.layout.tp, meshes.place("tp")
    if not _goes_round(meshes):
        parts, place = parts * meshes.layout.cp, place * meshes.layout.cp + meshes.place("cp")
    count = len(slopes) // parts
    return slopes[place * count : (place + 1) * count]


class LatentUp(nn.Module):
    """Queries, keys and values of this rank's heads from their latents (arXiv:2405.04434)."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        assert model.mla is not None
        self.mla = mla = model.mla
        heads = model.num_heads
        query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        key_value = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        self.query = nn.Linear(mla.q_lora_rank or model.hidden, query, bias=False)
        self.key_value = nn.Linear(mla.kv_lora_rank, key_value, bias=False)

    def forward(
        self, query: Tensor, latent: Tensor, position: Tensor, span: Span
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latents (batch, tokens, rank) and the rotary part of the keys, shared by all heads."""
        mla = self.mla
        queries = self.query(query).unflatten(-1, (-1, mla.qk_nope_head_dim + mla.qk_rope_head_dim))
        plain, turned = queries.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
        both = self.key_value(latent).unflatten(-1, (-1, mla.qk_nope_head_dim + mla.v_head_dim))
        keys, values = both.split((mla.qk_nope_head_dim, mla.v_head_dim), dim=-1)
        shared = rotate(position[:, :, None, :], span).expand(-1, -1, keys.shape[2], -1)
        queries = torch.cat((plain, rotate(turned, span)), dim=-1)
        return queries, torch.cat((keys, shared), dim=-1), values


class LatentAttention(nn.Module):
    """Multi-head latent attention. The down projections are whole on every tensor-parallel rank,
    and so are their gradients: the up projections, cut by heads, sum what they send back, and the
    shared rotary key does the same here."""

    def __init__(self, model: ModelSpec, meshes: Meshes, *, window: int | None) -> None:
        super().__init__()
        assert model.mla is not None
        mla = model.mla
        self.tp, self.mla, rank = meshes.group("tp"), mla, mla.q_lora_rank
        self.query_down = None if rank is None else nn.Linear(model.hidden, rank, bias=False)
        self.query_norm = None if rank is None else make_norm(model, rank)
        both = mla.kv_lora_rank + mla.qk_rope_head_dim
        self.key_value_down = nn.Linear(model.hidden, both, bias=False)
        self.key_value_norm = make_norm(model, mla.kv_lora_rank)
        self.up = LatentUp(model)
        self.out = nn.Linear(model.num_heads * mla.v_head_dim, model.hidden, bias=False)
        self.core = Core(meshes, window=window, slopes=None)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        """(batch, tokens of this context rank, hidden) to the same."""
        x = x.to_local() if isinstance(x, DTensor) else x
        query = x
        if self.query_down is not None and self.query_norm is not None:
            query = self.query_norm(self.query_down(x))
        sizes = (self.mla.kv_lora_rank, self.mla.qk_rope_head_dim)
        latent, position = self.key_value_down(x).split(sizes, dim=-1)
        latent, position = self.key_value_norm(latent), sum_gradient(position, self.tp)
        query, key, value = self.up(query, latent, position, span)
        return self.out(attend(self.core, query, key, value).flatten(2))
