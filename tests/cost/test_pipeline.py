"""The closed forms of `cost.pipeline` and the event simulation of `cost.simulate` hold each other
in place."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost import pipeline as closed
from meshwright.cost.closed_forms import chain_s, interleaved_chain_s
from meshwright.cost.pipeline import (
    pipeline_lower_bound_s,
    pipeline_of_stages_s,
    pipeline_s,
    pipeline_upper_bound_s,
    steady_period_s,
)
from meshwright.cost.schedules import Pipeline, PipelineSchedule, chunk_stages
from meshwright.cost.simulate import Operation, simulate, steady_step_s, timeline, transfers
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import SCHEDULES, Schedule

P2P = Literal["blocking", "overlapped"]
BLOCKING: tuple[PipelineSchedule, ...] = ("1f1b", "gpipe", "interleaved")
NAMES: dict[PipelineSchedule, Schedule] = {
    "interleaved": "1f1b",
    "dualpipev": "zero-bubble",
    "1f1b": "1f1b",
    "zero-bubble": "zero-bubble",
    "gpipe": "gpipe",
}


def even(
    schedule: PipelineSchedule,
    pp: int,
    num_microbatches: int,
    *,
    f: float,
    b: float,
    w: float = 0.0,
    vpp: int = 1,
    p: float = 0.0,
    p2p: P2P = "overlapped",
) -> Pipeline:
    chunks = pp * vpp
    return Pipeline(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        num_microbatches=num_microbatches,
        forward_s=[f] * chunks,
        backward_s=[b] * chunks,
        wgrad_s=[w] * chunks,
        link_s=p,
        p2p=p2p,
    )


def uneven(
    f: list[float],
    b: list[float],
    num_microbatches: int,
    *,
    p: float = 0.0,
    p2p: P2P = "overlapped",
) -> Pipeline:
    return Pipeline(
        schedule="1f1b",
        pp=len(f),
        num_microbatches=num_microbatches,
        forward_s=f,
        backward_s=b,
        link_s=p,
        p2p=p2p,
    )


def formula_s(pipeline: Pipeline) -> float:
    """The closed form, from the sums over each stage's chunks."""
    stages = np.array(chunk_stages(pipeline.schedule, pp=pipeline.pp, vpp=pipeline.vpp))
    times = [
        np.bincount(stages, weights=np.asarray(t))
        for t in (pipeline.forward_s, pipeline.backward_s, pipeline.wgrad_s or [0.0] * len(stages))
    ]
    return float(
        pipeline_of_stages_s(
            schedule=SCHEDULES.index(NAMES[pipeline.schedule]),
            vpp=pipeline.vpp,
            num_microbatches=pipeline.num_microbatches,
            forward_s=times[0],
            backward_s=times[1],
            wgrad_s=times[2],
            p2p_s=pipeline.links_s[0],
            p2p=pipeline.p2p,
        ).pipeline_s
    )


seconds = st.floats(0.1, 3.0)


@st.composite
def shapes(
    draw: st.DrawFn, schedules: tuple[PipelineSchedule, ...]
) -> tuple[PipelineSchedule, int, int, int]:
    """Schedule, pp, vpp and micro batches that go together."""
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.integers(2 if schedule == "interleaved" else 1, 6))
    if schedule == "interleaved":
        return schedule, pp, draw(st.integers(2, 4)), pp * draw(st.integers(1, 5))
    least = {"dualpipev": 2 * pp, "zero-bubble": pp}.get(schedule, 1)
    return (
        schedule,
        pp,
        2 if schedule == "dualpipev" else 1,
        draw(st.integers(least, least + 4 * pp)),
    )


@st.composite
def pipelines(
    draw: st.DrawFn,
    schedules: tuple[PipelineSchedule, ...] = (
        "1f1b",
        "gpipe",
        "interleaved",
        "zero-bubble",
        "dualpipev",
    ),
) -> Pipeline:
    """Any pipeline: uneven chunks, unlike links."""
    schedule, pp, vpp, num_microbatches = draw(shapes(schedules))
    times = st.lists(seconds, min_size=pp * vpp, max_size=pp * vpp)
    forward_s, wgrad_s = draw(times), draw(times)
    return Pipeline(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        num_microbatches=num_microbatches,
        forward_s=forward_s,
        backward_s=[d + w for d, w in zip(draw(times), wgrad_s, strict=True)],
        wgrad_s=wgrad_s,
        link_s=draw(st.lists(st.floats(0, 1), min_size=pp, max_size=pp)),
        p2p=(
            draw(st.sampled_from(("overlapped", "blocking")))
            if schedule in BLOCKING
            else "overlapped"
        ),
    )


