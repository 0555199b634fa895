"""What holds for any valid layout, and for a column of them."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cost.cases import frozen
from tests.cost.layouts import Case, cases, layouts

from meshwright.cost.memory import MEMORY_TERMS
from meshwright.cost.stages import Which
from meshwright.cost.step import TIME_TERMS, Priced, price
from meshwright.values.layout import Layout, Layouts

quick = settings(
    max_examples=60,
    suppress_health_check=[
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
NOISE = 1e-9
"""Of a step: recompute is what is left of the busiest stage when everything else is taken off."""


def priced(case: Case, rows: list[Layout], *, which: Which = "representative") -> Priced:
    return price(
        frozen(Layouts.of(rows)),
        model=case.model,
        pool=case.pool,
        work=case.work,
        stack=case.stack,
        which=which,
    )


def by_stage(result: Priced, row: int, name: str) -> dict[int, float]:
    """A memory term of each stage that is priced; how many are, depends on the column."""
    return dict(
        zip(result.stages.index[row].tolist(), result.memory.terms[name][row].tolist(), strict=True)
    )


@quick
@given(data=st.data())
def test_terms_sum_and_are_finite_and_none_is_negative(data: st.DataObject) -> None:
    case = data.draw(cases())
    rows = data.draw(st.lists(layouts(case), min_size=1, max_size=3))
    result = priced(case, rows)
    step_s = result.step_s
    assert set(result.time) == set(TIME_TERMS) and set(result.memory.terms) == set(MEMORY_TERMS)
    assert np.all(np.isfinite(step_s) & (step_s > 0))
    for name, seconds in result.time.items():
        assert seconds.shape == (len(rows),), name
        assert np.all(np.isfinite(seconds) & (seconds >= -NOISE * step_s)), name
    for name, size in result.memory.terms.items():
        assert size.shape == result.stages.layers.shape, name
        assert np.all(np.isfinite(size) & (size >= 0)), name
    terms = result.memory.terms
    assert step_s == pytest.approx(sum(result.time.values()), rel=1e-12)
    assert result.memory.used == pytest.approx(sum(terms.values()), rel=1e-12)
    assert result.memory.used == pytest.approx(
        result.memory.allocated + terms["slack"] + terms["context"], rel=1e-12
    )
    assert np.all(result.memory.used >= result.memory.reserved) and np.all(
        result.memory.reserved >= result.memory.allocated
    )


@quick
@given(data=st.data())
def test_a_column_is_each_of_its_layouts(data: st.DataObject) -> None:
    case = data.draw(cases())
    rows = data.draw(st.lists(layouts(case), min_size=2, max_size=4))
    together = priced(case, rows)
    for i, row in enumerate(rows):
        alone = priced(case, [row])
        for name, seconds in alone.time.items():
            assert together.time[name][i] == pytest.approx(
                seconds[0], rel=1e-12, abs=1e-12 * float(alone.step_s[0])
            ), name
        for name in MEMORY_TERMS:
            every, some = by_stage(together, i, name), by_stage(alone, 0, name)
            assert {stage: every[stage] for stage in some} == pytest.approx(some, rel=1e-12), name
        assert together.peak_used_bytes[i] == pytest.approx(alone.peak_used_bytes[0], rel=1e-12)


@quick
@given(data=st.data())
def test_every_stage_agrees_with_the_representatives(data: st.DataObject) -> None:
    """Even stages of one kind of layer."""
    case = data.draw(cases().filter(lambda case: len(case.model.segments) == 1))
    row = data.draw(layouts(case, even=True))
    some, every = priced(case, [row]), priced(case, [row], which="all")
    for name, seconds in some.time.items():
        assert every.time[name][0] == pytest.approx(
            seconds[0], rel=1e-9, abs=1e-12 * float(some.step_s[0])
        ), name
    assert every.peak_used_bytes == pytest.approx(some.peak_used_bytes, rel=1e-12)
    assert every.stages.real.sum() == row.pp
    assert every.stages.layers.sum() == case.model.total_layers


@quick
@given(data=st.data())
def test_more_data_parallel_ranks_never_add_optimizer_bytes(data: st.DataObject) -> None:
    case = data.draw(cases())
    row = replace(data.draw(layouts(case)), sharding="zero1", shard_size=None)
    less, more = (
        priced(case, [replace(row, dp=row.dp * n, gbs=row.gbs * n)]).memory.terms["optimizer"]
        for n in (1, 2)
    )
    assert np.all(more <= less)


@quick
@given(data=st.data())
def test_recompute_takes_time_and_frees_memory(data: st.DataObject) -> None:
    case = data.draw(cases())
    row = replace(
        data.draw(layouts(case)),
        recompute_modules=(),
        recompute_layers=None,
        recompute_method="uniform",
    )
    none, full = (priced(case, [replace(row, recompute=kind)]) for kind in ("none", "full"))
    assert np.all(full.memory.terms["activations"] <= none.memory.terms["activations"])
    assert full.time["recompute"] > none.time["recompute"]
    assert full.step_s > none.step_s


@quick
@given(data=st.data())
def test_arguments_are_left_alone(data: st.DataObject) -> None:
    """`frozen` lets nobody write to the columns; nor are they replaced, and the same question has
    the same answer."""
    case = data.draw(cases())
    columns = frozen(Layouts.of(data.draw(st.lists(layouts(case), min_size=1, max_size=3))))
    before = {
        field.name: np.copy(getattr(columns, field.name))
        for field in fields(columns)
        if field.name != "chunk_layers"
    }
    first, second = (
        price(columns, model=case.model, pool=case.pool, work=case.work, stack=case.stack)
        for _ in range(2)
    )
    assert all(np.array_equal(getattr(columns, name), column) for name, column in before.items())
    assert np.array_equal(first.step_s, second.step_s)
    assert np.array_equal(first.memory.used, second.memory.used)
