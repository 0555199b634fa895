"""From a request over several kinds of chips to ranked plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np

from meshwright.cost.flops import causal_flops_per_token, mfu, model_flops_per_token
from meshwright.search.mixed.branch import candidates_of
from meshwright.search.mixed.dealt import dealt
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import Grid, chunks_of
from meshwright.search.mixed.near import has_unlike_batches, with_unlike_batches
from meshwright.search.mixed.orders import returning_plans
from meshwright.search.mixed.problem import MixedProblem, Score, every_team
from meshwright.search.mixed.reprice import Found, Outcome, Repriced, layout_of, reprice_mixed
from meshwright.search.mixed.teams import (
    Answer,
    Priced,
    merged,
    of_setting,
    search_teams,
    setting_words,
    sides_of,
    simulated_score,
)
from meshwright.search.mixed.ways import ways_of
from meshwright.search.origins import origins_of
from meshwright.search.problem import Files, batch_rule
from meshwright.search.rank import fits_of, kernels_words, with_beats
from meshwright.search.refine import operations
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan, PlanResult, Proof
from meshwright.search.rules.rule import nearest_words
from meshwright.trust.intervals import Fits, intervals_of
from meshwright.values.errors import ConfigError
from meshwright.values.models.params import model_params
from meshwright.values.models.said_size import model_notes

__all__ = ["AROUND", "search_mixed_plans"]

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
    teams, left_out = every_team(request, files=files)
    sides = sides_of(teams)
    main = sides[0].problem
    if not any(len(options.common) for side in sides for options in side.grid.options):
        raise _none_keeps_the_rules(main, sides[0].grid)
    score, rejections = _score(main), sides[0].rejections
    answers = search_teams(sides, score, _priced_all)
    if not any(answer.outcome.best for answer in answers):
        # Some need a part of the headroom, and are at risk.
        answers = search_teams(sides, score, _priced_all, headroom=False)
    outcome = merged(answers)
    if not outcome.best:
        least = main.request.min_tokens_per_s
        rejections.add(
            "memory: more than the chips have"
            + ("" if least is None else f", or below {least:g} tokens/s"),
            max(1, outcome.ways),
        )
    problem, plans = _plans(main, answers)
    return PlanResult(
        request=problem.request,
        plans=plans,
        rejected=dict(sorted(rejections.counts.items(), key=lambda item: -item[1])),
        layouts=outcome.ways,
        notes=(*_notes(problem, plans), *_left_out(main, problem, answers, left_out)),
        facts=_facts(problem),
        proof=_proof(outcome, merged(of_setting(problem, answers)), len(plans)),
    )


def _priced_all(problem: MixedProblem, grid: Grid, outcome: Outcome) -> list[Priced]:
    """What a search found, simulated, with the plans around it that lie outside of its space."""
    repriced = shared = _repriced(problem, grid, outcome)
    if shared and not {"order", "layers"} & {*problem.request.same}:
        repriced = [*repriced, *_returning(problem, grid, shared)]
    if shared and problem.request.unlike_batch:
        repriced = [*repriced, *_unlike(problem, grid, outcome, shared)]
    return repriced


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


def _none_keeps_the_rules(problem: MixedProblem, grid: Grid) -> ConfigError:
    """Say why no way to cut is left, with the nearest values that work."""
    gbs, pins = problem.request.gbs, problem.request.pins
    words = problem.request.pin_words or "all values searched"
    if gbs is not None and not len(grid.gbs):
        step = int(
            np.prod([max(1, int(v)) for key in ("dp", "mbs") for v in pins.get(key, [1])[:1]])
        )
        return ConfigError(
            f"gbs={gbs}: no dp * mbs of {words} divides it; nearest that work:"
            f" gbs={nearest_words(gbs, step)}"
        )
    return ConfigError(
        f"no stage of {problem.site.model.name} keeps the rules on {problem.cluster.name} under"
        f" {words}"
    )


def _proof(outcome: Outcome, shown: Outcome, count: int) -> Proof:
    """How near so many plans are to the best, second best, ... of the space; those behind the first
    to those that are shown with it."""
    bounds = chain([outcome.bound], repeat(shown.later_bound))
    best = outcome.best[0].step_s if outcome.best else 0.0
    return Proof(
        bound_s=best * (1.0 - outcome.gap),
        bounds_s=tuple(
            found.step_s * min(1.0, bound / found.score)
            for found, bound in zip(shown.best[:count], bounds, strict=False)
        ),
        gap_frac=outcome.gap,
        boxes=outcome.boxes,
        solved=outcome.solved,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    problem: MixedProblem
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


def _plans(main: MixedProblem, answers: Sequence[Answer]) -> tuple[MixedProblem, tuple[Plan, ...]]:
    """The best plans of all searches under the best one's software, number format and attention,
    and the problem that has these."""
    order = sorted(
        (c for answer in answers for c in _of_answer(answer) if c.fits != "no"),
        key=lambda c: (c.fits == "at risk", c.score),
    )
    if not order:
        return main, ()
    first: dict[tuple[object, ...], _Candidate] = {}
    for candidate in order:
        if setting_words(candidate.problem) == setting_words(order[0].problem):
            first.setdefault(candidate.choice, candidate)
    kept = list(first.values())[: main.request.top]
    plans = [
        _plan(c.problem, c, rank, _shares(c.problem, c.priced))
        for rank, c in enumerate(kept, start=1)
    ]
    return order[0].problem, with_beats(order[0].problem.request, plans)


def _of_answer(answer: Answer) -> Iterator[_Candidate]:
    problem = answer.problem
    score = _score(problem)
    for _, priced in answer.plans:
        used = [priced.layout.chips_of(pool) for pool in range(len(problem.parts))]
        rate = float(score.rate(np.array([used]), np.arange(len(used))[None])[0])
        seconds = priced.step_s / priced.layout.gbs
        if seconds <= score.most_s:
            yield _Candidate(
                problem=problem,
                score=float(seconds * rate),
                fits=_fits(problem, priced),
                priced=priced,
            )


def _repriced(problem: MixedProblem, grid: Grid, outcome: Outcome) -> list[Priced]:
    """Candidates with their prices, and the best interleaved ones with their layers moved too."""
    return _priced(problem, grid, _candidates(outcome, problem.request.top))


def _priced(problem: MixedProblem, grid: Grid, chosen: Sequence[Found]) -> list[Priced]:
    layouts = [layout_of(found, problem, grid) for found in chosen]
    priced = list(zip(chosen, reprice_mixed(layouts, problem.site), strict=True))
    nearest = sorted((pair for pair in priced if pair[0].case.vpp > 1), key=simulated_score)
    unlike: dict[object, Priced] = {}
    for found, each in nearest:
        unlike.setdefault((found.cuts, found.case.vpp), (found, each))
    moved = [
        (found, layout)
        for found, each in _worth_dealing([*unlike.values()])
        for layout in dealt(found, each, problem)
    ]
    again = reprice_mixed([layout for _, layout in moved], problem.site)
    return [*priced, *((found, each) for (found, _), each in zip(moved, again, strict=True))]


def _worth_dealing(nearest: list[Priced]) -> list[Priced]:
    """The first of the interleaved plans, and short ones behind them, which take little time."""
    rest = nearest[DEALT : DEALT + DEALT_SHORT]
    return nearest[:DEALT] + [pair for pair in rest if operations(pair[1].layout) <= SHORT]


def _returning(problem: MixedProblem, grid: Grid, repriced: Sequence[Priced]) -> list[Priced]:
    """Plans in which a kind of chip comes back, around the best plans of unlike cuts; and such
    orders of the stages of the best plans behind them."""
    nearest, around = sorted(repriced, key=simulated_score), dict[object, Found]()
    for found, _ in nearest:
        if len(found.cuts) > 1:
            around.setdefault(frozenset(found.cuts), found)
    few, score, below = [*around.values()][:AROUND], _score(problem), simulated_score(nearest[0])
    plans = returning_plans(few, problem, grid, score, below=below)
    # Each plan of the answer stands for all orders of its stages, so that the best of them is it.
    choices = dict[object, Priced]()
    for pair in nearest:
        choices.setdefault(pair[0].choice, pair)
    for best, priced in [*choices.values()][1 : problem.request.top]:
        if len({*best.cuts}) == len(best.cuts) > 1:
            below = simulated_score((best, priced))
            plans += returning_plans(
                [best], problem, grid, score, below=below, own_stages=True, most_rows=OWN_ROWS
            )
    return _priced(problem, grid, plans)


def _unlike(
    problem: MixedProblem, grid: Grid, outcome: Outcome, repriced: Sequence[Priced]
) -> list[Priced]:
    """Plans whose kinds have unlike dp and mbs, around the best of those that share them."""
    nearest = sorted(repriced, key=simulated_score)
    wide = with_unlike_batches(grid, {found.common for found, _ in nearest[:AROUND]})
    score = _score(problem)
    ways = ways_of(problem, wide, score, most_chunks=max(chunks_of(problem, wide)))
    second = search_mixed(
        problem, wide, score, known=outcome.best[0].score, ways=ways.of(problem.team)
    )
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


def _shares(problem: MixedProblem, priced: Repriced) -> dict[str, Any]:
    """What a plan's step stands on: what its pools' stages do on their own, weighed by work."""
    found: dict[str, float] = {}
    layout, times = priced.layout, priced.price.forward_s + priced.price.backward_s
    for pool in layout.pools:
        place = next(s for s, stage in enumerate(layout.stages) if stage.pool == pool)
        [origins] = origins_of([layout.row(place)], problem.parts[pool].setting)
        mine = np.array([stage.pool == pool for stage in layout.stages])
        weight = float(times[mine].sum() / times.sum())
        for name, share in origins.to_dict().items():
            found[name] = found.get(name, 0.0) + weight * share
    return found


def _notes(problem: MixedProblem, plans: Sequence[Plan]) -> list[str]:
    notes = [
        "searched: stages, layers, tp and recomputation per kind of chip, common dp, mbs, cp, ep"
        " and vpp, each kind in one run of stages; --set narrows it",
        "not searched: unlike tp within a pool, replicas of a stage or FSDP over several pools,"
        " zero-bubble schedules, sites that train apart, losses of spot chips",
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


def _left_out(
    main: MixedProblem,
    problem: MixedProblem,
    answers: Sequence[Answer],
    unable: Mapping[str, str],
) -> list[str]:
    """What is said of chips that the first plan's format, attention or software leaves out."""
    notes = [f"{chip} is left out: {reason}" for chip, reason in unable.items()]
    if setting_words(problem) == setting_words(main):
        return notes
    names = ", ".join(
        problem.cluster.pools[pool].node.chip.name for pool in main.team if pool not in problem.team
    )
    stack, precision, attention = setting_words(main)
    steps = [plan.step_s for answer in of_setting(main, answers) for _, plan in answer.plans]
    best = f"; the best of such plans takes {min(steps):.4g} s" if steps else ""
    return [
        *notes,
        f"{names} stay idle: with them all stages would run in {precision} with {attention}"
        f" attention under {stack}{best}",
    ]


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
