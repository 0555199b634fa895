"""Layouts that a study may run: the best of a search, near misses among them, some of every cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, zip_longest

from meshwright.cost.flops import mfu, model_flops_per_token
from meshwright.runs.forecasts import Forecast
from meshwright.runs.measured.machines import Machines, stage_chips
from meshwright.runs.measured.rows import Case
from meshwright.runs.record import Predicted, RunRecord, run_id_of
from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import Found, Harvest, search_space
from meshwright.search.problem import Problem
from meshwright.search.refine import Repriced, reprice, shortlists, tidy
from meshwright.search.rules.check import explicit_layers
from meshwright.search.space import Rejections, make_space
from meshwright.software.described import MemoryFigure
from meshwright.trust.intervals import fits_within
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "Candidate",
    "Candidates",
    "Refusal",
    "candidates_of",
    "each_cut",
    "fitting_candidates",
    "forecast_of",
    "nothing_runs",
]

MOST = 160
"""Layouts that are weighed. A study runs a handful; the joint distribution of more takes seconds
for each choice."""
SURE = 48
"""Of them, the fastest that fit with the usual headroom: layouts that may just not fit are faster,
and would leave no room for them."""
KEPT_TOP = 64
"""As many layouts are kept as for so many plans: enough where the software has words for one of a
hundred (Mixtral in NeMo 1.x)."""
SIMULATED_TOO = 64
"""Layouts beyond those asked for that are simulated, which may put one of them first."""
OF_EACH = 3
"""Layouts of a cut, with different chunks and recomputation, that are simulated."""
Refusal = Callable[[Layout], str | None]
"""Why the software that trains can't run a layout; None where it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One layout, before any run."""

    run_id: str
    layout: Layout
    predicted: Predicted
    forecast: Forecast

    def planned(self, *, number: int, because: str) -> RunRecord:
        """Return the record of its run."""
        return RunRecord(
            run_id=self.run_id,
            number=number,
            layout=self.layout,
            predicted=self.predicted,
            chosen_because=because,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """What may be run, the fastest predicted first, and what was left out by reason."""

    problem: Problem
    members: tuple[Candidate, ...]
    left_out: dict[str, int]


def candidates_of(problem: Problem, refusal: Refusal) -> Candidates:
    """Return layouts of a problem that are worth a run; ConfigError where there is none."""
    seen = _Seen(refusal)
    harvest = seen.search(_with_near_misses(problem))
    fitting, at_risk = (
        _in_turn(part, problem.setting.model) for part in (harvest.fitting, harvest.at_risk)
    )
    sure = islice(filter(seen.runs, (layout for layout, _ in fitting)), SURE)
    spread = _spread(
        [layout for layout, _ in sorted([*fitting, *at_risk], key=lambda row: row[1])], seen.runs
    )
    members = _priced(problem, list(dict.fromkeys([*sure, *spread]))[:MOST], seen)
    return Candidates(problem=problem, members=_kept(members), left_out=seen.left_out)


def fitting_candidates(problem: Problem, refusal: Refusal, *, count: int) -> Candidates:
    """Return at most `count` layouts that fit with the usual headroom, the fastest predicted among
    them, without any that may just fit.

    Half of them are the fastest of all; the others are the fastest of further cuts, for neighbours
    of one cut share its errors.
    """
    seen = _Seen(refusal)
    layouts = seen.fitting(problem)
    fastest = islice(filter(seen.runs, layouts), count + SIMULATED_TOO)
    firsts = (next(filter(seen.runs, group), None) for group in _cuts(layouts).values())
    chosen = dict.fromkeys([*fastest, *islice(filter(None, firsts), count)])
    members = _sure(_priced(problem, list(chosen), seen))
    return Candidates(problem=problem, members=_varied(members, count), left_out=seen.left_out)


def each_cut(problem: Problem, refusal: Refusal, *, count: int) -> Candidates:
    """Return of every cut of chips and batch the fastest layout that fits with the usual headroom,
    of more than `count` the fastest.

    None of a cut comes back where all are refused, or too large; empty where that is so of every
    cut.
    """
    seen = _Seen(refusal)
    cuts = _cuts(seen.fitting(problem)).values()
    some = (list(islice(filter(seen.runs, cut), OF_EACH)) for cut in cuts)
    chosen = [layout for few in islice(filter(None, some), 2 * count) for layout in few]
    members = _sure(_priced(problem, chosen, seen))
    best = {_cut(member.layout): member for member in reversed(members)}
    fastest = sorted(best.values(), key=lambda member: member.predicted.step_s)
    return Candidates(problem=problem, members=tuple(fastest[:count]), left_out=seen.left_out)


class _Seen:
    """What was left out so far, by reason; each layout is asked for once."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = cache(refusal)
        self._rejections = Rejections()
        self._refused: dict[Layout, str] = {}

    def search(self, problem: Problem) -> Harvest:
        return search_space(
            problem, make_space(problem, axes_of(problem), self._rejections), self._rejections
        )

    def fitting(self, problem: Problem) -> list[Layout]:
        """Those that fit with the usual headroom, the fastest first."""
        more = replace(problem, request=problem.request.model_copy(update={"top": KEPT_TOP}))
        found = _in_turn(self.search(more).fitting, problem.setting.model)
        return [layout for layout, _ in found]

    def runs(self, layout: Layout) -> bool:
        reason = self._refusal(layout)
        if reason is not None:
            self._refused[layout] = reason
        return reason is None

    @property
    def left_out(self) -> dict[str, int]:
        return {**self._rejections.counts, **Counter(self._refused.values())}


def _priced(problem: Problem, chosen: list[Layout], seen: _Seen) -> list[Candidate]:
    """Price layouts and their uneven splits with the pipelines simulated, the fastest first;
    ConfigError where there are none."""
    if not chosen:
        what = f"no layout of this model can be run on {problem.num_chips} chips"
        raise nothing_runs(what, seen.left_out)
    splits = [
        split
        for group in shortlists(problem, [[layout] for layout in chosen], count=1)
        for split in group[1:]
    ]
    priced = reprice(problem, [*chosen, *filter(seen.runs, splits)])
    members = [_candidate(problem, found) for found in priced]
    fastest = sorted(members, key=lambda member: member.predicted.step_s)
    # Some are equal once their defaults are written; of those the first is kept.
    return list({member.run_id: member for member in reversed(fastest)}.values())[::-1]


def nothing_runs(what: str, left_out: Mapping[str, int]) -> ConfigError:
    """Say that a study has nothing to run, with the most frequent reasons."""
    often = Counter(left_out).most_common(3)
    shown = "; ".join(f"{reason} ({count})" for reason, count in often)
    return ConfigError(f"{what}: {shown or 'none keeps the rules'}")


def _sure(members: Sequence[Candidate]) -> list[Candidate]:
    return [member for member in members if member.predicted.fits == "yes"]


def _varied(members: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """Half of the count as they come, then the first of each other cut, then what is left; the
    fastest first."""
    half = -(-count // 2)
    cuts = [_cut(member.layout) for member in members]
    new = [i for i in range(half, len(members)) if cuts[i] not in cuts[:i]]
    order = dict.fromkeys([*range(min(half, len(members))), *new, *range(len(members))])
    return tuple(members[i] for i in sorted(islice(order, count)))


def _kept(members: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The fastest that fit, whatever else is faster, and of all others the fastest."""
    sure = [member.run_id for member in _sure(members)][:SURE]
    others = [member.run_id for member in members if member.run_id not in sure][: MOST - len(sure)]
    kept = {*sure, *others}
    return tuple(member for member in members if member.run_id in kept)


def _with_near_misses(problem: Problem) -> Problem:
    """The same with as much memory as lets layouts in whose need may, by the interval, be below the
    limit.

    What leaves the headroom free of the real memory is still told apart: the best of them are kept
    by themselves.
    """
    setting = problem.setting
    low = setting.intervals_at(step_s=1.0, peak_bytes=1.0).peak_bytes[0]
    limit = setting.limit_bytes / min(1.0, low)
    free = setting.limit_bytes - problem.headroom_bytes
    request = problem.request.model_copy(update={"top": KEPT_TOP})
    setting = replace(setting, limit_bytes=limit)
    return replace(problem, request=request, setting=setting, headroom_bytes=limit - free)


def _in_turn(part: Found | None, model: ModelSpec) -> list[tuple[Layout, float]]:
    """Layouts with their predicted time, the fastest first; of uneven stages with their layers."""
    if part is None:
        return []
    rows = ((part.layouts.row(i), float(part.key[i])) for i in range(len(part)))
    return [(tidy(explicit_layers(layout, model)), key) for layout, key in rows]


def _spread(layouts: Sequence[Layout], runs: Callable[[Layout], bool]) -> list[Layout]:
    """The best of every cut that runs, then the second best of each, and so on: a prediction wrong
    about one cut is then not the end.

    What the software can run is asked of as many layouts as are needed, for the answer takes the
    writing of an export.
    """
    groups = [filter(runs, group) for group in _cuts(layouts).values()]
    turns = zip_longest(*groups)
    return list(islice((layout for turn in turns for layout in turn if layout is not None), MOST))


def _cuts(layouts: Iterable[Layout]) -> dict[tuple[int, ...], list[Layout]]:
    """Group layouts by what they do with chips and batch, in their order."""
    cuts: dict[tuple[int, ...], list[Layout]] = defaultdict(list)
    for layout in layouts:
        cuts[_cut(layout)].append(layout)
    return cuts


def _cut(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.cp, layout.ep, layout.pp, layout.dp, layout.mbs


def _candidate(problem: Problem, priced: Repriced) -> Candidate:
    setting, chips = problem.setting, problem.num_chips
    intervals = setting.intervals_at(step_s=priced.step_s, peak_bytes=priced.peak_bytes)
    tokens_per_s = priced.layout.gbs * setting.work.seq_len / priced.step_s / chips
    per_token = model_flops_per_token(setting.model, setting.work)
    peak = setting.pool.node.chip.peak_flops_per_s(setting.work.precision)
    limits = {"limit_bytes": setting.limit_bytes, "headroom_bytes": problem.headroom_bytes}
    predicted = Predicted(
        step_s=priced.step_s,
        step_interval_s=intervals.step_s,
        peak_bytes=priced.peak_bytes,
        peak_interval_bytes=intervals.peak_bytes,
        fits=fits_within(priced.peak_bytes, **limits),
        flops_per_s_per_gpu=tokens_per_s * per_token,
        mfu=mfu(tokens_per_s, per_token, peak),
    )
    return Candidate(
        run_id=run_id_of(priced.layout),
        layout=priced.layout,
        predicted=predicted,
        forecast=forecast_of(problem, priced.layout, predicted),
    )


def forecast_of(problem: Problem, layout: Layout, predicted: Predicted) -> Forecast:
    """Return a layout as what choices are made of."""
    setting = problem.setting
    machines = Machines.of(setting.pool)
    case = Case(
        source="study",
        row_id=run_id_of(layout),
        model=setting.model,
        machines=machines,
        placement=stage_chips(machines, None, pp=layout.pp),
        workload=replace(setting.work, gbs=layout.gbs),
        stack_name=setting.stack.name,
        stack_changes=(),
        layout=layout,
        memory=MemoryFigure(kind="used", rank="max"),
        schedule_name=layout.schedule,
        calibration=None,
    )
    return Forecast(
        case=case,
        step_s=predicted.step_s,
        used_bytes=predicted.peak_bytes,
        limit_bytes=setting.limit_bytes,
        intervals=setting.intervals_at(step_s=predicted.step_s, peak_bytes=predicted.peak_bytes),
    )