# Worked by hand


@pytest.mark.parametrize(
    ("pipeline", "step_s"),
    [
        (even("1f1b", 4, 8, f=1, b=2), (8 + 3) * 3),
        (even("gpipe", 4, 8, f=1, b=2), (8 + 3) * 3),
        (
            even("interleaved", 4, 8, f=1, b=2, vpp=2),
            8 * 2 * 3 + 3 * 3,
        ),  # the bubble is of one chunk
        (even("zero-bubble", 4, 8, f=1, b=2, w=1), 8 * 3 + 3 * (1 + 1 - 1)),
        (
            even("dualpipev", 4, 8, f=1, b=2, w=1, vpp=2),
            8 * 2 * 3 + 3 * (3 + 2 - 3),
        ),  # F&B + B - 3 W of the published table
        (even("1f1b", 1, 5, f=1, b=2), 15),
        # F1 0-1, sent 1-1.5, F1 1.5-2.5 and B1 2.5-4.5 below, back 4.5-5, B1 5-7; F2, B2 below
        # 4.5-7.5, back at 8, B2 8-10
        (even("1f1b", 2, 2, f=1, b=2, p=0.5), 10),
        # as before, but the exchange at 4.5 stops the lower stage: F2 5-6, B2 6-8, back 8-8.5, B2
        # 8.5-10.5
        (even("1f1b", 2, 2, f=1, b=2, p=0.5, p2p="blocking"), 10.5),
    ],
)
def test_worked_examples(pipeline: Pipeline, step_s: float) -> None:
    assert simulate(pipeline).step_s == pytest.approx(step_s)
    assert formula_s(pipeline) == pytest.approx(step_s)


def test_popular_form_is_no_bound() -> None:
    f, b = [0.1, 2.0, 0.3, 0.1], [3.0, 1.0, 0.1, 0.3]
    both = [x + y for x, y in zip(f, b, strict=True)]
    assert simulate(uneven(f, b, 8)).step_s == pytest.approx(31.5)
    assert sum(both) + 7 * max(both) == pytest.approx(28.6)


def test_parts_of_a_worked_example() -> None:
    # 1f1b, pp 4, M 8, f 1, b 2, blocking p 0.1: 24 work, 9 bubble, (2 (M + pp - 2) - 1) p = 19 p of
    # messages
    parts = pipeline_of_stages_s(
        schedule=0,
        vpp=1,
        num_microbatches=8,
        forward_s=[1.0] * 4,
        backward_s=[2.0] * 4,
        p2p_s=0.1,
        p2p="blocking",
    )
    assert [
        float(part) for part in (parts.work_s, parts.imbalance_s, parts.bubble_s, parts.p2p_s)
    ] == pytest.approx([24, 0, 9, 1.9])


# Closed form against simulation


@given(
    shape=shapes(("1f1b", "gpipe", "interleaved", "zero-bubble")), f=seconds, d=seconds, w=seconds
)
def test_closed_form_is_exact_for_even_stages(
    shape: tuple[PipelineSchedule, int, int, int], f: float, d: float, w: float
) -> None:
    schedule, pp, vpp, num_microbatches = shape
    pipeline = even(schedule, pp, num_microbatches, f=f, b=d + w, w=w, vpp=vpp)
    fill = (pp - 1) * (max(f + d - w, f, d) if schedule == "zero-bubble" else f + d + w)
    assert simulate(pipeline).step_s == pytest.approx(num_microbatches * vpp * (f + d + w) + fill)
    assert formula_s(pipeline) == pytest.approx(simulate(pipeline).step_s)


