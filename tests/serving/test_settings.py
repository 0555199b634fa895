"""Settings of an engine: how they are read, what they change of a price, how far apart they lie."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.serving.engine import find_engine
from meshwright.serving.request import ServingRequest
from meshwright.serving.search import plan
from meshwright.serving.settings import (
    AS_IT_IS,
    Settings,
    every_setting,
    octaves_of,
    priced_as,
    read_setting,
    settled,
)
from meshwright.values.errors import ConfigError, UnknownNameError


def request(**changes: Any) -> ServingRequest:
    values = {"model": "llama3.1-8b", "cluster": "h100:1", "input_len": 1024, "output_len": 128}
    return ServingRequest.of(**{**values, **changes})


def test_values_of_a_setting() -> None:
    assert read_setting("batched_tokens", "2048, 8192") == (2048, 8192)
    assert read_setting("graphs", "on,off") == (True, False)
    assert read_setting("drafted", "0,1") == (0, 1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("batched_tokens", "2k", "batched_tokens=2k: expected whole numbers"),
        ("batched_tokens", "8,8", "a value occurs twice"),
        ("graphs", "maybe", "graphs=maybe: expected on, off or both"),
        ("graphs", "", "graphs=: expected on, off or both"),
    ],
)
def test_a_value_that_is_none_is_said(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_setting(name, text)


def test_an_unknown_setting_has_a_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="prefix_caching"):
        read_setting("prefix_cache", "on")


def test_settings_are_every_combination_and_say_what_is_not_the_engines_own() -> None:
    found = every_setting({"sequences": (8, 16), "graphs": (True, False)})
    assert [one.words for one in found] == [
        *("sequences=8,graphs=on", "sequences=8,graphs=off"),
        *("sequences=16,graphs=on", "sequences=16,graphs=off"),
    ]
    assert every_setting({}) == (AS_IT_IS,) and AS_IT_IS.words == ""
    with pytest.raises(ConfigError, match="sequences=0: expected 1 or more"):
        Settings(sequences=0)


def test_an_engine_is_what_its_settings_make_it() -> None:
    vllm = find_engine("vllm")
    told = settled(vllm, Settings(batched_tokens=2048, sequences=32, graphs=False))
    assert (told.chunk_tokens, told.max_sequences, told.graphs) == (2048, 32, False)
    assert settled(vllm, Settings(chunked_prefill=False)).whole_prompts
    assert settled(vllm, AS_IT_IS) == vllm


def test_drafts_are_right_as_often_as_published() -> None:
    """1 + 0.85 + 0.85**2 tokens of a step with two drafts, by the constant's source."""
    asked = request(model="deepseek-v3", cluster="h200:8")
    guess = priced_as(asked, Settings(drafted=2)).speculation
    assert guess is not None and guess.accepted == pytest.approx(0.85 + 0.7225)
    assert priced_as(asked, Settings(drafted=0)).speculation is None
    with pytest.raises(ConfigError, match="no layers for multi-token prediction"):
        priced_as(request(), Settings(drafted=1))


def test_fewer_sequences_at_once_serve_less() -> None:
    wide, narrow = (
        plan(priced_as(request(modes=("aggregated",), weights=("bf16",)), told)).options[0]
        for told in (Settings(sequences=256), Settings(sequences=4))
    )
    assert narrow.concurrency <= 4 < wide.concurrency
    assert narrow.tokens_per_s < wide.tokens_per_s


def test_sizes_lie_apart_by_doublings_of_the_engines_own() -> None:
    vllm = find_engine("vllm")  # 8,192 tokens and 1,024 sequences
    assert octaves_of(vllm, AS_IT_IS) == (0.0, 0.0, 0.0)
    told = Settings(batched_tokens=2048, sequences=512, drafted=3)
    assert octaves_of(vllm, told) == (-2.0, -1.0, 2.0)
    assert octaves_of(find_engine("transformers"), told)[0] == 0.0  # it says no size of its own
