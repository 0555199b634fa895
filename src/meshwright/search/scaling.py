"""Steps of a request on other numbers of the same chips, near a layout that is known to be good."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.errors import MeshwrightError
from meshwright.layout import Layout
from meshwright.search.axes import axes_of
from meshwright.search.diagnose import with_chips
from meshwright.search.exhaustive import search_space
from meshwright.search.problem import Problem
from meshwright.search.quote import quotes
from meshwright.search.space import Rejections, make_space

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
    """Half, the same and twice of each size that cuts the model; recomputation as it is, none and
    full."""
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
