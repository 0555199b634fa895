"""From a request to ranked plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshwright.search.axes import (
    DOMAINS_PER_TP,
    LEAST_TOKENS_PER_CP,
    MOST_MBS,
    MOST_UNEVEN_VPP,
    Axes,
    axes_of,
)
from meshwright.search.batch import batch_rule
from meshwright.search.close import with_close_call
from meshwright.search.diagnose import explain_empty_space, nearest_miss, with_chips
from meshwright.search.exhaustive import search_space
from meshwright.search.problem import Files, Problem, resolve
from meshwright.search.quote import quotes
from meshwright.search.rank import ranked_plans
from meshwright.search.request import PlanRequest
from meshwright.search.result import PlanResult
from meshwright.search.rules.software import stack_rules
from meshwright.search.space import Rejections, make_space
from meshwright.values.errors import MeshwrightError
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.units import GIB, TERA

__all__ = ["Scaled", "scaling", "search_plans", "search_problem"]


def search_plans(
    request: PlanRequest,
    *,
    files: Files | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PlanResult:
    """Search all layouts of a request; ConfigError where no layout keeps the rules, no plans where
    none fits."""
    return search_problem(resolve(request, files=files), progress=progress)


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
    plans = with_close_call(problem, ranked_plans(problem, harvest.fitting, harvest.at_risk))
    return PlanResult(
        request=problem.request,
        plans=plans,
        rejected=dict(sorted(rejections.counts.items(), key=lambda item: -item[1])),
        layouts=harvest.priced,
        notes=tuple(_notes(problem, axes)),
        nearest_miss=(
            nearest_miss(problem, harvest.misses)
            if not plans and harvest.misses is not None
            else None
        ),
        facts=_facts(problem),
    )


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
    setting, chip = problem.setting, problem.setting.pool.node.chip
    params = model_params(setting.model)
    return {
        "model": setting.model.name,
        "params": params.total,
        "active_params": params.active,
        "chip": chip.name,
        "num_chips": problem.num_chips,
        "chips_per_node": setting.pool.node.chips_per_node,
        "peak_tflops": chip.peak_flops_per_s(setting.work.precision) / TERA,
        "limit_gib": setting.limit_bytes / GIB,
        "headroom_gib": problem.headroom_bytes / GIB,
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
