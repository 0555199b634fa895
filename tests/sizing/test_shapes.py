from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.sizing.shapes import TOLERANCE, series_names, shape_of
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import presets
from meshwright.values.models.params import model_params

FAMILIES = (
    "gpt3",
    "t5",
    "mt5",
    "bert",
    "llama2",
    "llama3",
    "mixtral",
    "qwen3",
    "qwen3-moe",
    "deepseek-moe",
)


@settings(max_examples=120, deadline=None)
@given(
    series=st.sampled_from(FAMILIES),
    billions=st.floats(math.log(0.5), math.log(1000)).map(math.exp),
)
@example(series="gpt3", billions=4.03)
@example(series="gpt3", billions=1000.0)
def test_a_shape_has_the_size_asked_and_is_of_its_series(series: str, billions: float) -> None:
    least = min(model_params(preset.spec).total for preset in presets() if preset.series in series)
    try:
        found = shape_of(billions * 1e9, series=series)
    except ConfigError:  # steps between shapes far below the series are wider than the tolerance
        assert billions * 1e9 < least / 16
        return
    assert abs(model_params(found.model).total / billions / 1e9 - 1) <= TOLERANCE
    assert found.params == model_params(found.model).total
    like = next(preset.spec for preset in presets() if preset.spec.name == found.like)
    assert (found.model.family, found.model.gated, found.model.norm) == (
        like.family,
        like.gated,
        like.norm,
    )
    assert (found.model.moe is None) == (like.moe is None)
    assert found.model.num_heads % found.model.num_kv_heads == 0


@pytest.mark.parametrize(
    ("series", "params", "name"),
    [("gpt3", 175e9, "gpt3-175b"), ("llama3", 8e9, "llama3-8b"), ("t5", 11e9, "t5-11b-nemo")],
)
def test_a_published_size_is_the_published_model(series: str, params: float, name: str) -> None:
    found = shape_of(params, series=series)
    assert (found.model.name, found.published) == (name, True)


@pytest.mark.parametrize("params", [3e9, 10e9, 30e9, 55e9, 200e9])
def test_large_shapes_shard(params: float) -> None:
    model = shape_of(params, series="llama3").model
    assert model.num_layers % 2 == 0
    assert model.num_heads % 4 == 0
    assert model.hidden % 256 == 0
    assert model.num_heads * model.head_dim == model.hidden


def test_width_over_depth_lies_between_the_neighbours() -> None:
    small, large = (
        next(p.spec for p in presets() if p.spec.name == name)
        for name in ("llama3-8b", "llama3-70b")
    )
    found = shape_of(25e9, series="llama3").model
    low, high = sorted(model.hidden / model.num_layers for model in (small, large))
    assert low * 0.7 <= found.hidden / found.num_layers <= high * 1.4


def test_both_sides_of_t5_are_equal() -> None:
    model = shape_of(5e9, series="t5").model
    assert model.encoder_layers == model.num_layers


def test_another_vocabulary() -> None:
    model = shape_of(8e9, series="llama3", vocab=32000).model
    assert model.vocab == 32000
    assert abs(model_params(model).total / 8e9 - 1) <= TOLERANCE


def test_what_cannot_be() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no shape of series 'gpt3' comes within 2%; its published sizes are 125M, ",
    ):
        shape_of(1000, series="gpt3")
    with pytest.raises(UnknownNameError, match="did you mean 'gpt3'"):
        shape_of(1e9, series="gptt3")


def test_experts_stand_apart_from_dense_models_of_their_series() -> None:
    assert {"qwen3", "qwen3-moe", "deepseek", "deepseek-moe"} <= set(series_names())
    assert shape_of(20e9, series="qwen3").model.moe is None
    assert shape_of(20e9, series="qwen3-moe").model.moe is not None
