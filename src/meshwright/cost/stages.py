"""Which layers lie on which pipeline stage, for columns of layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.shapes import Floats
from meshwright.layout import SCHEDULES, Layouts, head_alone
from meshwright.models.spec import ModelSpec

__all__ = ["Stages", "even_stage_layers", "place_stages", "segment_layers"]

Which = Literal["representative", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Stages of N layouts, arrays (N, S).

    S is up to 5 representatives (first, second, where the model has two segments the first behind the first one, or of a given split the
    fullest there, the earliest of the fullest in the middle where layers are uneven, last), or every stage up to the largest pp;
    stages past a layout's pp repeat its last and are not `real`.
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


def even_stage_layers(index: NDArray[Any], *, total: int, pp: NDArray[Any], vpp: NDArray[Any]) -> NDArray[np.int64]:
    """Layers of a stage when `total` are split over pp * vpp chunks as evenly as can be.

    Formula:  total // chunks each, times vpp; the rest goes, a whole round over the stages at a time, then to the last stages but one,
              because the last holds the head and early stages hold more micro batches
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

    Formula:  layers by `even_stage_layers` or as the layout says; micro batches in flight: 1F1B min(pp - s, M), interleaved
              min(2 (pp - s - 1) + (vpp - 1) pp + 1, M vpp) / vpp, GPipe M
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
    return Stages(
        index=index,
        layers=layers,
        prefix_layers=np.minimum(prefix, layers),
        last=np.asarray(index == pp - 1),
        mtp=np.asarray(index == _mtp_stage(layouts, model)[:, None]),
        in_flight=_in_flight(layouts, index),
        real=real,
    )


def segment_layers(model: ModelSpec, stages: Stages) -> list[Floats]:
    """Layers of each of the model's priced segments on each stage, (N, S) each.

    Formula:  the prefix where there are two segments, the rest of the stage's layers, and those of multi-token prediction behind the
              last stage's, or in a chunk of their own before the head's
    Units:    layers.
    Source:   DeepSeek-V3 (arXiv:2412.19437) puts the multi-token-prediction module beside the head; Megatron-Core's
              `Et*3|(tt|)*29m|L` before it.
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
    return last - np.array([split is not None and head_alone(split) for split in layouts.chunk_layers], dtype=np.int64)


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
    if layouts.chunk_layers is not None:
        for row, explicit in enumerate(layouts.chunk_layers):
            if explicit is not None:
                sums = _stage_sums(explicit, int(pp[row]))
                if head_alone(explicit):
                    sums[-2] += model.mtp_layers
                index[row, -2] = int(np.argmax(sums))
                if len(model.segments) > 1:
                    index[row, 2] = _fullest_behind(model.segments[0].num_layers, explicit, int(pp[row]), int(layouts.vpp[row]))
    return index


def _first_behind(prefix: int, layouts: Layouts, total: int) -> NDArray[np.int64]:
    """The first stage without any layer of the prefix, of splits as even as can be: the first chunks of stages hold it.

    Where those have a layer more on the last stages but one, the stages before these are passed at the smaller size.
    """
    pp, chunks = layouts.pp, layouts.pp * layouts.vpp
    rest = total % chunks
    size = np.maximum(total // chunks, 1) + (rest >= pp)
    light = np.where((rest > 0) & (rest < pp), pp - 1 - rest, pp)
    stage = -(-prefix // size)
    heavier = -(-(prefix + light) // (size + 1))
    return np.asarray(np.minimum(np.where(stage > light, heavier, stage), pp - 1), dtype=np.int64)


def _fullest_behind(prefix: int, explicit: tuple[int, ...], pp: int, vpp: int) -> int:
    """The earliest of the stages with most layers among those without any layer of the prefix; the last where there is none."""
    sizes = np.array(_chunks(explicit, pp, vpp))
    held = np.clip(prefix - (np.cumsum(sizes) - sizes), 0, sizes).reshape(-1, pp).sum(axis=0)
    sums = np.where(held > 0, -1, sizes.reshape(-1, pp).sum(axis=0))
    return int(np.argmax(sums)) if sums.max() >= 0 else pp - 1


def _all_stages(layouts: Layouts) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(int(layouts.pp.max())), (len(layouts), int(layouts.pp.max()))).astype(np.int64)


def _prefix_layers(model: ModelSpec, index: NDArray[Any], layouts: Layouts) -> Floats:
    """Layers of the first segment on a stage: chunk v of stage s covers layers (v * pp + s) * size onwards."""
    segments = model.segments
    if len(segments) == 1:
        return np.zeros(index.shape)
    prefix = segments[0].num_layers
    pp, vpp = layouts.pp[:, None], layouts.vpp[:, None]
    base, rest = model.total_layers // (pp * vpp), model.total_layers % (pp * vpp)
    rounds, heavy = rest // pp, rest % pp
    found = np.zeros(index.shape)
    for chunk in range(int(layouts.vpp.max())):
        size = base + (chunk < rounds) + (chunk == rounds) * ((index >= pp - 1 - heavy) & (index <= pp - 2))
        before = np.clip(index - (pp - 1 - heavy), 0, heavy)  # heavier stages of this round that come first
        start = chunk * pp * base + np.minimum(chunk, rounds) * pp + (chunk > rounds) * heavy
        start = start + index * (base + (chunk < rounds)) + (chunk == rounds) * before
        found += np.where(chunk < vpp, np.clip(prefix - start, 0, size), 0)
    return found


def _chunks(explicit: tuple[int, ...], pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each chunk in model order; layers per stage are dealt to its chunks as evenly as can be."""
    if len(explicit) != pp:
        return explicit
    return tuple(layers // vpp + (chunk < layers % vpp) for chunk in range(vpp) for layers in explicit)


def _stage_sums(explicit: tuple[int, ...], pp: int) -> NDArray[np.int64]:
    return np.asarray(np.array(explicit, dtype=np.int64).reshape(-1, pp).sum(axis=0), dtype=np.int64)


def _overwrite_explicit(layouts: Layouts, model: ModelSpec, index: NDArray[Any], layers: NDArray[Any], prefix: Floats) -> None:
    """Put explicit splits into freshly made arrays."""
    segments = model.segments
    first = segments[0].num_layers if len(segments) > 1 else 0
    for row, explicit in enumerate(layouts.chunk_layers or ()):
        if explicit is None:
            continue
        pp = int(layouts.pp[row])
        sizes = np.array(_chunks(explicit, pp, int(layouts.vpp[row])))
        in_prefix = np.clip(first - (np.cumsum(sizes) - sizes), 0, sizes)
        layers[row] = _stage_sums(explicit, pp)[index[row]]
        prefix[row] = in_prefix.reshape(-1, pp).sum(axis=0)[index[row]]


def _in_flight(layouts: Layouts, index: NDArray[Any]) -> Floats:
    """Micro batches held at the peak.

    Formula:  1F1B min(pp - s, M); interleaved min(2 (pp - s - 1) + (vpp - 1) pp + 1, M vpp) / vpp; GPipe M
    Source:   Narayanan et al. 2021 (arXiv:2104.04473) section 2.2; Megatron-Core's warm-up count.
    """
    pp, vpp, micro = layouts.pp[:, None], layouts.vpp[:, None], layouts.num_microbatches[:, None]
    plain = np.minimum(pp - index, micro)
    interleaved = np.minimum(2 * (pp - index - 1) + (vpp - 1) * pp + 1, micro * vpp) / vpp
    held = np.where(vpp > 1, interleaved, plain)
    return np.where(layouts.schedule[:, None] == SCHEDULES.index("gpipe"), micro, held).astype(np.float64)