@given(
    shape=shapes(BLOCKING),
    f=seconds,
    b=seconds,
    share=st.floats(0, 1),
    p2p=st.sampled_from(("overlapped", "blocking")),
)
def test_closed_form_is_exact_for_even_stages_with_messages(
    shape: tuple[PipelineSchedule, int, int, int], f: float, b: float, share: float, p2p: P2P
) -> None:
    schedule, pp, vpp, num_microbatches = shape
    p = share * min(f, b)
    pipeline = even(
        schedule,
        pp,
        num_microbatches,
        f=f,
        b=b,
        vpp=vpp,
        p=p,
        p2p="overlapped" if schedule == "interleaved" else p2p,
    )
    if schedule == "1f1b" and pipeline.p2p == "blocking":
        messages = (
            2 * (pp - 1)
            + (num_microbatches - 1) * min(pp - 1, 2)
            - (pp > 2 and num_microbatches > 1)
        )
    elif schedule == "1f1b":
        messages = (
            2 * (num_microbatches + pp - 2) - 2 * math.ceil((num_microbatches - 1) / pp)
            if pp > 1
            else 0
        )
    elif schedule == "interleaved":
        messages = 2 * (pp * vpp - 1)
    else:
        messages = None
    step_s = simulate(pipeline).step_s
    assert formula_s(pipeline) == pytest.approx(step_s)
    if messages is not None:
        assert step_s == pytest.approx((num_microbatches * vpp + pp - 1) * (f + b) + messages * p)


@given(
    pp=st.integers(1, 6),
    extra=st.integers(0, 20),
    f=seconds,
    dgrad_share=st.floats(0.1, 1.5),
    wgrad_share=st.floats(0, 1),
)
def test_dualpipev_closed_form_is_near(
    pp: int, extra: int, f: float, dgrad_share: float, wgrad_share: float
) -> None:
    """Off by less than one stage's forward, dgrad and wgrad, wherever the three differ."""
    d, w = f * dgrad_share, f * dgrad_share * wgrad_share
    pipeline = even("dualpipev", pp, 2 * pp + extra, f=f, b=d + w, w=w, vpp=2)
    assert abs(formula_s(pipeline) - simulate(pipeline).step_s) < 2 * (f + d + w)


