"""Time of one optimizer step and memory of each stage, for columns of layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import message_s
from meshwright.cost.ends import Ends, price_ends
from meshwright.cost.fsdp import fsdp_layer_s, with_gathers
from meshwright.cost.host import hosted_bytes
from meshwright.cost.kept import attention_bytes
from meshwright.cost.layer import LAYER_TERMS, LayerPrice, price_layer, redo_of, sum_terms
from meshwright.cost.memory import Activations, Memory, price_memory, redone_share
from meshwright.cost.offload import exposed_offload_s, offloaded_bytes, on_device_bytes
from meshwright.cost.once import once_terms_s
from meshwright.cost.operators import Site
from meshwright.cost.pipeline import pipeline_s
from meshwright.cost.stages import (
    Floats,
    Stages,
    Which,
    distinct_shapes,
    place_stages,
    segment_layers,
)
from meshwright.cost.terms import head_term_s, imbalance_s, layer_term_s, recompute_term_s
from meshwright.cost.weights import StageParams, layer_params, stage_params
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import RECOMPUTES, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = ["TIME_TERMS", "Priced", "StagePrices", "StageTimes", "price", "price_stages"]

TIME_TERMS = (
    *LAYER_TERMS,
    "recompute",
    "head",
    "fsdp_comm",
    "imbalance",
    "bubble",
    "pp_comm",
    "dp_comm",
    "optimizer",
    "overhead",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """One micro batch on each stage, seconds, (N, S)."""

    forward_s: Floats
    backward_s: Floats
    """Recompute included."""
    weight_s: Floats
    """Of the backward, what a zero-bubble schedule can postpone."""
    p2p_s: Floats
    """One message between neighbouring stages, (N,)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePrices:
    """What stages hold and take, whatever the pipeline makes of it; (N, S)."""

    params: StageParams
    memory: Memory
    times: StageTimes
    message_bytes: Floats
    """What one rank sends to the next stage per micro batch, (N,)."""
    forward_work_s: dict[str, Floats]
    """One micro batch's forward by term; the terms sum to the stage's time."""
    backward_work_s: dict[str, Floats]
    """The same of its backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """Step time by term (N,) and memory by term and stage (N, S)."""

    time: dict[str, Floats]
    memory: Memory
    stages: Stages
    stage_times: StageTimes
    host_bytes: tuple[Floats, Floats]
    """In main memory of the fullest host, and on its drives, (N,) each."""

    @property
    def step_s(self) -> Floats:
        """Seconds per optimizer step: the sum of the terms."""
        return sum_terms(self.time)

    @property
    def peak_used_bytes(self) -> Floats:
        """What the fullest card shows, (N,)."""
        return np.asarray(self.memory.used.max(axis=1), dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layers:
    """Layer and end prices spread to layouts; one entry a segment."""

    forward: tuple[dict[str, Floats], ...]
    backward: tuple[dict[str, Floats], ...]
    forward_s: tuple[Floats, ...]
    backward_s: tuple[Floats, ...]
    weight_s: tuple[Floats, ...]
    redo_s: tuple[Floats, ...]
    fsdp_forward_s: tuple[Floats, ...]
    fsdp_backward_s: tuple[Floats, ...]
    ends: Ends
    activations: Activations


def price(
    layouts: Layouts,
    *,
    model: ModelSpec,
    pool: Pool,
    work: Workload,
    stack: Stack,
    which: Which = "representative",
) -> Priced:
    """Price every layout.

    Formula:  M micro batches on the slowest stage + bubble + pipeline messages + exposed
              data-parallel exchange + optimizer + overhead
    Units:    seconds (N,), bytes (N, S).
    Source:   each term's own function.
    Valid:    layouts that keep the rules of `rules.py`.
    Checked:  tests/cost/test_step.py
    """
    stack = stack.in_precision(work.precision)
    stages = place_stages(layouts, model, which=which)
    layers = _spread_layers(layouts, model=model, pool=pool, work=work, stack=stack)
    params = stage_params(model, stack, layouts, stages)
    memory = price_memory(
        layouts, stages, params, layers.activations, model=model, work=work, stack=stack, pool=pool
    )
    times = _stage_times(layouts, stages, layers, model=model, pool=pool, stack=stack)
    time = _micro_batch_terms(layouts, layers, times, model)
    time |= _pipeline_terms(layouts, stages, layers, times, model, stack)
    fullest = np.argmax(params.total, axis=1)[:, None]
    dense, expert = (
        np.take_along_axis(p, fullest, axis=1)[:, 0] for p in (params.dense, params.expert)
    )
    forward, backward = times.forward_s[:, 0], times.backward_s[:, 0]
    time |= once_terms_s(
        layouts, dense, expert, forward, backward, pool=pool, work=work, stack=stack, model=model
    )
    return Priced(
        time={name: time[name] for name in TIME_TERMS},
        memory=memory,
        stages=stages,
        stage_times=times,
        host_bytes=hosted_bytes(layouts, params, model=model, work=work, stack=stack, pool=pool),
    )


def price_stages(
    layouts: Layouts, stages: Stages, *, model: ModelSpec, pool: Pool, work: Workload, stack: Stack
) -> StagePrices:
    """Price stages of any make: as `price`, for stages that need not be those of one pipeline.

    Formula:  layers, ends and messages as in `price`
    Units:    seconds, bytes, parameters; (N, S).
    Source:   each term's own function.
    Valid:    layouts that keep the rules but for their number of chips; `stages` says layers, place
              and micro batches in flight of each.
    Checked:  tests/cost/test_mixed.py::test_one_kind_costs_what_it_costs_alone
    """
    stack = stack.in_precision(work.precision)
    layers = _spread_layers(layouts, model=model, pool=pool, work=work, stack=stack)
    params = stage_params(model, stack, layouts, stages)
    forward_work_s, backward_work_s = _pass_work_s(layouts, stages, layers, model)
    return StagePrices(
        params=params,
        memory=price_memory(
            layouts,
            stages,
            params,
            layers.activations,
            model=model,
            work=work,
            stack=stack,
            pool=pool,
        ),
        times=_stage_times(layouts, stages, layers, model=model, pool=pool, stack=stack),
        message_bytes=layers.activations.boundary,
        forward_work_s=forward_work_s,
        backward_work_s=backward_work_s,
    )


def _pass_work_s(
    layouts: Layouts, stages: Stages, layers: _Layers, model: ModelSpec
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Forward, and backward, of one micro batch on each stage by term, (N, S).

    Formula:  sum over segments of layers * a layer's seconds of the term; head: embedding on the
              first stage, heads * head on the last; recompute: layers * redone share * redo
    Units:    seconds per micro batch.
    Source:   definition, as `_stage_times`; heads is 1 and one per layer of multi-token prediction.
    """
    counts = segment_layers(model, stages)
    nothing = np.zeros(stages.layers.shape)
    ends, heads = layers.ends, 1 + model.mtp_layers
    found = []
    for terms, fsdp_s, first_s, last_s in (
        (layers.forward, layers.fsdp_forward_s, ends.embedding_forward_s, ends.head_forward_s),
        (layers.backward, layers.fsdp_backward_s, ends.embedding_backward_s, ends.head_backward_s),
    ):
        passed = {
            t: sum((c * each[t][:, None] for c, each in zip(counts, terms, strict=True)), nothing)
            for t in LAYER_TERMS
        }
        passed["fsdp_comm"] = sum(
            (c * each[:, None] for c, each in zip(counts, fsdp_s, strict=True)), nothing
        )
        passed["head"] = stages.first * first_s[:, None] + stages.last * heads * last_s[:, None]
        found.append(passed)
    selective = (layouts.recompute == RECOMPUTES.index("selective"))[:, None]
    share = np.where(selective, 1.0, redone_share(layouts, stages))
    redone = sum(
        (c * share * r[:, None] for c, r in zip(counts, layers.redo_s, strict=True)), nothing
    )
    return {**found[0], "recompute": nothing}, {**found[1], "recompute": redone}


