"""From a number of parameters to a shape, in the manner of a published series."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import presets
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import format_count

__all__ = ["TOLERANCE", "Shape", "series_names", "shape_of"]

TOLERANCE = 0.02
"""How far a shape's parameters may be off the size asked."""
_MOST_LAYERS = 256
_MOST_WIDTH_STEP = 1024
_ASPECTS = 5.0
"""Widths are tried whose ratio of width to depth is up to this many times off the series'."""
_LAYER_PENALTIES = ((8, 0.0), (4, 0.05), (2, 0.15), (1, 0.6))
_WIDTH_PENALTIES = ((1024, 0.0), (512, 0.03), (256, 0.06), (128, 0.12), (64, 0.2), (1, 0.6))
_HEAD_PENALTIES = ((8, 0.0), (4, 0.15), (2, 0.4), (1, 0.8))
"""(divisor, cost): what divides by more shards in more ways (layers over pp, heads over tp). Costs
are in units of the natural logarithm of width over depth, which says how far a shape is from the
series'. Chosen: a width over depth 1.8 times off costs as much as odd layers."""
_HEAD_DIMS = (64, 128)
"""Widths of a head that every attention kernel is made for; of narrow and of wide models."""
_WIDE = 2048
"""From this hidden size on heads are 128 wide (GPT-3, arXiv:2005.14165, table 2.1: its 1.3 B and
all from 6.7 B on)."""
_SIZE_WEIGHT = 2.0
_LAYER_STEP = {"encoder-decoder": 2}
"""Layers of a series whose two sides are equal come in pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A model of about the size asked."""

    model: ModelSpec
    params: int
    like: str
    """The published model whose ratios it has."""
    published: bool
    """Whether it is that model itself."""


def series_names() -> tuple[str, ...]:
    """Return the series that shapes can be made of, in the table's order; `qwen3-moe` are the
    models with experts of one."""
    return tuple(_ladders())


def shape_of(params: float, *, series: str, vocab: int | None = None) -> Shape:
    """Return a shape of this many parameters, within 2 %: a published model of the series if one is
    so near, else one like its neighbours.

    Width over depth is interpolated between the neighbours in size; feed-forward over width, the
    width of a head, key-value heads, experts and all choices of architecture are the nearest one's.
    Among shapes within 2 % the one wins that shards best and is nearest to that ratio. ConfigError
    where the series has no such size; UnknownNameError where there is no such series.
    """
    ladder = _ladder(series)
    like = min(ladder, key=lambda model: abs(math.log(model_params(model).total / params)))
    if vocab is None and abs(model_params(like).total / params - 1) <= TOLERANCE:
        return Shape(model=like, params=model_params(like).total, like=like.name, published=True)
    base = _with_regular_heads(like if vocab is None else replace(like, vocab=vocab))
    aspect = _aspect(params, ladder)
    found = [
        model
        for model in _candidates(params, base, aspect)
        if abs(model_params(model).total / params - 1) <= TOLERANCE
    ]
    if not found:
        raise ConfigError(
            f"{format_count(params)} parameters: no shape of series {series!r} comes within"
            f" {TOLERANCE:.0%}; its published sizes are"
            f" {', '.join(format_count(model_params(model).total) for model in ladder)}"
        )
    best = min(found, key=lambda model: _cost(model, params, aspect))
    return Shape(model=best, params=model_params(best).total, like=like.name, published=False)


def _ladder(series: str) -> list[ModelSpec]:
    """Models of a series, small to large."""
    ladders = _ladders()
    if series not in ladders:
        raise UnknownNameError("series of models", series, ladders)
    return sorted(ladders[series], key=lambda model: model_params(model).total)


@cache
def _ladders() -> dict[str, list[ModelSpec]]:
    """Models by series, of each the ones whose make most of the series share; models with experts
    apart where a series has both."""
    found: dict[str, list[ModelSpec]] = {}
    dense = {preset.series for preset in presets() if preset.spec.moe is None}
    for preset in presets():
        if _scales(preset.spec):
            name = (
                f"{preset.series}-moe"
                if preset.spec.moe is not None and preset.series in dense
                else preset.series
            )
            found.setdefault(name, []).append(preset.spec)
    return {
        name: [model for model in models if _make(model) == _usual_make(models)]
        for name, models in found.items()
    }


def _make(model: ModelSpec) -> tuple[object, ...]:
    """What does not change with the size within a series."""
    return model.gated, model.norm, model.positions, model.mla is None


def _usual_make(models: list[ModelSpec]) -> tuple[object, ...]:
    return Counter(_make(model) for model in models).most_common(1)[0][0]


def _with_regular_heads(model: ModelSpec) -> ModelSpec:
    """Return a model whose heads have a usual width; MLA, and heads that don't add up, stay."""
    if (
        model.mla is not None
        or model.num_heads * model.head_dim != model.hidden
        or model.head_dim % _HEAD_DIMS[0] == 0
    ):
        return model
    head_dim = _HEAD_DIMS[model.hidden >= _WIDE]
    heads = max(1, round(model.hidden / head_dim))
    return replace(
        model,
        head_dim=head_dim,
        num_heads=heads,
        num_kv_heads=_kv_heads(model, heads),
        hidden=heads * head_dim,
    )