@pytest.mark.parametrize("w", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_dualpipev_published_bubble(pp: int, w: float) -> None:
    pipeline = even("dualpipev", pp, 2 * pp + 3, f=1, b=1 + w, w=w, vpp=2)
    published = (pp - 1) * ((1 + 1 + w) + (1 + w) - 3 * w)
    assert simulate(pipeline).step_s == pytest.approx(
        2 * pipeline.num_microbatches * (2 + w) + published
    )
    assert formula_s(pipeline) == pytest.approx(simulate(pipeline).step_s)


@given(pipeline=pipelines(("gpipe",)))
def test_gpipe_is_exact_for_uneven_stages(pipeline: Pipeline) -> None:
    pipeline = replace(pipeline, link_s=min(pipeline.forward_s))
    assert formula_s(pipeline) == pytest.approx(simulate(pipeline).step_s)


@given(pipeline=pipelines(("1f1b",)))
def test_bounds_hold(pipeline: Pipeline) -> None:
    """The chains behind the closed form are operations that follow each other, so it lies between
    the plain lower bound and the truth."""
    times: dict[str, Any] = {
        "forward_s": pipeline.forward_s,
        "backward_s": pipeline.backward_s,
        "num_microbatches": np.array(pipeline.num_microbatches),
    }
    low, high = float(pipeline_lower_bound_s(**times)), float(pipeline_upper_bound_s(**times))
    silent = replace(pipeline, link_s=0.0)
    assert low <= formula_s(silent) * (1 + 1e-12)
    assert formula_s(silent) <= simulate(silent).step_s * (1 + 1e-12)
    assert simulate(silent).step_s <= high * (1 + 1e-12)
    loud = replace(pipeline, link_s=pipeline.links_s[0])
    assert low <= formula_s(loud) * (1 + 1e-12)
    assert formula_s(loud) <= simulate(loud).step_s * (1 + 1e-12)


def _random_cases(spread: float, count: int) -> list[Pipeline]:
    rng = np.random.default_rng(7)
    cases = []
    for _ in range(count):
        pp = int(rng.integers(2, 13))
        f = rng.uniform(1 - spread, 1 + spread, pp)
        cases.append(
            uneven(f.tolist(), (f * rng.uniform(1.2, 2.5)).tolist(), int(rng.integers(pp, 8 * pp)))
        )
    return cases


@pytest.mark.parametrize(("spread", "mean", "worst"), [(0.1, 1e-4, 0.002), (0.5, 0.003, 0.05)])
def test_uneven_error_of_the_closed_form(spread: float, mean: float, worst: float) -> None:
    """Same backward-to-forward ratio on all stages.

    Reasoned bounds: M t_max <= closed form <= truth <= (M + pp - 1) t_max, so the error is below
    (pp - 1) / (M + pp - 1). The popular sum t + (M - 1) t_max is 3 % too high in the mean at a
    spread of 50 %; the closed form must be ten times better.
    """
    cases = _random_cases(spread, 150)
    truth = np.array([simulate(case).step_s for case in cases])
    error = np.array([formula_s(case) for case in cases]) / truth - 1
    limit = np.array([(case.pp - 1) / (case.num_microbatches + case.pp - 1) for case in cases])
    both = [np.add(case.forward_s, case.backward_s) for case in cases]
    popular = (
        np.array(
            [
                t.sum() + (case.num_microbatches - 1) * t.max()
                for t, case in zip(both, cases, strict=True)
            ]
        )
        / truth
        - 1
    )
    assert np.all(error <= 1e-12)
    assert np.all(-error <= limit)
    assert np.abs(error).mean() < mean
    assert np.abs(error).max() < worst
    assert np.abs(error).mean() < 0.1 * np.abs(popular).mean()


@given(pp=st.integers(1, 5), times=st.lists(seconds, min_size=10, max_size=10), p=st.floats(0, 0.1))
@settings(max_examples=25)
def test_steady_period(pp: int, times: list[float], p: float) -> None:
    """pp! micro batches later a whole number of turns of every loop has passed; 2 % for two loops
    that are almost equally slow."""
    f, b = times[:pp], times[5 : 5 + pp]
    period_s, span = (
        float(steady_period_s(forward_s=f, backward_s=b, p2p_s=p)),
        10 * math.factorial(pp),
    )
    early, late = (simulate(uneven(f, b, m, p=p)).step_s for m in (600, 600 + span))
    assert late - early <= span * period_s * (1 + 1e-9)
    assert late - early == pytest.approx(span * period_s, rel=0.02)


def test_steady_period_of_even_stages() -> None:
    assert float(
        steady_period_s(forward_s=[1.0] * 8, backward_s=[2.0] * 8, p2p_s=0.4)
    ) == pytest.approx(3 + 2 * 0.4 * 7 / 8)
    held = [
        simulate(even("1f1b", 8, m, f=1, b=2, p=0.4, p2p="blocking")).step_s for m in (100, 101)
    ]
    assert held[1] - held[0] == pytest.approx(3 + 2 * 0.4)


# The columns


def _columns(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    forward, ratio = rng.uniform(0.5, 1.5, (rows, 4)), rng.uniform(1.5, 2.5, (rows, 1))
    schedule = rng.integers(0, len(SCHEDULES), rows)
    pp = rng.integers(4, 9, rows)
    return {
        "schedule": schedule,
        "pp": pp,
        "vpp": np.where(schedule == SCHEDULES.index("1f1b"), rng.integers(1, 4, rows), 1),
        "num_microbatches": pp * rng.integers(1, 6, rows),
        "forward_s": forward,
        "backward_s": forward * ratio,
        "wgrad_s": forward,
        "forward_sum_s": forward.mean(axis=1) * pp,
        "backward_sum_s": (forward * ratio).mean(axis=1) * pp,
        "wgrad_sum_s": forward.mean(axis=1) * pp,
        "p2p_s": rng.uniform(0, 0.2, rows),
    }


@pytest.mark.parametrize("p2p", ["blocking", "overlapped"])
def test_scalar_equals_column(p2p: P2P) -> None:
    columns = _columns(60)
    whole = pipeline_s(**columns, p2p=p2p)
    for row in range(60):
        one = pipeline_s(**{name: column[row] for name, column in columns.items()}, p2p=p2p)
        for part in ("work_s", "imbalance_s", "bubble_s", "p2p_s", "pipeline_s"):
            assert float(getattr(one, part)) == getattr(whole, part)[row], part


def test_parts_are_not_negative_and_sum() -> None:
    columns = _columns(200)
    parts = pipeline_s(**columns)
    silent = pipeline_s(**columns | {"p2p_s": np.zeros(200)})
    assert np.all(parts.bubble_s >= -1e-12)  # rounding
    assert np.all(parts.p2p_s >= -1e-12)
    np.testing.assert_allclose(
        parts.pipeline_s, parts.work_s + parts.imbalance_s + parts.bubble_s + parts.p2p_s
    )
    np.testing.assert_allclose(parts.pipeline_s - silent.pipeline_s, parts.p2p_s)


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("1f1b", 1), ("1f1b", 3), ("zero-bubble", 1), ("zero-bubble", 2), ("gpipe", 1)],
)
def test_representative_stages_answer_as_all_stages(pp: int, schedule: Schedule, vpp: int) -> None:
    """With equal middle stages: first, one in the middle, the last one in the middle, last."""
    code, number = SCHEDULES.index(schedule), [0, min(1, pp - 1), max(pp - 2, 0), pp - 1]
    forward = np.array([1.3, *[1.0] * (pp - 2), 1.6][:pp])
    backward, wgrad = forward * 2.2, forward * 0.9
    common: dict[str, Any] = {
        "schedule": code,
        "vpp": vpp,
        "num_microbatches": 4 * pp,
        "p2p_s": 0.05,
    }
    some = pipeline_s(
        **common,
        pp=pp,
        forward_s=forward[number],
        backward_s=backward[number],
        wgrad_s=wgrad[number],
        forward_sum_s=forward.sum(),
        backward_sum_s=backward.sum(),
        wgrad_sum_s=wgrad.sum(),
        stage=number,
    )
    whole = pipeline_of_stages_s(**common, forward_s=forward, backward_s=backward, wgrad_s=wgrad)
    assert float(some.pipeline_s) == pytest.approx(float(whole.pipeline_s))


