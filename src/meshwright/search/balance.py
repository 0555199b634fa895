"""Splits of layers over pipeline stages that leave no stage much slower than the others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats, Stages
from meshwright.cost.step import price_stages
from meshwright.search.quote import Setting
from meshwright.search.rules.software import DEALT, stack_rules
from meshwright.search.rules.split import even_split
from meshwright.values.layout import SCHEDULES, Layout, Layouts
from meshwright.values.models.spec import ModelSpec

__all__ = ["WORTH_A_SPLIT", "balanced", "can_balance", "handicap", "least_pipeline_s"]

WORTH_A_SPLIT = 0.01
"""Share of the step that an uneven split must gain: a fifth of the best predictions' error."""
SMALL = 0.25
"""Of a layer's time, what a chunk may have besides without being taken for slower: less than what a
round of two sizes costs."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """One micro batch through a stage, seconds: `each_s` a layer; others at the ends, (N,)."""

    layers: Floats
    """Of a stage of the middle."""
    middle_s: Floats
    """Of such a stage."""
    each_s: Floats
    fill_s: Floats
    """Of a layer, what the stages after it wait for."""
    first_s: Floats
    """Embedding."""
    less_s: Floats
    """What a layer of the model's first segment takes less than others."""
    last_s: Floats
    """Head, loss and multi-token prediction."""


def handicap(layout: Layout) -> float:
    """Return what an uneven split must gain to be worth its words, as a factor of its time."""
    return 1.0 if layout.layers_per_stage is None else 1.0 + WORTH_A_SPLIT


def can_balance(layouts: Layouts, setting: Setting) -> NDArray[np.bool_]:
    """Say which rows have a pipeline whose layers the training software can deal otherwise, (N,).

    A V of two chunks has its first and last layers on one stage, and an encoder and a decoder are
    split by themselves.
    """
    if stack_rules(setting.stack).splits not in DEALT or setting.model.family == "encoder-decoder":
        return np.zeros(len(layouts), dtype=bool)
    folded = (layouts.schedule == SCHEDULES.index("zero-bubble")) & (layouts.vpp > 1)
    return np.asarray(
        (layouts.pp > 1)
        & (setting.model.total_layers > layouts.pp * layouts.vpp)
        & ~folded
        & ~layouts.has_split
    )


def balanced(layouts: Layouts, setting: Setting) -> Layouts:
    """Return rows that `can_balance` with splits whose slowest chunk is fastest; without those that
    are split so already.

    Formula:  layers one at a time to the chunk that takes least so far, of equals to the first
              round and in it to the last stage. Chunks take a multiple of a layer's time and a
              constant, so no other split has a faster slowest chunk; interleaved, constants below a
              quarter of a layer don't count, so that rounds stay of one size. Every chunk keeps a
              layer, but for the last of software that lets it hold the head alone
    Units:    layers.
    Source:   derived; in interleaved schedules a slow chunk holds up the others of its round
              (`cost/simulate.py`). An empty last chunk: Megatron-Core's
              --pipeline-model-parallel-layout.
    Valid:    layers of a model's first segment counted where chunks of the usual size would have
              them.
    Checked:  tests/search/test_balance.py::test_no_other_split_has_a_faster_slowest_chunk
    """
    counts = _counts(layouts, _work(layouts, setting), setting)
    sizes = list(zip(layouts.pp.tolist(), layouts.vpp.tolist(), strict=True))
    splits = [tuple(row[: pp * vpp]) for row, (pp, vpp) in zip(counts.tolist(), sizes, strict=True)]
    even = [even_split(setting.model.total_layers, pp=pp, vpp=vpp) for pp, vpp in sizes]
    return replace(layouts, chunk_layers=tuple(splits)).take(
        np.array([found != was for found, was in zip(splits, even, strict=True)], dtype=bool)
    )


