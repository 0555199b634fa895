"""Rank the best few, and say why each stands before the next, and on which constant that leans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.flops import causal_flops_per_token, mfu, model_flops_per_token, tokens_per_s
from meshwright.cost.stages import Floats
from meshwright.search.balance import handicap
from meshwright.search.exhaustive import Found
from meshwright.search.origins import Origins, origins_of, profile_provenance
from meshwright.search.problem import Problem
from meshwright.search.published import ran_layouts
from meshwright.search.quote import price_in
from meshwright.search.refine import Repriced, reprice, shortlists, tidy
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan
from meshwright.search.simple import Tie, simpler_layouts, tie_of
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.trust.calibration import provenance_of
from meshwright.trust.intervals import Fits, Site, Uncertain, fits_within, uncertain_constants
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.hardware.tables import kin
from meshwright.values.layout import Layout, Layouts
from meshwright.values.units import GIB, format_seconds

__all__ = [
    "CloseCall",
    "Ranked",
    "beats_words",
    "close_call",
    "fits_of",
    "group_of",
    "grouped_rows",
    "kernels_words",
    "ranked_plans",
    "score_of",
    "with_beats",
    "with_close_call",
]

REPRICED = 16
"""Groups of which several members and uneven splits are simulated; of further ones that were asked
for, the best member."""
OF_WEIGHT = 0.2
"""Share of the whole gain from which on a second term, or one that costs, is named."""
MEMBERS = 3
"""Layouts of a group, with different chunks and recomputation, that are priced again."""


def kernels_words(chip: Chip) -> str:
    """What the times of matrix products and attention stand on."""
    if chip.tables is not None:
        return str(chip.tables.meta["source"])
    nearest = kin(chip)
    if nearest.relation == "itself":
        return f"measured products and attention of {chip.name}, sustained as published runs do"
    if nearest.relation == "generation":
        return f"measured products and attention of {nearest.table.name}, scaled to {chip.name}"
    return "roofline with published efficiencies"


def group_of(layout: Layout, request: PlanRequest) -> tuple[Any, ...]:
    """Layouts of one group differ in chunks, recomputation and layers per stage, and in how many
    sequences share how many cp ranks.

    cp = 2 with mbs = 2 does what cp = 1 with mbs = 1 does, but for the exchange; they are told
    apart where either is pinned.
    """
    tokens = (
        (layout.cp, layout.dp, layout.mbs)
        if {"cp", "mbs"} & set(request.pins)
        else (layout.cp * layout.dp, layout.mbs / layout.cp)
    )
    return (
        *(layout.tp, layout.sp, layout.ep, layout.expert_tp, layout.pp),
        *(layout.sharding, layout.shard_size, layout.gbs, layout.schedule, *tokens),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    priced: Repriced
    fits: Fits


def score_of(problem: Problem, priced: Repriced) -> float:
    """Smaller is better: seconds per sequence, seconds per sequence and dollar, or bytes."""
    if problem.request.objective == "memory":
        return priced.peak_bytes
    return priced.step_s / priced.layout.gbs


def fits_of(problem: Problem, peak_bytes: float) -> Fits:
    """Whether a peak leaves the headroom free, needs a part of it, or is beyond the limit."""
    return fits_within(
        peak_bytes, limit_bytes=problem.setting.limit_bytes, headroom_bytes=problem.headroom_bytes
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """Plans in order."""

    plans: tuple[Plan, ...]
    tie: Tie | None = None
    """Where the first is not the fastest."""


def ranked_plans(problem: Problem, fitting: Found | None, at_risk: Found | None) -> Ranked:
    """Return the plans in order: those that fit, then those at risk; before them the simplest of
    those that tie with the first, unless the request asks for the fastest."""
    first = _order(problem, fitting)
    second = _order(problem, at_risk) if len(first) < problem.request.top else []
    taken = {group_of(each.priced.layout, problem.request) for each in first}
    rest = [c for c in second if group_of(c.priced.layout, problem.request) not in taken]
    chosen = sorted((*first, *rest), key=lambda c: c.fits == "at risk")[: problem.request.top]
    tie = None
    if chosen and not problem.request.fastest and problem.request.objective != "memory":
        chosen, tie = _simplest_first(problem, chosen, fitting or at_risk)
    stands_on = origins_of([candidate.priced.layout for candidate in chosen], problem.setting)
    plans = [
        _plan(problem, candidate, rank, found)
        for rank, (candidate, found) in enumerate(zip(chosen, stands_on, strict=True), start=1)
    ]
    ranked = with_beats(problem.request, plans)
    if tie is not None:
        ranked = (replace(ranked[0], beats_next=_simpler_words(tie)), *ranked[1:])
    return Ranked(plans=ranked, tie=tie)


def _simplest_first(
    problem: Problem, chosen: list[_Candidate], found: Found | None
) -> tuple[list[_Candidate], Tie | None]:
    """Put the simplest of those that tie with the fastest before it."""
    fastest, model = chosen[0], problem.setting.model
    assert found is not None, "candidates come from what was found"
    ran = ran_layouts(problem)
    score = score_of(problem, fastest.priced)
    simpler = simpler_layouts(found, fastest.priced.layout, score, model, ran)
    more = reprice(problem, simpler)
    tried = [_Candidate(priced=p, fits=fits_of(problem, p.peak_bytes)) for p in more]
    rivals = [c for c in (*chosen, *tried) if c.fits == fastest.fits]
    by_layout = {c.priced.layout: c for c in reversed(rivals)}
    scores = [(layout, score_of(problem, c.priced)) for layout, c in by_layout.items()]
    answer = tie_of(scores, model, ran)
    if answer is None:
        return chosen, None
    simplest, tie = answer
    rest = [c for c in chosen if c.priced.layout != simplest]
    ordered = [by_layout[simplest], *rest][: problem.request.top]
    layouts = [c.priced.layout for c in ordered]
    rank = layouts.index(tie.fastest) + 1 if tie.fastest in layouts else None
    return ordered, replace(tie, fastest_rank=rank)


def _simpler_words(tie: Tie) -> str:
    other = "the fastest" if tie.fastest_rank is None else f"#{tie.fastest_rank}"
    return f"simpler, without {', '.join(tie.without)}; {other} might be {tie.gain_frac:.1%} faster"


def with_beats(request: PlanRequest, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return ranked plans, each with the words on why it stands before the next."""
    pairs = zip_longest(plans, plans[1:])
    return tuple(
        replace(plan, beats_next=beats_words(request, plan, after)) for plan, after in pairs
    )


