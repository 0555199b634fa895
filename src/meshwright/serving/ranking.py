"""Which deployments answer a request best, and which come nearest to its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption

__all__ = ["best_of_each", "excess", "most_requests", "nearest_of", "order", "pareto_front"]


def excess(request: ServingRequest, option: ServingOption) -> float:
    """Return the largest of figure / limit; 0 without limits."""
    limits = (
        (option.ttft_s, request.ttft_s),
        (option.tpot_s, request.tpot_s),
        (option.e2e_s, request.e2e_s),
    )
    return max((value / limit for value, limit in limits if limit is not None), default=0.0)


def order(request: ServingRequest, option: ServingOption) -> tuple[float, ...]:
    """Return what options are sorted by, the best first, as the request's goal has it."""
    if request.target_rate is not None:
        return (option.chips, option.e2e_s)
    if request.rate is not None:
        return (option.e2e_s, option.chips)
    if request.objective == "latency":
        return (option.e2e_s, -option.tokens_per_s_per_chip)
    return (-option.tokens_per_s, option.e2e_s)


def best_of_each(request: ServingRequest, options: Iterable[ServingOption]) -> list[ServingOption]:
    """Return of every deployment, apart from load and counts of workers, the best."""
    best: dict[tuple[object, ...], ServingOption] = {}
    for option in options:
        key = (
            option.mode,
            option.weights,
            option.cache,
            tuple((part.role, part.chip, part.worker) for part in option.parts),
        )
        if key not in best or order(request, option) < order(request, best[key]):
            best[key] = option
    return list(best.values())


def pareto_front(options: Iterable[ServingOption]) -> tuple[ServingOption, ...]:
    """Return the options that no other beats in both tokens per chip and tokens per user; most per
    user first."""
    front: list[ServingOption] = []
    for option in sorted(
        options, key=lambda one: (-one.tokens_per_s_per_user, -one.tokens_per_s_per_chip)
    ):
        if not front or option.tokens_per_s_per_chip > front[-1].tokens_per_s_per_chip:
            front.append(option)
    return tuple(front)


def nearest_of(
    request: ServingRequest, options: Sequence[ServingOption]
) -> dict[str, ServingOption]:
    """Return the least TTFT, TPOT and end-to-end time of all, on the axes that have a limit, and
    the least excess over all of them."""
    found = {"least excess": min(options, key=lambda one: excess(request, one))}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        if getattr(request, name) is not None:
            found[name] = min(options, key=lambda one: (getattr(one, name), excess(request, one)))
    return found


def most_requests(options: Sequence[ServingOption]) -> ServingOption:
    """Return the option that carries most requests a second."""
    return max(options, key=lambda one: (one.requests_per_s, -one.e2e_s))
