"""A model's parameters against what its name or a cell says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.values.models.catalogue import find_model, parse_dims, presets
from meshwright.values.models.params import model_params
from meshwright.values.models.said_size import model_notes, size_in_name, size_of_cell, wrong_size

LLAMA_8B = parse_dims("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256")


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("foo-13b", 12.35, 14.0),
        ("foo-7b", 6.5, 8.0),
        ("owner/Foo-2.7B-chat", 2.565, 2.835),
        ("foo-350m", 0.3325, 0.3675),
        ("foo-1.8t", 1710.0, 1900.0),
        ("foo-8x22b", 105.6, 184.8),
        ("foo-235b-a22b", 223.25, 246.75),
        ("foo_15b_8t", 14.25, 16.0),
        ("distill-qwen-7b-from-671b", 6.5, 8.0),
    ],
)
def test_sizes_in_names(name: str, least: float, most: float) -> None:
    said = size_in_name(name)
    assert said is not None and said.counts == "all"
    assert (said.least / 1e9, said.most / 1e9) == pytest.approx((least, most))


def test_a_size_beside_a_number_of_experts_is_that_of_one_token() -> None:
    said = size_in_name("Llama-4-Scout-17B-16E-Instruct")
    assert said is not None and said.counts == "active"
    assert said.holds(model_params(find_model("llama4-scout")))
    assert not said.holds(model_params(find_model("llama3-8b")))


@pytest.mark.parametrize(
    "name",
    ["foo", "kimi-k2.5", "gpt-4-layers-of-7b", "llama3-70b(truncated)", "gemma-3n-e4b", "m7b2", ""],
)
def test_names_without_a_size_of_their_own(name: str) -> None:
    assert size_in_name(name) is None


def test_another_size_than_the_name_says_is_told() -> None:
    assert wrong_size(replace(LLAMA_8B, name="foo-8b")) == ""
    assert wrong_size(replace(LLAMA_8B, name="foo-70b")) == (
        "foo-70b: 8.03B parameters by its dims, but 70b says otherwise"
    )
    assert wrong_size(replace(LLAMA_8B, name="Llama-3-70B-Instruct")) == (
        "Llama-3-70B-Instruct: 8.03B parameters by its dims, but the model of this name has 70.6B"
    )
    mixture = replace(find_model("mixtral-8x7b"), name="foo-7b")
    assert "46.7B parameters (12.9B active)" in wrong_size(mixture)


def test_a_cell_goes_before_the_name() -> None:
    spec = replace(LLAMA_8B, name="foo-70b")
    assert wrong_size(spec, said=size_of_cell(8.03)) == ""
    assert "params_b=9.5 says otherwise" in wrong_size(spec, said=size_of_cell(9.5))


def test_further_tokens_and_tables_count_or_not() -> None:
    deepseek = find_model("deepseek-v3")
    for size in ("671b", "682b"):  # with the layer for further tokens: 671.0 + 11.6
        assert wrong_size(replace(deepseek, name=f"foo-{size}")) == ""
    pythia = replace(find_model("pythia-1b"), name="foo-805m")  # 805,736,448 outside tables
    assert wrong_size(pythia) == ""


def test_published_names_are_never_said_to_be_wrong() -> None:
    wrong = {
        word: line
        for preset in presets()
        for word in (preset.spec.name, *preset.aliases)
        if (line := wrong_size(replace(preset.spec, name=word)))
    }
    assert wrong == {}


def test_what_a_shape_lacks_of_its_model_is_told() -> None:
    assert model_notes(find_model("llama3-8b")) == ()
    (note,) = model_notes(find_model("glm-5"))
    assert note.startswith("glm5-744b-a40b: attention is priced in full: the indexer")
    assert model_notes(replace(find_model("glm-5"), name="mine")) == ()
    (note,) = model_notes(find_model("qwen3.5-27b"))
    assert "48 layers of delta attention are taken to run at the rate of Mamba-2's" in note
    other = replace(find_model("glm-5"), num_layers=4)
    (note,) = model_notes(other)
    assert note.endswith("active) by its dims, but the model of this name has 743B")