def test_default_places_take_the_heaviest_as_late_as_can_be() -> None:
    columns = _columns(50) | {
        "schedule": np.zeros(50, dtype=np.int64),
        "vpp": np.ones(50, dtype=np.int64),
    }
    late = pipeline_s(**columns).pipeline_s
    middle = np.stack([np.zeros(50), np.ones(50), np.full(50, 2), columns["pp"] - 1], axis=1)
    assert np.all(late >= pipeline_s(**columns, stage=middle).pipeline_s - 1e-9)


def test_no_formula_is_nan() -> None:
    zero, gpipe = SCHEDULES.index("zero-bubble"), SCHEDULES.index("gpipe")
    columns = _columns(4) | {
        "schedule": np.array([zero, gpipe, zero, zero]),
        "vpp": np.array([3, 2, 2, 2]),
        "pp": np.full(4, 4),
    }
    parts = pipeline_s(**columns | {"num_microbatches": np.array([16, 16, 7, 8])})
    for part in (parts.work_s, parts.imbalance_s, parts.bubble_s, parts.p2p_s, parts.pipeline_s):
        assert np.isnan(part).tolist() == [True, True, True, False]


def test_exports_are_sorted() -> None:
    assert closed.__all__ == sorted(closed.__all__)


# The simulation by itself


