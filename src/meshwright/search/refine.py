"""Price the best few again: every stage, uneven splits, the pipeline event by event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.cost.chunks import explicit_chunks
from meshwright.cost.schedules import Pipeline, PipelineSchedule
from meshwright.cost.simulate import steady_step_s
from meshwright.cost.stages import Floats
from meshwright.cost.terms import simulated_bubble_s, simulated_messages_s
from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting, price_in
from meshwright.search.rules.check import explicit_layers
from meshwright.search.rules.software import DEALT, stack_rules
from meshwright.search.rules.split import even_split
from meshwright.values.layout import Layout, Layouts
from meshwright.values.mixed_layout import MixedLayout
from meshwright.values.stack import Stack

__all__ = [
    "Repriced",
    "operations",
    "pipeline_of",
    "reprice",
    "requote",
    "setting_of",
    "shortlists",
    "simulated",
    "split_variants",
    "tidy",
    "too_long",
    "unrolled",
]

MOST_OPERATIONS = 200_000
"""Simulated operations beyond which the closed form stays: a second buys less than its error."""

_WAITING = ("bubble", "pp_comm")
"""Terms that the simulation finds."""
_ONCE_A_STEP = ("dp_comm", "optimizer", "overhead")
"""Terms outside the pipeline; all others are the work of the slowest stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repriced:
    """One layout, every stage of it."""

    layout: Layout
    time_s: dict[str, float]
    memory: dict[str, Floats]
    """Bytes of each stage by term."""
    used: Floats
    """Bytes of each stage."""
    pipeline: Literal["event simulation", "closed form", "no pipeline"]

    @property
    def step_s(self) -> float:
        """The sum of the terms."""
        return sum(self.time_s.values())

    @property
    def fullest(self) -> int:
        """The stage that uses most memory, the earliest of equals."""
        return int(np.argmax(self.used))

    @property
    def memory_bytes(self) -> dict[str, float]:
        """Of the fullest stage, by term."""
        return self.memory_of(self.fullest)

    def memory_of(self, stage: int) -> dict[str, float]:
        """Bytes of a stage by term."""
        return {term: float(held[stage]) for term, held in self.memory.items()}

    @property
    def peak_memory_bytes(self) -> tuple[float, ...]:
        """Of each stage."""
        return tuple(float(size) for size in self.used)

    @property
    def peak_bytes(self) -> float:
        """Of the fullest stage."""
        return max(self.peak_memory_bytes)


def split_variants(layout: Layout, layers: int, *, stack: Stack) -> list[Layout]:
    """Return the layout itself and, of a pipeline whose layers the software deals as it is told,
    splits with a layer fewer on the last, the first, and both ends."""
    if (
        layout.pp < 2
        or layout.layers_per_stage is not None
        or stack_rules(stack).splits not in DEALT
    ):
        return [layout]
    base = even_split(layers, pp=layout.pp, vpp=layout.vpp)
    splits = [_relieved(base, ends) for ends in ((-1,), (0,), (0, -1))]
    return [
        layout,
        *(replace(layout, layers_per_stage=split) for split in splits if split is not None),
    ]


def _relieved(base: tuple[int, ...], ends: tuple[int, ...]) -> tuple[int, ...] | None:
    """Move a layer from each of some end chunks to the lightest others; None where one is empty."""
    split = list(base)
    relieved = {end % len(split) for end in ends}
    others = [chunk for chunk in range(len(split)) if chunk not in relieved]
    if not others or min(split[chunk] for chunk in relieved) < 2:
        return None
    for chunk in relieved:
        split[chunk] -= 1
        split[min(others, key=lambda other: (split[other], -other))] += 1
    return tuple(split)


def tidy(layout: Layout) -> Layout:
    """Leave out what follows from the rest: etp where it is tp."""
    return replace(layout, etp=None) if layout.etp == layout.tp else layout