def _scales(model: ModelSpec) -> bool:
    """Whether a model has one kind of layer, so that more of them make a model of its kind."""
    return model.hybrid is None and model.window is None


def _depth(model: ModelSpec) -> int:
    return model.total_layers


def _aspect(params: float, ladder: list[ModelSpec]) -> float:
    """Width over depth at a size: logarithms interpolated between neighbours, the end's beyond."""
    sizes = [math.log(model_params(model).total) for model in ladder]
    aspects = [math.log(model.hidden / _depth(model)) for model in ladder]
    at = math.log(params)
    if at <= sizes[0] or at >= sizes[-1]:
        return math.exp(aspects[0] if at <= sizes[0] else aspects[-1])
    right = next(index for index, size in enumerate(sizes) if size > at)
    share = (at - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    return math.exp(aspects[right - 1] + share * (aspects[right] - aspects[right - 1]))


def _candidates(params: float, like: ModelSpec, aspect: float) -> Iterator[ModelSpec]:
    """Shapes around the aspect, each with the depths whose size is nearest to the one asked."""
    for hidden in _widths(like):
        if (
            not 1 / _ASPECTS
            <= hidden / aspect / max(1.0, _fitting_layers(params, like, hidden))
            <= _ASPECTS
        ):
            continue
        for layers in _depths(params, like, hidden):
            yield _scaled(like, hidden=hidden, layers=layers)


def _widths(like: ModelSpec) -> Iterable[int]:
    """Widths from an eighth to eight times the model's, of whole heads, in growing steps."""
    step = like.head_dim if like.hidden % like.head_dim == 0 else 64
    hidden = max(step, like.hidden // 8 // step * step)
    while hidden <= like.hidden * 8:
        yield hidden
        grain = max(step, min(_MOST_WIDTH_STEP, 2 ** int(math.log2(hidden)) // 32) // step * step)
        hidden += grain


def _fitting_layers(params: float, like: ModelSpec, hidden: int) -> float:
    """Layers, both sides counted, with which a width has the parameters; each costs the same."""
    first = _leading(like) + (_LAYER_STEP.get(like.family, 1) * _every(like))
    few, more = (
        _scaled(like, hidden=hidden, layers=first),
        _scaled(like, hidden=hidden, layers=2 * first),
    )
    each = (model_params(more).total - model_params(few).total) / first
    return first + (params - model_params(few).total) / each


def _depths(params: float, like: ModelSpec, hidden: int) -> list[int]:
    step = _LAYER_STEP.get(like.family, 1) * _every(like)
    least = _leading(like) + step
    middle = _fitting_layers(params, like, hidden)
    tried = {
        least + step * round((middle * factor - least) / step)
        for factor in (0.98, 0.99, 1.0, 1.01, 1.02)
    }
    return sorted(layers for layers in tried if least <= layers <= _MOST_LAYERS)


def _leading(like: ModelSpec) -> int:
    return 0 if like.moe is None else like.moe.first_dense_layers


def _every(like: ModelSpec) -> int:
    return 1 if like.moe is None else like.moe.layer_frequency


def _scaled(like: ModelSpec, *, hidden: int, layers: int) -> ModelSpec:
    """Return a model like another with this width and depth; `layers` counts both sides."""
    ratio = hidden / like.hidden
    heads = max(1, round(like.num_heads * ratio))
    sides = 2 if like.family == "encoder-decoder" else 1
    moe = like.moe and replace(
        like.moe,
        expert_ffn=_rounded(like.moe.expert_ffn * ratio),
        shared_ffn=_rounded(like.moe.shared_ffn * ratio) if like.moe.shared_ffn else 0,
    )
    return replace(
        like,
        name=f"{like.name}-{layers}x{hidden}",
        num_layers=layers // sides,
        encoder_layers=layers // sides if sides == 2 else 0,
        hidden=hidden,
        ffn=_rounded(like.ffn * ratio) if like.ffn else 0,
        num_heads=heads,
        num_kv_heads=_kv_heads(like, heads),
        moe=moe,
    )


def _rounded(width: float) -> int:
    """To what matrix units and tp like: a multiple of 256, of 64 where the width is small."""
    grain = 256 if width >= 4096 else 64
    return max(grain, round(width / grain) * grain)


def _kv_heads(like: ModelSpec, heads: int) -> int:
    """All heads where the series has as many; else its number, or a power of two that divides."""
    if like.num_kv_heads == like.num_heads:
        return heads
    powers = (1 << power for power in range(like.num_kv_heads.bit_length() - 1, -1, -1))
    return next(count for count in (like.num_kv_heads, *powers) if heads % count == 0)


def _cost(model: ModelSpec, params: float, aspect: float) -> float:
    off_aspect = abs(math.log(model.hidden / _depth(model) / aspect))
    off_size = abs(model_params(model).total / params - 1)
    shards = (
        _penalty(_depth(model), _LAYER_PENALTIES)
        + _penalty(model.hidden, _WIDTH_PENALTIES)
        + _penalty(model.num_heads, _HEAD_PENALTIES)
    )
    if model.num_kv_heads != model.num_heads:
        shards += _penalty(model.num_kv_heads, _HEAD_PENALTIES)
    return off_aspect + shards + _SIZE_WEIGHT * off_size


def _penalty(count: int, table: tuple[tuple[int, float], ...]) -> float:
    return next(cost for divisor, cost in table if count % divisor == 0)