def least_pipeline_s(layouts: Layouts, setting: Setting) -> Floats:
    """Return seconds of all micro batches in the pipeline that no deal of whole layers undercuts,
    (N,).

    Formula:  the least G for which the layers find room, G >= M * t_s + fill_s on every stage s:
              t_s is its ends and layers; fill_s what the first micro batch takes to reach it and
              the last one to leave the model from there. Stages of one chunk fill with all layers
              before s (under zero-bubble without their weight gradients), stages of several with
              one layer each. From the first stage on, each takes as many layers as G lets it: the
              more lie before a stage, the more lie before the next, so that no deal places more
    Units:    seconds.
    Source:   derived.
    Valid:    rows that `can_balance`; layers of a model's first segment as in `balanced`.
    Checked:  tests/search/test_proof.py
    """
    work = _work(layouts, setting)
    whole = replace(layouts, vpp=np.ones_like(layouts.vpp))
    micro = (layouts.gbs // (layouts.dp * layouts.mbs)).astype(np.float64)
    index = np.arange(int(layouts.pp.max()))[None, :]
    ends = (
        (work.middle_s - work.layers * work.each_s)[:, None]
        + (index == 0) * work.first_s[:, None]
        + (index == layouts.pp[:, None] - 1) * work.last_s[:, None]
        - _prefix_layers(index, whole, setting.model) * work.less_s[:, None]
    )
    chunked, layers = layouts.vpp > 1, setting.model.total_layers
    low, high = np.zeros(len(layouts)), micro * (layers * work.each_s + ends.max(axis=1))
    high += layers * work.each_s
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        placed = np.zeros(len(layouts))
        for stage in range(ends.shape[1]):
            before = np.where(chunked, float(stage), placed) * work.fill_s
            room = ((middle - before) / micro - ends[:, stage]) / work.each_s
            most = np.floor(np.maximum(room, 0.0) * (1.0 + 1e-9))
            placed += np.where(stage < layouts.pp, most, 0.0)
        fits = placed >= layers
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return low


_BISECTIONS = 40


def _work(layouts: Layouts, setting: Setting) -> _Work:
    """Price a stage of the middle, one with a layer more in each chunk, the first, the last, and
    one of the first segment's layers."""
    model, zeros = setting.model, np.zeros(len(layouts))
    layers = np.maximum(layouts.vpp, model.total_layers // layouts.pp)
    prefix = np.minimum(model.segments[0].num_layers, layers) if len(model.segments) > 1 else zeros
    stages = Stages(
        index=np.stack([zeros + 1, zeros + 1, zeros, layouts.pp - 1, zeros + 1], axis=1).astype(
            np.int64
        ),
        layers=np.stack([layers, layers + layouts.vpp, layers, layers, layers], axis=1),
        prefix_layers=np.stack([zeros, zeros, zeros, zeros, prefix], axis=1),
        last=np.broadcast_to([False, False, False, True, False], (len(layouts), 5)),
        mtp=np.broadcast_to([False, False, False, True, False], (len(layouts), 5)),
        in_flight=np.ones((len(layouts), 5)),
        real=np.ones((len(layouts), 5), dtype=bool),
    )
    times = price_stages(
        layouts, stages, model=model, pool=setting.pool, work=setting.work, stack=setting.stack
    ).times
    middle, more, first, last, early = (times.forward_s + times.backward_s).T
    delayed = layouts.schedule == SCHEDULES.index("zero-bubble")
    weight = np.where(delayed, (times.weight_s[:, 1] - times.weight_s[:, 0]) / layouts.vpp, 0.0)
    return _Work(
        layers=layers.astype(np.float64),
        middle_s=middle,
        each_s=(more - middle) / layouts.vpp,
        fill_s=(more - middle) / layouts.vpp - weight,
        first_s=first - middle,
        less_s=(middle - early) / np.maximum(1, prefix),
        last_s=last - middle,
    )


def _counts(layouts: Layouts, work: _Work, setting: Setting) -> Ints:
    """Layers of each chunk in model order, (N, chunks of the longest); 0 past a row's last."""
    model, pp, last = setting.model, layouts.pp, layouts.pp * layouts.vpp - 1
    index = np.arange(int(last.max()) + 1)[None, :]
    at_first, at_last = index == 0, index == last[:, None]
    least = np.where(
        index <= last[:, None], 1 - at_last * (stack_rules(setting.stack).splits == "any"), 0
    )
    beside = at_first * work.first_s[:, None] + at_last * work.last_s[:, None]
    beside = np.where(
        index <= last[:, None],
        beside - _prefix_layers(index, layouts, model) * work.less_s[:, None],
        np.inf,
    )
    small = (layouts.vpp > 1)[:, None] & (np.abs(beside) < SMALL * work.each_s[:, None])
    beside = np.where(small, 0.0, beside)
    order = index // pp[:, None] * pp[:, None] + (
        pp[:, None] - 1 - index % pp[:, None]
    )  # by rounds, in each the last stage first
    order = np.argsort(np.where(index <= last[:, None], order, index), axis=1)
    counts, beside = (
        np.take_along_axis(least, order, axis=1),
        np.take_along_axis(beside, order, axis=1),
    )
    left, rows = model.total_layers - least.sum(axis=1), np.arange(len(layouts))
    while (rows := rows[left[rows] > 0]).size:
        lightest = np.argmin(counts[rows] * work.each_s[rows, None] + beside[rows], axis=1)
        counts[rows, lightest] += 1
        left[rows] -= 1
    found = np.empty_like(counts)
    np.put_along_axis(found, order, counts, axis=1)
    return found


def _prefix_layers(index: Ints, layouts: Layouts, model: ModelSpec) -> Ints:
    """Layers of the first segment in each chunk of the usual size, (N, chunks)."""
    if len(model.segments) < 2:
        return np.zeros((len(layouts), index.shape[1]), dtype=np.int64)
    usual = -(-model.total_layers // (layouts.pp * layouts.vpp))[:, None]
    return np.asarray(np.clip(model.segments[0].num_layers - index * usual, 0, usual))
