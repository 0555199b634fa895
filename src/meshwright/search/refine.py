"""Price the best few again: every stage, uneven splits tried, the pipeline simulated event by event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.cost.simulate import Pipeline, PipelineSchedule, simulate_steady
from meshwright.cost.step import Priced, StageTimes, price
from meshwright.layout import Layout, Layouts
from meshwright.rules import explicit_layers
from meshwright.rules.split import even_split
from meshwright.search.problem import Problem

__all__ = ["Repriced", "pipeline_of", "reprice", "shortlists", "split_variants", "tidy"]

MOST_OPERATIONS = 200_000
"""Simulated operations per layout beyond which the closed form is kept: a second of work buys less than its error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repriced:
    """One layout, every stage of it."""

    layout: Layout
    time_s: dict[str, float]
    memory_bytes: dict[str, float]
    """Of the fullest stage."""
    peak_memory_bytes: tuple[float, ...]
    pipeline: Literal["event simulation", "closed form", "no pipeline"]

    @property
    def step_s(self) -> float:
        """The sum of the terms."""
        return sum(self.time_s.values())

    @property
    def peak_bytes(self) -> float:
        """Of the fullest stage."""
        return max(self.peak_memory_bytes)


def split_variants(layout: Layout, layers: int) -> list[Layout]:
    """Return the layout itself and, of a pipeline, splits with a layer fewer on the first, the last, and both ends."""
    if layout.pp < 3 or layout.layers_per_stage is not None:
        return [layout]
    base = list(even_split(layers, pp=layout.pp, vpp=layout.vpp))
    found = [layout]
    for ends in ((-1,), (0,), (0, -1)):
        split = list(base)
        for end in ends:
            split[end] -= 1
        for _ in ends:
            lightest = min(range(1, len(split) - 1), key=lambda chunk: (split[chunk], -chunk))
            split[lightest] += 1
        if min(split) >= 1:
            found.append(replace(layout, layers_per_stage=tuple(split)))
    return found


def tidy(layout: Layout) -> Layout:
    """Leave out what follows from the rest: etp where it is tp."""
    return replace(layout, etp=None) if layout.etp == layout.tp else layout


def shortlists(problem: Problem, groups: list[list[Layout]], *, count: int = 2) -> list[list[Layout]]:
    """Return, of each group with its uneven splits, the best `count` by the closed form that fit."""
    setting = problem.setting
    wide = [[v for layout in group for v in split_variants(layout, setting.model.total_layers)] for group in groups]
    rows = Layouts.of(layout for group in wide for layout in group)
    priced = price(rows, model=setting.model, pool=setting.pool, work=setting.work, stack=setting.stack)
    used = priced.peak_used_bytes
    key = used if problem.request.objective == "memory" else priced.step_s
    key = np.where(used > setting.limit_bytes - problem.headroom_bytes, key + key.max(), key)
    ends = np.cumsum([len(group) for group in wide])
    keys = np.split(key, ends[:-1])
    orders = [np.argsort(part, kind="stable")[:count] for part in keys]
    # The closed form's best stays in: an uneven split must beat it in the simulation.
    return [list(dict.fromkeys([group[0], *(wider[i] for i in order)])) for group, wider, order in zip(groups, wide, orders, strict=True)]


def reprice(problem: Problem, layouts: Iterable[Layout]) -> list[Repriced]:
    """Price some layouts with all their stages and simulate their pipelines.

    Formula:  the closed form's terms, with the bubble set so that the pipeline's terms sum to the simulated step
    Units:    seconds, bytes.
    Source:   `cost/simulate.py`.
    Valid:    layouts of one request.
    Checked:  tests/search/test_refine.py
    """
    return [_repriced(problem, tidy(explicit_layers(layout, problem.setting.model))) for layout in layouts]


def _price_one(problem: Problem, layout: Layout) -> Priced:
    setting = problem.setting
    return price(Layouts.of([layout]), model=setting.model, pool=setting.pool, work=setting.work, stack=setting.stack, which="all")


def _repriced(problem: Problem, layout: Layout) -> Repriced:
    priced = _price_one(problem, layout)
    time_s = {term: float(seconds[0]) for term, seconds in priced.time.items()}
    pipeline: Literal["event simulation", "closed form", "no pipeline"] = "no pipeline"
    if layout.pp > 1:
        pipeline = "closed form"
        if 2 * layout.num_microbatches * layout.pp * layout.vpp <= MOST_OPERATIONS:
            time_s, pipeline = _simulated(problem, layout, priced, time_s), "event simulation"
    used = priced.memory.used[0, : layout.pp]
    fullest = int(np.argmax(used))
    return Repriced(
        layout=layout,
        time_s=time_s,
        memory_bytes={term: float(held[0, fullest]) for term, held in priced.memory.terms.items()},
        peak_memory_bytes=tuple(float(size) for size in used),
        pipeline=pipeline,
    )


def _simulated(problem: Problem, layout: Layout, priced: Priced, time_s: dict[str, float]) -> dict[str, float]:
    """Return the terms with the bubble of the simulation."""
    pipeline = _pipeline(problem, layout, priced)
    stage = priced.stage_times
    busy = layout.num_microbatches * float((stage.forward_s + stage.backward_s)[0, : layout.pp].max())
    waiting = max(0.0, simulate_steady(pipeline).step_s - busy)
    messages = min(time_s["pp_comm"], waiting)
    return {**time_s, "bubble": waiting - messages, "pp_comm": messages}


def pipeline_of(problem: Problem, layout: Layout) -> Pipeline:
    """Return the pipeline of one step, for the simulator and for a trace."""
    whole = explicit_layers(layout, problem.setting.model)
    return _pipeline(problem, whole, _price_one(problem, whole))


def _pipeline(problem: Problem, layout: Layout, priced: Priced) -> Pipeline:
    times = _chunk_times(problem, layout, priced.stage_times)
    schedule: PipelineSchedule = "1f1b"
    if layout.schedule != "1f1b":
        schedule = "dualpipev" if layout.schedule == "zero-bubble" and layout.vpp == 2 else layout.schedule
    elif layout.vpp > 1:
        schedule = "interleaved"
    blocking = problem.setting.stack.p2p == "blocking" and schedule in ("1f1b", "gpipe")
    return Pipeline(
        schedule=schedule,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=layout.num_microbatches,
        forward_s=times.forward_s[0].tolist(),
        backward_s=times.backward_s[0].tolist(),
        wgrad_s=np.minimum(times.weight_s, times.backward_s)[0].tolist(),
        link_s=float(np.max(priced.stage_times.p2p_s)),
        p2p="blocking" if blocking else "overlapped",
    )


def _chunk_times(problem: Problem, layout: Layout, stage_times: StageTimes) -> StageTimes:
    """Times of each chunk: those of the stages of a pipeline that is as deep as there are chunks."""
    if layout.vpp == 1:
        return stage_times
    split = layout.layers_per_stage or even_split(problem.setting.model.total_layers, pp=layout.pp, vpp=layout.vpp)
    if len(split) == layout.pp:
        split = tuple(layers // layout.vpp for _ in range(layout.vpp) for layers in split)
    unrolled = replace(layout, pp=layout.pp * layout.vpp, vpp=1, layers_per_stage=split, schedule="1f1b")
    return _price_one(problem, unrolled).stage_times
