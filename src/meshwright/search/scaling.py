"""Steps of a request on other numbers of the same chips, near a layout that is known to be good."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.errors import MeshwrightError
from meshwright.layout import Layout
from meshwright.search.diagnose import with_chips
from meshwright.search.plan import search_problem
from meshwright.search.problem import Problem

__all__ = ["Scaled", "scaling"]

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
    """Search a quarter to four times the chips: axes at the layout's sizes, half and twice of them, the batch as it is."""
    counts = sorted({round(problem.num_chips * factor) for factor in FACTORS} - {0})
    return tuple(_scaled(problem, layout, count) for count in counts)


def _scaled(problem: Problem, layout: Layout, count: int) -> Scaled:
    pins = {**_near(layout), **problem.request.pins}
    request = problem.request.model_copy(update={"pins": pins, "top": 1, "gbs": layout.gbs, "max_gbs": None})
    case = replace(with_chips(problem, count), request=request, max_gbs=layout.gbs)
    try:
        result = search_problem(case)
    except MeshwrightError as error:
        return Scaled(num_chips=count, layout=None, reason=str(error))
    if not result.plans:
        return Scaled(num_chips=count, layout=None, reason="nothing near the best plan's axes fits")
    best = result.plans[0]
    return Scaled(
        num_chips=count, layout=best.layout, step_s=best.step_s, tokens_per_s=best.layout.gbs * problem.setting.work.seq_len / best.step_s
    )


def _near(layout: Layout) -> dict[str, list[int | str]]:
    """Half, the same and twice of each size that cuts the model; recomputation as it is, none and full."""
    sizes: dict[str, list[int | str]] = {}
    for axis in ("tp", "cp", "pp", "ep"):
        size = getattr(layout, axis)
        sizes[axis] = sorted({max(1, size // 2), size, 2 * size} if size > 1 else {1, 2} if axis in ("tp", "pp") else {1})
    ways: list[int | str] = list(dict.fromkeys(("none", layout.recompute, "full")))
    return {**sizes, "recompute": ways, "sharding": [layout.sharding], "mbs": sorted({layout.mbs, max(1, layout.mbs // 2), 2 * layout.mbs})}
