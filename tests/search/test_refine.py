from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.search.problem import Problem, resolve
from meshwright.search.quote import quotes
from meshwright.search.refine import pipeline_of, reprice, split_variants, unrolled
from meshwright.search.request import PlanRequest
from meshwright.values.layout import Layout
from meshwright.values.stack import find_stack

BASE = Layout(tp=4, sp=True, pp=4, dp=2, sharding="zero1", gbs=32)


def problem(stack: str = "megatron") -> Problem:
    return resolve(
        PlanRequest.of(
            {
                "model": "llama3-70b",
                "cluster": "h100:32",
                "seq_len": 4096,
                "gbs": 32,
                "stack": stack,
            }
        )
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"vpp": 5},
        {"vpp": 3},
        {"layers_per_stage": (19, 21, 21, 19)},
        {"schedule": "zero-bubble"},
        {"pp": 1, "dp": 8},
    ],
)
def test_terms_sum_and_only_the_pipeline_changes(change: dict[str, object]) -> None:
    layout = replace(BASE, **change)  # type: ignore[arg-type]
    [priced] = reprice(problem(), [layout])
    [quote] = quotes([priced.layout], problem().setting)
    assert set(priced.time_s) == set(quote.time_s)
    assert all(seconds >= 0 for seconds in priced.time_s.values())
    same = set(quote.time_s) - {"bubble", "pp_comm"}
    assert {term: priced.time_s[term] for term in same} == pytest.approx(
        {term: quote.time_s[term] for term in same}
    )
    assert priced.peak_memory_bytes == pytest.approx([stage.used_bytes for stage in quote.stages])
    assert math.isclose(sum(priced.memory_bytes.values()), priced.peak_bytes)


def test_even_split_is_no_slower_than_the_closed_form_says() -> None:
    """The closed form is exact for even stages; the head makes the last stage uneven, by a few per
    cent of a step."""
    [priced] = reprice(problem(), [BASE])
    [quote] = quotes([BASE], problem().setting)
    assert priced.pipeline == "event simulation"
    assert priced.step_s == pytest.approx(quote.step_s, rel=0.1)


def test_pipeline_has_one_time_per_chunk() -> None:
    pipeline = pipeline_of(problem(), replace(BASE, vpp=5))
    assert (pipeline.schedule, len(pipeline.forward_s), pipeline.num_microbatches) == (
        "interleaved",
        20,
        16,
    )
    inner = list(pipeline.forward_s)[1:-1]
    assert max(inner) == pytest.approx(min(inner))
    assert pipeline.forward_s[-1] > inner[0]


@pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (8, 5), (3, 1), (16, 2)])
def test_split_variants_keep_all_layers(pp: int, vpp: int) -> None:
    variants = split_variants(replace(BASE, pp=pp, vpp=vpp), 80, stack=find_stack("megatron"))
    assert variants[0].layers_per_stage is None
    assert len(variants) > 1
    for variant in variants[1:]:
        assert variant.layers_per_stage is not None
        assert sum(variant.layers_per_stage) == 80
        assert len(variant.layers_per_stage) == pp * vpp
        assert min(variant.layers_per_stage) >= 1
    fixed = replace(BASE, pp=pp, vpp=vpp)
    assert split_variants(fixed, 80, stack=find_stack("megatron-deepspeed")) == [fixed]


def test_layers_of_stages_are_dealt_to_chunks_without_losing_any() -> None:
    """Of 5 layers on a stage with two chunks, the first has 3; in a V the second chunks lie from
    the last stage up."""
    plain = unrolled(replace(BASE, pp=2, vpp=2, layers_per_stage=(5, 3)), 8)
    assert plain.layers_per_stage == (3, 2, 2, 1)
    folded = unrolled(
        replace(BASE, pp=2, vpp=2, layers_per_stage=(5, 3), schedule="zero-bubble"), 8
    )
    assert folded.layers_per_stage == (3, 2, 1, 2)
