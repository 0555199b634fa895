"""Device memory of a worker: weights, cache, working memory."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.serving.engine import Quantisation, cache_bytes
from meshwright.serving.prices import Prices
from meshwright.serving.recurrent import RECURRENT, recurrent_of
from meshwright.values.models.params import block_params, norm_params
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.units import GIB

__all__ = [
    "Memory",
    "cache_bytes_per_token",
    "memory_of",
    "state_bytes",
    "state_tokens",
    "weight_bytes",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of the fullest chip."""

    weights: float
    activations: float
    """Working memory of the largest iteration."""
    base: float
    """Context, libraries, graphs, communication buffers."""
    cache_per_token: float
    """Of one token of one sequence."""
    state: float
    """Of one sequence, whatever its length: states of delta attention and of Mamba layers."""
    limit: float
    """What the engine lets itself fill."""

    @property
    def state_tokens(self) -> float:
        """Tokens of the cache that take as much room as one sequence's states."""
        return self.state / self.cache_per_token

    @property
    def cache_tokens(self) -> int:
        """Tokens that one attention rank's cache holds, states counted as `state_tokens`; 0 where
        the weights alone don't fit."""
        room = self.limit - self.weights - self.activations - self.base
        return max(0, int(room / self.cache_per_token))

    def used(self, tokens: float) -> float:
        """Bytes with that many tokens in the cache."""
        return self.weights + self.activations + self.base + self.cache_per_token * tokens


def memory_of(prices: Prices, *, iteration_tokens: float) -> Memory:
    """Return the memory of a worker whose largest iteration has that many tokens on one attention
    rank.

    Formula:  weights + iteration_tokens * hidden * activation_elements * 2 / pp' + base; limit =
              usable * memory_share
    Units:    bytes.
    Source:   `Engine`: fitted on the memory of FasterTransformer's runs
              (inference_fastertransformer), vLLM's documented defaults.
    Valid:    every stage alike, plus the embedding on the first.
    Checked:  tests/serving/test_memory.py
    """
    engine, chip = prices.engine, prices.pool.node.chip
    working = 2.0 * engine.activation_elements * prices.model.hidden * iteration_tokens
    return Memory(
        weights=weight_bytes(prices),
        activations=working,
        base=engine.base_gib * GIB,
        cache_per_token=cache_bytes_per_token(prices),
        state=state_bytes(prices),
        limit=chip.usable_bytes * engine.memory_share,
    )


def weight_bytes(prices: Prices) -> float:
    """Bytes of weights on the fullest chip.

    Formula:  blocks * (sharded / tp + replicated + experts / (ep * expert tp)) / pp, each in its
              type, the projection after attention in its own, + embedding and head / tp
    Units:    bytes.
    Source:   `models.params`.
    Valid:    stages of equal layers; tied embeddings are one matrix.
    Checked:  tests/serving/test_memory.py
    """
    model, worker, kept = prices.model, prices.worker, prices.quantisation
    total = 0.0
    for block, count in prices.blocks:
        part = block_params(model, block)
        mixes = "attention" in block.kind or block.kind in RECURRENT
        dense = kept.attention if mixes else kept.linear
        split = worker.tp if mixes or worker.attention_dp == 1 else 1
        size = part.sharded / split * Quantisation.bytes_of(dense) + 2.0 * part.replicated
        if mixes:
            after = _after_mixing(model, block)
            narrower = Quantisation.bytes_of(dense) - Quantisation.bytes_of(kept.output)
            size -= after / split * narrower
        experts = part.expert / worker.stage_chips * Quantisation.bytes_of(kept.experts)
        total += count * (size + experts)
    table = 2.0 * model.vocab * model.hidden / worker.tp
    ends = table if model.tied or worker.pp > 1 else 2.0 * table
    return total / worker.pp + ends + 2.0 * norm_params(model)


def _after_mixing(model: ModelSpec, block: Block) -> float:
    """Weights of the projection after attention, or after a layer's states, over all ranks.

    Formula:  hidden * heads * dim of a head's values
    Source:   `models.params`.
    """
    if block.kind in RECURRENT:
        wide, inner = recurrent_of(model, block, tp=1).products[-1]
        return wide * inner
    own = model.at(block).head_dim if model.mla is None else model.mla.v_head_dim
    return float(model.hidden * model.num_heads * own)


def state_bytes(prices: Prices) -> float:
    """Bytes of the states that one sequence keeps on the fullest chip, whatever its length.

    Formula:  layers with a state / pp * bytes of one layer's state on a rank
    Units:    bytes.
    Source:   `recurrent_of`.
    Valid:    one state a sequence, without copies that a prefix cache keeps.
    Checked:  tests/serving/test_recurrent.py
    """
    model, worker = prices.model, prices.worker
    each = (
        count * recurrent_of(model, block, tp=worker.tp).state_bytes
        for block, count in prices.blocks
        if block.kind in RECURRENT
    )
    return sum(each, 0.0) / worker.pp


def state_tokens(prices: Prices) -> float:
    """Tokens of the cache that take as much room as the states of one sequence.

    Formula:  state_bytes / cache_bytes_per_token
    Units:    tokens.
    Source:   engines cut one pool of blocks into both.
    Valid:    models with some attention.
    Checked:  tests/serving/test_recurrent.py
    """
    return state_bytes(prices) / cache_bytes_per_token(prices)


def cache_bytes_per_token(prices: Prices) -> float:
    """Bytes that one token of one sequence keeps on the fullest chip.

    Formula:  attention layers / pp * 2 * key heads per rank * head_dim * bytes; the latent of MLA
              is whole on every rank
    Units:    bytes.
    Source:   vLLM's paged attention (arXiv:2309.06180) wastes under 4 %, which is left out.
    Valid:    layers with a window are counted whole here: engines keep one size of page for all
              layers.
    Checked:  tests/serving/test_memory.py
    """
    model, worker = prices.model, prices.worker
    values = sum(
        count * _cached_values(model.at(block), worker.tp)
        for block, count in prices.blocks
        if block.kind == "attention"
        and (model.family != "encoder-decoder" or block.stream == "decoder")
    )
    return values / worker.pp * cache_bytes(prices.cache)


def _cached_values(model: ModelSpec, tp: int) -> float:
    """Values of a token that one layer keeps on a rank.

    Formula:  2 * key heads per rank * head_dim; MLA: kv_lora_rank + qk_rope_head_dim
    Source:   DeepSeek-V2 (arXiv:2405.04434), table 1.
    """
    if model.mla is not None:
        return float(model.mla.kv_lora_rank + model.mla.qk_rope_head_dim)
    return 2.0 * max(1.0, model.num_kv_heads / tp) * model.head_dim