@given(pipeline=pipelines())
def test_no_operation_starts_early(pipeline: Pipeline) -> None:
    """Each operation runs once, alone on its stage, on the right stage, after its input has
    arrived."""
    stages = chunk_stages(pipeline.schedule, pp=pipeline.pp, vpp=pipeline.vpp)
    last = len(stages) - 1
    operations = timeline(pipeline)
    ends: dict[tuple[str, int, int], float] = {
        (op.kind, op.chunk, op.microbatch): op.end_s for op in operations
    }
    forwards = [
        (kind, c, m)
        for kind in "FB"
        for c in range(last + 1)
        for m in range(pipeline.num_microbatches)
    ]
    counted = Counter((op.kind, op.chunk, op.microbatch) for op in operations)
    assert max(counted.values()) == 1
    assert set(forwards) <= set(counted)
    for op in operations:
        assert op.stage == stages[op.chunk]
        assert op.start_s >= _earliest(op, pipeline, ends, stages) - 1e-9, op
    for before, after in pairwise(operations):
        assert before.stage != after.stage or before.end_s <= after.start_s + 1e-9
    step = simulate(pipeline)
    assert min(op.start_s for op in operations) == pytest.approx(0)
    assert step.step_s == max(ends.values())
    for stage in range(pipeline.pp):
        assert step.busy_s[stage] == pytest.approx(
            sum(op.end_s - op.start_s for op in operations if op.stage == stage)
        )
        assert step.busy_s[stage] + step.transfer_s[stage] + step.idle_s[stage] == pytest.approx(
            step.step_s
        )


def _earliest(
    op: Operation, pipeline: Pipeline, ends: dict[tuple[str, int, int], float], stages: list[int]
) -> float:
    """When the input of an operation is there."""
    if op.kind == "W":
        return ends["B", op.chunk, op.microbatch]
    source = op.chunk - 1 if op.kind == "F" else op.chunk + 1
    own = ends["F", op.chunk, op.microbatch] if op.kind == "B" else 0.0
    if not 0 <= source < len(stages):
        return own
    here, there = op.stage, stages[source]
    wraps = pipeline.schedule == "interleaved" and max(op.chunk, source) % pipeline.pp == 0
    link_s = (
        0.0
        if here == there
        else pipeline.links_s[-1]
        if wraps
        else pipeline.links_s[min(here, there)]
    )
    return max(own, ends[op.kind, source, op.microbatch] + link_s)


@given(shape=shapes(("1f1b", "gpipe", "interleaved", "zero-bubble", "dualpipev")))
def test_in_flight_peaks(shape: tuple[PipelineSchedule, int, int, int]) -> None:
    schedule, pp, vpp, m = shape
    expected = {
        "1f1b": [min(pp - s, m) for s in range(pp)],
        "gpipe": [m] * pp,
        "interleaved": [
            min(2 * (pp - s - 1) + (vpp - 1) * pp + 1, m * vpp) for s in range(pp)
        ],  # warm-up and one more
        "zero-bubble": [pp] * pp,
        "dualpipev": [2 * pp + 1] * pp,
    }[schedule]
    assert list(simulate(even(schedule, pp, m, f=1, b=2, w=1, vpp=vpp)).peak_in_flight) == expected


@pytest.mark.parametrize("p2p", ["blocking", "overlapped"])
def test_larger_groups_and_remainders_run(p2p: P2P) -> None:
    """Megatron-Core: groups of more than pp micro batches, and a last group of at least pp."""
    pipeline = replace(
        even("interleaved", 4, 16, f=1, b=2, vpp=3, p2p=p2p), group=6, num_microbatches=16
    )
    assert simulate(pipeline).step_s == pytest.approx(16 * 3 * 3 + 3 * 3)
    assert simulate(pipeline).peak_in_flight == (
        2 * 3 + 2 * 6 + 1,
        2 * 2 + 2 * 6 + 1,
        2 * 1 + 2 * 6 + 1,
        2 * 6 + 1,
    )


def test_links_are_told_apart() -> None:
    # one micro batch, 3 stages: 3 + 6 of work, and each boundary is crossed twice; interleaved, the
    # way back as well
    plain = replace(even("1f1b", 3, 1, f=1, b=2), link_s=[0.1, 0.02, 5.0])
    assert simulate(plain).step_s == pytest.approx(9 + 2 * 0.12)
    wrapped = replace(even("interleaved", 2, 2, f=1, b=2, vpp=2), link_s=[0.1, 0.3])
    assert simulate(wrapped).step_s - simulate(
        replace(wrapped, link_s=0.0)
    ).step_s == pytest.approx(2 * (0.1 + 0.3 + 0.1))


def test_messages_queue_on_a_link() -> None:
    # the first stage is free to send one every second, the link takes two: the last of 4 arrives at
    # 1 + 4 * 2
    step_s = simulate(even("gpipe", 2, 4, f=1, b=1, p=2)).step_s
    assert step_s == pytest.approx(1 + 4 * 2 + 1 + 1 + 4 * 2 + 1)