def _spread_layers(
    layouts: Layouts, *, model: ModelSpec, pool: Pool, work: Workload, stack: Stack
) -> _Layers:
    shapes, at = distinct_shapes(layouts)
    site = Site(model=model, work=work, stack=stack, pool=pool, shapes=shapes)
    prices = tuple(price_layer(site, segment) for segment in model.priced_segments)
    ends = price_ends(site)
    redo, freed = zip(*(_redo(layouts, price, at) for price in prices), strict=True)
    forward = tuple({term: value[at] for term, value in p.forward.items()} for p in prices)
    backward = tuple({term: value[at] for term, value in p.backward.items()} for p in prices)
    for i, p in enumerate(prices):
        moved = offloaded_bytes(layouts, p, p.kept_bytes[at] - freed[i], at, stack=stack)
        waits = exposed_offload_s(
            moved, pool.node.chip, forward_s=p.forward_s[at], backward_s=p.backward_s[at] + redo[i]
        )
        forward[i]["offload"], backward[i]["offload"] = waits.forward_s, waits.backward_s
    forward_s, backward_s = (
        tuple(sum_terms(terms) for terms in both) for both in (forward, backward)
    )
    fsdp = tuple(
        fsdp_layer_s(
            layouts,
            layer_params(model, segment, layouts),
            f,
            b + r,
            pool=pool,
            work=work,
            stack=stack,
        )
        for segment, f, b, r in zip(model.priced_segments, forward_s, backward_s, redo, strict=True)
    )
    activations = _activations(layouts, prices, ends, freed, at, stack)
    return _Layers(
        forward=forward,
        backward=backward,
        forward_s=forward_s,
        backward_s=backward_s,
        weight_s=tuple(p.weight_s[at] for p in prices),
        redo_s=redo,
        fsdp_forward_s=tuple(f for f, _ in fsdp),
        fsdp_backward_s=tuple(b for _, b in fsdp),
        ends=with_gathers(
            Ends(**{name: getattr(ends, name)[at] for name in Ends.__slots__}),
            layouts,
            model=model,
            pool=pool,
            work=work,
            stack=stack,
        ),
        activations=activations,
    )


