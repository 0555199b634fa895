"""Which layers lie on which pipeline stage, for columns of layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.chunks import (
    Folded,
    even_chunks,
    explicit_chunks,
    folded,
    held_layers,
    with_mtp,
)
from meshwright.values.layout import SCHEDULES, Layouts, head_alone
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.workload import Workload

__all__ = [
    "Floats",
    "Shapes",
    "Stages",
    "block_tokens",
    "distinct_shapes",
    "even_stage_layers",
    "mean_in_flight",
    "place_stages",
    "segment_layers",
    "stream_seq_len",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Distinct (tp, sp, cp, ep, etp, mbs, whether stages are in chunks), each of shape (U,),
    float64."""

    tp: Floats
    sp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    mbs: Floats
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

    Formula:  distinct rows of (tp, sp, cp, ep, etp, mbs, pp > 1 with vpp = 1 under gpipe or 1f1b)
    Units:    none.
    Source:   definition: nothing else enters the work of one layer and micro batch.
    Valid:    any columns; shapes[index] gives each layout's back.
    Checked:  tests/cost/test_step.py
    """
    names = ("tp", "sp", "cp", "ep", "etp", "mbs", "unchunked")
    unchunked = (
        (layouts.pp > 1)
        & (layouts.vpp == 1)
        & (layouts.schedule != SCHEDULES.index("zero-bubble"))
        & (layouts.ep > 1)
    )
    columns = [
        *(getattr(layouts, name) for name in names[:-1]),
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


Which = Literal["representative", "all"]


SETTLED_AFTER = 4
"""Rounds of pp micro batches after which interleaved stages hold no more: a warm-up of less than
two and every turn once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Stages of N layouts, arrays (N, S).

    S is up to 5 representatives (first, second, where the model has two segments the first behind
    the first one, or of a given split the fullest there, the earliest of the fullest in the middle
    where layers are uneven, last), or every stage up to the largest pp; stages past a layout's pp
    repeat its last and are not `real`.
    """

    index: NDArray[np.int64]
    layers: NDArray[np.int64]
    prefix_layers: Floats
    """Of `layers`, those in the model's first segment where it has two; else 0."""
    last: NDArray[np.bool_]
    """Whether a stage holds the head."""
    mtp: NDArray[np.bool_]
    """Whether a stage holds the layers of multi-token prediction, if the model has them."""
    in_flight: Floats
    """Micro batches whose activations the stage holds at its peak, in units of all its layers."""
    real: NDArray[np.bool_]

    @property
    def first(self) -> NDArray[np.bool_]:
        """Whether a stage holds the embedding."""
        return np.asarray(self.index == 0)


