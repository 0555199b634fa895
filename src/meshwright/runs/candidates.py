"""Layouts that a study may run: the best of a search, those that may just not fit among them, and of every cut some."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from meshwright.accuracy.machines import Machines, stage_chips
from meshwright.accuracy.rows import Case, MemoryFigure
from meshwright.confidence import fits_within
from meshwright.cost.flops import model_flops_per_token
from meshwright.errors import ConfigError
from meshwright.layout import Layout
from meshwright.models.spec import ModelSpec
from meshwright.rules import explicit_layers
from meshwright.runs.options import Forecast
from meshwright.runs.record import Predicted, run_id_of
from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import Found, search_space
from meshwright.search.problem import Problem
from meshwright.search.refine import Repriced, reprice, shortlists, tidy
from meshwright.search.space import Rejections, make_space

__all__ = ["Candidate", "Candidates", "candidates_of", "forecast_of"]

MOST = 160
"""Layouts that are weighed. A study runs a handful; the joint distribution of more takes seconds for each choice."""
Refusal = Callable[[Layout], str | None]
"""Why the software that trains can't run a layout; None where it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One layout, before any run."""

    run_id: str
    layout: Layout
    predicted: Predicted
    forecast: Forecast


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """What may be run, the fastest predicted first, and what was left out by reason."""

    problem: Problem
    members: tuple[Candidate, ...]
    left_out: dict[str, int]


def candidates_of(problem: Problem, refusal: Refusal) -> Candidates:
    """Search the layouts of a problem and return those worth a run; ConfigError where there is none."""
    rejections = Rejections()
    wide = _with_near_misses(problem)
    harvest = search_space(wide, make_space(problem, axes_of(problem), rejections), rejections)
    parts = [part for part in (harvest.fitting, harvest.at_risk) if part is not None]
    refused: Counter[str] = Counter()

    def runs(layout: Layout) -> bool:
        reason = refusal(layout)
        refused.update([] if reason is None else [reason])
        return reason is None

    chosen = _spread(_in_turn(parts, problem.setting.model), runs)
    left_out = {**rejections.counts, **refused}
    if not chosen:
        shown = "; ".join(f"{reason} ({count})" for reason, count in sorted(left_out.items(), key=lambda item: -item[1])[:3])
        raise ConfigError(f"no layout of this model can be run on {problem.num_chips} chips: {shown or 'none keeps the rules'}")
    splits = [split for group in shortlists(problem, [[layout] for layout in chosen], count=1) for split in group[1:]]
    priced = reprice(problem, [*chosen, *(split for split in splits if refusal(split) is None)])
    members = sorted((_candidate(problem, found) for found in priced), key=lambda candidate: candidate.predicted.step_s)
    return Candidates(problem=problem, members=tuple(_distinct(members))[:MOST], left_out=left_out)


def _with_near_misses(problem: Problem) -> Problem:
    """The same with as much memory as lets layouts in whose need may, by the interval, be below the limit."""
    setting = problem.setting
    low = setting.intervals_at(step_s=1.0, peak_bytes=1.0).peak_bytes[0]
    return replace(problem, setting=replace(setting, limit_bytes=setting.limit_bytes / min(1.0, low)), headroom_bytes=0.0)


def _in_turn(parts: Iterable[Found], model: ModelSpec) -> list[Layout]:
    """Layouts by their predicted time; where the stages can't be equal, with the layers of each."""
    rows = [(float(part.key[i]), part.layouts.row(i)) for part in parts for i in range(len(part))]
    return [tidy(explicit_layers(layout, model)) for _, layout in sorted(rows, key=lambda row: row[0])]


def _spread(layouts: Sequence[Layout], runs: Callable[[Layout], bool]) -> list[Layout]:
    """The best of every cut that runs, then the second best of each, and so on: a prediction wrong about one cut is then not the end.

    What the software can run is asked of as many layouts as are needed, for the answer takes the writing of an export.
    """
    cuts: dict[tuple[int, ...], list[Layout]] = defaultdict(list)
    for layout in layouts:
        cuts[layout.tp, layout.cp, layout.ep, layout.pp, layout.dp, layout.mbs].append(layout)
    groups = [filter(runs, group) for group in cuts.values()]
    turns = zip_longest(*groups)
    return list(islice((layout for turn in turns for layout in turn if layout is not None), MOST))


def _distinct(members: Iterable[Candidate]) -> Iterable[Candidate]:
    """Each layout once: some are equal once their defaults are written."""
    seen: set[str] = set()
    for member in members:
        if member.run_id not in seen:
            seen.add(member.run_id)
            yield member


def _candidate(problem: Problem, priced: Repriced) -> Candidate:
    setting, chips = problem.setting, problem.num_chips
    intervals = setting.intervals_at(step_s=priced.step_s, peak_bytes=priced.peak_bytes)
    tokens_per_s = priced.layout.gbs * setting.work.seq_len / priced.step_s / chips
    flops_per_s = tokens_per_s * model_flops_per_token(setting.model, setting.work)
    predicted = Predicted(
        step_s=priced.step_s,
        step_interval_s=intervals.step_s,
        peak_bytes=priced.peak_bytes,
        peak_interval_bytes=intervals.peak_bytes,
        fits=fits_within(priced.peak_bytes, limit_bytes=setting.limit_bytes, headroom_bytes=problem.headroom_bytes),
        flops_per_s_per_gpu=flops_per_s,
        mfu=flops_per_s / setting.pool.node.chip.peak_flops_per_s(setting.work.precision),
    )
    forecast = forecast_of(problem, priced.layout, predicted)
    return Candidate(run_id=run_id_of(priced.layout), layout=priced.layout, predicted=predicted, forecast=forecast)


def forecast_of(problem: Problem, layout: Layout, predicted: Predicted) -> Forecast:
    """Return a layout as what choices are made of."""
    setting = problem.setting
    machines = Machines(pools=((setting.pool.node.chip.name, problem.num_chips),), nodes=(setting.pool.node,))
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
    intervals = setting.intervals_at(step_s=predicted.step_s, peak_bytes=predicted.peak_bytes)
    limit = setting.limit_bytes
    return Forecast(case=case, step_s=predicted.step_s, used_bytes=predicted.peak_bytes, limit_bytes=limit, intervals=intervals)
