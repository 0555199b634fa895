"""Plans that no other beats on every count: throughput, memory, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.report.charts.forms import Axis, Group, Point, Points
from meshwright.report.charts.svg import BEST, OTHER
from meshwright.report.infos.part import Record, short_words
from meshwright.values.units import counted

__all__ = ["cost_front_info", "memory_front_info", "unbeaten"]


def unbeaten(pairs: Sequence[tuple[float, float]]) -> list[int]:
    """Return which pairs (less of the first is better, more of the second) no other pair beats, by
    the first."""
    found: list[int] = []
    for place in sorted(range(len(pairs)), key=lambda k: (pairs[k][0], -pairs[k][1])):
        if not found or pairs[place][1] > pairs[found[-1]][1]:
            found.append(place)
    return found


def memory_front_info(record: Record) -> Points:
    """Return throughput against memory of every ranked plan."""
    plans = record["plans"]
    points = [(max(plan["peak_memory_gib"]), plan["tokens_per_s_per_gpu"]) for plan in plans]
    front = unbeaten(points)
    sentence = (
        f"{len(front)} of {counted(len(plans), 'ranked plan')}: others need more memory and are"
        " slower."
    )
    return _front(
        plans,
        points,
        key="front",
        title="Throughput against memory",
        sentence=sentence,
        x=_MEMORY,
        y=_SPEED,
    )


def cost_front_info(record: Record) -> Points | None:
    """Return cost against throughput of the whole deployment; None where all plans run on the same
    chips, or a price is not known."""
    plans = record["plans"]
    prices = [plan["provenance"].get("tokens_per_dollar") for plan in plans]
    used = [sum(part["used"] for part in plan.get("chips", [])) for plan in plans]
    if None in prices or len(set(used)) == 1:
        return None
    points = [
        (1e6 / price, plan["tokens_per_s_per_gpu"] * chips)
        for price, plan, chips in zip(prices, plans, used, strict=True)
    ]
    sentence = "Chips may be left idle: what a token costs against how fast tokens are trained on."
    return _front(
        plans,
        points,
        key="cost",
        title="Throughput against cost",
        sentence=sentence,
        x=_COST,
        y=_WHOLE_SPEED,
    )


_MEMORY = Axis(key="peak_memory_gib", title="GiB on the fullest chip")
_SPEED = Axis(key="tokens_per_s_per_gpu", title="tokens/s per GPU")
_COST = Axis(key="usd_per_million_tokens", title="dollars per million tokens")
_WHOLE_SPEED = Axis(key="tokens_per_s", title="tokens/s")


def _front(
    plans: Sequence[Mapping[str, Any]],
    points: Sequence[tuple[float, float]],
    *,
    key: str,
    title: str,
    sentence: str,
    x: Axis,
    y: Axis,
) -> Points:
    front = unbeaten(points)

    def point(place: int) -> Point:
        return Point(
            x=points[place][0],
            y=points[place][1],
            label=short_words(plans[place]),
            named=place == 0,
        )

    others = tuple(point(place) for place in range(len(plans)) if place not in front)
    best = tuple(point(place) for place in front)
    groups = (
        Group(title="beaten on both counts", colour=OTHER, mark="ring", points=others),
        Group(title="not beaten on both", colour=BEST, mark="diamond", joined="steps", points=best),
    )
    return Points(key=key, title=title, sentence=sentence, x=x, y=y, groups=groups)
