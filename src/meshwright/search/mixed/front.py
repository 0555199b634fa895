"""Plans of which no other is both faster and cheaper: the front of throughput and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any

from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.problem import Files
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan
from meshwright.values.errors import ConfigError
from meshwright.values.mixed_layout import MixedLayout, StageLayout

if TYPE_CHECKING:
    from meshwright.search.mixed.problem import MixedProblem

__all__ = ["MOST_POINTS", "mixed_layout_of", "plan_front", "undominated"]

MOST_POINTS = 8
"""Plans of a front at most: each costs a search."""
_SAME = 1e-6
"""Relative difference below which two rates are the same: the simulation moves them so much."""
_CLOSE = 1.02
"""Two plans whose rates differ by less have nothing searched between them."""


def plan_front(
    request: PlanRequest, *, points: int = MOST_POINTS, files: Files | None = None
) -> tuple[Plan, ...]:
    """Return plans from the cheapest to the fastest; ConfigError where a chip has no price, or
    nothing keeps the rules.

    Between two plans the cheapest is searched that reaches the geometric mean of their tokens per
    second, where they are furthest apart. Chips in use cost; idle ones don't.
    """
    if not 2 <= points <= 64:
        raise ConfigError(f"points={points}: expected 2 to 64")
    cheapest = _best(request, files, "tokens_per_dollar", request.min_tokens_per_s)
    fastest = _best(request, files, "step_time", request.min_tokens_per_s)
    if cheapest is None or fastest is None:
        return ()
    found = [cheapest, fastest]
    gaps = [(cheapest.tokens_per_s, fastest.tokens_per_s)]
    for _ in range(points - 2):
        low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
        if high < low * _CLOSE:
            break
        gaps.remove((low, high))
        middle = sqrt(low * high)
        plan = _best(request, files, "tokens_per_dollar", middle)
        if plan is None or plan.tokens_per_s >= high * (1 - _SAME):  # none between
            gaps.append((low, middle))
            continue
        found.append(plan)
        gaps += [(low, middle), (plan.tokens_per_s, high)]
    return undominated(found)


def _best(
    request: PlanRequest, files: Files | None, objective: str, least: float | None
) -> Plan | None:
    asked = request.model_copy(update={"objective": objective, "min_tokens_per_s": least, "top": 1})
    plans = search_mixed_plans(asked, files=files).plans
    return plans[0] if plans else None


def undominated(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return the plans of which no other is both faster and cheaper, the cheapest ranked first."""
    kept: list[Plan] = []
    for plan in sorted(
        plans, key=lambda each: (-each.tokens_per_s, -(each.tokens_per_dollar or 0.0))
    ):
        if not kept or (plan.tokens_per_dollar or 0.0) > (kept[-1].tokens_per_dollar or 0.0) * (
            1 + _SAME
        ):
            kept.append(plan)
    return tuple(
        replace(plan, rank=rank, beats_next="") for rank, plan in enumerate(reversed(kept), start=1)
    )


def mixed_layout_of(plan: Mapping[str, Any], problem: MixedProblem) -> MixedLayout:
    """Read the stages of a plan; ConfigError where they are not as `plan --json` prints them, or on
    chips that the cluster has not."""
    try:
        stages = tuple(_stage(stage, problem) for stage in plan["stages"])
        shared = {
            name: plan["layout"][name]
            for name in ("gbs", "cp", "ep", "etp", "vpp", "sharding", "schedule")
        }
        layout, chunks = (
            MixedLayout(stages=stages, **shared),
            tuple(plan["layout"]["layers_per_stage"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"a plan's stages are not as `plan --json` prints them ({type(error).__name__}:"
            f" {error})"
        ) from None
    if sum(chunks) != problem.site.model.total_layers or len(chunks) != layout.pp * layout.vpp:
        raise ConfigError(
            f"a plan's layers {'+'.join(map(str, chunks))} are not the"
            f" {problem.site.model.total_layers} of {problem.site.model.name} over pp={layout.pp} *"
            f" vpp={layout.vpp} chunks"
        )
    return layout if chunks == layout.chunk_layers else replace(layout, chunks=chunks)


def _stage(stage: Mapping[str, Any], problem: MixedProblem) -> StageLayout:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in stage.items()
    }
    chips = [pool.node.chip.name for pool in problem.cluster.pools]
    place = values.pop("pool", None)
    if place is None and values["chip"] in chips:
        place = chips.index(values["chip"])
    if not isinstance(place, int) or not 0 <= place < len(chips) or chips[place] != values["chip"]:
        raise ConfigError(
            f"a plan has a stage on {values['chip']}, which is not in its place in the cluster"
            f" {problem.request.cluster}"
        )
    return StageLayout(pool=place, **values)
