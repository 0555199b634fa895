"""Layers of a stage's chunks, and the micro batches that they hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.values.layout import head_alone

__all__ = [
    "Folded",
    "even_chunks",
    "explicit_chunks",
    "folded",
    "held_layers",
    "with_mtp",
]


def explicit_chunks(
    explicit: tuple[int, ...], pp: int, vpp: int, *, folded: bool = False
) -> tuple[int, ...]:
    """Return the layers of each chunk in model order; layers per stage are dealt to its chunks as
    evenly as can be, in a V the second of them from the last stage up.

    Formula:  layers // vpp, and one more in the first layers % vpp chunks of a stage
    Units:    layers, pp * vpp of them.
    Source:   Megatron-Core's interleaved stages; DualPipeV's (github.com/deepseek-ai/DualPipe).
    Valid:    pp or pp * vpp entries.
    Checked:  tests/cost/test_stages.py::test_a_v_ends_where_it_begins
    """
    if len(explicit) != pp:
        return explicit
    rounds = [
        tuple(layers // vpp + (chunk < layers % vpp) for layers in explicit) for chunk in range(vpp)
    ]
    return sum((way[::-1] if folded and i else way for i, way in enumerate(rounds)), ())


@cache
def even_chunks(total: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return the layers of each chunk in model order, of splits as even as can be.

    Formula:  as `even_stage_layers`, by chunk: a whole round more first, then the last stages but
              one of the round behind it
    Units:    layers, pp * vpp of them.
    Source:   as `even_stage_layers` of `cost/stages.py`.
    Valid:    pp * vpp <= total.
    Checked:  tests/cost/test_stages.py::test_a_v_ends_where_it_begins
    """
    base, rest = divmod(total, pp * vpp)
    rounds, heavy = divmod(rest, pp)
    return tuple(
        base + (v < rounds) + (v == rounds and pp - 1 - heavy <= s <= pp - 2)
        for v in range(vpp)
        for s in range(pp)
    )


def with_mtp(sizes: tuple[int, ...], mtp: int) -> tuple[int, ...]:
    """Return sizes of chunks with the layers of multi-token prediction.

    Formula:  mtp more in the last chunk, or before it where the last holds the head alone
    Units:    layers.
    Source:   as `segment_layers` of `cost/stages.py`.
    Valid:    any split.
    Checked:  tests/cost/test_stages.py::test_a_v_holds_what_its_order_says
    """
    at = len(sizes) - (2 if mtp and head_alone(sizes) else 1)
    return (*sizes[:at], sizes[at] + mtp, *sizes[at + 1 :])


@cache
def held_layers(sizes: tuple[int, ...], pp: int, num_microbatches: int) -> tuple[float, ...]:
    """Layers whose activations each stage of an interleaved pipeline holds at its peak, counted
    once for each micro batch.

    Formula:  a stage runs pp micro batches through its first chunk, then through the next, round
              and round; backward passes follow the other way round, `2 (pp - s - 1) + (vpp - 1) pp`
              forward passes later. The most, over the moments when either changes its chunk, of sum
              over chunks of layers * (micro batches forward less those back)
    Units:    layers * micro batches.
    Source:   Narayanan et al. 2021 (arXiv:2104.04473), section 2.2; Megatron-Core's
              get_model_chunk_id.
    Valid:    num_microbatches a multiple of pp, as Megatron-Core demands.
    Checked:  tests/cost/test_stages.py
    """
    vpp = len(sizes) // pp
    passes = num_microbatches * vpp
    own = np.array(sizes, dtype=np.float64).reshape(vpp, pp).T[:, None]  # (stages, moments, chunks)
    ahead = np.minimum(2 * (pp - 1 - np.arange(pp)) + (vpp - 1) * pp + 1, passes)[:, None, None]
    # The sum changes its slope only where forwards or backwards go on to their next chunk.
    turns = (np.arange(vpp + 1) * pp)[None, :, None]
    moments = np.clip(
        np.concatenate([turns + 0 * ahead, turns + (-ahead) % pp], axis=1), 0, passes - ahead
    )
    forward = _passed(ahead + moments, np.arange(vpp), pp, vpp)
    # Backwards take the chunks the other way round.
    back = _passed(moments, vpp - 1 - np.arange(vpp), pp, vpp)
    return tuple(((forward - back) * own).sum(axis=2).max(axis=1).tolist())


def _passed(count: NDArray[Any], turn: NDArray[Any], pp: int, vpp: int) -> NDArray[Any]:
    """Micro batches that `count` passes have taken through the chunk whose turn is `turn` of vpp.

    Formula:  whole rounds * pp + min(max(rest - turn * pp, 0), pp): a round is pp passes of each
              chunk
    Units:    micro batches.
    Source:   counting, in the order of Megatron-Core's get_model_chunk_id.
    """
    whole, rest = count // (pp * vpp), count % (pp * vpp)
    return np.asarray(whole * pp + np.clip(rest - turn * pp, 0, pp))


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """Stages of a V: stage s holds chunk s on the way down and chunk 2 pp - 1 - s on the way up,
    (pp,) each."""

    layers: NDArray[np.int64]
    prefix: NDArray[np.float64]
    """Of `layers`, those in the model's first segment."""
    in_flight: NDArray[np.float64]
    """Micro batches held at the peak, in units of all of a stage's layers."""
    mtp_stage: int
    """The stage with the layers of multi-token prediction."""


@cache
def folded(sizes: tuple[int, ...], *, prefix: int, mtp: int) -> Folded:
    """Return what the stages of a V hold; `sizes` are the layers of 2 pp chunks in model order.

    Formula:  at the peak (2 pp - s) micro batches of chunk s and s + 1 of chunk 2 pp - 1 - s:
              2 pp + 1 chunks on every stage, as published; over the stage's layers
    Units:    layers, micro batches.
    Source:   github.com/deepseek-ai/DualPipe, README (activation memory PP + 1, of PP = 2 pp
              chunks), and the order of DualPipeV's eight phases there.
    Valid:    2 pp or more micro batches.
    Checked:  tests/cost/test_stages.py::test_a_v_holds_what_its_order_says
    """
    pp = len(sizes) // 2
    own = np.array(sizes, dtype=np.int64)
    before = np.clip(prefix - (np.cumsum(own) - own), 0, own)
    kept = np.array(with_mtp(sizes, mtp), dtype=np.float64)
    down, up = kept[:pp], kept[pp:][::-1]
    stage = np.arange(pp)
    held = (2 * pp - stage) * down + (stage + 1) * up
    last = 2 * pp - (2 if mtp and head_alone(sizes) else 1)
    return Folded(
        layers=own[:pp] + own[pp:][::-1],
        prefix=(before[:pp] + before[pp:][::-1]).astype(np.float64),
        in_flight=held / np.maximum(down + up, 1),
        mtp_stage=2 * pp - 1 - last,
    )
