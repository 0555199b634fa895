"""A layout that runs and does not fit by our count."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.search.examples import layout, problem

from meshwright.search.problem import Problem, ask
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.search.ran import apart_of, as_ran, left_open, ran_words, what_fits
from meshwright.search.refine import setting_of
from meshwright.trust.intervals import interval
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


def test_a_run_that_fits_as_told_stays_so() -> None:
    asked = ask("tp=4,mbs=1", ASKED)
    found = as_ran(asked)
    assert found.asked == asked and found.words == "" and found.to_dict()["taken"] == []


def test_a_run_that_ran_is_taken_as_it_must_have_run() -> None:
    """Moments of 8.03e9 weights over 8 chips in 2 bytes each save 8.03e9 * 4 / 8
    bytes."""
    asked = ask("tp=1,mbs=1", ASKED)
    found = as_ran(asked)
    assert found.told.verdict == "no" and found.rung is not None
    assert found.rung.quote.verdict != "no" and found.rung.words in found.words
    again = quotes([found.asked.layout], found.asked.problem.setting)[0]
    assert again.peak_bytes == pytest.approx(found.rung.quote.peak_bytes)
    assert f"{found.told.peak_bytes / GIB:.1f} of" in found.words
    moments = next(f for f in left_open(asked.layout, setting_of(ASKED)) if "moments" in f.words)
    layout, setting = moments.apply(asked.layout, setting_of(ASKED))
    saved = found.told.peak_bytes - quotes([layout], setting)[0].peak_bytes
    assert saved == pytest.approx(8.03e9 * 4 / 8, rel=1e-3)


def test_what_was_told_of_a_run_is_never_changed() -> None:
    told = as_ran(ask("tp=1,mbs=1,recompute=none,sharding=none", ASKED))
    assert told.rung is not None
    kinds = {fix.kind for fix in told.rung.fixes}
    assert not kinds & {"selective", "full", "sharding"}
    blank = ask("tp=2,mbs=2", ASKED)
    setting = setting_of(ASKED)
    open_kinds = {fix.kind for fix in left_open(blank.layout, setting, told=blank.told)}
    assert {"selective", "full"} <= open_kinds


def test_the_interval_reaches_from_what_was_told_to_what_was_taken() -> None:
    found = as_ran(ask("tp=1,mbs=2", ASKED))
    assert found.rung is not None
    setting, at = found.asked.problem.setting, {"step_s": 1.0, "peak_bytes": 1.0}
    apart = apart_of(found.rung)
    assert apart.peak_memory == pytest.approx(
        math.log(found.told.peak_bytes / found.rung.quote.peak_bytes)
    )
    plain = interval(setting.kind, "peak_memory", 1.0, setting.assumptions)
    low, high = setting.intervals_at(**at).peak_bytes
    width, before = math.log(high / low) / 2, math.log(plain[1] / plain[0]) / 2
    assert width == pytest.approx(math.hypot(before, apart.peak_memory))


def test_a_run_that_nothing_makes_fit_is_answered_as_told() -> None:
    asked = ask("tp=8,mbs=1", problem("llama3.1-405b", "h100:8", gbs=8))
    found = as_ran(asked)
    assert found.asked == asked and found.rung is None
    assert "model, batch or chips are not as read" in found.words
