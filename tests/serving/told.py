"""Copies whose service times are known: a prompt takes a second for each 1000 tokens, an answer a
tenth of a second for each token, and nothing else takes any time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.serving.cases import plain_engine, prices

from meshwright.serving.candidates import Candidate
from meshwright.serving.clock import Clock
from meshwright.serving.engine import Worker
from meshwright.serving.memory import memory_of
from meshwright.serving.traffic import Trace

PROMPT_S, TOKEN_S = 1e-3, 0.1


class ToldClock(Clock):
    """One prompt in an iteration, which stops the answers."""

    def mixed_s(
        self, *, new: int, attention: float, heads: int, batch: int, context: float
    ) -> float:
        return PROMPT_S * new

    def running_s(self, batch: int, context: float) -> float:
        return TOKEN_S


def copy(*, chunk_tokens: int = 1000, chips: int = 8, limit: float | None = None) -> Candidate:
    engine = plain_engine(mixed=False, chunk_tokens=chunk_tokens)
    priced = prices("llama3.1-8b", engine=engine, worker=Worker(tp=1))
    memory = memory_of(priced, iteration_tokens=chunk_tokens)
    if limit is not None:
        memory = replace(memory, limit=limit)
    return Candidate(
        pool=replace(priced.pool, num_chips=chips),
        prices=priced,
        clock=ToldClock(prices=priced, most_tokens=8704, most_context=16384),
        memory=memory,
    )


def trace(
    *rows: tuple[float, int, int],
    hashes: tuple[tuple[int, ...], ...] | None = None,
    block_tokens: int = 512,
) -> Trace:
    table = np.array(rows, dtype=np.float64)
    return Trace(
        name="told",
        sent_s=table[:, 0],
        prompts=table[:, 1].astype(np.int64),
        outputs=table[:, 2].astype(np.int64),
        hashes=hashes,
        block_tokens=block_tokens,
    )
