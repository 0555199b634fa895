"""Chips that a training cannot use: whether half of them train faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.search.problem import Problem
from meshwright.search.remedies import with_chips
from meshwright.search.result import Plan, Remedy

__all__ = ["fewer_chips", "fewer_note"]

_KERNELS = ("matmul", "attention", "pointwise", "head")
"""Terms that double on half the chips."""


def fewer_chips(
    problem: Problem, plans: Sequence[Plan], *, search: Callable[[Problem], Sequence[Plan]]
) -> Remedy | None:
    """Return the fastest plan on a half, a quarter, ... of the chips where it trains faster than
    all.

    Half of the chips are searched where the kernels of the fastest plan would leave room in its
    step if they took twice as long. Kernels that run at a higher rate on fewer chips can make a
    half faster beyond that, which is not looked for: a search costs as much as the first. Room is
    left by batches too small for the cluster, and by small models, whose steps are launches and
    messages.
    """
    if not plans or problem.request.objective != "step_time":
        return None
    best, found, count = min(plans, key=_per_sequence), None, problem.num_chips
    while count % 2 == 0 and 2.0 * _kernels_s(best) < best.step_s:
        count //= 2
        half = search(with_chips(problem, count))
        if not half:
            break
        fastest = min(half, key=_per_sequence)
        if _per_sequence(fastest) >= _per_sequence(best):
            break
        best = fastest
        found = Remedy(
            change=f"--num-gpus {problem.num_chips}",
            num_chips=count,
            layout=best.layout,
            step_s=best.step_s,
            peak_bytes=best.peak_bytes,
        )
    return found


def fewer_note(found: Remedy, *, num_chips: int) -> str:
    """Return what a person reads of it."""
    return (
        f"{found.num_chips} of the {num_chips} chips train faster: {found.step_s:.4g} s a step;"
        f" {found.change} plans with chips idle"
    )


def _kernels_s(plan: Plan) -> float:
    return sum(plan.time_s.get(name, 0.0) for name in _KERNELS)


def _per_sequence(plan: Plan) -> float:
    return plan.step_s / plan.layout.gbs