def _order(problem: Problem, found: Found | None) -> list[_Candidate]:
    """The best of each group, priced again, best first."""
    if found is None:
        return []
    groups = grouped_rows(found.layouts, problem.request)[: max(REPRICED, problem.request.top)]
    first = [_members(found.layouts, rows) for rows in groups[:REPRICED]]
    rest = [[tidy(found.layouts.row(int(rows[0])))] for rows in groups[REPRICED:]]
    shortlisted = [*shortlists(problem, first), *rest]
    priced = iter(reprice(problem, [layout for layouts in shortlisted for layout in layouts]))
    candidates = [
        _best_of_group(problem, list(islice(priced, len(layouts)))) for layouts in shortlisted
    ]
    kept = [candidate for candidate in candidates if candidate is not None]
    return sorted(kept, key=lambda candidate: score_of(problem, candidate.priced))


def grouped_rows(layouts: Layouts, request: PlanRequest) -> list[NDArray[np.int64]]:
    """Return the rows of each group (`group_of`), in their order; the group of the first row first.

    Comparing columns makes no Layout of the thousands of rows that nobody looks at again.
    """
    shared = layouts.cp * layouts.dp
    apart = {"cp", "mbs"} & set(request.pins)
    tokens = (layouts.cp, layouts.dp, layouts.mbs) if apart else (shared, layouts.mbs / layouts.cp)
    columns = (
        *(layouts.tp, layouts.sp, layouts.ep, layouts.etp, layouts.pp, layouts.sharding),
        np.where(layouts.shard_size == shared, -1, layouts.shard_size),
        *(layouts.gbs, layouts.schedule, *tokens),
    )
    keys = np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
    _, starts, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")  # rows of a group stay in their order
    rows = np.split(order, np.cumsum(np.bincount(group.ravel()))[:-1])
    return [rows[number] for number in np.argsort(starts)]


def _members(layouts: Layouts, rows: NDArray[np.int64]) -> list[Layout]:
    """The first few of a group, and the first with an even split."""
    explicit = layouts.chunk_layers
    even = (int(row) for row in rows if explicit is None or explicit[row] is None)
    wanted = dict.fromkeys([*map(int, rows[:MEMBERS]), *islice(even, 1)])
    return list(dict.fromkeys(tidy(layouts.row(row)) for row in wanted))