def shortlists(
    problem: Problem, groups: list[list[Layout]], *, count: int = 2
) -> list[list[Layout]]:
    """Return, of each group and its uneven splits, the best `count` by the closed form that fit."""
    setting = problem.setting
    wide = [
        [
            v
            for layout in group
            for v in split_variants(layout, setting.model.total_layers, stack=setting.stack)
        ]
        for group in groups
    ]
    rows = Layouts.of(layout for group in wide for layout in group)
    priced = price_in(setting, rows)
    used = priced.peak_used_bytes
    key = used if problem.request.objective == "memory" else priced.step_s
    key = np.where(used > setting.limit_bytes - problem.headroom_bytes, key + key.max(), key)
    ends = np.cumsum([len(group) for group in wide])
    keys = np.split(key, ends[:-1])
    orders = [np.argsort(part, kind="stable")[:count] for part in keys]
    # The closed form's best even split stays in: an uneven one must beat it in the simulation.
    kept = [_plainest(group) for group in groups]
    return [
        list(dict.fromkeys([plain, *(wider[i] for i in order)]))
        for plain, wider, order in zip(kept, wide, orders, strict=True)
    ]


def _plainest(group: list[Layout]) -> Layout:
    """The first with an even split; where there is none, the first."""
    return next((layout for layout in group if layout.layers_per_stage is None), group[0])


def reprice(problem: Problem, layouts: Iterable[Layout]) -> list[Repriced]:
    """Price some layouts with all their stages and simulate their pipelines.

    Formula:  the closed form's terms, with the bubble set so that the pipeline's terms sum to the
              simulated step
    Units:    seconds, bytes.
    Source:   `cost/simulate.py`.
    Valid:    layouts of one request.
    Checked:  tests/search/test_refine.py
    """
    rows = [tidy(explicit_layers(layout, problem.setting.model)) for layout in layouts]
    wholes = _whole_prices(problem, rows)
    pipelines = dict(
        zip(
            _simulable(rows),
            _pipelines(problem, [(rows[i], wholes[i]) for i in _simulable(rows)]),
            strict=True,
        )
    )
    return [
        _repriced(layout, whole, pipelines.get(i))
        for i, (layout, whole) in enumerate(zip(rows, wholes, strict=True))
    ]


def setting_of(problem: Problem) -> Setting:
    """Return the problem's setting with the headroom and the rules that its request asks for."""
    return replace(
        problem.setting,
        headroom_bytes=problem.headroom_bytes,
        megatron_version=problem.request.megatron_version,
    )


def requote(closed: Sequence[Quote], problem: Problem) -> list[Quote]:
    """Replace the closed form's time by the simulated one, as a plan's best few are priced; memory
    is the same."""
    found = reprice(problem, [quote.layout for quote in closed])
    return [
        replace(quote, time_s=repriced.time_s, pipeline=repriced.pipeline)
        for quote, repriced in zip(closed, found, strict=True)
    ]


def pipeline_of(problem: Problem, layout: Layout) -> Pipeline:
    """Return the pipeline of one step, for the simulator and for a trace."""
    row = explicit_layers(layout, problem.setting.model)
    [pipeline] = _pipelines(problem, [(row, _whole_prices(problem, [row])[0])])
    return pipeline


@dataclass(frozen=True, kw_only=True, slots=True)
class _Whole:
    """One layout's figures, every stage of it, (S,)."""

    time_s: dict[str, float]
    memory: dict[str, Floats]
    used: Floats
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    p2p_s: float


def _whole_prices(problem: Problem, rows: list[Layout]) -> list[_Whole]:
    """Price all rows at once, and cut each row to its own stages."""
    if not rows:
        return []
    priced = price_in(problem.setting, Layouts.of(rows), which="all")
    used, times = priced.memory.used, priced.stage_times
    p2p_s = np.broadcast_to(times.p2p_s.reshape(len(rows), -1).max(axis=1), (len(rows),))
    return [
        _Whole(
            time_s={
                term: max(0.0, float(seconds[i])) for term, seconds in priced.time.items()
            },  # a difference may round below 0
            memory={term: held[i, : row.pp] for term, held in priced.memory.terms.items()},
            used=used[i, : row.pp],
            forward_s=times.forward_s[i, : row.pp],
            backward_s=times.backward_s[i, : row.pp],
            weight_s=times.weight_s[i, : row.pp],
            p2p_s=float(p2p_s[i]),
        )
        for i, row in enumerate(rows)
    ]


