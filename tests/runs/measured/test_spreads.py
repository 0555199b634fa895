from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from meshwright.trust.intervals import LEVELS, Kind, Quantity
from meshwright_truth.coverage import LEAVES, NEVER_SHOWN, coverage, leave_out, widening_of
from meshwright_truth.page import coverage_section, verdict_lines
from meshwright_truth.residuals import Feature, FitOutcome, Residual
from meshwright_truth.spreads import Sample, Widening, fit_spreads, spreads_csv
from meshwright_truth.verdicts import judge

HOPPER = Kind(
    stack="megatron", family="megatron", model="dense", generation="hopper", vendor="NVIDIA"
)
ADA = Kind(stack="megatron", family="megatron", model="dense", generation="ada", vendor="NVIDIA")


def residual(
    log_ratio: float,
    *,
    table: str = "a",
    model: str = "m",
    run: str = "",
    kind: Kind = HOPPER,
    quantity: Quantity = "step_time",
    as_family: float | None = None,
    features: tuple[Feature, ...] = (),
) -> Residual:
    return Residual(
        quantity=quantity,
        table=table,
        model=model,
        run=run or str(log_ratio),
        kind=kind,
        log_ratio=log_ratio,
        as_family=as_family,
        features=frozenset(features),
    )


def study(
    tables: int,
    *,
    models: int,
    runs: int,
    between: float,
    within: float,
    seed: int,
    kind: Kind = HOPPER,
) -> list[Residual]:
    """Runs whose tables differ by one known spread and whose runs by another, both normal in the
    logarithm."""
    random = np.random.default_rng(seed)
    found = []
    for table in range(tables):
        bias = random.normal(0.0, between)
        for model in range(models):
            offs = random.normal(bias, within, runs)
            found += [
                residual(float(off), table=f"t{table}", model=f"m{model}", run=str(i), kind=kind)
                for i, off in enumerate(offs)
            ]
    return found


def test_quantiles_by_hand() -> None:
    """Worked: five models of one run each at -0.2, -0.1, 0, 0.1, 0.2 weigh alike; the median is 0
    and, middles of weights being 0.1, 0.3, ..., the 10 % quantile is -0.2 and the 25 % quantile
    three quarters of the way to -0.1."""
    some = [residual(off, model=str(off)) for off in (-0.2, -0.1, 0.0, 0.1, 0.2)]
    found = fit_spreads(some)["step_time", "megatron, dense, hopper"]
    logs = [math.log(point) for point in (found.p10, found.p25, found.p50, found.p75, found.p90)]
    assert logs == pytest.approx([-0.2, -0.125, 0.0, 0.125, 0.2])
    assert (found.runs, found.models, found.tables) == (5, 5, 1)


def test_interval_of_five_groups_by_hand() -> None:
    """Worked: 80 % of 0, 0.1, 0.1, 0.2, 0.2 lie within 0.2. Student's 90 % quantile with 4 degrees
    of freedom is 1.533, the normal's 1.2816; with the error of the mean of five groups it grows by
    1.533 / 1.2816 * sqrt(1.2) = 1.310. Factors multiply it, another where the software stands in
    for others."""
    some = [residual(off, model=str(off)) for off in (-0.2, -0.1, 0.0, 0.1, 0.2)]
    for own, fallback in ((1.0, 1.0), (2.0, 3.0)):
        found = fit_spreads(some, factors={"step_time": Widening(own=own, fallback=fallback)})
        for name, factor in (("megatron, dense, hopper", own), ("megatron, dense", fallback)):
            spread = found["step_time", name]
            assert math.log(spread.high) == pytest.approx(0.2 * 1.310 * factor, rel=2e-3)
            assert math.log(spread.low) == pytest.approx(-0.2 * 1.310 * factor, rel=2e-3)


def test_repeats_count_once_and_a_sweep_counts_as_its_models() -> None:
    lone = [residual(0.5, table="b", model=name, run="1") for name in ("x", "y", "z")]
    sweep = [
        residual(0.001 * i, table="a", model=name, run=f"{i}")
        for name in ("x", "y", "z")
        for i in range(300)
    ]
    once = fit_spreads([*lone, *sweep])["step_time", "megatron, dense, hopper"]
    again = fit_spreads([*lone * 5, *sweep])["step_time", "megatron, dense, hopper"]
    assert once.runs == again.runs == 903
    assert once.p90 == pytest.approx(math.exp(0.5))
    assert again.p75 == pytest.approx(once.p75, rel=1e-6)
    assert 0.2 < math.log(once.p50) < 0.5


