"""From a request over several kinds of chips to ranked plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np

from meshwright.cost.flops import causal_flops_per_token, mfu, model_flops_per_token
from meshwright.search.mixed.branch import candidates_of
from meshwright.search.mixed.dealt import dealt
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import Grid, make_grid
from meshwright.search.mixed.near import has_unlike_batches, with_unlike_batches
from meshwright.search.mixed.orders import returning_plans
from meshwright.search.mixed.problem import MixedProblem, Score, resolve_mixed
from meshwright.search.mixed.reprice import Found, Outcome, Repriced, layout_of, reprice_mixed
from meshwright.search.origins import origins_of
from meshwright.search.problem import Files, batch_rule
from meshwright.search.rank import fits_of, kernels_words, with_beats
from meshwright.search.refine import operations
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan, PlanResult, Proof
from meshwright.search.rules.rule import nearest_words
from meshwright.search.space import Rejections
from meshwright.trust.intervals import Fits, intervals_of
from meshwright.values.errors import ConfigError
from meshwright.values.models.params import model_params
from meshwright.values.models.said_size import model_notes

__all__ = ["AROUND", "search_mixed_plans"]

Pair = tuple[Found, Repriced]
"""A plan as the closed form found it, and as it was priced again."""
DEALT = 5
"""Interleaved plans of unlike cuts of which layers are moved."""
SHORT, DEALT_SHORT = 1000, 3
"""Operations of a short pipeline; and how many more plans are dealt if they are short."""
OWN_ROWS = 40_000
"""Partial plans that are made for the orders of one plan's own stages."""
AROUND = 3
"""Plans around which kinds of chips may come back, or have unlike dp and mbs."""


def search_mixed_plans(request: PlanRequest, *, files: Files | None = None) -> PlanResult:
    """Search all plans over several pools; ConfigError where none keeps the rules."""
    problem = resolve_mixed(request, files=files)
    request = problem.request
    rejections = Rejections()
    grid = make_grid(problem, rejections)
    _require_some(problem, grid)
    score = _score(problem)
    searched = problem
    outcome = search_mixed(searched, grid, score)
    if not outcome.best:  # some need a part of the headroom, and are at risk
        searched = _without_headroom(problem)
        outcome = search_mixed(searched, grid, score)
    if not outcome.best:
        least = request.min_tokens_per_s
        rejections.add(
            "memory: more than the chips have"
            + ("" if least is None else f", or below {least:g} tokens/s"),
            max(1, outcome.ways),
        )
    repriced = shared = _repriced(searched, grid, outcome)
    if shared and not {"order", "layers"} & {*request.same}:
        repriced = [*repriced, *_returning(searched, grid, shared)]
    if shared and request.unlike_batch:
        repriced = [*repriced, *_unlike(searched, grid, outcome, shared)]
    plans = _plans(problem, repriced)
    return PlanResult(
        request=request,
        plans=plans,
        rejected=dict(sorted(rejections.counts.items(), key=lambda item: -item[1])),
        layouts=outcome.ways,
        notes=tuple(_notes(problem, grid, plans)),
        facts=_facts(problem),
        proof=_proof(outcome, len(plans)),
    )


def _score(problem: MixedProblem) -> Score:
    objective = problem.request.objective
    if objective == "memory":
        raise ConfigError(
            "objective=memory: over several kinds of chips plans are ranked by step_time,"
            " tokens_per_dollar or tokens_per_joule"
        )
    least = problem.request.min_tokens_per_s
    most_s = float("inf") if least is None else problem.site.work.seq_len / least
    if objective == "tokens_per_dollar":
        return Score(
            rates=tuple(float(part.usd_per_chip_s or 0.0) for part in problem.parts), most_s=most_s
        )
    if objective == "tokens_per_joule":
        return Score(
            rates=tuple(float(pool.node.chip.tdp_w or 0.0) for pool in problem.cluster.pools),
            most_s=most_s,
        )
    return Score(rates=None, most_s=most_s)


def _without_headroom(problem: MixedProblem) -> MixedProblem:
    return replace(
        problem, parts=tuple(replace(part, headroom_bytes=0.0) for part in problem.parts)
    )


