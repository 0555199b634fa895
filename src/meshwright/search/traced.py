"""One step of a plan with everything that a trace of it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.cost.mixed import Site, price_mixed
from meshwright.cost.schedules import Pipeline
from meshwright.cost.stages import Floats, place_stages
from meshwright.cost.step import StagePrices, price_stages
from meshwright.search.mixed.reprice import pipeline_of as mixed_pipeline_of
from meshwright.search.problem import Problem
from meshwright.search.refine import pipeline_of, unrolled
from meshwright.search.rules.check import explicit_layers
from meshwright.values.layout import Layout, Layouts
from meshwright.values.mixed_layout import MixedLayout

__all__ = ["TracedChunk", "TracedStage", "TracedStep", "traced_layout", "traced_mixed"]

COMMUNICATION = {
    "tp_comm": "tensor-parallel communication",
    "cp_comm": "context-parallel communication",
    "ep_comm": "expert exchange",
    "fsdp_comm": "weights gathered, gradients scattered",
}
"""Terms of a pass that are messages, and their names; what hides behind compute is not in them."""
ONCE = {"dp_comm": "exchange between replicas", "optimizer": "optimizer", "overhead": "overhead"}
"""Terms that follow the pipeline, in order; of the exchange what no backward hides."""
PASSING = ("activations", "recompute_workspace", "logits")
"""Terms of memory that come and go with the micro batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedStage:
    """A stage's name, and its memory when it holds most."""

    name: str
    peak_bytes: float
    passing_bytes: float
    """Of it, what comes and goes with the micro batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedChunk:
    """What one micro batch's passes through a chunk of layers are made of."""

    layers: int
    recompute_s: float
    """Of the backward."""
    forward_messages_s: dict[str, float]
    """By name, what of the forward are messages that stop the chips."""
    backward_messages_s: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedStep:
    """One step; chunks in model order."""

    pipeline: Pipeline
    stages: tuple[TracedStage, ...]
    chunks: tuple[TracedChunk, ...]
    once_s: dict[str, float]
    """What follows the pipeline, by name."""


def traced_layout(problem: Problem, layout: Layout, time_s: Mapping[str, float]) -> TracedStep:
    """Return one step of a layout whose terms are `time_s`."""
    row = explicit_layers(layout, problem.setting.model)
    whole = _all_stages(problem, row)
    deep = unrolled(row, problem.setting.model.total_layers)
    chunks = _all_stages(problem, deep) if row.vpp > 1 else whole
    names = [f"{problem.setting.pool.node.chip.name} tp{row.tp}"] * row.pp
    return TracedStep(
        pipeline=pipeline_of(problem, row),
        stages=_stages(names, {term: held[0] for term, held in whole.memory.terms.items()}),
        chunks=_chunks(deep, problem, chunks),
        once_s={name: time_s[term] for term, name in ONCE.items()},
    )


def traced_mixed(layout: MixedLayout, site: Site, time_s: Mapping[str, float]) -> TracedStep:
    """Return one step of a layout over several kinds of chips whose terms are `time_s`."""
    whole = price_mixed(layout, site)
    chunks = price_mixed(layout.unrolled(), site) if layout.vpp > 1 else whole
    return TracedStep(
        pipeline=mixed_pipeline_of(layout, site, price=whole, chunks=chunks),
        stages=_stages([f"{stage.chip} tp{stage.tp}" for stage in layout.stages], whole.memory),
        chunks=_passes(layout.chunk_layers, chunks.forward_work_s, chunks.backward_work_s),
        once_s={name: time_s[term] for term, name in ONCE.items()},
    )


def _all_stages(problem: Problem, row: Layout) -> StagePrices:
    setting, rows = problem.setting, Layouts.of([row])
    stages = place_stages(rows, setting.model, which="all")
    return price_stages(
        rows, stages, model=setting.model, pool=setting.pool, work=setting.work, stack=setting.stack
    )


def _stages(names: Sequence[str], memory: Mapping[str, Floats]) -> tuple[TracedStage, ...]:
    peak, passing = sum(memory.values()), sum(memory[term] for term in PASSING)
    return tuple(
        TracedStage(
            name=f"stage {number}: {name}",
            peak_bytes=float(peak[number]),  # type: ignore[index]
            passing_bytes=float(passing[number]),  # type: ignore[index]
        )
        for number, name in enumerate(names)
    )


def _chunks(deep: Layout, problem: Problem, found: StagePrices) -> tuple[TracedChunk, ...]:
    layers = place_stages(Layouts.of([deep]), problem.setting.model, which="all").layers[0]
    forward, backward = (
        {term: each[0] for term, each in terms.items()}
        for terms in (found.forward_work_s, found.backward_work_s)
    )
    return _passes(layers.tolist(), forward, backward)


def _passes(
    layers: Sequence[int], forward: Mapping[str, Floats], backward: Mapping[str, Floats]
) -> tuple[TracedChunk, ...]:
    def messages(terms: Mapping[str, Floats], chunk: int) -> dict[str, float]:
        return {
            name: float(terms[term][chunk])
            for term, name in COMMUNICATION.items()
            if terms[term][chunk] > 0
        }

    return tuple(
        TracedChunk(
            layers=own,
            recompute_s=float(backward["recompute"][chunk]),
            forward_messages_s=messages(forward, chunk),
            backward_messages_s=messages(backward, chunk),
        )
        for chunk, own in enumerate(layers)
    )