def test_rare_kinds_are_left_to_coarser_ones() -> None:
    some = [residual(0.01 * i, model=str(i)) for i in range(4)] + [
        residual(0.3, model="only", kind=ADA)
    ]
    names = {name for _, name in fit_spreads(some)}
    assert "megatron, dense, hopper" in names and "megatron, dense, ada" not in names
    assert {"megatron, dense, nvidia", "megatron, dense", "dense", "any run"} <= names


def test_two_equal_groups_are_enough_and_three_for_memory() -> None:
    some = [residual(0.1 * i, model=str(i)) for i in range(3)]
    kept = {
        count: ("step_time", "megatron, dense, hopper") in fit_spreads(some[:count])
        for count in (1, 2, 3)
    }
    assert kept == {1: False, 2: True, 3: True}
    memory = [replace(each, quantity="peak_memory") for each in some]
    kept = {
        count: ("peak_memory", "megatron, dense, hopper") in fit_spreads(memory[:count])
        for count in (2, 3)
    }
    assert kept == {2: False, 3: True}


def test_a_kind_is_mixed_with_the_next_coarser() -> None:
    """Worked: three models at 0 in the kind's one table, three at 0.3 in another generation's. The
    coarser kinds are one half each; the kind's own weigh 1 / (1 + 5) beside them, so that 7/12 lie
    at 0 and 5/12 at 0.3. 80 % lie within 0.3. The six groups have shares of 7/36 and 5/36: 5.84
    equal ones, whose half-widths grow by 1.483 / 1.2816 * sqrt(1 + 1 / 5.84) = 1.252."""
    own = [residual(0.0, table="a", model=name) for name in "xyz"]
    others = [residual(0.3, table="b", model=name, kind=ADA) for name in "xyz"]
    found = fit_spreads([*own, *others])["step_time", "megatron, dense, hopper"]
    assert math.log(found.high) == pytest.approx(0.3 * 1.252, rel=0.01)
    assert (found.p90, found.runs, found.tables) == (1.0, 3, 1)


@pytest.mark.parametrize(("between", "within"), [(0.1, 0.1), (0.05, 0.2), (0.2, 0.03)])
def test_intervals_hold_80_percent_of_tables_never_seen(between: float, within: float) -> None:
    """Spreads of 80 known tables, held against 400 others of the same known spread; errors half as
    large again are held by intervals half as wide again in ln."""
    known = study(80, models=3, runs=20, between=between, within=within, seed=1)
    found = fit_spreads(known)["step_time", "megatron, dense, hopper"]
    fresh = study(400, models=1, runs=20, between=between, within=within, seed=2)
    inside = sum(math.log(found.low) <= r.log_ratio <= math.log(found.high) for r in fresh)
    assert 0.75 <= inside / len(fresh) <= 0.9
    fewer = study(20, models=2, runs=10, between=between, within=within, seed=1)
    assert widening_of(fewer).own == pytest.approx(NEVER_SHOWN, rel=0.2)


def test_coverage_says_what_holds() -> None:
    found = coverage(study(20, models=3, runs=20, between=0.1, within=0.1, seed=3), "step_time")
    assert found is not None
    assert set(found.means) == {"table", "model"}, "nothing is left without the one software"
    assert 0.85 <= found.means["table"] <= found.means["model"] + 0.02
    assert all(table.runs == 60 for table in found.tables.values())
    assert coverage([residual(0.1)], "step_time") is None


def test_biased_table_is_seen() -> None:
    """A table that lies twice as far off as any other is outside of intervals made without it."""
    calm = study(8, models=3, runs=10, between=0.02, within=0.02, seed=4)
    found = coverage(
        [*calm, *(residual(0.7, table="off", model=str(i)) for i in range(3))], "step_time"
    )
    assert found is not None and found.tables["off"].inside["table"] == 0.0


def test_a_software_that_no_other_table_has_is_judged_by_its_family() -> None:
    own = replace(HOPPER, stack="mine")
    alone = [residual(0.0, kind=own, as_family=0.9)]
    others = [residual(0.1, table=t, model=m) for t in "xy" for m in "mn"]
    [test] = [t for t in leave_out(Sample.of([*alone, *others]), "table") if t.residual in alone]
    assert (test.off, test.is_fallback) == (0.9, True)
    known = [residual(0.0, table="z", model=m, kind=own) for m in "mn"]
    sample = Sample.of([*alone, *others, *known])
    [test] = [t for t in leave_out(sample, "table") if t.residual in alone]
    assert (test.off, test.is_fallback) == (0.0, False)