def _activations(
    layouts: Layouts,
    prices: tuple[LayerPrice, ...],
    ends: Ends,
    freed: tuple[Floats, ...],
    at: NDArray[Any],
    stack: Stack,
) -> Activations:
    """What one micro batch leaves on a stage, by segment; `freed` by selective recompute.

    Formula:  after_selective = max(kept - freed, input), less what waits in host memory (that of
              attention in `kept` too); gathered = message * tp under sequence parallelism
    Units:    bytes per layer, rank and micro batch, (N,).
    Source:   Korthikanti et al. (arXiv:2205.05198), sections 4 and 5; offloading as the stack says.
    """
    message = prices[0].input_bytes[at]
    away = [stack.offloads_attention * attention_bytes(price.parts) for price in prices]
    kept = [(price.kept_bytes - hosted)[at] for price, hosted in zip(prices, away, strict=True)]
    return Activations(
        kept=tuple(kept),
        after_selective=tuple(
            on_device_bytes(p, np.maximum(k - f, p.input_bytes[at]), at, stack)
            for p, k, f in zip(prices, kept, freed, strict=True)
        ),
        inputs=tuple(p.input_bytes[at] * (not stack.offloads_inputs) for p in prices),
        widest=tuple(p.widest_bytes[at] for p in prices),
        offloaded_layers=stack.offloaded_layers,
        head_saved=ends.head_saved_bytes[at],
        loss_peak=ends.loss_peak_bytes[at],
        loss_saved=ends.loss_saved_bytes[at],
        boundary=message,
        gathered=np.where(layouts.sp > 0, message * layouts.tp, 0.0),
    )


def _redo(layouts: Layouts, price: LayerPrice, at: NDArray[Any]) -> tuple[Floats, Floats]:
    """Seconds redone and bytes freed per layer, (N,): everything under full recompute, the chosen
    modules' under selective."""
    redo = np.where(layouts.recompute == RECOMPUTES.index("full"), price.redo_s[at], 0.0)
    freed = np.zeros(len(layouts))
    selective = layouts.recompute == RECOMPUTES.index("selective")
    for modules in np.unique(layouts.recompute_modules[selective]):
        rows = selective & (layouts.recompute_modules == modules)
        found = redo_of(price, int(modules))
        redo = np.where(rows, found.redo_s[at], redo)
        freed = np.where(rows, found.freed_bytes[at], freed)
    return redo, freed


def _stage_times(
    layouts: Layouts, stages: Stages, layers: _Layers, *, model: ModelSpec, pool: Pool, stack: Stack
) -> StageTimes:
    """One micro batch on each stage, from its layers and ends, (N, S).

    Formula:  forward = sum over segments of layers * (forward + fsdp forward) + embedding on the
              first stage + heads * head on the last; backward the same + layers * redone share *
              redo; weight of products and head alone
    Units:    seconds per micro batch.
    Source:   definition; heads is 1 and one per layer of multi-token prediction.
    """
    counts = segment_layers(model, stages)
    forward, backward, weight = (np.zeros(stages.layers.shape) for _ in range(3))
    share = redone_share(layouts, stages)
    selective = (layouts.recompute == RECOMPUTES.index("selective"))[:, None]
    for i, count in enumerate(counts):
        redo = np.where(selective, 1.0, share) * layers.redo_s[i][:, None]
        forward += count * (layers.forward_s[i] + layers.fsdp_forward_s[i])[:, None]
        backward += count * ((layers.backward_s[i] + layers.fsdp_backward_s[i])[:, None] + redo)
        weight += count * layers.weight_s[i][:, None]
    ends, heads = layers.ends, 1 + model.mtp_layers
    first, last = stages.first, stages.last
    forward += (
        first * ends.embedding_forward_s[:, None] + last * heads * ends.head_forward_s[:, None]
    )
    backward += (
        first * ends.embedding_backward_s[:, None] + last * heads * ends.head_backward_s[:, None]
    )
    weight += last * heads * ends.head_weight_s[:, None]
    p2p = message_s(layouts, layers.activations.boundary, pool=pool, stack=stack)
    return StageTimes(forward_s=forward, backward_s=backward, weight_s=weight, p2p_s=p2p)


