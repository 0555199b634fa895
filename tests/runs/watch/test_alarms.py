"""Each rule of `runs/watch/alarms.py` by hand: where it holds, and where it does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.runs.outcome import Failure
from meshwright.runs.watch.alarms import NO_FACTS, Alarm, RunFacts, find_alarms, quiet_limit_s
from meshwright.software.log import Report

USUAL_S = 10.0


def reports(times_s: list[float] | None = None, losses: list[float] | None = None) -> list[Report]:
    count = len(times_s or losses or [])
    return [
        Report(
            step=place + 1,
            step_s=times_s[place] if times_s else 1.0,
            loss=losses[place] if losses else None,
        )
        for place in range(count)
    ]


def alarms(
    given_reports: list[Report],
    *,
    facts: RunFacts = NO_FACTS,
    silent_s: float | None = 0.0,
    failure: Failure | None = None,
    ended: bool = False,
) -> dict[str, Alarm]:
    limit_s = quiet_limit_s(USUAL_S, step_s=USUAL_S, is_saving=False)
    found = find_alarms(
        given_reports, facts=facts, silent_s=silent_s, limit_s=limit_s, failure=failure, ended=ended
    )
    return {alarm.kind: alarm for alarm in found}


def test_a_calm_run_has_none() -> None:
    times = [2.0 + 0.02 * (place % 3) for place in range(60)]
    assert (
        alarms(reports(times, [8.0 - 0.1 * place + 0.05 * (place % 2) for place in range(60)]))
        == {}
    )


def test_steps_that_grow_slow_are_told_with_both_figures_and_stay_told() -> None:
    """Of 40 steps of 2 s the warm-up is left out; 1.15 times is no alarm, 1.25 times is, and still
    is 100 steps on."""
    assert "slow" not in alarms(reports([2.0] * 40 + [2.3] * 5))
    found = alarms(reports([2.0] * 40 + [2.5] * 5))["slow"]
    assert (found.step, found.fatal) == (45, False)
    assert (
        found.message
        == "steps take 2.5 s, 1.25 times the 2 s before: a straggler, a throttled chip, or storage"
    )
    assert "slow" in alarms(reports([2.0] * 40 + [2.5] * 100))
    assert "slow" not in alarms(reports([2.0] * 40 + [2.5, 9.0, 2.0, 2.0, 2.0]))  # two of five
    assert "slow" not in alarms(
        reports([9.0, 5.0, 3.0, 2.0, 2.5, 2.5, 2.5, 2.5, 2.5])
    )  # too few before


def test_a_loss_that_leaps_is_told_with_where_it_was() -> None:
    calm = [3.0, 3.02] * 20
    found = alarms(reports(losses=[*calm, 3.0, 4.5, 3.9, 3.5, 3.2]))["loss_spike"]
    assert (found.step, found.message) == (42, "the loss rose to 4.5 from 3.01; now 3.2")
    assert "loss_spike" not in alarms(
        reports(losses=[*calm, 3.0, 3.1, 3.0, 3.0, 3.0])
    )  # 3 %: less than a twentieth
    noisy = [3.0, 3.5] * 20
    assert "loss_spike" not in alarms(
        reports(losses=[*noisy, 3.9, 3.0, 3.0, 3.0, 3.0])
    )  # within six deviations of its noise
    falling = [9.0 - 0.1 * place for place in range(60)]
    assert "loss_spike" not in alarms(reports(losses=falling))
    assert "loss_spike" in alarms(reports(losses=[*falling, 3.0 + 2.5]))


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (Report(step=10, loss=math.nan), "the loss is nan"),
        (Report(step=10, loss=2.0, grad_norm=math.inf), "the gradient norm is inf"),
        (Report(step=10, loss=2.0, nan=3), "3 of the last iterations gave no number"),
    ],
)
def test_numbers_that_are_none(last: Report, says: str) -> None:
    found = alarms([Report(step=9, loss=2.0, grad_norm=1.0), last])["nan"]
    assert (found.step, found.message, found.fatal) == (10, says, True)
    assert (
        alarms([last, *[Report(step=11 + place, loss=2.0, grad_norm=1.0) for place in range(5)]])
        == {}
    )  # it went on


def test_how_long_a_log_may_be_silent() -> None:
    """Five reports and sixty steps: 650 s where each step of 10 s is told, 6 times 100 s and more
    where each tenth is."""
    assert quiet_limit_s(10.0, step_s=10.0, is_saving=False) == 650
    assert quiet_limit_s(100.0, step_s=10.0, is_saving=False) == 1100
    assert quiet_limit_s(0.5, step_s=0.5, is_saving=False) == 300
    assert (
        quiet_limit_s(None, step_s=None, is_saving=False)
        == quiet_limit_s(10.0, step_s=10.0, is_saving=True)
        == 1800
    )


def test_silence_is_told_beyond_its_limit() -> None:
    run = reports([10.0] * 5)
    assert "hang" not in alarms(run, silent_s=649)
    assert (
        alarms(run, silent_s=720)["hang"].message
        == "no line for 12 min, where 11 min are long: it hangs, or has ended"
    )
    assert alarms(run, silent_s=720, ended=True) == {}


def test_a_failure_is_told_in_place_of_the_silence_behind_it() -> None:
    failure = Failure(
        failure_class="cuda_oom",
        message="ran out of accelerator memory",
        evidence="CUDA out of memory.",
    )
    found = alarms(reports([1.0] * 5), silent_s=9999, failure=failure)
    assert list(found) == ["failed"]
    assert (
        found["failed"].message == "cuda_oom: ran out of accelerator memory (CUDA out of memory.)"
    )


def test_steps_beyond_the_plans_interval() -> None:
    facts = RunFacts(step_s=1.0, step_interval_s=(0.8, 1.25))
    assert alarms(reports([1.2] * 12), facts=facts) == {}
    assert (
        alarms(reports([1.5] * 12), facts=facts)["below_plan"].message
        == "steps take 1.5 s, the plan says 800 ms to 1.25 s"
    )


_FLOATS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
_REPORTS = st.lists(
    st.builds(
        Report,
        step=st.one_of(st.none(), st.integers(0, 2**50)),
        step_s=_FLOATS,
        loss=_FLOATS,
        grad_norm=_FLOATS,
        tokens_per_s_per_gpu=_FLOATS,
        start=st.integers(0, 3),
    ),
    max_size=60,
)


@given(_REPORTS, st.one_of(st.none(), st.floats(0, 1e9)))
def test_whatever_a_log_says_every_alarm_has_words(
    given_reports: list[Report], silent_s: float | None
) -> None:
    facts = RunFacts(seq_len=128, gbs=8, chips=4, step_s=1.0, step_interval_s=(0.9, 1.1))
    for alarm in find_alarms(
        given_reports, facts=facts, silent_s=silent_s, limit_s=1800, failure=None, ended=False
    ):
        assert alarm.message
