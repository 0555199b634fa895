"""Winners that lean on one constant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.search.examples import problem

import meshwright
from meshwright.cost.stages import Floats
from meshwright.report.plan_table import _footing
from meshwright.search import rank
from meshwright.search.rank import close_call, with_close_call
from meshwright.search.result import Plan
from meshwright.trust.intervals import Site

RESULT = meshwright.plan(
    model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64, top=2, pins={"pp": [1], "tp": [2]}
)
ASKED = problem("llama3-8b", "h100:16", gbs=64)
TP_OVERLAP = ASKED.setting.stack.tp_overlap


def timed(plan: Plan, step_s: float, **changes: Any) -> Plan:
    return replace(
        plan, time_s={**dict.fromkeys(plan.time_s, 0.0), "matmul": step_s}, fits="yes", **changes
    )


FIRST, SECOND = (
    timed(plan, step_s, rank=rank)
    for plan, step_s, rank in zip(RESULT.plans, (10.0, 10.2), (1, 2), strict=True)
)


@pytest.fixture(autouse=True)
def _one_constant_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less tensor-parallel overlap the first plan takes 5 % longer and the second no longer;
    nothing else changes anything."""

    def steps(_: object, site: Site, layouts: object) -> Floats:
        return np.array([1.05 if site.stack.tp_overlap < TP_OVERLAP else 1.0, 1.0])

    monkeypatch.setattr(rank, "_steps", steps)


def test_close_call_by_hand() -> None:
    """Worked: the lead of 10.2 / 10 - 1 = 2 % becomes 10.2 / 10.5 - 1 = -2.86 % at a quarter less
    overlap; it is nothing after 0.02 / (0.02 + 0.0286) = 41 % of the way."""
    found = close_call(ASKED, [FIRST, SECOND])
    assert found is not None
    assert (found.uncertain.constant, found.rival) == ("stack.tp_overlap", 2)
    assert found.now == TP_OVERLAP and found.end == pytest.approx(TP_OVERLAP - 0.25)
    assert found.turns_at == pytest.approx(TP_OVERLAP - 0.25 * 0.02 / (0.02 + 0.3 / 10.5))
    assert found.gain_frac == pytest.approx(0.3 / 10.5)
    assert found.words().startswith(
        f"#2 wins with stack.tp_overlap below {found.turns_at:.3g} (now {TP_OVERLAP:.3g}, may be "
    )


def test_a_clear_winner_is_not_close() -> None:
    assert close_call(ASKED, [FIRST, timed(SECOND, 10.6)]) is None
    assert close_call(ASKED, [FIRST]) is None


def test_rivals_that_do_not_fit_as_well_do_not_count() -> None:
    assert close_call(ASKED, [FIRST, replace(SECOND, fits="at risk")]) is None


def test_a_ranking_by_memory_leans_on_no_constant_of_time() -> None:
    assert (
        close_call(problem("llama3-8b", "h100:16", gbs=64, objective="memory"), [FIRST, SECOND])
        is None
    )


def test_batches_are_compared_per_sequence() -> None:
    twice = replace(timed(SECOND, 20.4), layout=replace(SECOND.layout, gbs=2 * SECOND.layout.gbs))
    found = close_call(ASKED, [FIRST, twice])
    assert found is not None and found.gain_frac == pytest.approx(0.3 / 10.5)


def test_provenance_and_footnote() -> None:
    plans = with_close_call(ASKED, (FIRST, SECOND))
    call = plans[0].provenance["close"]
    assert (call["constant"], call["rival"]) == ("stack.tp_overlap", 2)
    assert call["source"]
    assert plans[1].provenance["close"] is None
    marked = replace(RESULT, plans=plans)
    assert f"~ close: {call['words']}" in _footing(marked, reason=False)
    assert not any(
        line.startswith("~")
        for line in _footing(replace(RESULT, plans=with_close_call(ASKED, (FIRST,))), reason=False)
    )
