"""Price of one iteration of an engine: prompts, running sequences, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.cost.kernels import element_bytes
from meshwright.serving.engine import Cache, Engine, Quantisation, Weights, Worker
from meshwright.serving.kernels import Floats, Kernels
from meshwright.serving.recurrent import RECURRENT, Recurrent, recurrent_of
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Pool
from meshwright.values.models.spec import Block, ModelSpec

__all__ = ["Prices"]

HALF = 2.0
"""Bytes of an activation between kernels."""
SAMPLING_PASSES = 3.0
"""Passes over the logits in fp32 until a token is chosen: cast, softmax, draw."""
SAMPLING_KERNELS = 10.0
"""Kernels of final norm, head, gather and sampling."""
_STATISTIC_BYTES = 8.0
"""Of a token's norms of query and key over all heads, which ranks sum before they can scale: two
sums of squares in fp32 (vLLM's MiniMaxText01RMSNormTP)."""
_STATISTIC_KERNELS = 4.0
"""Kernels around that sum: squares and their means of queries and keys, and two scalings."""
MIXER_KERNELS, LATENT_KERNELS, FEED_FORWARD_KERNELS, EXPERT_KERNELS = 6.0, 14.0, 4.0, 16.0
"""Kernels of a block in eager mode: norm, product, rotary, cache, attention, product; a latent's
extra norms and products; norm, two products, activation; router, choice, sorting, two grouped
products, sum, shared experts."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """One worker of one engine: what its iterations cost.

    All methods take arrays that broadcast and return seconds of the whole model, pipeline stages
    one after the other.
    """

    model: ModelSpec
    pool: Pool
    engine: Engine
    worker: Worker
    quantisation: Quantisation
    cache: Cache

    def __post_init__(self) -> None:
        if not any("attention" in block.kind for block, _ in self.blocks):
            raise ConfigError(
                f"{self.model.name}: serving of models without any attention is not modelled"
            )
        self.quantisation.check(self.pool.node.chip)

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(pool=self.pool, engine=self.engine)

    @cached_property
    def blocks(self) -> tuple[tuple[Block, float], ...]:
        """Every kind of block, and how many the model has of it, in both of its halves."""
        counts: dict[Block, float] = {}
        for segment in self.model.segments:
            for block, per_layer in segment.blocks:
                counts[block] = counts.get(block, 0.0) + per_layer * segment.num_layers
        return tuple(counts.items())

    def _of(self, stream: str) -> list[tuple[Block, float]]:
        return [(block, count) for block, count in self.blocks if block.stream == stream]

    def by_tokens_s(self, tokens: Floats, stream: str = "main") -> dict[str, Floats]:
        """Time of all that hangs on the number of tokens alone, by term; `tokens` of one attention
        rank.

        Formula:  per block: products + casts and element-wise passes + exchanges, as each says;
                  kernels * kernel_s
        Units:    seconds by term: linear, experts, exchange, pointwise.
        Source:   `Kernels`.
        Valid:    1 token or more.
        Checked:  tests/serving/test_prices.py
        """
        tokens = np.asarray(tokens, dtype=np.float64)
        names = ("linear", "experts", "exchange", "pointwise")
        total = {name: np.zeros_like(tokens) for name in names}
        for block, count in self._of(stream):
            price = self._mixer if "attention" in block.kind else self._feed_forward
            price = self._recurrent if block.kind in RECURRENT else price
            parts = price(tokens, block)
            for name, seconds in parts.items():
                total[name] = total[name] + count * seconds
        return total

    def _mixer(self, tokens: Floats, block: Block) -> dict[str, Floats]:
        shapes = self._attention_products(block)
        kept, width = self.quantisation, self.model.hidden
        weights = kept.attention
        values = tokens * (2.0 * self._query_width(block) + 2.0 * self._cache_width(block))
        moved = HALF * (4.0 * tokens * width + values)
        tp, extra = self.worker.tp, 3.0
        exchange = self.kernels.all_reduce_s(ranks=tp, buffer_bytes=HALF * tokens * width)
        if self.model.qk_norm_all_heads and tp > 1:
            norms = _STATISTIC_BYTES * tokens
            exchange = exchange + self.kernels.all_reduce_s(ranks=tp, buffer_bytes=norms)
            extra += _STATISTIC_KERNELS
        last = self._product(kept.output, tokens, *shapes[-1])
        return {
            "linear": sum((self._product(weights, tokens, n, k) for n, k in shapes[:-1]), last),
            "exchange": exchange,
            "pointwise": self._pointwise(weights, tokens, moved, shapes, extra=extra),
        }

    def _recurrent(self, tokens: Floats, block: Block) -> dict[str, Floats]:
        """All of a layer with a state but for the state itself: products, convolution, gated norm,
        and its kernels' own cost."""
        layer, width = self._layer(block), self.model.hidden
        kept, shapes = self.quantisation, list(layer.products)
        moved = HALF * tokens * (4.0 * width + 2.0 * layer.convolved + 3.0 * layer.gated)
        exchange = self.kernels.all_reduce_s(
            ranks=self.worker.tp, buffer_bytes=HALF * tokens * width
        )
        first = (self._product(kept.attention, tokens, n, k) for n, k in shapes[:-1])
        extra = layer.kernels - len(shapes)
        return {
            "linear": sum(first, self._product(kept.output, tokens, *shapes[-1])),
            "exchange": exchange,
            "pointwise": self._pointwise(kept.attention, tokens, moved, shapes, extra=extra),
        }

    def _layer(self, block: Block) -> Recurrent:
        return recurrent_of(self.model, block, tp=self.worker.tp)

    def _attention_products(self, block: Block) -> list[tuple[float, float]]:
        """(n, k) of each product on one rank, the one after attention last."""
        model, tp = self.model.at(block), self.worker.tp
        heads = model.num_heads / tp
        gates = heads if model.attention_gate else 0.0
        if model.mla is not None:
            mla = model.mla
            down = float(mla.kv_lora_rank + mla.qk_rope_head_dim)
            absorbed = [(heads * (mla.qk_nope_head_dim + mla.v_head_dim), float(mla.kv_lora_rank))]
            query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
            width, down = float(model.hidden), down + gates * mla.v_head_dim
            first = [(query + down, width)]
            if mla.q_lora_rank is not None:
                rank = float(mla.q_lora_rank)
                first = [(rank + down, width), (query, rank)]
            return [*first, *absorbed, (float(model.hidden), heads * mla.v_head_dim)]
        projected = 1.0 if model.values_are_keys else 2.0
        keys = 0.0 if block.kind == "cross_attention" else projected * self._kv_heads(block)
        return [
            ((heads + gates + keys) * model.head_dim, float(model.hidden)),
            (float(model.hidden), heads * model.head_dim),
        ]

    def _kv_heads(self, block: Block) -> float:
        """Key heads on one rank: copied where there are fewer than ranks."""
        return max(1.0, self.model.at(block).num_kv_heads / self.worker.tp)

    def _query_width(self, block: Block) -> float:
        mla, own = self.model.mla, self.model.at(block).head_dim
        dim = own if mla is None else mla.qk_nope_head_dim + mla.qk_rope_head_dim
        return self.model.num_heads / self.worker.tp * dim

    def _cache_width(self, block: Block) -> float:
        """Values of a token's keys (or latent) on one rank."""
        if self.model.mla is not None:
            return float(self.model.mla.kv_lora_rank + self.model.mla.qk_rope_head_dim)
        return self._kv_heads(block) * self.model.at(block).head_dim

    def _feed_forward(self, tokens: Floats, block: Block) -> dict[str, Floats]:
        if block.kind == "moe":
            return self._expert_layer(tokens)
        ranks = self.worker.tp
        moved = HALF * tokens * self.model.hidden
        exchange = self.kernels.all_reduce_s(ranks=ranks, buffer_bytes=moved)
        return self._dense(tokens, self.model.ffn / ranks) | {"exchange": exchange}

    def _dense(self, tokens: Floats, inner: float) -> dict[str, Floats]:
        weights, width = self.quantisation.linear, float(self.model.hidden)
        fan = 2.0 if self.model.gated else 1.0
        shapes = [(fan * inner, width), (width, inner)]
        moved = HALF * tokens * (4.0 * width + (fan + 1.0) * inner)
        none = np.zeros_like(tokens)
        return {
            "linear": sum((self._product(weights, tokens, n, k) for n, k in shapes), none),
            "pointwise": self._pointwise(weights, tokens, moved, shapes, extra=2.0),
        }

    def _expert_layer(self, tokens: Floats) -> dict[str, Floats]:
        """Router, shared experts, routed experts, and the tokens' way to them.

        Formula:  n tokens of k of E experts each give every expert n k / E tokens on average
        """
        moe, worker = self.model.moe, self.worker
        assert moe is not None
        width = float(self.model.hidden)
        everyone = tokens * worker.attention_dp
        run = self.kernels.experts_s if worker.attention_dp == 1 else self.kernels.spread_experts_s
        routed = run(
            self.quantisation.experts,
            per_expert=everyone * moe.top_k / moe.num_experts,
            experts=moe.num_experts / worker.ep,
            hidden=float(moe.latent_dim or width),
            inter=moe.expert_ffn / worker.expert_tp,
            matrices=3 if self.model.gated else 2,
        )
        router = self._product("bf16", tokens, float(moe.num_experts), width)
        if moe.latent_dim is not None:
            latent = float(moe.latent_dim)
            router = router + self._product("bf16", tokens, latent, width)
            router = router + self._product("bf16", tokens, width, latent)
        moved = HALF * tokens * (4.0 * width + moe.num_experts)
        parts = {
            "linear": router,
            "experts": routed,
            "exchange": self._to_experts(tokens),
            "pointwise": self._pointwise("bf16", tokens, moved, [(1.0, 1.0)], extra=3.0),
        }
        if moe.shared_ffn:
            split = worker.tp if worker.attention_dp == 1 else 1
            shared = self._dense(tokens, moe.shared_ffn / split)
            parts = {name: seconds + shared.get(name, 0.0) for name, seconds in parts.items()}
        return parts

    def _to_experts(self, tokens: Floats) -> Floats:
        """Ranks with the same tokens sum their results; others send tokens out and back."""
        moe = self.model.moe
        assert moe is not None
        width = float(self.model.hidden)
        if self.worker.attention_dp == 1:
            return self.kernels.all_reduce_s(
                ranks=self.worker.tp, buffer_bytes=HALF * tokens * width
            )
        out = min(HALF, element_bytes(Quantisation.product_of(self.quantisation.experts)))
        ranks = self.worker.stage_chips
        there = self.kernels.exchange_s(
            ranks=ranks, token_bytes=out * tokens * width, copies=moe.top_k
        )
        return there + self.kernels.exchange_s(
            ranks=ranks, token_bytes=HALF * tokens * width, copies=moe.top_k
        )

    def _product(self, weights: Weights, tokens: Floats, n: float, k: float) -> Floats:
        return self.kernels.linear_s(weights, m=tokens, n=n, k=k)

    def _pointwise(
        self,
        weights: Weights,
        tokens: Floats,
        moved: Floats,
        shapes: list[tuple[float, float]],
        *,
        extra: float,
    ) -> Floats:
        """Element-wise passes, casts before narrow products, and each kernel's own cost."""
        size = element_bytes(Quantisation.product_of(weights))
        casts = len(shapes) if size <= 1.0 else 0
        cast_bytes = sum(k for _, k in shapes) * (HALF + size) * tokens if casts else 0.0
        kernels = len(shapes) + casts + extra
        passes = self.kernels.passes_s(moved * self.engine.pass_scale + cast_bytes)
        return passes + kernels * self.engine.kernel_s

    def kernel_count(self, stream: str = "main") -> float:
        """Kernels of one iteration, which the host launches one by one where no graph does.

        Formula:  blocks * kernels of the block, casts and exchanges included
        Units:    kernels.
        Source:   counted in vLLM's and SGLang's layers; experts include routing, permutation and
                  sums.
        Valid:    one rank.
        Checked:  tests/serving/test_prices.py
        """
        size = element_bytes(Quantisation.product_of(self.quantisation.linear))
        narrow = 2.0 if size <= 1.0 else 0.0
        more = narrow + (1.0 if self.worker.tp > 1 else 0.0)
        mixer = LATENT_KERNELS if self.model.mla is not None else MIXER_KERNELS
        each = {"mlp": FEED_FORWARD_KERNELS + more, "moe": EXPERT_KERNELS + more}
        each |= {
            block.kind: self._layer(block).kernels + more
            for block, _ in self.blocks
            if block.kind in RECURRENT
        }
        return sum(count * each.get(block.kind, mixer + more) for block, count in self._of(stream))

    def prompts_s(
        self, *, batch: Floats, new: Floats, context: Floats, stream: str = "main"
    ) -> Floats:
        """Attention of prompts: `new` tokens of each of `batch`, of which `context` are in the
        cache.

        Formula:  blocks * the kernel's time
        Units:    seconds.
        Source:   `Kernels.prefill_attention_s`, `Kernels.prefill_latent_s`.
        Valid:    1 new token or more.
        Checked:  tests/serving/test_prices.py
        """
        heads = self.model.num_heads / self.worker.tp
        batch, new, context = np.broadcast_arrays(
            *(np.asarray(a, dtype=np.float64) for a in (batch, new, context))
        )
        total = np.zeros(batch.shape)
        for block, count in self._of(stream):
            if block.kind in RECURRENT:
                rule = self.kernels.recurrent_prompt_s
                total = total + count * rule(
                    self._layer(block), tokens=batch * new, kind=block.kind
                )
            if block.kind != "attention":
                continue
            if self.model.mla is not None:
                one = self.kernels.prefill_latent_s(
                    batch=batch, new=new, context=context, heads=heads, mla=self.model.mla
                )
            else:
                one = self.kernels.prefill_attention_s(
                    batch=batch,
                    new=new,
                    context=context,
                    heads=heads,
                    kv_heads=self._kv_heads(block),
                    head_dim=self.model.at(block).head_dim,
                    window=block.window,
                )
            total = total + count * one
        return total

    def running_s(
        self, *, batch: Floats, context: Floats, source: float = 0.0, stream: str = "main"
    ) -> Floats:
        """Attention of one new token of each of `batch` sequences; `source`: tokens of the encoder
        that cross attention reads.

        Formula:  blocks * the kernel's time
        Units:    seconds.
        Source:   `Kernels.decode_attention_s`, `Kernels.decode_latent_s`.
        Valid:    1 sequence or more.
        Checked:  tests/serving/test_prices.py
        """
        batch, context = np.broadcast_arrays(
            np.asarray(batch, dtype=np.float64), np.asarray(context, dtype=np.float64)
        )
        heads = self.model.num_heads / self.worker.tp
        total = np.zeros(batch.shape)
        for block, count in self._of(stream):
            if block.kind in RECURRENT:
                total = total + count * self.kernels.recurrent_step_s(self._layer(block), batch)
            if "attention" not in block.kind:
                continue
            seen = np.full(batch.shape, source) if block.kind == "cross_attention" else context
            seen = np.minimum(seen, block.window) if block.window is not None else seen
            if self.model.mla is not None:
                one = self.kernels.decode_latent_s(
                    self.cache, batch=batch, context=seen, heads=heads, mla=self.model.mla
                )
            else:
                one = self.kernels.decode_attention_s(
                    self.cache,
                    batch=batch,
                    context=seen,
                    heads=heads,
                    kv_heads=self._kv_heads(block),
                    head_dim=self.model.at(block).head_dim,
                )
            total = total + count * one
        return total

    def head_s(self, sequences: Floats) -> Floats:
        """Final norm, head and sampling of that many sequences.

        Formula:  product of the head's share + SAMPLING_PASSES over the logits + kernels
        Units:    seconds.
        Source:   `Kernels.linear_s`; the head stays in 16 bits in every quantised checkpoint.
        Valid:    1 sequence or more.
        Checked:  tests/serving/test_prices.py
        """
        sequences = np.asarray(sequences, dtype=np.float64)
        part = self.model.vocab / self.worker.tp
        logits = 4.0 * sequences * self.model.vocab
        product = self._product("bf16", sequences, part, float(self.model.hidden))
        passes = self.kernels.passes_s(SAMPLING_PASSES * logits)
        return product + passes + SAMPLING_KERNELS * self.engine.kernel_s

    def messages_s(self, tokens: Floats) -> Floats:
        """Time of the messages between pipeline stages.

        Formula:  (pp - 1) * (latency + bytes / rate)
        Units:    seconds.
        Source:   alpha-beta model; inside a fast domain over its links.
        Valid:    stages on neighbouring chips.
        Checked:  tests/serving/test_prices.py
        """
        tokens = np.asarray(tokens, dtype=np.float64)
        node = self.pool.node
        link = node.domain_link if self.worker.chips <= node.domain_size else node.network_link
        size = HALF * tokens * self.model.hidden / self.worker.tp
        return (self.worker.pp - 1) * (link.latency_s + size / (link.bytes_per_s * link.efficiency))

    def decode_terms_s(
        self, *, batch: float, context: float, source: float = 0.0
    ) -> Mapping[str, float]:
        """One iteration of `batch` running sequences per attention rank, by term."""
        stream = "decoder" if self.model.family == "encoder-decoder" else "main"
        count = np.asarray(float(batch))
        terms = {name: float(seconds) for name, seconds in self.by_tokens_s(count, stream).items()}
        seen = np.asarray(float(context))
        attention = self.running_s(batch=count, context=seen, source=source, stream=stream)
        terms["attention"] = float(attention)
        terms["head"] = float(self.head_s(count))
        terms["pipeline"] = float(self.messages_s(count))
        terms["host"] = self.engine.host_s + self.engine.host_per_sequence_s * float(batch)
        return terms