@pytest.mark.parametrize("p2p", ["blocking", "overlapped"])
@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("1f1b", 1), ("gpipe", 1), ("interleaved", 3), ("zero-bubble", 1), ("dualpipev", 2)],
)
def test_steady_shortcut_equals_the_whole_step(
    schedule: PipelineSchedule, vpp: int, p2p: P2P
) -> None:
    if p2p == "blocking" and schedule not in BLOCKING:
        return
    rng = np.random.default_rng(5)
    for spread, p in ((0.0, 0.0), (0.0, 0.1), (0.3, 0.0), (0.3, 0.1), (0.3, 1.5)):
        f = rng.uniform(1 - spread, 1 + spread, 3 * vpp)
        pipeline = Pipeline(
            schedule=schedule,
            pp=3,
            vpp=vpp,
            num_microbatches=120 if schedule == "interleaved" else 121,
            forward_s=f.tolist(),
            backward_s=(2 * f).tolist(),
            wgrad_s=(0.9 * f).tolist(),
            link_s=p,
            p2p=p2p,
        )
        assert steady_step_s(pipeline) == pytest.approx(simulate(pipeline).step_s, rel=1e-9)


@given(
    times=st.lists(seconds, min_size=8, max_size=8),
    p=st.floats(0, 0.5),
    m=st.integers(80, 160),
    p2p=st.sampled_from(("blocking", "overlapped")),
)
@settings(max_examples=50)
def test_steady_shortcut_on_random_stages(times: list[float], p: float, m: int, p2p: P2P) -> None:
    pipeline = uneven(times[:4], times[4:], m, p=p, p2p=p2p)
    assert steady_step_s(pipeline) == pytest.approx(simulate(pipeline).step_s, rel=1e-9)


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pp": 0}, "pp=0"),
        ({"vpp": 2}, "vpp=2: schedule=1f1b has vpp=1"),
        ({"forward_s": [1.0]}, "forward_s has 1 values; expected one per chunk, pp \\* vpp = 4"),
        ({"forward_s": [1.0, 1.0, 1.0, -1.0]}, "expected seconds, 0 or more"),
        ({"wgrad_s": [3.0] * 4}, "wgrad_s is larger than backward_s"),
        ({"link_s": [0.0] * 3}, "link_s has 3 values"),
        ({"link_s": -0.1}, "link_s=-0.1: expected seconds"),
        ({"schedule": "zero-bubble", "wgrad_s": None}, "needs the seconds of the weight gradients"),
        ({"schedule": "zero-bubble", "p2p": "blocking"}, "use p2p=overlapped"),
        (
            {
                "schedule": "dualpipev",
                "vpp": 2,
                "forward_s": [1.0] * 8,
                "backward_s": [1.0] * 8,
                "wgrad_s": [1.0] * 8,
                "num_microbatches": 7,
            },
            "needs 8 or more",
        ),
        ({"schedule": "interleaved"}, "use schedule=1f1b"),
        (
            {"schedule": "interleaved", "vpp": 2, "num_microbatches": 10},
            "leaves 2; 0 or >= pp=4 works",
        ),
        (
            {"schedule": "interleaved", "vpp": 2, "group": 3},
            "group=3: expected pp=4 to num_microbatches=8",
        ),
    ],
)
def test_bad_pipelines_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(even("1f1b", 4, 8, f=1, b=2, w=1), **change)


def test_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="zero-bubble"):
        replace(even("1f1b", 4, 8, f=1, b=2), schedule="zero-buble")  # type: ignore[arg-type]


# Unlike links


def test_unlike_links_by_hand() -> None:
    times: dict[str, Any] = {
        "schedule": 0,
        "vpp": 1,
        "forward_s": [1.0, 1.0, 1.0],
        "backward_s": [2.0, 2.0, 2.0],
    }
    alike = pipeline_of_stages_s(**times, num_microbatches=3, p2p_s=0.5, p2p="blocking").pipeline_s
    assert pipeline_of_stages_s(
        **times, num_microbatches=3, p2p_s=[0.5, 0.5], p2p="blocking"
    ).pipeline_s == pytest.approx(alike)
    # one micro batch passes each boundary twice
    assert pipeline_of_stages_s(
        **times, num_microbatches=1, p2p_s=[0.5, 4.0]
    ).pipeline_s == pytest.approx(9 + 2 * 4.5)


