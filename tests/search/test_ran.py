"""A layout that runs and does not fit by our count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.search.examples import layout, problem

from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.search.ran import left_open, ran_words, what_fits
from meshwright.search.refine import setting_of
from meshwright.values.units import GIB

ASKED = problem("llama3-8b", "h100:8", gbs=32)


def priced(words: str, asked: Problem = ASKED, **room: float) -> tuple[Quote, Setting]:
    setting = setting_of(asked)
    quote = quotes([layout(words, asked)], setting)[0]
    return replace(quote, **room), setting  # type: ignore[arg-type]


def test_a_layout_that_fits_has_nothing_to_answer_for() -> None:
    quote, setting = priced("tp=4,mbs=1")
    assert quote.verdict == "yes" and ran_words(quote, setting) == ""


def test_what_a_layout_names_is_not_open() -> None:
    words = "tp=2,mbs=1,sharding=none,recompute="
    kinds = {
        recompute: {fix.kind for fix in left_open(*_pair(words + recompute))}
        for recompute in ("none", "full")
    }
    assert kinds["none"] - kinds["full"] == {"selective", "full"}
    assert {"gradients", "optimizer", "sharding"} <= kinds["full"]
    assert "sharding" not in {fix.kind for fix in left_open(*_pair("tp=2,mbs=1,sharding=zero1"))}
    assert "weights" not in kinds["full"], "bf16 has no narrow casts"


def _pair(words: str) -> tuple:  # type: ignore[type-arg]
    quote, setting = priced(words)
    return quote.layout, setting


def test_the_first_that_is_enough_is_named_and_priced() -> None:
    """Gradients of 8.03e9 weights in 2 bytes instead of 4 save 8.03e9 * 2 bytes."""
    quote, setting = priced("tp=1,mbs=1")
    assert quote.verdict == "no"
    rung = what_fits(quote, setting)
    assert rung is not None and rung.quote.verdict != "no"
    alone = {fix.words for fix in left_open(quote.layout, setting)}
    assert {fix.words for fix in rung.fixes} <= alone
    said = ran_words(quote, setting)
    assert rung.words in said and f"{rung.quote.peak_bytes / GIB:.1f} GiB" in said
    half = next(fix for fix in left_open(quote.layout, setting) if fix.kind == "gradients")
    changed = half.apply(quote.layout, setting)
    saved = quote.peak_bytes - quotes([changed[0]], changed[1])[0].peak_bytes
    assert saved == pytest.approx(8.03e9 * 2, rel=1e-3)


def test_where_nothing_helps_the_reading_is_doubted() -> None:
    asked = problem("llama3.1-405b", "h100:8", gbs=8)
    quote, setting = priced("tp=1,mbs=1", asked)
    assert what_fits(quote, setting) is None
    assert "not as read" in ran_words(quote, setting)
