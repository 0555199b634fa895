"""The simplest of plans that tie is first, and never more than the tie's width slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.plan import search_plans
from meshwright.search.request import PlanRequest
from meshwright.search.result import PlanResult
from meshwright.search.simple import mechanisms, tie_of
from meshwright.trust.ties import tie_frac
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import named_model

MODEL = named_model("llama3-8b")  # 32 layers
PLAIN = Layout(dp=16, gbs=64, sharding="zero1")


def found(*, fastest: bool = False, **asked: Any) -> PlanResult:
    return search_plans(PlanRequest.of({**asked, "fastest": fastest}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ()),
        ({"tp": 2, "dp": 8}, ("tensor parallelism",)),
        ({"pp": 2, "vpp": 4, "dp": 8}, ("a pipeline", "interleaving")),
        ({"pp": 2, "vpp": 16, "dp": 8}, ("a pipeline", "interleaving", "chunks of one layer")),
        ({"pp": 2, "dp": 8, "layers_per_stage": (17, 15)}, ("a pipeline", "uneven stages")),
        (
            {"recompute": "selective", "recompute_modules": ("layernorm", "mlp")},
            ("recompute of layernorm", "recompute of mlp"),
        ),
        (
            {"recompute": "full", "recompute_layers": 2},
            ("full recompute", "a count of recomputed layers"),
        ),
        ({"sharding": "zero3"}, ("sharding zero3",)),
        ({"offload": "optimizer"}, ("offload of optimizer",)),
    ],
)
def test_what_a_layout_switches_on_is_counted(
    change: dict[str, object], words: tuple[str, ...]
) -> None:
    assert mechanisms(replace(PLAIN, **change), MODEL) == words  # type: ignore[arg-type]


def test_the_simplest_within_the_width_wins_and_no_other() -> None:
    odd = replace(PLAIN, pp=2, vpp=16, dp=8)
    scores = [(odd, 1.0), (PLAIN, 1.0 + 0.9 * tie_frac())]
    answer = tie_of(scores, MODEL)
    assert answer is not None
    simplest, tie = answer
    assert simplest == PLAIN
    assert tie.without == ("a pipeline", "interleaving", "chunks of one layer")
    assert tie.gain_frac == pytest.approx(1 - 1 / (1 + 0.9 * tie_frac()))
    assert tie_of([(odd, 1.0), (PLAIN, 1.0 + 1.1 * tie_frac())], MODEL) is None
    assert tie_of([(PLAIN, 1.0), (odd, 1.0)], MODEL) is None
    assert tie_of([(odd, 1.0), (replace(PLAIN, gbs=128), 1.0)], MODEL) is None  # another batch


LAYOUTS = st.builds(
    lambda tp, pp, vpp, cp, full: Layout(
        tp=tp,
        pp=pp,
        vpp=vpp if pp > 1 else 1,
        cp=cp,
        dp=2,
        gbs=64,
        recompute="full" if full else "none",
    ),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2]),
    st.booleans(),
)


@given(st.dictionaries(LAYOUTS, st.floats(1.0, 1.2), min_size=1, max_size=12))
def test_any_winner_is_simpler_and_within_the_width(scores: dict[Layout, float]) -> None:
    answer = tie_of(scores.items(), MODEL)
    least = min(scores.values())
    if answer is None:
        fastest = min(scores, key=lambda layout: scores[layout])
        simplest = len(mechanisms(fastest, MODEL))
        within = [each for each, s in scores.items() if s <= least * (1 + tie_frac())]
        assert min(len(mechanisms(each, MODEL)) for each in within) == simplest
        return
    winner, tie = answer
    assert scores[winner] <= least * (1 + tie_frac()) * (1 + 1e-12)
    assert len(mechanisms(winner, MODEL)) < len(mechanisms(tie.fastest, MODEL))
    assert tie.gain_frac == pytest.approx(1 - least / scores[winner])
    assert tie.without


@settings(max_examples=8, deadline=None)
@given(
    model=st.sampled_from(["llama3-8b", "llama3-70b", "mixtral-8x7b", "gpt-22b"]),
    cluster=st.sampled_from(["h100:64", "a100-80:32", "mi300x:16", "h100:128"]),
    top=st.sampled_from([1, 4]),
)
def test_a_search_puts_first_what_is_simpler_and_no_slower_than_the_width(
    model: str, cluster: str, top: int
) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "seq_len": 4096,
        "gbs": 256,
        "top": top,
    }
    simple, plain = found(**asked), found(fastest=True, **asked)
    assert plain.tie is None
    steps = [plan.step_s for plan in plain.plans]
    assert not steps or (steps == sorted(steps) or "at risk" in {p.fits for p in plain.plans})
    if simple.tie is None:
        assert [p.layout for p in simple.plans] == [p.layout for p in plain.plans]
        return
    first, fastest = simple.best, plain.best
    assert fastest.layout == simple.tie.fastest
    assert fastest.step_s <= first.step_s <= fastest.step_s * (1 + tie_frac())
    assert first.fits == fastest.fits
    assert [p.rank for p in simple.plans] == list(range(1, len(simple.plans) + 1))
    rest = [p.layout for p in plain.plans if p.layout != first.layout]
    assert [p.layout for p in simple.plans[1:]] == rest[: top - 1]
    assert simple.tie.fastest_rank == (2 if top > 1 else None)


def test_the_answer_and_its_record_say_both() -> None:
    asks: list[dict[str, Any]] = [
        {"model": "llama3-70b", "cluster": "mi300x:64", "seq_len": 8192, "gbs": 256},
        {"model": "mixtral-8x7b", "cluster": "h100:64", "seq_len": 4096, "gbs": 256},
        {"model": "llama3-8b", "cluster": "h100:64", "seq_len": 2**20, "gbs": 8},
        {"model": "llama3-70b", "cluster": "h100:256", "seq_len": 8192, "gbs": 512},
    ]
    results = (found(**ask, top=3) for ask in asks)
    result = next(each for each in results if each.tie is not None)  # one of them ties
    assert result.tie is not None
    first, second = result.plans[:2]
    assert result.tie.fastest == second.layout
    assert f"#2 might be {1 - second.step_s / first.step_s:.1%} faster" in result.tie.words()
    assert first.beats_next.startswith("simpler, without ")
    record = result.to_dict()["search"]["tie"]
    assert record["fastest_rank"] == 2
    assert record["gain_frac"] == pytest.approx(1 - second.step_s / first.step_s)
    asked: dict[str, Any] = {
        "model": "llama3-70b",
        "cluster": "h100:256",
        "seq_len": 8192,
        "gbs": 512,
        "top": 1,
    }
    assert "tie" not in found(fastest=True, **asked).to_dict()["search"]


def test_what_needs_least_memory_is_never_passed_over() -> None:
    asked: dict[str, Any] = {
        "model": "llama3-70b",
        "cluster": "h100:256",
        "seq_len": 8192,
        "gbs": 512,
        "top": 3,
    }
    assert found(**asked, objective="memory").tie is None