def test_steady_period_of_unlike_links() -> None:
    # stages of 3; the middle boundary takes 2: the loop of its two stages takes (3 + 3 + 4) / 2 a
    # micro batch; with all at 1, (12 + 6) / 4
    assert steady_period_s(
        forward_s=[1.0] * 4, backward_s=[2.0] * 4, p2p_s=[0.5, 2.0, 0.5]
    ) == pytest.approx(5.0)
    assert steady_period_s(
        forward_s=[1.0] * 4, backward_s=[2.0] * 4, p2p_s=[1.0, 1.0, 1.0]
    ) == pytest.approx(4.5)


@given(data=st.data())
@settings(max_examples=25)
def test_steady_period_is_what_the_simulation_settles_to(data: st.DataObject) -> None:
    pp = data.draw(st.integers(2, 5))
    f, b = (data.draw(st.lists(st.floats(0.5, 3), min_size=pp, max_size=pp)) for _ in range(2))
    p = data.draw(st.lists(st.floats(0, 0.4), min_size=pp - 1, max_size=pp - 1))
    cases = [
        Pipeline(
            schedule="1f1b", pp=pp, num_microbatches=m, forward_s=f, backward_s=b, link_s=[*p, 0.0]
        )
        for m in (240, 480)
    ]
    one, two = (simulate(case).step_s for case in cases)
    assert (two - one) / 240 == pytest.approx(
        float(steady_period_s(forward_s=f, backward_s=b, p2p_s=p)), rel=1e-3
    )


@given(data=st.data())
def test_chain_never_falls(data: st.DataObject) -> None:
    m, n, vpp = (
        data.draw(st.integers(1, 12)),
        data.draw(st.integers(0, 6)),
        data.draw(st.integers(2, 4)),
    )
    low = [data.draw(st.floats(0, 3)) for _ in range(3)]
    high = [value + data.draw(st.floats(0, 3)) for value in low]
    hold = data.draw(st.floats(0, 1))
    plain = [
        chain_s(
            num_microbatches=m,
            count_below=n,
            forward_s=f,
            backward_s=b,
            below_s=d,
            hold_s=2 * hold,
            once_s=hold,
        )
        for f, b, d in (low, high)
    ]
    deep = [
        interleaved_chain_s(
            num_microbatches=m,
            warmup=2 * n + vpp,
            vpp=vpp,
            forward_s=f,
            backward_s=b,
            below_s=d,
            down_s=d,
            up_s=d,
        )
        for f, b, d in (low, high)
    ]
    assert plain[0] <= plain[1] + 1e-9 and deep[0] <= deep[1] + 1e-9


@pytest.mark.parametrize("p2p", ["blocking", "overlapped"])
def test_transfers_lie_between_the_operations(p2p: Literal["blocking", "overlapped"]) -> None:
    """2 stages, f = 1, b = 2, p = 1/2, 3 micro batches: each goes down and up once; F0 of stage 1
    starts when its input is there."""
    pipeline = Pipeline(
        schedule="1f1b",
        pp=2,
        num_microbatches=3,
        forward_s=[1.0, 1.0],
        backward_s=[2.0, 2.0],
        link_s=0.5,
        p2p=p2p,
    )
    moved, run = transfers(pipeline), timeline(pipeline)
    assert all(t.end_s - t.start_s == pytest.approx(0.5) for t in moved)
    assert min(t.start_s for t in moved) == pytest.approx(1.0)
    assert min(o.start_s for o in run if o.stage == 1) == pytest.approx(1.5)
    if p2p == "overlapped":
        assert sorted((t.sender, t.receiver) for t in moved) == [(0, 1)] * 3 + [(1, 0)] * 3
    for stage in (0, 1):
        own = [(o.start_s, o.end_s) for o in run if o.stage == stage]
        own += [(t.start_s, t.end_s) for t in moved if t.receiver is None and t.sender == stage]
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(sorted(own)))