def _micro_batch_terms(
    layouts: Layouts, layers: _Layers, times: StageTimes, model: ModelSpec
) -> dict[str, Floats]:
    """Split M micro batches of the mean stage into terms, and add what the slowest takes beyond it,
    (N,) each."""
    passes = layouts.num_microbatches / layouts.pp
    counts = [segment.num_layers for segment in model.priced_segments]
    forward, backward = (
        [dict(each, fsdp_comm=fsdp_s) for each, fsdp_s in zip(terms_s, fsdp, strict=True)]
        for terms_s, fsdp in (
            (layers.forward, layers.fsdp_forward_s),
            (layers.backward, layers.fsdp_backward_s),
        )
    )
    terms = {
        term: layer_term_s(
            term,
            passes=passes,
            layers=counts,
            forward_s=[each[term] for each in forward],
            backward_s=[each[term] for each in backward],
        )
        for term in (*LAYER_TERMS, "fsdp_comm")
    }
    terms["recompute"] = recompute_term_s(
        passes=passes,
        redone_share=_redone_layers_share(layouts, model),
        layers=counts,
        redo_s=layers.redo_s,
    )
    terms["head"] = head_term_s(
        passes=passes,
        heads=1 + model.mtp_layers,
        **{name: getattr(layers.ends, name) for name in _ENDS_S},
    )
    slowest_s = (times.forward_s + times.backward_s).max(axis=1)
    terms["imbalance"] = imbalance_s(
        num_microbatches=layouts.num_microbatches, slowest_s=slowest_s, mean_s=sum_terms(terms)
    )
    return terms


_ENDS_S = ("embedding_forward_s", "embedding_backward_s", "head_forward_s", "head_backward_s")


def _redone_layers_share(layouts: Layouts, model: ModelSpec) -> Floats:
    """Share of the model's layers that recompute runs again, (N,): all, or the first n of each
    chunk with method block.

    Formula:  min(1, recompute_layers * pp * vpp / layers) with method block, else 1
    Units:    a share.
    Source:   Megatron-LM's `--recompute-method block` and `--recompute-num-layers`.
    """
    block = (
        (layouts.block_recompute > 0)
        & (layouts.recompute_layers >= 0)
        & (layouts.recompute == RECOMPUTES.index("full"))
    )
    return np.where(
        block,
        np.minimum(1.0, layouts.recompute_layers * layouts.pp * layouts.vpp / model.total_layers),
        1.0,
    )


def _pipeline_terms(
    layouts: Layouts,
    stages: Stages,
    layers: _Layers,
    times: StageTimes,
    model: ModelSpec,
    stack: Stack,
) -> dict[str, Floats]:
    """Bubble, and messages that nothing hides, (N,) each."""
    totals = _all_stages_sum(layouts, layers, model)
    kinds = layouts.schedule * 2 + (layouts.vpp > 1)
    bubble, messages = np.empty(len(layouts)), np.empty(len(layouts))
    for kind in np.unique(kinds):
        rows = np.flatnonzero(
            kinds == kind
        )  # one formula at a time: each costs as much as all the rest of a step
        parts = pipeline_s(
            schedule=layouts.schedule[rows],
            pp=layouts.pp[rows],
            vpp=layouts.vpp[rows],
            num_microbatches=layouts.num_microbatches[rows],
            forward_s=times.forward_s[rows],
            backward_s=times.backward_s[rows],
            wgrad_s=times.weight_s[rows],
            forward_sum_s=totals[0][rows],
            backward_sum_s=totals[1][rows],
            wgrad_sum_s=totals[2][rows],
            p2p_s=times.p2p_s[rows],
            p2p=stack.p2p,
            stage=stages.index[rows],
        )
        bubble[rows], messages[rows] = parts.bubble_s, parts.p2p_s
    return {"bubble": bubble, "pp_comm": messages}


def _all_stages_sum(
    layouts: Layouts, layers: _Layers, model: ModelSpec
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and weight-gradient time of one micro batch over all stages, (N,) each.

    Formula:  as `_stage_times`, with all layers of a segment in place of a stage's
    Units:    seconds per micro batch.
    Source:   definition: the sum over the stages.
    """
    forward, backward, weight = (np.zeros(len(layouts)) for _ in range(3))
    share = _redone_layers_share(layouts, model)
    for i, segment in enumerate(model.priced_segments):
        count = segment.num_layers
        forward += count * (layers.forward_s[i] + layers.fsdp_forward_s[i])
        backward += count * (
            layers.backward_s[i] + layers.fsdp_backward_s[i] + share * layers.redo_s[i]
        )
        weight += count * layers.weight_s[i]
    ends, heads = layers.ends, 1 + model.mtp_layers
    forward += ends.embedding_forward_s + heads * ends.head_forward_s
    backward += ends.embedding_backward_s + heads * ends.head_backward_s
    return forward, backward, weight + heads * ends.head_weight_s
