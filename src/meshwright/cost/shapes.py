"""The few columns that one layer's work depends on, so that it is priced once per distinct shape
and not once per layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.layout import SCHEDULES, Layouts
from meshwright.models.spec import Block, ModelSpec
from meshwright.workload import Workload

__all__ = ["Floats", "Shapes", "block_tokens", "distinct_shapes", "stream_seq_len"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Distinct (tp, sp, cp, ep, etp, mbs, whether pp > 1, whether stages are in chunks), each of
    shape (U,), float64."""

    tp: Floats
    sp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    mbs: Floats
    pipelined: Floats
    """1 where pp > 1."""
    unchunked: Floats
    """1 where pp > 1 and a stage is one piece under gpipe or 1f1b: one micro batch's forward has no
    other's backward beside it."""

    @property
    def sequence_shards(self) -> Floats:
        """Over how many ranks norms and residuals are split besides cp: tp with sequence
        parallelism, else 1."""
        return np.where(self.sp > 0, self.tp, 1.0)


def distinct_shapes(layouts: Layouts) -> tuple[Shapes, NDArray[Any]]:
    """Return the distinct shapes of N layouts and, for each layout, the index of its shape, (N,).

    Formula:  distinct rows of (tp, sp, cp, ep, etp, mbs, pp > 1, pp > 1 with vpp = 1 under gpipe or
              1f1b)
    Units:    none.
    Source:   definition: nothing else enters the work of one layer and micro batch.
    Valid:    any columns; shapes[index] gives each layout's back.
    Checked:  tests/cost/test_step.py
    """
    names = ("tp", "sp", "cp", "ep", "etp", "mbs", "pipelined", "unchunked")
    pipelined = layouts.pp > 1
    unchunked = (
        pipelined
        & (layouts.vpp == 1)
        & (layouts.schedule != SCHEDULES.index("zero-bubble"))
        & (layouts.ep > 1)
    )
    columns = [
        *(getattr(layouts, name) for name in names[:-2]),
        pipelined.astype(np.int64),
        unchunked.astype(np.int64),
    ]
    key = np.zeros(len(layouts), dtype=np.int64)
    for column in columns:
        values, code = _codes(column)
        key = key * values + code
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return (
        Shapes(
            **{
                name: column[first].astype(np.float64)
                for name, column in zip(names, columns, strict=True)
            }
        ),
        inverse,
    )


def _codes(column: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return how many codes there are and a small code per value; quick where values are small."""
    top = int(column.max(initial=0))
    if top < 65536:
        seen = np.zeros(top + 1, dtype=np.int64)
        seen[column] = 1
        rank = np.cumsum(seen) - 1
        return int(rank[-1]) + 1, rank[column]
    values, code = np.unique(column, return_inverse=True)
    return len(values), code.astype(np.int64)


def stream_seq_len(model: ModelSpec, block: Block, work: Workload) -> int:
    """Tokens per sequence of the stream that a block works on.

    Formula:  seq_len, or for the decoder of an encoder-decoder model its own length, a quarter of
              it unless given
    Units:    tokens.
    Source:   T5 (arXiv:1910.10683) trains on 512 and 114 tokens; Megatron-LM and NeMo on 512 and
              128.
    Valid:    any block.
    Checked:  tests/cost/test_flops.py
    """
    if model.family == "encoder-decoder" and block.stream == "decoder":
        return (
            work.decoder_seq_len if work.decoder_seq_len is not None else max(1, work.seq_len // 4)
        )
    return work.seq_len


def block_tokens(model: ModelSpec, block: Block, work: Workload, shapes: Shapes) -> Floats:
    """Tokens of one micro batch that one rank's linear layers see, (U,).

    Formula:  mbs * seq_len / cp
    Units:    tokens.
    Source:   definition of context parallelism.
    Valid:    before sequence parallelism, which splits norms and residuals further.
    Checked:  tests/cost/test_operators.py
    """
    return shapes.mbs * stream_seq_len(model, block, work) / shapes.cp
