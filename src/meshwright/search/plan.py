"""From a request to ranked plans; where there are none, why, and what would make one fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.search.axes import (
    DOMAINS_PER_TP,
    LEAST_TOKENS_PER_CP,
    MOST_MBS,
    MOST_UNEVEN_VPP,
    Axes,
    axes_of,
)
from meshwright.search.exhaustive import Found, Harvest, kept_of, search_space
from meshwright.search.fewer import fewer_chips, fewer_note
from meshwright.search.problem import Files, Problem, batch_rule, resolve
from meshwright.search.proof import Bound, over_words, prove
from meshwright.search.published import nearest_run
from meshwright.search.quote import quotes
from meshwright.search.racks import rack_notes
from meshwright.search.rank import Ranked, ranked_plans, with_close_call
from meshwright.search.refine import reprice
from meshwright.search.remedies import has_more_ways, nearest_miss, way_notes, with_chips
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan, PlanResult
from meshwright.search.rules.check import check_layout, complete_layout
from meshwright.search.rules.rule import some
from meshwright.search.rules.software import stack_rules
from meshwright.search.space import Rejections, make_space
from meshwright.values.errors import ConfigError, LayoutError, MeshwrightError
from meshwright.values.layout import Layout, Layouts, parse_layout
from meshwright.values.models.params import model_params
from meshwright.values.models.said_size import model_notes

__all__ = [
    "Scaled",
    "explain_empty_space",
    "fitting_plans",
    "scaling",
    "search_plans",
    "search_problem",
]


def search_plans(
    request: PlanRequest,
    *,
    files: Files | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PlanResult:
    """Search all layouts of a request; ConfigError where no layout keeps the rules, no plans where
    none fits."""
    problem = resolve(request, files=files)
    found = search_problem(problem, progress=progress)
    notes = rack_notes(problem, found.plans, search=fitting_plans)
    fewer = fewer_chips(problem, found.plans, search=fitting_plans)
    if fewer is not None:
        notes += (fewer_note(fewer, num_chips=problem.num_chips),)
    return replace(found, nearest=nearest_run(problem), notes=found.notes + notes, fewer=fewer)


def search_problem(
    problem: Problem, *, progress: Callable[[int, int], None] | None = None
) -> PlanResult:
    """Search all layouts of a problem that is looked up already; the same answers and errors."""
    rejections = Rejections()
    axes = axes_of(problem)
    space = make_space(problem, axes, rejections)
    harvest = search_space(problem, space, rejections, progress=progress)
    if not harvest.priced:
        explain_empty_space(problem, rejections)
    ranked, bound = _proved(problem, harvest)
    # Where the first is a tie's simplest, the tie says that another may be faster.
    plans = ranked.plans if ranked.tie else with_close_call(problem, ranked.plans)
    if not plans and has_more_ways(problem):
        return search_problem(replace(problem, ways="all"), progress=progress)
    return PlanResult(
        request=problem.request,
        plans=plans,
        rejected=dict(sorted(rejections.counts.items(), key=lambda item: -item[1])),
        layouts=harvest.priced,
        notes=tuple(_notes(problem, axes)) + way_notes(problem, plans),
        nearest_miss=(
            nearest_miss(problem, harvest.misses)
            if not plans and harvest.misses is not None
            else None
        ),
        facts=_facts(problem),
        tie=ranked.tie,
        bound=bound,
        over=over_words(axes),
    )


def _proved(problem: Problem, harvest: Harvest) -> tuple[Ranked, Bound | None]:
    """Rank the best; then simulate all whose bound is below them, and rank again where one of these
    is faster."""
    ranked = ranked_plans(problem, harvest.fitting, harvest.at_risk)
    found = harvest.bounded
    if not ranked.plans or found is None or ranked.plans[0].fits != "yes":
        return ranked, None
    layout = ranked.plans[0].layout if ranked.tie is None else ranked.tie.fastest
    beyond = float("inf") if len(found) < kept_of(problem) else float(found.key[-1])
    [fastest] = reprice(problem, [layout])
    bound, better = prove(problem, found.layouts, found.key, fastest, beyond=beyond)
    if not better or harvest.fitting is None:
        return ranked, bound
    more = Found(
        layouts=Layouts.of(one.layout for one in better),
        key=np.array([one.step_s / one.layout.gbs for one in better]),
        used_bytes=np.array([one.peak_bytes for one in better]),
    )
    fitting = more.and_also(harvest.fitting, kept=len(more) + len(harvest.fitting))
    return ranked_plans(problem, fitting, harvest.at_risk), bound


def fitting_plans(problem: Problem) -> tuple[Plan, ...]:
    """Return the plans of a problem alone, in order; none where none fits, or where no
    layout keeps the rules."""
    rejections = Rejections()
    space = make_space(problem, axes_of(problem), rejections)
    harvest = search_space(problem, space, rejections)
    if not harvest.priced:
        return ()
    return ranked_plans(problem, harvest.fitting, harvest.at_risk).plans


def _notes(problem: Problem, axes: Axes) -> list[str]:
    request, seq_len = problem.request, problem.setting.work.seq_len
    is_bound = DOMAINS_PER_TP * problem.setting.pool.node.domain_size <= problem.num_chips
    wide = f" ({DOMAINS_PER_TP} fast domains)" if is_bound else ""
    bounds = [
        ("tp", f"tp to {max(axes.tp)}{wide}"),
        ("cp", f"cp to {max(axes.cp)} ({LEAST_TOKENS_PER_CP} tokens a rank)"),
        ("vpp", f"uneven vpp to {MOST_UNEVEN_VPP}"),
        ("mbs", f"mbs to {MOST_MBS}"),
        ("sp", "sp with every tp"),
    ]
    searched = [words for key, words in bounds if key not in request.pins]
    notes = [f"searched: {', '.join(searched)}; --set widens it"] if searched else []
    notes += model_notes(problem.setting.model)
    if request.gbs is None and request.max_gbs is None:
        notes.append(batch_rule(problem.setting.model).words(seq_len))
    if (
        "megatron_version" in request.model_fields_set
        and stack_rules(problem.setting.stack).kv_copies_from is None
    ):
        name = problem.setting.stack.name
        notes.append(
            f"megatron_version={request.megatron_version} changes nothing: the rules of stack"
            f" {name} have no versions"
        )
    return notes


def _facts(problem: Problem) -> dict[str, Any]:
    setting, params = problem.setting, model_params(problem.setting.model)
    return {
        "model": setting.model.name,
        "params": params.total,
        "active_params": params.active,
        **problem.facts,
        "stack": setting.stack.name,
    }


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the chips that were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """The best plan of one number of chips."""

    num_chips: int
    layout: Layout | None
    """None where nothing near fits, or nothing keeps the rules; `reason` says which."""
    step_s: float = float("inf")
    tokens_per_s: float = 0.0
    reason: str = ""


def scaling(problem: Problem, layout: Layout) -> tuple[Scaled, ...]:
    """Search a quarter to four times the chips by the closed form: axes at the layout's sizes, half
    and twice of them, the same batch."""
    counts = sorted({round(problem.num_chips * factor) for factor in FACTORS} - {0})
    return tuple(_scaled(problem, layout, count) for count in counts)


def _scaled(problem: Problem, layout: Layout, count: int) -> Scaled:
    pins = {**_near(layout), **problem.request.pins}
    request = problem.request.model_copy(
        update={"pins": pins, "top": 1, "gbs": layout.gbs, "max_gbs": None}
    )
    case = replace(with_chips(problem, count), request=request, max_gbs=layout.gbs)
    try:
        found = search_space(case, make_space(case, axes_of(case), Rejections()), Rejections())
    except MeshwrightError as error:
        return Scaled(num_chips=count, layout=None, reason=str(error))
    best = found.fitting or found.at_risk
    if best is None:
        words = (
            "nothing near the best plan's axes fits"
            if found.priced
            else "nothing near the best plan's axes keeps the rules"
        )
        return Scaled(num_chips=count, layout=None, reason=words)
    row = best.layouts.row(0)
    [priced] = quotes([row], case.setting)
    tokens = layout.gbs * problem.setting.work.seq_len
    return Scaled(
        num_chips=count, layout=row, step_s=priced.step_s, tokens_per_s=tokens / priced.step_s
    )


def _near(layout: Layout) -> dict[str, list[int | str]]:
    """Half, the same and twice of each size that cuts the model; three ways to recompute."""
    sizes: dict[str, list[int | str]] = {}
    for axis in ("tp", "cp", "pp", "ep"):
        size = getattr(layout, axis)
        sizes[axis] = sorted(
            {max(1, size // 2), size, 2 * size}
            if size > 1
            else {1, 2}
            if axis in ("tp", "pp")
            else {1}
        )
    ways: list[int | str] = list(dict.fromkeys(("none", layout.recompute, "full")))
    return {
        **sizes,
        "recompute": ways,
        "sharding": [layout.sharding],
        "mbs": sorted({layout.mbs, max(1, layout.mbs // 2), 2 * layout.mbs}),
    }


FAR = 64
"""Chips more or fewer within which usable counts are looked for."""


def explain_empty_space(problem: Problem, rejections: Rejections) -> None:
    """Raise the error that says why no layout keeps the rules, and the nearest values that work."""
    if problem.request.pins:
        _raise_for_pins(problem)
    if problem.request.gbs is not None:
        batches = sorted(_working_batches(problem))
        if batches:
            near = " or ".join(map(str, _nearest(batches, problem.request.gbs)))
            raise ConfigError(
                f"gbs={problem.request.gbs}: no data-parallel size of {problem.num_chips} chips"
                f" divides it; nearest that work: gbs={near} on {problem.num_chips} chips, or"
                f" {_usable_words(problem)}"
            )
    reasons = some(sorted(rejections.counts, key=lambda r: -rejections.counts[r]), most=3)
    raise ConfigError(
        f"no layout of {problem.setting.model.name} uses up {problem.num_chips} chips ({reasons});"
        f" {_usable_words(problem)}"
    )


def _raise_for_pins(problem: Problem) -> None:
    """Hold the first pinned values against the rules, the rest filled in."""
    pins = problem.request.pins.items()
    fields = parse_layout(",".join(f"{key}={values[0]}" for key, values in pins))
    if "layers_per_stage" in fields:
        fields = {"pp": max(1, len(fields["layers_per_stage"]) // fields.get("vpp", 1)), **fields}
    split = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    gbs, dp = problem.request.gbs or problem.max_gbs, max(1, problem.num_chips // split)
    case = replace(problem.case, work=replace(problem.setting.work, gbs=None))
    found = check_layout(complete_layout({"gbs": gbs, "dp": dp, **fields}, case), case)
    why = "; also: ".join(v.message for v in found) or "leave one of them out"
    raise LayoutError(f"no layout keeps the rules under {problem.request.pin_words}: {why}")


def _working_batches(problem: Problem) -> set[int]:
    """Batches around the wanted one that some data-parallel size divides."""
    wanted = problem.request.gbs or 1
    grid = make_space(problem, axes_of(problem), Rejections()).grid
    sizes = {int(dp) for dp in grid.dp}
    near = {value for dp in sizes for value in (wanted // dp * dp, -(-wanted // dp) * dp)}
    return near - {0}


def _nearest(values: list[int], wanted: int) -> list[int]:
    """The nearest value below and above."""
    below, above = [v for v in values if v < wanted], [v for v in values if v > wanted]
    return [*below[-1:], *above[:1]]


def _is_usable(problem: Problem) -> bool:
    space = make_space(problem, axes_of(problem), Rejections())
    if problem.request.gbs is None:
        return bool((space.grid.dp <= problem.max_gbs).any())
    return bool((problem.request.gbs % space.grid.dp == 0).any()) if len(space.grid) else False


def _usable_words(problem: Problem) -> str:
    """Name the nearest numbers of chips that some layout uses up."""
    chips = problem.num_chips
    near = [
        next((c for c in steps if c >= 1 and _is_usable(with_chips(problem, c))), None)
        for steps in _steps(chips)
    ]
    words = " or ".join(str(c) for c in near if c is not None)
    return f"take {words} chips" if words else f"no number of chips within {FAR} of {chips} works"


def _steps(chips: int) -> tuple[range, range]:
    return range(chips - 1, max(0, chips - FAR), -1), range(chips + 1, chips + FAR)