def _best_of_group(problem: Problem, group: list[Repriced]) -> _Candidate | None:
    """The best of some layouts; None where none fits after all."""
    candidates = [_Candidate(priced=p, fits=fits_of(problem, p.peak_bytes)) for p in group]
    fitting = [candidate for candidate in candidates if candidate.fits != "no"]
    return min(
        fitting,
        key=lambda c: (
            c.fits == "at risk",
            handicap(c.priced.layout) * score_of(problem, c.priced),
        ),
        default=None,
    )


def _plan(problem: Problem, candidate: _Candidate, rank: int, stands_on: Origins) -> Plan:
    priced, setting = candidate.priced, problem.setting
    model, work, chips = setting.model, setting.work, problem.num_chips
    tokens_per_s_per_gpu = tokens_per_s(
        gbs=priced.layout.gbs, seq_len=work.seq_len, step_s=priced.step_s, num_chips=chips
    )
    per_token = model_flops_per_token(model, work)
    peak = setting.pool.node.chip.peak_flops_per_s(work.precision)
    price = problem.usd_per_chip_s
    intervals = setting.intervals_at(step_s=priced.step_s, peak_bytes=priced.peak_bytes)
    return Plan(
        rank=rank,
        layout=priced.layout,
        time_s=priced.time_s,
        memory_bytes=priced.memory_bytes,
        peak_memory_bytes=priced.peak_memory_bytes,
        fits=candidate.fits,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu,
        mfu=mfu(tokens_per_s_per_gpu, per_token, peak),
        causal_mfu=mfu(tokens_per_s_per_gpu, causal_flops_per_token(model, work), peak),
        flops_per_s_per_gpu=tokens_per_s_per_gpu * per_token,
        tokens_per_dollar=tokens_per_s_per_gpu / price if price else None,
        beats_next="",
        provenance={
            "pipeline": priced.pipeline,
            "kernels": kernels_words(problem.setting.pool.node.chip),
            **({"started_by": setting.started_by} if setting.started_by else {}),
            "shares": stands_on.to_dict(),
            **profile_provenance(stands_on, problem.setting),
            "error": intervals.error,
            "memory_error": intervals.memory_error,
            "tokens_per_joule": _per_joule(tokens_per_s_per_gpu, problem.setting.pool.node.chip),
            **provenance_of(
                setting.calibration, time_s=priced.time_s, memory_bytes=priced.memory_bytes
            ),
        },
        intervals=intervals,
    )


def _per_joule(tokens_per_s_per_gpu: float, chip: Chip) -> float | None:
    """Tokens per joule at the chip's rated power."""
    return tokens_per_s_per_gpu / chip.tdp_w if chip.tdp_w else None


def beats_words(request: PlanRequest, plan: Plan, after: Plan | None) -> str:
    """Say by which terms a plan beats the next."""
    if after is None:
        return ""
    if plan.fits != after.fits:
        return f"rank {after.rank} needs a part of the headroom"
    if request.objective == "memory":
        return _differences(
            plan.memory_bytes,
            after.memory_bytes,
            lambda size: f"{size / GIB:.1f} GiB",
            after.peak_bytes - plan.peak_bytes,
        )
    scale = plan.layout.gbs / after.layout.gbs
    other = {term: seconds * scale for term, seconds in after.time_s.items()}
    return _differences(plan.time_s, other, format_seconds, after.step_s * scale - plan.step_s)


def _differences(
    mine: dict[str, float], other: dict[str, float], words: Callable[[float], str], gain: float
) -> str:
    """The term that gains most, a second of weight, and the one that costs most."""
    if gain <= 1e-9 * sum(mine.values()):
        return "equal"
    less = sorted(((other[term] - mine[term], term) for term in mine), reverse=True)
    gains = [*less[:1], *(pair for pair in less[1:2] if pair[0] > OF_WEIGHT * gain)]
    shown = [f"-{words(size)} {_title(term)}" for size, term in gains]
    worst, term = less[-1]
    if worst < -OF_WEIGHT * gain:
        shown.append(f"but +{words(-worst)} {_title(term)}")
    return ", ".join(shown)


def _title(term: str) -> str:
    reading = TIME_READINGS.get(term) or MEMORY_READINGS.get(term)
    return reading.title if reading is not None else term.replace("_", " ")


