"""A static batch, as FasterTransformer's: requests start, run and leave together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.serving.memory import memory_of
from meshwright.serving.prices import Prices
from meshwright.values.errors import ConfigError

__all__ = ["StaticBatch", "static_batch"]

_STEPS = 9
"""Points of the generation at which a step is priced; time between them is taken as a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticBatch:
    """One batch from the first prompt token to the last new one."""

    first_token_s: float
    latency_s: float
    """Of the whole batch, all new tokens."""
    tpot_s: float
    """(latency - first token) / (output tokens - 1); NaN for one token."""
    memory_bytes: float
    """Of the fullest chip, at the last token."""
    fits: bool


def static_batch(prices: Prices, *, batch: int, input_len: int, output_len: int) -> StaticBatch:
    """Price one static batch.

    Formula:  first = prompts of the batch; each later token one iteration of the batch; under a
              pipeline the batch is cut into pp micro batches where that is faster, each of which
              fills the others' gaps: (pp + parts - 1) / pp of a part's time for prompts
    Units:    seconds, bytes.
    Source:   FasterTransformer's GPT guide for micro batches over the pipeline.
    Valid:    greedy or sampled tokens, no beams, no early stop.
    Checked:  tests/serving/test_static.py
    """
    for name, value in (("batch", batch), ("input_len", input_len), ("output_len", output_len)):
        if value < 1:
            raise ConfigError(f"{name}={value}: expected 1 or more")
    parts = min(prices.worker.pp, batch)
    split = batch / parts
    first = _first_s(prices, batch, input_len)
    if parts > 1:
        stages = prices.worker.pp
        filled = _first_s(prices, split, input_len) * (stages + parts - 1) / stages
        first = min(first, filled)
    steps = np.zeros(0)
    if output_len > 1:
        steps = np.unique(np.linspace(0, output_len - 2, _STEPS).round())
    contexts = input_len + 1.0 + steps
    source = float(input_len)
    each = np.array([_step_s(prices, batch, context, source) for context in contexts])
    if parts > 1:
        cut = np.array([_step_s(prices, split, context, source) for context in contexts])
        each = np.minimum(each, cut)
    rest = float(np.interp(np.arange(output_len - 1), steps, each).sum()) if output_len > 1 else 0.0
    memory = memory_of(prices, iteration_tokens=split * input_len)
    used = memory.used(batch * (input_len + output_len + memory.state_tokens))
    return StaticBatch(
        first_token_s=first,
        latency_s=first + rest,
        tpot_s=rest / (output_len - 1) if output_len > 1 else float("nan"),
        memory_bytes=used,
        fits=used <= memory.limit,
    )


def _first_s(prices: Prices, batch: float, input_len: int) -> float:
    tokens = np.asarray(batch * input_len)
    one = np.asarray(float(batch))
    device = sum(float(part) for part in prices.by_tokens_s(tokens).values())
    new = np.asarray(float(input_len))
    device += float(prices.prompts_s(batch=one, new=new, context=np.zeros(())))
    count = prices.kernel_count()
    if prices.model.family == "encoder-decoder":
        device += sum(float(part) for part in prices.by_tokens_s(one, "decoder").values())
        count += prices.kernel_count("decoder")
    device = max(device, count * prices.engine.launch_s)
    engine = prices.engine
    head, messages = float(prices.head_s(one)), float(prices.messages_s(tokens))
    host = engine.host_s + engine.host_per_sequence_s * batch
    return device + head + messages + host


def _step_s(prices: Prices, batch: float, context: float, source: float) -> float:
    terms = dict(prices.decode_terms_s(batch=batch, context=context, source=source))
    host = terms.pop("host")
    stream = "decoder" if prices.model.family == "encoder-decoder" else "main"
    device = sum(terms.values())
    if not prices.engine.graphs:
        device = max(device, prices.kernel_count(stream) * prices.engine.launch_s)
    return device + host