def even_stage_layers(
    index: NDArray[Any], *, total: int, pp: NDArray[Any], vpp: NDArray[Any]
) -> NDArray[np.int64]:
    """Layers of a stage when `total` are split over pp * vpp chunks as evenly as can be.

    Formula:  total // chunks each, times vpp; the rest goes, a whole round over the stages at a
              time, then to the last stages but one, because the last holds the head and early
              stages hold more micro batches
    Units:    layers; `index`, `pp` and `vpp` broadcast.
    Source:   Megatron-Core's pipeline layouts allow any split (`--pipeline-model-parallel-layout`).
    Valid:    pp * vpp <= total.
    Checked:  tests/cost/test_stages.py
    """
    chunks = pp * vpp
    base, rest = total // chunks, total % chunks
    heavy = rest % pp
    extra = (index >= pp - 1 - heavy) & (index <= pp - 2)
    return np.asarray(base * vpp + rest // pp + extra, dtype=np.int64)


def place_stages(layouts: Layouts, model: ModelSpec, *, which: Which = "representative") -> Stages:
    """Return the stages of each layout.

    Formula:  layers by `even_stage_layers` or as the layout says; micro batches in flight: 1F1B
              min(pp - s, M), interleaved min(2 (pp - s - 1) + (vpp - 1) pp + 1, M vpp) / vpp, where
              chunks are unlike by `held_layers`; GPipe M
    Units:    layers, micro batches; (N, S).
    Source:   Narayanan et al. 2021 (arXiv:2104.04473), section 2.2; Megatron-Core's warm-up count.
    Valid:    pp * vpp <= layers.
    Checked:  tests/cost/test_stages.py
    """
    pp, vpp = layouts.pp[:, None], layouts.vpp[:, None]
    index = _representatives(layouts, model) if which == "representative" else _all_stages(layouts)
    real = index < pp
    index = np.minimum(index, pp - 1)
    layers = even_stage_layers(index, total=model.total_layers, pp=pp, vpp=vpp)
    prefix = _prefix_layers(model, index, layouts)
    if layouts.chunk_layers is not None:
        _overwrite_explicit(layouts, model, index, layers, prefix)
    held = mean_in_flight(layouts, index)
    _hold_uneven_chunks(layouts, model, index, layers, held)
    last = np.where(layouts.folded, 0, layouts.pp - 1)
    mtp = _mtp_stage(layouts, model)
    for row, v in _folds(layouts, model):
        at = index[row]
        layers[row], prefix[row], held[row] = v.layers[at], v.prefix[at], v.in_flight[at]
        mtp[row] = v.mtp_stage
    return Stages(
        index=index,
        layers=layers,
        prefix_layers=np.minimum(prefix, layers),
        last=np.asarray(index == last[:, None]),
        mtp=np.asarray(index == mtp[:, None]),
        in_flight=held,
        real=real,
    )


def _folds(layouts: Layouts, model: ModelSpec) -> Iterator[tuple[int, Folded]]:
    """Yield the rows whose stages lie in a V, which the head's chunk ends on the first stage; not
    those with more even chunks than layers, which no rule lets pass."""
    segments = model.segments
    prefix = segments[0].num_layers if len(segments) > 1 else 0
    short = (2 * layouts.pp <= model.total_layers) | layouts.has_split
    for row in np.flatnonzero(layouts.folded & short).tolist():
        pp, explicit = int(layouts.pp[row]), (layouts.chunk_layers or {row: None})[row]
        sizes = (
            even_chunks(model.total_layers, pp, 2)
            if explicit is None
            else explicit_chunks(explicit, pp, 2, folded=True)
        )
        yield row, folded(sizes, prefix=prefix, mtp=model.mtp_layers)


def segment_layers(model: ModelSpec, stages: Stages) -> list[Floats]:
    """Layers of each of the model's priced segments on each stage, (N, S) each.

    Formula:  the prefix where there are two segments, the rest of the stage's layers, and those of
              multi-token prediction behind the last stage's, or in a chunk of their own before the
              head's
    Units:    layers.
    Source:   DeepSeek-V3 (arXiv:2412.19437) puts the multi-token-prediction module beside the head;
              Megatron-Core's `Et*3|(tt|)*29m|L` before it.
    Valid:    as place_stages.
    Checked:  tests/cost/test_stages.py
    """
    counts = [stages.layers - stages.prefix_layers]
    if len(model.segments) > 1:
        counts.insert(0, stages.prefix_layers)
    if model.mtp_layers:
        counts.append(np.where(stages.mtp, float(model.mtp_layers), 0.0))
    return counts


def _mtp_stage(layouts: Layouts, model: ModelSpec) -> NDArray[np.int64]:
    """The stage of multi-token prediction, (N,)."""
    last = np.asarray(layouts.pp - 1, dtype=np.int64)
    if layouts.chunk_layers is None or not model.mtp_layers:
        return last
    return last - np.array(
        [split is not None and head_alone(split) for split in layouts.chunk_layers], dtype=np.int64
    )


def _representatives(layouts: Layouts, model: ModelSpec) -> NDArray[np.int64]:
    pp, total = layouts.pp, model.total_layers
    heavy = (total % (pp * layouts.vpp)) % pp
    if layouts.chunk_layers is None and len(model.segments) == 1 and not heavy.any():
        return np.stack([np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1], axis=1)
    fullest = np.where(heavy > 0, np.maximum(pp - 1 - heavy, 0), np.minimum(1, pp - 1))
    columns = [np.zeros_like(pp), np.minimum(1, pp - 1), fullest, pp - 1]
    if len(model.segments) > 1:
        columns.insert(2, _first_behind(model.segments[0].num_layers, layouts, total))
    index = np.stack(columns, axis=1)
    for row, v in _folds(layouts, model):
        index[row, -2] = int(np.argmax(v.layers))
        if len(model.segments) > 1:
            index[row, 2] = int(np.argmax(np.where(v.prefix > 0, -1, v.layers)))
    if layouts.chunk_layers is not None:
        for row, explicit in enumerate(layouts.chunk_layers):
            if explicit is not None and not layouts.folded[row]:
                sums = _stage_sums(explicit, int(pp[row]))
                if head_alone(explicit):
                    sums[-2] += model.mtp_layers
                index[row, -2] = int(np.argmax(sums))
                if len(model.segments) > 1:
                    index[row, 2] = _fullest_behind(
                        model.segments[0].num_layers, explicit, int(pp[row]), int(layouts.vpp[row])
                    )
    return index


def _first_behind(prefix: int, layouts: Layouts, total: int) -> NDArray[np.int64]:
    """The first stage without any layer of the prefix, of splits as even as can be: the first
    chunks of stages hold it.

    Where those have a layer more on the last stages but one, the stages before these are passed at
    the smaller size.
    """
    pp, chunks = layouts.pp, layouts.pp * layouts.vpp
    rest = total % chunks
    size = np.maximum(total // chunks, 1) + (rest >= pp)
    light = np.where((rest > 0) & (rest < pp), pp - 1 - rest, pp)
    stage = -(-prefix // size)
    heavier = -(-(prefix + light) // (size + 1))
    return np.asarray(np.minimum(np.where(stage > light, heavier, stage), pp - 1), dtype=np.int64)


def _fullest_behind(prefix: int, explicit: tuple[int, ...], pp: int, vpp: int) -> int:
    """The earliest of the stages with most layers among those without any layer of the prefix; the
    last where there is none."""
    sizes = np.array(explicit_chunks(explicit, pp, vpp))
    held = np.clip(prefix - (np.cumsum(sizes) - sizes), 0, sizes).reshape(-1, pp).sum(axis=0)
    sums = np.where(held > 0, -1, sizes.reshape(-1, pp).sum(axis=0))
    return int(np.argmax(sums)) if sums.max() >= 0 else pp - 1


def _all_stages(layouts: Layouts) -> NDArray[np.int64]:
    return np.broadcast_to(
        np.arange(int(layouts.pp.max())), (len(layouts), int(layouts.pp.max()))
    ).astype(np.int64)


def _prefix_layers(model: ModelSpec, index: NDArray[Any], layouts: Layouts) -> Floats:
    """Layers of the first segment on a stage whose split is as even as can be, (N, S).

    Formula:  sum over chunks v < vpp of min(max(prefix - start, 0), size): the chunk's layers start
              at `start`, behind v * pp + s chunks before it, see `even_stage_layers`
    Units:    layers.
    Source:   counting.
    """
    segments = model.segments
    if len(segments) == 1:
        return np.zeros(index.shape)
    prefix = segments[0].num_layers
    pp, vpp = layouts.pp[:, None], layouts.vpp[:, None]
    base, rest = model.total_layers // (pp * vpp), model.total_layers % (pp * vpp)
    rounds, heavy = rest // pp, rest % pp
    found = np.zeros(index.shape)
    # The rest enlarges whole rounds of chunks, then the last stages but one of the next round.
    for chunk in range(int(layouts.vpp.max())):
        size = (
            base
            + (chunk < rounds)
            + (chunk == rounds) * ((index >= pp - 1 - heavy) & (index <= pp - 2))
        )
        before = np.clip(
            index - (pp - 1 - heavy), 0, heavy
        )  # heavier stages of this round that come first
        start = chunk * pp * base + np.minimum(chunk, rounds) * pp + (chunk > rounds) * heavy
        start = start + index * (base + (chunk < rounds)) + (chunk == rounds) * before
        found += np.where(chunk < vpp, np.clip(prefix - start, 0, size), 0)
    return found


def _stage_sums(explicit: tuple[int, ...], pp: int) -> NDArray[np.int64]:
    return np.asarray(
        np.array(explicit, dtype=np.int64).reshape(-1, pp).sum(axis=0), dtype=np.int64
    )


def _overwrite_explicit(
    layouts: Layouts, model: ModelSpec, index: NDArray[Any], layers: NDArray[Any], prefix: Floats
) -> None:
    """Put explicit splits into freshly made arrays."""
    segments = model.segments
    first = segments[0].num_layers if len(segments) > 1 else 0
    for row, explicit in enumerate(layouts.chunk_layers or ()):
        if explicit is None:
            continue
        pp = int(layouts.pp[row])
        sizes = np.array(explicit_chunks(explicit, pp, int(layouts.vpp[row])))
        in_prefix = np.clip(first - (np.cumsum(sizes) - sizes), 0, sizes)
        layers[row] = _stage_sums(explicit, pp)[index[row]]
        prefix[row] = in_prefix.reshape(-1, pp).sum(axis=0)[index[row]]


@makes("memory.activations")
def mean_in_flight(layouts: Layouts, index: NDArray[Any]) -> Floats:
    """Micro batches held at the peak, where all chunks of a stage are of one size.

    Formula:  1F1B min(pp - s, M); interleaved min(2 (pp - s - 1) + (vpp - 1) pp + 1, M vpp) / vpp;
              GPipe M
    Units:    micro batches, (N, S), in units of all of a stage's layers.
    Source:   Narayanan et al. 2021 (arXiv:2104.04473) section 2.2; Megatron-Core's warm-up count.
    Valid:    of unlike chunks it is the mean; see `held_layers`.
    Checked:  tests/cost/test_stages.py::test_one_f_one_b_holds_fewer_further_down
    """
    pp, vpp, micro = layouts.pp[:, None], layouts.vpp[:, None], layouts.num_microbatches[:, None]
    plain = np.minimum(pp - index, micro)
    interleaved = np.minimum(2 * (pp - index - 1) + (vpp - 1) * pp + 1, micro * vpp) / vpp
    held = np.where(vpp > 1, interleaved, plain)
    return np.where(layouts.schedule[:, None] == SCHEDULES.index("gpipe"), micro, held).astype(
        np.float64
    )


def _hold_uneven_chunks(
    layouts: Layouts, model: ModelSpec, index: NDArray[Any], layers: NDArray[Any], held: Floats
) -> None:
    """Put what interleaved stages hold whose chunks are not all of one size into a freshly made
    array.

    Where a layout says the layers of stages alone, the mean over their chunks stands: they differ
    by one layer at most.
    """
    total, mtp = model.total_layers, model.mtp_layers
    interleaved = (layouts.vpp > 1) & (layouts.schedule == SCHEDULES.index("1f1b"))
    settled = np.minimum(layouts.num_microbatches, SETTLED_AFTER * layouts.pp)
    short = layouts.pp * layouts.vpp <= total  # no rule lets others pass, and their arrays are vast
    uneven = (
        interleaved
        & short
        & ~layouts.has_split
        & ((total % (layouts.pp * layouts.vpp) > 0) | (mtp > 0))
    )
    held_on = layers + mtp * (index == _mtp_stage(layouts, model)[:, None])
    # Layouts of one shape hold alike: each shape is counted once.
    alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(uneven):
        alike[int(layouts.pp[row]), int(layouts.vpp[row]), int(settled[row])].append(int(row))
    for (pp, vpp, count), rows in alike.items():
        sizes = with_mtp(even_chunks(total, pp, vpp), mtp)
        _hold(held, np.array(rows), held_layers(sizes, pp, count), index, held_on)
    for row in np.flatnonzero(interleaved & layouts.has_split):
        pp, split = int(layouts.pp[row]), (layouts.chunk_layers or ())[row]
        if split is not None and len(split) > pp and (mtp or len(set(split)) > 1):
            _hold(
                held,
                np.array([row]),
                held_layers(with_mtp(split, mtp), pp, int(settled[row])),
                index,
                held_on,
            )


def _hold(
    held: Floats,
    rows: NDArray[Any],
    stages: tuple[float, ...],
    index: NDArray[Any],
    layers: NDArray[Any],
) -> None:
    held[rows] = np.array(stages)[index[rows]] / np.maximum(layers[rows], 1)
