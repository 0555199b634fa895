"""Plans that the search found, priced stage by stage and simulated event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from meshwright.cost.mixed import MixedPrice, Site, price_each, price_mixed
from meshwright.cost.schedules import Pipeline, PipelineSchedule
from meshwright.search.mixed.blocks import Block, Case, Chosen, Solved
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.refine import simulated, too_long
from meshwright.values.layout import RECOMPUTE_MODULES, RECOMPUTES
from meshwright.values.mixed_layout import MixedLayout, StageLayout

__all__ = [
    "SAME",
    "Found",
    "Outcome",
    "Repriced",
    "layout_of",
    "mixed_pipeline",
    "pipeline_of",
    "reprice_mixed",
]

SAME = 1e-9
"""Relative difference below which two plans are equally good."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One plan by the closed form."""

    score: float
    """Smaller is better, see Score."""
    step_s: float
    common: int
    cuts: tuple[tuple[int, int], ...]
    """Pool and option of each block."""
    blocks: tuple[Block, ...]
    case: Case
    solved: Solved

    @property
    def stages(self) -> tuple[object, ...]:
        """What tells plans apart: cuts, chunks, and layers and recomputation of each stage."""
        return (
            self.cuts,
            self.case.vpp,
            tuple((stage.layers, stage.way, stage.redone) for stage in self.solved.stages),
        )

    @property
    def choice(self) -> tuple[object, ...]:
        """What makes plans different ones: cuts, stages of each, and chunks.

        The order of the stages, their layers and what they recompute follow as the best of these.
        """
        counts = Counter[tuple[int, int]]()
        for cut, block in zip(self.cuts, self.blocks, strict=True):
            counts[cut] += block.stages
        return (*sorted((*cut, count) for cut, count in counts.items()), self.case.vpp)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search brought."""

    best: tuple[Found, ...]
    """Best first, one of each choice (`Found.choice`), plain and interleaved."""
    orders: tuple[Found, ...] = ()
    """Best first, one of each order of cuts, plain and interleaved."""
    near: tuple[Found, ...] = ()
    """Interleaved plans that the closed form takes for nearly as good, and the simulation for
    better than others; best first."""
    bound: float
    """No plan of the space scores less."""
    later_bound: float
    """No plan of another choice than those before it in `best` scores less, but for the first."""
    ways: int
    """Ways to cut, of which each stands for all its stages, orders and layers."""
    boxes: int
    solved: int

    @property
    def gap(self) -> float:
        """How much better than the best found a plan might be, as a share of it; 0: none can."""
        if not self.best:
            return 0.0
        left = 1.0 - self.bound / self.best[0].score
        return left if left > SAME else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Repriced:
    """One plan, every stage of it."""

    layout: MixedLayout
    price: MixedPrice
    chunks: MixedPrice
    """Each chunk of interleaved stages by itself; else the same."""
    time_s: dict[str, float]
    """By term, the pipeline as simulated."""
    pipeline: str
    """How the pipeline was priced."""

    @property
    def step_s(self) -> float:
        """The sum of the terms."""
        return sum(self.time_s.values())


def layout_of(found: Found, problem: MixedProblem, grid: Grid) -> MixedLayout:
    """Return what the search found as a layout."""
    stages: list[StageLayout] = []
    chosen = iter(found.solved.stages)
    for (pool, option), block in zip(found.cuts, found.blocks, strict=True):
        row = grid.options[pool].layouts.row(option)
        chip = problem.cluster.pools[pool].node.chip.name
        stages += [
            StageLayout(
                pool=pool,
                chip=chip,
                layers=stage.layers,
                tp=row.tp,
                sp=row.sp,
                dp=row.dp,
                mbs=row.mbs,
                **_recompute(block, stage),
            )
            for stage in islice(chosen, block.stages)
        ]
    row = grid.options[found.cuts[0][0]].layouts.row(found.cuts[0][1])
    follows = {
        grid.options[pool].layouts.row(option).expert_tp
        == grid.options[pool].layouts.row(option).tp
        for pool, option in found.cuts
    }
    return MixedLayout(
        stages=tuple(stages),
        gbs=row.gbs,
        cp=row.cp,
        ep=row.ep,
        etp=None if follows == {True} else row.etp,
        vpp=found.case.vpp,
        sharding=row.sharding,
    )


def _recompute(block: Block, stage: Chosen) -> dict[str, Any]:
    """How a stage recomputes, as fields of StageLayout."""
    way = block.curve.ways[stage.way]
    kind = RECOMPUTES[way.kind]
    modules = tuple(
        module for bit, module in enumerate(RECOMPUTE_MODULES) if way.modules >> bit & 1
    )
    if way.block:
        return {"recompute": kind, "recompute_method": "block", "recompute_layers": stage.redone}
    return {"recompute": kind, "recompute_modules": modules}


def reprice_mixed(layouts: Sequence[MixedLayout], site: Site) -> list[Repriced]:
    """Price plans with all their stages and simulate their pipelines.

    Formula:  the closed form's terms, with the bubble set so that the pipeline's terms sum to the
              simulated step
    Units:    seconds, bytes.
    Source:   `cost/mixed.py`, `cost/simulate.py`.
    Valid:    plans of one request.
    Checked:  tests/search/test_mixed.py
    """
    short = [layout.pp > 1 and not too_long(layout) for layout in layouts]
    deep = [
        layout
        for layout, is_short in zip(layouts, short, strict=True)
        if is_short and layout.vpp > 1
    ]
    prices = price_each([*layouts, *(layout.unrolled() for layout in deep)], site)
    chunks = iter(prices[len(layouts) :])
    found = []
    for layout, price, is_short in zip(layouts, prices, short, strict=False):
        if not is_short:
            how = "no pipeline" if layout.pp == 1 else "closed form"
            found.append(
                Repriced(layout=layout, price=price, chunks=price, time_s=price.time, pipeline=how)
            )
            continue
        of_chunks = next(chunks) if layout.vpp > 1 else price
        time_s = simulated(price.time, pipeline_of(layout, site, price=price, chunks=of_chunks))
        found.append(
            Repriced(
                layout=layout,
                price=price,
                chunks=of_chunks,
                time_s=time_s,
                pipeline="event simulation",
            )
        )
    return found


def mixed_pipeline(layout: MixedLayout, site: Site) -> Pipeline:
    """Return the pipeline of one step, for a trace."""
    price = price_mixed(layout, site)
    return pipeline_of(
        layout,
        site,
        price=price,
        chunks=price_mixed(layout.unrolled(), site) if layout.vpp > 1 else price,
    )


def pipeline_of(
    layout: MixedLayout, site: Site, *, price: MixedPrice, chunks: MixedPrice
) -> Pipeline:
    """Return the pipeline of one step, for the simulator, by its stages' and chunks' prices."""
    schedule: PipelineSchedule = "interleaved" if layout.vpp > 1 else "1f1b"
    blocking = site.stack.p2p == "blocking" and layout.vpp == 1
    rounds = max(1, layout.num_microbatches // layout.pp)
    return Pipeline(
        schedule=schedule,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=layout.num_microbatches,
        forward_s=chunks.forward_s.tolist(),
        backward_s=chunks.backward_s.tolist(),
        link_s=price.links_s.tolist(),
        p2p="blocking" if blocking else "overlapped",
        group=layout.num_microbatches // rounds if layout.vpp > 1 else None,
    )