def test_each_way_of_leaving_out_leaves_out_what_it_says() -> None:
    """By hand: rows at 0 in four tables and, alike in one thing alone, a fifth's row at 0 whose
    likes elsewhere lie at 1. With these the interval is wide, without them as narrow as may be."""
    likes = {
        "software": replace(ADA, stack="mine"),
        "family": replace(ADA, stack="mine", family="ours"),
        "chip": replace(HOPPER, generation="new"),
        "feature": HOPPER,
    }
    for leave in LEAVES[2:]:
        kind = likes[leave]
        features: tuple[Feature, ...] = ("fp8",) if leave == "feature" else ()
        tables = [residual(0.0, table=t, model=m) for t in "abcd" for m in "mn"]
        own = residual(0.0, table="e", kind=kind, features=features)
        alike = [
            residual(1.0, table=t, model=m, kind=kind, features=features)
            for t in "fgh"
            for m in "mnop"
        ]
        sample = Sample.of([*tables, own, *alike])
        widths = {
            how: next(t.half_width for t in leave_out(sample, how) if t.residual is own)
            for how in ("table", leave)
        }
        assert widths[leave] < 0.02 < widths["table"], leave


def test_csv_is_read_back_in_order() -> None:
    built = replace(HOPPER, basis="megatron")
    some = study(4, models=3, runs=3, between=0.1, within=0.1, seed=5)
    text = spreads_csv(fit_spreads([replace(each, kind=built) for each in some]))
    lines = list(csv.DictReader(text.splitlines()))
    assert [line["level"] for line in lines] == list(LEVELS)
    for line in lines:
        points = [float(line[name]) for name in ("p10", "p25", "p50", "p75", "p90")]
        assert all(a <= b for a, b in pairwise(points))
        assert float(line["low"]) * float(line["high"]) == pytest.approx(1.0, abs=1e-3)


def test_verdicts_do_not_know_their_table() -> None:
    memory = [
        residual(off, table=t, model=str(off), quantity="peak_memory")
        for t in ("a", "b")
        for off in (0.0, 0.05, 0.1, 0.15)
    ]
    outcomes = [
        FitOutcome(table="a", kind=HOPPER, used_bytes=used, limit_bytes=80.0, fitted=used < 75)
        for used in (50.0, 75.0, 90.0)
    ]
    found = judge(outcomes, memory)["a"]
    assert found.fitted == {"yes": 1}
    assert found.ran_out == {"at risk": 1, "no": 1}
    assert judge(outcomes, []) == {}


def test_the_first_plan_of_a_set_is_the_fastest_that_is_told_to_fit() -> None:
    """By hand: of eight runs that ran and two that ran out, the fastest told `yes` takes 4 s, the
    fastest of all 2 s: half is lost."""
    memory = [
        residual(off, table=t, model=str(off), quantity="peak_memory")
        for t in ("a", "b")
        for off in (0.0, 0.05, 0.1, 0.15)
    ]

    def run(used: float, seconds: float | None) -> FitOutcome:
        return FitOutcome(
            table="a",
            kind=HOPPER,
            used_bytes=used,
            limit_bytes=80.0,
            fitted=seconds is not None,
            compared=("set",),
            predicted_s=used / 10 if seconds is None else seconds,
            measured_s=seconds,
        )

    outcomes = [
        run(75.0, 2.0),
        run(79.0, 3.0),
        *(run(50.0, 4.0 + i) for i in range(6)),
        run(90.0, None),
        run(76.0, None),
    ]
    [first] = judge(outcomes, memory)["a"].first
    assert (first.fits, first.started, first.lost_frac) == ("yes", True, 0.5)
    page = "\n".join(verdict_lines(judge(outcomes, memory)))
    assert "Of 1 set of runs" in page
    assert "`yes` in 1) started in 1, 50.0 % slower than the fastest run in the mean." in page
    assert judge([o for o in outcomes if o.fitted], memory)["a"].first == (), "nothing ran out"


def test_section_has_a_line_per_table_and_the_verdicts() -> None:
    some = study(3, models=3, runs=3, between=0.1, within=0.1, seed=6)
    found = coverage(some, "step_time")
    assert found is not None
    memory = [
        residual(0.05 * i, table=t, model=str(i), quantity="peak_memory")
        for t in ("a", "b")
        for i in range(4)
    ]
    verdicts = judge(
        [FitOutcome(table="a", kind=HOPPER, used_bytes=90.0, limit_bytes=80.0, fitted=False)],
        memory,
    )
    page = coverage_section({"step_time": found}, verdicts)
    assert page.startswith("## How sure\n")
    assert "| t0 | 9 | " in page
    assert "| table | runs | without table | without model | without software |" in page
    assert "| a | 1 |  |  | 1, 100 % |" in page
    assert coverage_section({}, {}) == ""