def operations(layout: Layout | MixedLayout) -> int:
    """Return the operations of a step, a forward and a backward of each chunk and micro batch."""
    return 2 * layout.num_microbatches * layout.pp * layout.vpp


def too_long(layout: Layout | MixedLayout) -> bool:
    """Whether a step has too many operations to be simulated."""
    return operations(layout) > MOST_OPERATIONS


def _simulable(rows: list[Layout]) -> list[int]:
    """Numbers of the rows with a pipeline that is not too long to simulate."""
    return [i for i, row in enumerate(rows) if row.pp > 1 and not too_long(row)]


def _repriced(layout: Layout, whole: _Whole, pipeline: Pipeline | None) -> Repriced:
    return Repriced(
        layout=layout,
        time_s=whole.time_s if pipeline is None else simulated(whole.time_s, pipeline),
        memory=whole.memory,
        used=whole.used,
        pipeline=(
            "event simulation" if pipeline else "closed form" if layout.pp > 1 else "no pipeline"
        ),
    )


def simulated(time_s: dict[str, float], pipeline: Pipeline) -> dict[str, float]:
    """Return the terms with the bubble and the messages of the simulation."""
    busy = sum(
        seconds for term, seconds in time_s.items() if term not in (*_WAITING, *_ONCE_A_STEP)
    )
    whole = steady_step_s(pipeline)
    messages = simulated_messages_s(
        simulated_s=whole, busy_s=busy, closed_messages_s=time_s["pp_comm"]
    )
    bubble = simulated_bubble_s(simulated_s=whole, busy_s=busy, messages_s=messages)
    return {**time_s, "bubble": bubble, "pp_comm": messages}


def _pipelines(problem: Problem, rows: list[tuple[Layout, _Whole]]) -> list[Pipeline]:
    """Return the pipelines of layouts; where stages have several chunks, each priced by itself."""
    layers = problem.setting.model.total_layers
    deep = [i for i, (layout, _) in enumerate(rows) if layout.vpp > 1]
    chunks = dict(
        zip(deep, _whole_prices(problem, [unrolled(rows[i][0], layers) for i in deep]), strict=True)
    )
    return [
        _pipeline(problem, layout, whole, chunks.get(i, whole))
        for i, (layout, whole) in enumerate(rows)
    ]


def _pipeline(problem: Problem, layout: Layout, whole: _Whole, chunks: _Whole) -> Pipeline:
    schedule: PipelineSchedule = "1f1b"
    if layout.schedule != "1f1b":
        schedule = (
            "dualpipev" if layout.schedule == "zero-bubble" and layout.vpp == 2 else layout.schedule
        )
    elif layout.vpp > 1:
        schedule = "interleaved"
    blocking = problem.setting.stack.p2p == "blocking" and schedule in ("1f1b", "gpipe")
    return Pipeline(
        schedule=schedule,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=layout.num_microbatches,
        forward_s=chunks.forward_s.tolist(),
        backward_s=chunks.backward_s.tolist(),
        wgrad_s=np.minimum(chunks.weight_s, chunks.backward_s).tolist(),
        link_s=whole.p2p_s,
        p2p="blocking" if blocking else "overlapped",
        group=(
            layout.num_microbatches // max(1, layout.num_microbatches // layout.pp)
            if schedule == "interleaved"
            else None
        ),
    )


def unrolled(layout: Layout, layers: int) -> Layout:
    """A pipeline as deep as a layout has chunks, in model order: its stages take what those chunks
    take. Its schedule is one that runs experts' exchanges beside another micro batch's compute, as
    chunks do and plain 1F1B does not."""
    split = layout.layers_per_stage or even_split(layers, pp=layout.pp, vpp=layout.vpp)
    folded = layout.schedule == "zero-bubble" and layout.vpp == 2
    split = explicit_chunks(split, layout.pp, layout.vpp, folded=folded)
    return replace(
        layout, pp=layout.pp * layout.vpp, vpp=1, layers_per_stage=split, schedule="zero-bubble"
    )
