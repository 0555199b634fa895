"""The simplest of deployments that the model cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption, ServingTie
from meshwright.trust.intervals import Kind, find_serving_spread, serving_kind
from meshwright.trust.ties import serving_own
from meshwright.values.units import GIB

__all__ = ["intervals_of_option", "kind_of_option", "mechanisms", "tie_of_options", "tie_width"]

_WAYS = {"aggregated": "one pool", "disaggregated": "two pools", "static": "static batches"}


def mechanisms(option: ServingOption) -> tuple[str, ...]:
    """Return what a deployment switches on, a word each; fewer are simpler."""
    workers = [part.worker for part in option.parts]
    found = {
        "two pools": len(option.parts) > 1,
        "a narrow cache": option.cache in ("fp8", "int8"),
        "tensor parallelism": any(worker.tp > 1 for worker in workers),
        "a pipeline": any(worker.pp > 1 for worker in workers),
        "expert parallelism": any(worker.ep > 1 for worker in workers),
        "attention on every chip": any(worker.attention_dp > 1 for worker in workers),
    }
    return tuple(name for name, used in found.items() if used)


def _complexity(option: ServingOption) -> tuple[bool, int, bool]:
    """One pool before two, then fewer mechanisms, then tensor parallelism before a pipeline."""
    words = mechanisms(option)
    return "two pools" in words, len(words), "a pipeline" in words


def kind_of_option(request: ServingRequest, option: ServingOption) -> Kind:
    """Return the kind of published runs that a deployment is like: of two pools on the chips that
    answer."""
    pools = {pool.node.chip.name: pool for pool in request.cluster.pools}
    return serving_kind(
        model=request.model,
        chip=pools[option.parts[-1].chip].node.chip,
        engine=request.engine.name,
        way=_WAYS[option.mode],
    )


def tie_width(
    request: ServingRequest, best: ServingOption, other: ServingOption
) -> tuple[float, bool]:
    """Return the share of the best one's figure within which two deployments are a tie, and whether
    published runs tell it.

    Formula:  exp(sqrt(own(best)^2 + own(other)^2 + between^2)) - 1, between only of one pool beside
              two; of these, where no run of this engine and kind of model was on two pools: the
              80 % interval of the ratio of two figures whose errors share nothing,
              exp(sqrt(ln(high(best))^2 + ln(high(other))^2)) - 1
    Units:    share.
    Source:   `trust/serving_ties.csv`, by scripts/fit_serving_ties.py; serving_residuals.csv.
    Valid:    deployments of one model, load and engine.
    Checked:  tests/serving/test_simple.py
    """
    ways = sorted({_WAYS[best.mode], _WAYS[other.mode]})
    own = [serving_own(_WAYS[option.mode]) for option in (best, other)]
    if len(ways) == 1:
        return math.expm1(math.hypot(*own)), True
    kinds = [kind_of_option(request, option) for option in (best, other)]
    spreads = [find_serving_spread(kind, "throughput") for kind in kinds]
    if not all(spread.of_software for spread in spreads):
        return math.expm1(math.hypot(*(math.log(spread.high) for spread in spreads))), False
    return math.expm1(math.hypot(*own, serving_own(" and ".join(ways)))), True


def _score(request: ServingRequest, option: ServingOption) -> float:
    """What is compared, smaller is better: seconds a token of all chips, or those of a request."""
    by_rate = request.objective == "throughput" and request.rate is None
    if by_rate and request.target_rate is None:
        return 1.0 / option.tokens_per_s
    return option.e2e_s


def tie_of_options(
    request: ServingRequest, options: Sequence[ServingOption]
) -> tuple[ServingOption, ServingTie] | None:
    """Return the simplest of deployments that tie with the best, which is the first; None where
    that is the best.

    Formula:  of those with the best one's weights, with score <= (1 + tie_width) * the best score
              (under a target rate of as many chips), one pool before two, then the fewest
              mechanisms, then tp before pp; of equals the best score
    Units:    scores are seconds.
    Source:   `tie_width`.
    Valid:    options that keep the limits alike, best first.
    Checked:  tests/serving/test_simple.py
    """
    if not options or "static" in {option.mode for option in options}:
        return None
    best, least = options[0], _score(request, options[0])
    tied = [
        option
        for option in options
        if option.weights == best.weights
        and (request.target_rate is None or option.chips == best.chips)
        and _score(request, option) <= least * (1.0 + tie_width(request, best, option)[0])
    ]
    simplest = min(tied, key=lambda one: (*_complexity(one), _score(request, one)))
    if _complexity(simplest) >= _complexity(best):
        return None
    has, needs = mechanisms(simplest), mechanisms(best)
    width, measured = tie_width(request, best, simplest)
    score = _score(request, simplest)
    by_rate = score != simplest.e2e_s
    return simplest, ServingTie(
        width_frac=width,
        gain_frac=score / least - 1.0 if by_rate else 1.0 - least / score,
        best_rank=2,
        without=tuple(word for word in needs if word not in has)
        or ("another order of the same axes",),
        measured=measured,
    )


def intervals_of_option(
    request: ServingRequest, option: ServingOption
) -> dict[str, tuple[float, float]]:
    """Return the 80 % interval of every figure of a deployment, in the units of its field.

    Formula:  figure * (low, high) of the kind's spread; tokens/s per user is 1 / TPOT, and the cost
              of tokens goes as 1 / throughput, so their ends change sides
    Units:    seconds, requests/s, tokens/s, USD per million tokens, GiB.
    Source:   `trust/serving_residuals.csv`.
    Valid:    where the deployment's engine, mode and kind are known, else of a coarser kind.
    Checked:  tests/serving/test_simple.py
    """
    kind = kind_of_option(request, option)
    rate = find_serving_spread(kind, "throughput")
    tpot = find_serving_spread(kind, "tpot")
    peak = max(part.memory_bytes for part in option.parts) / GIB
    found = {
        "ttft_s": find_serving_spread(kind, "ttft").around(option.ttft_s),
        "tpot_s": tpot.around(option.tpot_s),
        "e2e_s": find_serving_spread(kind, "e2e").around(option.e2e_s),
        "requests_per_s": rate.around(option.requests_per_s),
        "tokens_per_s": rate.around(option.tokens_per_s),
        "tokens_per_s_per_gpu": rate.around(option.tokens_per_s_per_chip),
        "peak_memory_gib": find_serving_spread(kind, "serving_memory").around(peak),
    }
    if option.tpot_s:
        user = option.tokens_per_s_per_user
        found["tokens_per_s_per_user"] = (user / tpot.high, user / tpot.low)
    if (cost := option.usd_per_million_tokens) is not None:
        found["usd_per_million_tokens"] = (cost / rate.high, cost / rate.low)
    return found