RIVALS = 5
"""Plans behind the best that may overtake it."""
WORTH = 0.001
"""Share of the step by which a rival must win there: less is no difference at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseCall:
    """A constant that decides between the best plan and a rival."""

    uncertain: Uncertain
    now: float
    turns_at: float
    """Where the two are equal."""
    end: float
    """The end of the constant's interval beyond that."""
    rival: int
    """Its rank."""
    gain_frac: float
    """By how much the rival wins at that end, as a share of the step."""

    def words(self) -> str:
        """Say it in a line."""
        side = "below" if self.end < self.now else "above"
        at = (
            f"{self.uncertain.constant} {side} {self.turns_at:.3g} (now {self.now:.3g}, may be"
            f" {self.end:.3g})"
        )
        return (
            f"#{self.rival} wins with {at}, {self.uncertain.title}; there by {self.gain_frac:.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "constant": self.uncertain.constant,
            "title": self.uncertain.title,
            "now": self.now,
            "turns_at": self.turns_at,
            "end": self.end,
            "rival": self.rival,
            "gain_frac": self.gain_frac,
            "source": self.uncertain.source,
        }


def with_close_call(problem: Problem, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return the plans, the best with its close call in `provenance["close"]`, others with None."""
    call = close_call(problem, plans)
    found = [
        None if call is None or plan.rank > 1 else call.to_dict() | {"words": call.words()}
        for plan in plans
    ]
    return tuple(
        replace(plan, provenance={**plan.provenance, "close": close})
        for plan, close in zip(plans, found, strict=True)
    )


def close_call(problem: Problem, plans: Sequence[Plan]) -> CloseCall | None:
    """Return the constant that needs to move by the smallest part of its interval for a rival to
    win; None where none does.

    Formula:  one constant at a time goes to either end of its interval; the best and RIVALS plans
              that fit as well are priced there by the closed form, and each plan's step is scaled
              by what that changes; between its value and the end, the lead is a line
    Units:    shares.
    Source:   `trust/uncertainties.csv`.
    Valid:    ranks by step time; a ranking by memory leans on no constant of time.
    Checked:  tests/search/test_close.py
    """
    rows = [plan for plan in plans[: 1 + RIVALS] if plan.fits == plans[0].fits]
    if len(rows) < 2 or problem.request.objective == "memory":
        return None
    calls = list(_calls(problem, rows))
    return min(calls, key=_way, default=None)


def _way(call: CloseCall) -> float:
    """Part of the way to the interval's end at which the rival wins."""
    return abs(call.turns_at - call.now) / abs(call.end - call.now)


def _calls(problem: Problem, rows: Sequence[Plan]) -> Iterator[CloseCall]:
    setting = problem.setting
    site, layouts = (
        Site(pool=setting.pool, stack=setting.stack),
        Layouts.of(plan.layout for plan in rows),
    )
    now_s = _steps(problem, site, layouts)
    for uncertain in uncertain_constants():
        if _is_measured(uncertain, setting.pool) or not any(
            uncertain.matters_to(plan.layout) for plan in rows
        ):
            continue
        for end, moved in uncertain.ends(site):
            call = _call(
                rows,
                _steps(problem, moved, layouts) / now_s,
                uncertain,
                now=uncertain.value(site),
                end=end,
            )
            if call is not None:
                yield call


def _is_measured(uncertain: Uncertain, pool: Pool) -> bool:
    """Whether the user's profile gives the constant: it then lies where it was measured."""
    tables = pool.node.chip.tables
    place, _, field = uncertain.constant.partition(".")
    return tables is not None and (
        place in tables.measured or (place == "chip" and field in tables.measured)
    )


def _steps(problem: Problem, site: Site, layouts: Layouts) -> Floats:
    return price_in(replace(problem.setting, pool=site.pool, stack=site.stack), layouts).step_s


def _call(
    rows: Sequence[Plan], change: Floats, uncertain: Uncertain, *, now: float, end: float
) -> CloseCall | None:
    """The rival that overtakes first on the way to one end."""
    found = []
    for rival, plan in enumerate(rows[1:], start=1):
        ahead = _per_sequence(plan) / _per_sequence(rows[0]) - 1.0
        there = (
            _per_sequence(plan) * float(change[rival]) / (_per_sequence(rows[0]) * float(change[0]))
            - 1.0
        )
        if there < -WORTH:
            turns_at = now + (end - now) * max(0.0, ahead) / (max(0.0, ahead) - there)
            found.append(
                CloseCall(
                    uncertain=uncertain,
                    now=now,
                    turns_at=turns_at,
                    end=end,
                    rival=plan.rank,
                    gain_frac=-there,
                )
            )
    return min(found, key=_way, default=None)


def _per_sequence(plan: Plan) -> float:
    return plan.step_s / plan.layout.gbs
