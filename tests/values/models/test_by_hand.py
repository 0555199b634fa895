"""Dims by hand as words: `layers=32,hidden=4096,heads=32,vocab=128256`."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import find_model, named_model, parse_dims
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import Family, ModelSpec

LEAST = "layers=2,hidden=4096,heads=32,vocab=32000"
LLAMA = "layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"


def test_words_give_the_known_parameters() -> None:
    assert model_params(parse_dims(LLAMA)) == model_params(find_model("llama3-8b"))
    experts = (
        "layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, experts=8, topk=2"
    )
    assert model_params(parse_dims(experts)) == model_params(find_model("mixtral-8x7b"))


def test_every_word_has_its_effect() -> None:
    plain = parse_dims(LEAST)
    assert (plain.ffn, plain.num_kv_heads, plain.head_dim, plain.gated, plain.tied) == (
        10944,
        32,
        128,
        True,
        False,
    )
    assert (plain.family, plain.moe) == ("decoder", None)
    spec = parse_dims(
        f"{LEAST},ffn=5,kv_heads=4,head_dim=64,gated=0,tied=on,experts=8,topk=2,expert_ffn=7,shared_ffn=9"
    )
    assert (spec.ffn, spec.num_kv_heads, spec.head_dim, spec.gated, spec.tied) == (
        5,
        4,
        64,
        False,
        True,
    )
    assert spec.moe is not None
    assert (spec.moe.num_experts, spec.moe.top_k, spec.moe.expert_ffn, spec.moe.shared_ffn) == (
        8,
        2,
        7,
        9,
    )
    for family in get_args(Family):
        assert parse_dims(f"{LEAST},family={family}").family == family


def test_the_names_of_a_model_spec_do_as_well() -> None:
    assert parse_dims(
        "num_layers=2,hidden=4096,num_heads=32,vocab=32000,num_experts=8,top_k=2"
    ) == parse_dims(f"{LEAST},experts=8,topk=2")


def test_a_text_is_a_name_or_dims() -> None:
    assert named_model("llama3-8b") == find_model("llama3-8b")
    assert named_model(LEAST) == parse_dims(LEAST)


BAD = {
    "layer=2,hidden=4096,heads=32,vocab=9": "'layer' is no known model dim; did you mean 'layers'",
    "layers=2,hidden=4096": (
        "model by hand: heads, vocab not given; expected at least"
        " layers=32,hidden=4096,heads=32,vocab=128256"
    ),
    "layers=2,layers=3": "model: layers is given twice",
    "layers=2,num_layers=3": "model: num_layers is given twice",
    "layers=two": "model: layers=two: expected a whole number",
    "layers=2.5": "model: layers=2.5: expected a whole number",
    "layers=": (
        "model 'layers=': expected key=value, such as layers=32,hidden=4096,heads=32,vocab=128256"
    ),
    "layers=2,,hidden=4096": "model '': expected key=value",
    "layers=2,llama": "model 'llama': expected key=value",
    f"{LEAST},tied=maybe": "model: tied=maybe: expected 0 or 1",
    f"{LEAST},family=decode": "'decode' is no known model family; did you mean 'decoder'",
    f"{LEAST},kv_heads=5": "by-hand: num_heads=32 is not divisible by num_kv_heads=5",
    f"{LEAST},kv_heads=0": "by-hand: num_kv_heads=0: expected a number from 1",
    f"{LEAST},topk=2": "top_k=2, shared_ffn=0: of no use without the number of experts",
    f"{LEAST},expert_ffn=2": "expert_ffn=2: of no use without the number of experts",
    f"{LEAST},experts=8": "num_experts=8: say also how many a token visits",
    f"{LEAST},experts=8,topk=9": "experts: top_k=9 is more than num_experts=8",
    f"{LEAST},family=encoder,experts=8,topk=2": (
        "by-hand: experts, hybrid layers and windows are modelled in decoders only"
    ),
    "layers=-2,hidden=4096,heads=32,vocab=9": "by-hand: num_layers=-2: expected a number from 1",
    "layers=2,hidden=4096,heads=30,vocab=9": (
        "num_heads=30 does not divide hidden=4096; give the width of a head, or num_heads of"
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_wrong_words_get_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_dims(text)
    assert str(error.value).startswith(BAD[text]) and "\n" not in str(error.value)


def test_an_unknown_word_is_told_from_a_broken_value() -> None:
    with pytest.raises(UnknownNameError):
        parse_dims("hidenn=1")


keys = st.sampled_from(
    [
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "experts",
        "topk",
        "expert_ffn",
        "shared_ffn",
    ]
)
keys |= st.sampled_from(["gated", "tied", "family", "num_heads", "?"])
values = st.integers(-1, 70).map(str) | st.sampled_from(
    ["", "1" * 5000, "9" * 4000, "1e9", "0x1", "encoder", "x", "=", "true", "1_0"]
)
pairs = st.lists(st.tuples(keys, values).map("=".join), max_size=6)


@given(words=pairs, least=st.booleans(), text=st.text(max_size=20))
def test_any_words_are_a_model_or_one_line(words: list[str], least: bool, text: str) -> None:
    for given_text in (text, ",".join([*([LEAST] if least else []), *words])):
        try:
            assert isinstance(parse_dims(given_text), ModelSpec)
        except ConfigError as error:
            assert "\n" not in str(error) or "\n" in given_text