def _require_some(problem: MixedProblem, grid: Grid) -> None:
    """Say why no way to cut is left, with the nearest values that work."""
    if any(len(options.common) for options in grid.options):
        return
    gbs, pins = problem.request.gbs, problem.request.pins
    words = problem.request.pin_words or "all values searched"
    if gbs is not None and not len(grid.gbs):
        step = int(
            np.prod([max(1, int(v)) for key in ("dp", "mbs") for v in pins.get(key, [1])[:1]])
        )
        raise ConfigError(
            f"gbs={gbs}: no dp * mbs of {words} divides it; nearest that work:"
            f" gbs={nearest_words(gbs, step)}"
        )
    raise ConfigError(
        f"no stage of {problem.site.model.name} keeps the rules on {problem.cluster.name} under"
        f" {words}"
    )


def _proof(outcome: Outcome, count: int) -> Proof:
    """How near so many plans are to the best, second best, ... of the space."""
    bounds = chain([outcome.bound], repeat(outcome.later_bound))
    best = outcome.best[0].step_s if outcome.best else 0.0
    return Proof(
        bound_s=best * (1.0 - outcome.gap),
        bounds_s=tuple(
            found.step_s * min(1.0, bound / found.score)
            for found, bound in zip(outcome.best[:count], bounds, strict=False)
        ),
        gap_frac=outcome.gap,
        boxes=outcome.boxes,
        solved=outcome.solved,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    score: float
    fits: Fits
    priced: Repriced

    @property
    def choice(self) -> tuple[object, ...]:
        """What plans have in common that differ in the order of their stages, in layers and in
        recomputation alone."""
        layout = self.priced.layout
        counts = Counter((s.pool, s.tp, s.sp, s.dp, s.mbs) for s in layout.stages)
        shared = (layout.gbs, layout.cp, layout.ep, layout.etp, layout.vpp, layout.sharding)
        return (*sorted(counts.items()), shared)


def _plans(problem: MixedProblem, repriced: Sequence[Pair]) -> tuple[Plan, ...]:
    score = _score(problem)
    candidates = []
    for _, priced in repriced:
        used = [priced.layout.chips_of(pool) for pool in range(len(problem.parts))]
        rate = float(score.rate(np.array([used]), np.arange(len(used))[None])[0])
        fits = _fits(problem, priced)
        seconds = priced.step_s / priced.layout.gbs
        if seconds > score.most_s:
            continue
        candidates.append(_Candidate(score=float(seconds * rate), fits=fits, priced=priced))
    order = sorted(
        (c for c in candidates if c.fits != "no"), key=lambda c: (c.fits == "at risk", c.score)
    )
    first: dict[tuple[object, ...], _Candidate] = {}
    for candidate in order:
        first.setdefault(candidate.choice, candidate)
    kept = list(first.values())[: problem.request.top]
    shares = _shares(problem, [candidate.priced for candidate in kept])
    plans = [
        _plan(problem, c, rank, share)
        for rank, (c, share) in enumerate(zip(kept, shares, strict=True), start=1)
    ]
    return with_beats(problem.request, plans)


def _repriced(problem: MixedProblem, grid: Grid, outcome: Outcome) -> list[Pair]:
    """Candidates with their prices, and the best interleaved ones with their layers moved too."""
    return _priced(problem, grid, _candidates(outcome, problem.request.top))


def _priced(problem: MixedProblem, grid: Grid, chosen: Sequence[Found]) -> list[Pair]:
    layouts = [layout_of(found, problem, grid) for found in chosen]
    priced = list(zip(chosen, reprice_mixed(layouts, problem.site), strict=True))
    nearest = sorted((pair for pair in priced if pair[0].case.vpp > 1), key=_simulated)
    unlike: dict[object, Pair] = {}
    for found, each in nearest:
        unlike.setdefault((found.cuts, found.case.vpp), (found, each))
    moved = [
        (found, layout)
        for found, each in _worth_dealing([*unlike.values()])
        for layout in dealt(found, each, problem)
    ]
    again = reprice_mixed([layout for _, layout in moved], problem.site)
    return [*priced, *((found, each) for (found, _), each in zip(moved, again, strict=True))]


def _worth_dealing(nearest: list[Pair]) -> list[Pair]:
    """The first of the interleaved plans, and short ones behind them, which take little time."""
    rest = nearest[DEALT : DEALT + DEALT_SHORT]
    return nearest[:DEALT] + [pair for pair in rest if operations(pair[1].layout) <= SHORT]


def _simulated(pair: Pair) -> float:
    """The score of a plan by its simulated step."""
    found, repriced = pair
    return repriced.step_s * found.score / found.step_s


def _returning(problem: MixedProblem, grid: Grid, repriced: Sequence[Pair]) -> list[Pair]:
    """Plans in which a kind of chip comes back, around the best plans of unlike cuts; and such
    orders of the stages of the best plans behind them."""
    nearest, around = sorted(repriced, key=_simulated), dict[object, Found]()
    for found, _ in nearest:
        if len(found.cuts) > 1:
            around.setdefault(frozenset(found.cuts), found)
    few, score, below = [*around.values()][:AROUND], _score(problem), _simulated(nearest[0])
    plans = returning_plans(few, problem, grid, score, below=below)
    # Each plan of the answer stands for all orders of its stages, so that the best of them is it.
    choices = dict[object, Pair]()
    for pair in nearest:
        choices.setdefault(pair[0].choice, pair)
    for best, priced in [*choices.values()][1 : problem.request.top]:
        if len({*best.cuts}) == len(best.cuts) > 1:
            below = _simulated((best, priced))
            plans += returning_plans(
                [best], problem, grid, score, below=below, own_stages=True, most_rows=OWN_ROWS
            )
    return _priced(problem, grid, plans)


def _unlike(
    problem: MixedProblem, grid: Grid, outcome: Outcome, repriced: Sequence[Pair]
) -> list[Pair]:
    """Plans whose kinds have unlike dp and mbs, around the best of those that share them."""
    nearest = sorted(repriced, key=_simulated)
    wide = with_unlike_batches(grid, {found.common for found, _ in nearest[:AROUND]})
    second = search_mixed(problem, wide, _score(problem), known=outcome.best[0].score)
    best, orders, near = (
        tuple(found for found in plans if has_unlike_batches(found, wide))
        for plans in (second.best, second.orders, second.near)
    )
    return _repriced(problem, wide, replace(second, best=best, orders=orders, near=near))


def _candidates(outcome: Outcome, top: int) -> list[Found]:
    """The best plans and orders by the closed form, the best of those that are not interleaved, of
    which it is surer, and those near them."""
    orders = outcome.orders[: candidates_of(top)]
    chosen = [
        *orders,
        *[found for found in outcome.orders if found.case.vpp == 1][:top],
        *outcome.best[: top + AROUND],
        *[found for found in outcome.best if found.case.vpp == 1][:top],
        *outcome.near,
    ]
    return list({found.stages: found for found in chosen}.values())


def _fits(problem: MixedProblem, priced: Repriced) -> Fits:
    """The worst verdict of any stage."""
    verdicts = {
        fits_of(problem.parts[stage.pool], float(used))
        for stage, used in zip(priced.layout.stages, priced.price.used_bytes, strict=True)
    }
    return "no" if "no" in verdicts else "at risk" if "at risk" in verdicts else "yes"


def _plan(problem: MixedProblem, candidate: _Candidate, rank: int, shares: dict[str, Any]) -> Plan:
    priced, site, layout = candidate.priced, problem.site, candidate.priced.layout
    used = [layout.chips_of(pool) for pool in range(len(problem.parts))]
    chips = sum(used)
    tokens_per_s = layout.gbs * site.work.seq_len / priced.step_s
    peaks = [pool.node.chip.peak_flops_per_s(site.work.precision) for pool in problem.cluster.pools]
    peak = sum(count * each for count, each in zip(used, peaks, strict=True))
    per_token = model_flops_per_token(site.model, site.work)
    held = priced.price.used_bytes
    fullest = _fullest(problem, priced)
    intervals = intervals_of(problem.kind, step_s=priced.step_s, peak_bytes=float(held[fullest]))
    working = [(part, count) for part, count in zip(problem.parts, used, strict=True) if count]
    usd = sum(float(part.usd_per_chip_s or 0.0) * count for part, count in working)
    watts = sum(
        float(part.setting.pool.node.chip.tdp_w or np.nan) * count for part, count in working
    )
    return Plan(
        rank=rank,
        layout=layout.row(0),
        mixed=layout,
        chips=tuple(
            (pool.node.chip.name, count, rest)
            for pool, count, rest in zip(
                problem.cluster.pools, used, _idle(problem, used), strict=True
            )
        ),
        time_s=priced.time_s,
        memory_bytes={term: float(each[fullest]) for term, each in priced.price.memory.items()},
        peak_memory_bytes=tuple(float(size) for size in held),
        fits=candidate.fits,
        tokens_per_s_per_gpu=tokens_per_s / chips,
        mfu=mfu(tokens_per_s, per_token, peak),
        causal_mfu=mfu(tokens_per_s, causal_flops_per_token(site.model, site.work), peak),
        flops_per_s_per_gpu=tokens_per_s * per_token / chips,
        tokens_per_dollar=tokens_per_s / usd
        if all(part.usd_per_chip_s for part, _ in working)
        else None,
        beats_next="",
        provenance={
            "pipeline": priced.pipeline,
            "kernels": _kernels(problem, used),
            "shares": shares,
            "error": intervals.error,
            "memory_error": intervals.memory_error,
            "tokens_per_joule": tokens_per_s / watts if watts > 0 else None,
            "close": None,
        },
        intervals=intervals,
    )


def _fullest(problem: MixedProblem, priced: Repriced) -> int:
    """The stage that takes most of its chip's memory, as a share: predictions are off by shares
    too."""
    limits = [problem.parts[stage.pool].setting.limit_bytes for stage in priced.layout.stages]
    return int(np.argmax(priced.price.used_bytes / limits))


def _idle(problem: MixedProblem, used: list[int]) -> list[int]:
    """Chips left idle by pool, of caps those asked for, from the pools with most to spare."""
    spare = [
        pool.num_chips - count for pool, count in zip(problem.cluster.pools, used, strict=True)
    ]
    if problem.request.num_gpus is None:
        return spare
    rest, found = problem.num_gpus - sum(used), [0] * len(used)
    for pool in sorted(range(len(used)), key=lambda p: -spare[p]):
        found[pool] = min(rest, spare[pool])
        rest -= found[pool]
    return found


def _kernels(problem: MixedProblem, used: list[int]) -> str:
    words = [
        f"{pool.node.chip.name}: {kernels_words(pool.node.chip)}"
        for pool, count in zip(problem.cluster.pools, used, strict=True)
        if count
    ]
    return "; ".join(words)


def _shares(problem: MixedProblem, priced: list[Repriced]) -> list[dict[str, Any]]:
    """What each plan's step stands on: what its pools' stages do on their own, weighed by work."""
    found: list[dict[str, float]] = [{} for _ in priced]
    for pool, part in enumerate(problem.parts):
        own = [i for i, each in enumerate(priced) if pool in each.layout.pools]
        rows = [
            next(each.row(s) for s, stage in enumerate(each.stages) if stage.pool == pool)
            for i in own
            for each in [priced[i].layout]
        ]
        for i, origins in zip(own, origins_of(rows, part.setting), strict=True):
            times = priced[i].price.forward_s + priced[i].price.backward_s
            mine = np.array([stage.pool == pool for stage in priced[i].layout.stages])
            weight = float(times[mine].sum() / times.sum())
            for name, share in origins.to_dict().items():
                found[i][name] = found[i].get(name, 0.0) + weight * share
    return [dict(shares) for shares in found]


def _notes(problem: MixedProblem, grid: Grid, plans: Sequence[Plan]) -> list[str]:
    notes = [
        "searched: stages, layers, tp and recomputation per kind of chip, common dp, mbs, cp, ep"
        " and vpp, each kind in one run of stages; --set narrows it",
        *model_notes(problem.site.model),
    ]
    back = [
        f"#{plan.rank}"
        for plan in plans
        if plan.mixed is not None and len(plan.mixed.runs) > len(plan.mixed.pools)
    ]
    if back:
        notes.append(
            f"a kind of chip comes back in {', '.join(back)}: such orders are searched around the"
            " best plans alone, --same order leaves them out; the proof is of plans in which none"
            " does"
        )
    if problem.request.unlike_batch:
        notes.append(
            "unlike dp and mbs per kind of chip are searched around the best plans alone; the proof"
            " is of plans that share them"
        )
    if problem.request.gbs is None and problem.request.max_gbs is None:
        notes.append(batch_rule(problem.site.model).words(problem.site.work.seq_len))
    return notes


def _facts(problem: MixedProblem) -> dict[str, Any]:
    site, params = problem.site, model_params(problem.site.model)
    return {
        "model": site.model.name,
        "params": params.total,
        "active_params": params.active,
        "num_chips": problem.num_gpus,
        "pools": [part.facts for part in problem.parts],
        "stack": site.stack.name,
    }
