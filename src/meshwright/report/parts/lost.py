"""Where a step's seconds go beyond the ideal, and what tells the best plan from the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.report.charts.forms import Drop, Waterfall
from meshwright.report.charts.svg import TIME_COLOURS, number
from meshwright.report.parts.part import short_words
from meshwright.search.explain import USEFUL
from meshwright.search.titles import TIME_READINGS

__all__ = ["ideal_s", "lost_info", "rivals_waterfall_info"]

LEAST = 1e-9
"""Share of a step below which a term is rounding."""


def ideal_s(plan: Mapping[str, Any]) -> float:
    """Return the step at the chips' peak: the MFU is that step's share of the real one."""
    return float(plan["mfu"] * plan["step_s"])


def lost_info(plan: Mapping[str, Any]) -> Waterfall:
    """Return the way from the step at the peak to the plan's own, of a plan as `plan` prints it:
    `mfu`, `step_s`, `time` and `layout` are read. `draw_waterfall` draws it."""
    ideal, step_s = ideal_s(plan), float(plan["step_s"])
    useful = sum(plan["time"].get(term, 0.0) for term in USEFUL)
    others = {t: s for t, s in plan["time"].items() if t not in USEFUL and abs(s) > LEAST * step_s}
    drops = [
        Drop(
            key="below_peak",
            title="products below the peak",
            value=useful - ideal,
            colour=TIME_COLOURS["matmul"],
        ),
        *(_drop(t, s) for t, s in sorted(others.items(), key=lambda item: -item[1])),
    ]
    worst = max(drops, key=lambda drop: drop.value)
    return Waterfall(
        key="lost",
        title=f"From the chips' peak to the step of {short_words(plan)}",
        sentence=(
            f"At the data sheet's peak the model's arithmetic takes {number(ideal)} s, the step"
            f" {number(step_s)} s: {number(step_s - ideal)} s are lost, most to {worst.title}"
            f" ({number(worst.value)} s)."
        ),
        unit="s",
        start=("all arithmetic at the peak", ideal),
        drops=tuple(drops),
        end=("the step", step_s),
    )


def rivals_waterfall_info(best: Mapping[str, Any], other: Mapping[str, Any]) -> Waterfall:
    """Return the way from one plan's step to another's, term by term."""
    terms = dict.fromkeys([*best["time"], *other["time"]])
    changes = {t: other["time"].get(t, 0.0) - best["time"].get(t, 0.0) for t in terms}
    shown = {t: s for t, s in changes.items() if abs(s) > LEAST * best["step_s"]}
    ordered = sorted(shown.items(), key=lambda item: -abs(item[1]))
    longer = other["step_s"] - best["step_s"]
    return Waterfall(
        key="rival",
        title=f"Why {short_words(best)} beats {short_words(other)}",
        sentence=_reason(ordered, longer),
        unit="s",
        start=(short_words(best), float(best["step_s"])),
        drops=tuple(_drop(term, seconds) for term, seconds in ordered),
        end=(short_words(other), float(other["step_s"])),
        from_zero=False,
    )


def _reason(ordered: list[tuple[str, float]], longer: float) -> str:
    gained = [f"{TIME_READINGS[t].title} {1e3 * s:,.0f} ms" for t, s in ordered if s > 0][:2]
    given = [f"{TIME_READINGS[t].title} {-1e3 * s:,.0f} ms" for t, s in ordered if s < 0][:2]
    words = f"The next plan is {1e3 * longer:,.0f} ms slower"
    if gained:
        words += f": it loses {' and '.join(gained)}"
    if given:
        words += f", and saves {' and '.join(given)}"
    return f"{words}."


def _drop(term: str, seconds: float) -> Drop:
    return Drop(key=term, title=TIME_READINGS[term].title, value=seconds, colour=TIME_COLOURS[term])
