"""Rules of the pipeline and of the batch that runs through it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.search.rules.rule import (
    RuleCase,
    divisors,
    nearest_multiples,
    nearest_words,
    rule,
    some,
)
from meshwright.search.rules.software import stack_rules, stacks_with_schedule
from meshwright.search.rules.split import even_split, split_words
from meshwright.values.layout import SCHEDULES, SHARDINGS, Layout, Layouts
from meshwright.values.stack import Stack

__all__ = ["BATCH_RULES", "PIPELINE_RULES", "wants_fill", "wants_whole_rounds"]

_EMBEDDED = ("embedded", "embedded-compiled")
_TORCH = ("fsdp", "torchtitan", "kempnerforge", "nemo-automodel", *_EMBEDDED)
"""Stacks whose pipelines are `torch.distributed.pipelining`."""
_ZERO_BUBBLE, _GPIPE = SCHEDULES.index("zero-bubble"), SCHEDULES.index("gpipe")


def _stages_message(layout: Layout, case: RuleCase) -> str:
    layers = case.model.total_layers
    chunks = layout.pp * layout.vpp
    return (
        f"pp={layout.pp} * vpp={layout.vpp} = {chunks} chunks for {layers} layers; at most {layers}"
        " chunks have a layer each"
    )


def _keeps_even(layouts: Layouts, case: RuleCase) -> Any:
    chunks = layouts.pp * layouts.vpp
    return (
        layouts.has_split
        | (case.model.total_layers % chunks == 0)
        | (chunks > case.model.total_layers)
    )


def _even_message(layout: Layout, case: RuleCase) -> str:
    layers, chunks = case.model.total_layers, layout.pp * layout.vpp
    fits = [v for v in range(1, layers // layout.pp + 1) if layers % (layout.pp * v) == 0]
    also = (
        f", or take vpp={some(fits)}"
        if fits
        else f"; pp may be {some(divisors(layers))} for an even split"
    )
    split = even_split(layers, pp=layout.pp, vpp=layout.vpp)
    words = (
        f"{layers} layers do not split evenly over pp={layout.pp} * vpp={layout.vpp} = {chunks}"
        " chunks"
    )
    offered = f"{split_words(split)}: layers_per_stage={'+'.join(map(str, split))}"
    return (
        f"{words} ({layers // chunks * chunks} would be trained); the uneven split that works is"
        f" {offered}{also}"
    )


def _split_fault(layout: Layout, case: RuleCase) -> str | None:
    model = case.model
    split, layers = layout.layers_per_stage or (), model.total_layers
    shown = "+".join(map(str, split))
    if len(split) not in (layout.pp, layout.pp * layout.vpp):
        wanted = f"pp={layout.pp}" + (
            f" or pp * vpp = {layout.pp * layout.vpp}" if layout.vpp > 1 else ""
        )
        return f"layers_per_stage={shown} has {len(split)} entries; expected {wanted}"
    if sum(split) != layers:
        return f"layers_per_stage={shown} sums to {sum(split)}; the model has {layers} layers"
    between = (
        split[1:-2]
        if model.mtp_layers and split[-1] == 0 and len(split) == layout.pp * layout.vpp
        else split[1:-1]
    )
    by_cost = stack_rules(case.stack).splits == "cost"
    if (any(entry < 1 for entry in between) and not by_cost) or min(split) < 0:
        also = (
            ", and the last two, of which one then holds multi-token prediction alone"
            if model.mtp_layers
            else ""
        )
        return (
            f"layers_per_stage={shown}: every entry is 1 or more, but for the first and the last,"
            f" which may be 0{also}"
        )
    if len(split) == layout.pp and any(entry % layout.vpp for entry in split):
        words = f"with vpp={layout.vpp} each stage's layers are divisible by it"
        return f"layers_per_stage={shown}: {words}; or give all {layout.pp * layout.vpp} chunks"
    return None


def _keeps_split(layouts: Layouts, case: RuleCase) -> Any:
    if layouts.chunk_layers is None:
        return True
    rows = [
        entry is None or _split_fault(layouts.row(i), case) is None
        for i, entry in enumerate(layouts.chunk_layers)
    ]
    return np.array(rows, dtype=bool)


def _keeps_schedule(layouts: Layouts, case: RuleCase) -> Any:
    fold = (layouts.schedule == _ZERO_BUBBLE) & (layouts.vpp > 2)
    return ~fold & ~((layouts.schedule == _GPIPE) & (layouts.vpp > 1))


def _schedule_message(layout: Layout, case: RuleCase) -> str:
    most = {"gpipe": "vpp=1", "zero-bubble": "vpp=1, or vpp=2 (a V)"}[layout.schedule]
    return (
        f"schedule={layout.schedule} with vpp={layout.vpp}: it has {most}; interleaving belongs to"
        " schedule=1f1b"
    )


def _keeps_software(layouts: Layouts, case: RuleCase) -> Any:
    return np.isin(
        layouts.schedule, [SCHEDULES.index(name) for name in stack_rules(case.stack).schedules]
    )


def _software_message(layout: Layout, case: RuleCase) -> str:
    has, others = stack_rules(case.stack).schedules, stacks_with_schedule(layout.schedule)
    return (
        f"schedule={layout.schedule}: stack {case.stack.name} has {some(has)}; stacks with it:"
        f" {some(others)}"
    )


def _batch_message(layout: Layout, case: RuleCase) -> str:
    step = layout.mbs * layout.dp
    words = f"gbs={layout.gbs} is not divisible by mbs * dp = {layout.mbs} * {layout.dp} = {step}"
    fits = divisors(layout.gbs // layout.dp) if layout.gbs % layout.dp == 0 else []
    near = nearest_words(layout.gbs, step)
    return f"{words}; nearest that work: gbs={near}{f', or mbs={some(fits)}' if fits else ''}"


def _per_round(layouts: Layouts) -> Any:
    """Rounds of micro batches that interleaving makes in PyTorch."""
    return np.maximum(1, layouts.num_microbatches // layouts.pp)


def wants_whole_rounds(stack: Stack) -> bool:
    """Return whether interleaving takes micro batches in rounds of as many as there are stages."""
    return stack.family == "megatron" or stack.name in _EMBEDDED


def wants_fill(stack: Stack) -> bool:
    """Return whether a pipeline needs as many micro batches as stages."""
    return stack.name in _TORCH


def _keeps_rounds(layouts: Layouts, case: RuleCase) -> Any:
    step = layouts.pp if wants_whole_rounds(case.stack) else _per_round(layouts)
    whole = (layouts.num_microbatches % step == 0) & (layouts.num_microbatches >= layouts.pp)
    return (layouts.vpp == 1) | (layouts.schedule != SCHEDULES.index("1f1b")) | whole


def _rounds_message(layout: Layout, case: RuleCase) -> str:
    unit, count = layout.mbs * layout.dp, layout.num_microbatches
    near = [v * unit for v in nearest_multiples(count, layout.pp) if v != count]
    return (
        f"vpp={layout.vpp} needs micro batches in rounds of pp={layout.pp}, but gbs / (mbs * dp) ="
        f" {layout.gbs} / {unit} = {count}; nearest that work: gbs={' or '.join(map(str, near))},"
        " or vpp=1"
    )


def _keeps_fill(layouts: Layouts, case: RuleCase) -> Any:
    folded = (layouts.schedule == _ZERO_BUBBLE) & (layouts.vpp == 2)
    return ~folded | (layouts.num_microbatches >= 2 * layouts.pp)


def _keeps_split_backward(layouts: Layouts, case: RuleCase) -> Any:
    if case.stack.name not in _EMBEDDED:
        return True
    kept = np.isin(layouts.sharding, [SHARDINGS.index(name) for name in ("none", "zero1")])
    whole = (layouts.vpp > 1) | (layouts.num_microbatches % _per_round(layouts) == 0)
    return (layouts.schedule != _ZERO_BUBBLE) | (kept & whole)


def _split_backward_message(layout: Layout, case: RuleCase) -> str:
    if layout.sharding not in ("none", "zero1"):
        return (
            f"schedule=zero-bubble with sharding={layout.sharding}: torch's backward for weights"
            " alone runs after sharding dropped them; sharding=zero1 keeps them"
        )
    rounds = max(1, layout.num_microbatches // layout.pp)
    return (
        f"schedule=zero-bubble: torch's runs micro batches in {layout.num_microbatches} // pp ="
        f" {rounds} equal rounds, which {layout.num_microbatches} do not make; a multiple of"
        f" pp={layout.pp} does"
    )


PIPELINE_RULES = (
    rule(
        "stages",
        lambda layouts, case: (
            layouts.has_split | (layouts.pp * layouts.vpp <= case.model.total_layers)
        ),
        _stages_message,
    ),
    rule("even_split", _keeps_even, _even_message),
    rule("split", _keeps_split, lambda layout, case: _split_fault(layout, case) or ""),
    rule(
        "interleaving",
        lambda layouts, case: (layouts.vpp == 1) | (layouts.pp > 1),
        lambda layout, case: (
            f"vpp={layout.vpp} with pp=1: there is no pipeline to interleave; vpp=1, or pp=2 and"
            " more"
        ),
    ),
    rule(
        "two_stacks",
        lambda layouts, case: case.model.family != "encoder-decoder" or layouts.vpp == 1,
        lambda layout, case: (
            f"vpp={layout.vpp}: {case.model.name} has an encoder and a decoder, which interleaving"
            " does not take; vpp=1"
        ),
    ),
    rule("schedule", _keeps_schedule, _schedule_message),
    rule(
        "no_schedule",
        lambda layouts, case: (layouts.schedule == SCHEDULES.index("1f1b")) | (layouts.pp > 1),
        lambda layout, case: (
            f"schedule={layout.schedule} with pp=1: there is no pipeline to schedule;"
            " schedule=1f1b, or pp=2 and more"
        ),
    ),
    rule("software_schedule", _keeps_software, _software_message),
)

BATCH_RULES = (
    rule(
        "batch", lambda layouts, case: layouts.gbs % (layouts.mbs * layouts.dp) == 0, _batch_message
    ),
    rule("rounds", _keeps_rounds, _rounds_message),
    rule(
        "fill",
        _keeps_fill,
        lambda layout, case: (
            f"schedule=zero-bubble with vpp=2 needs 2 * pp = {2 * layout.pp} micro batches, but gbs"
            f" / (mbs * dp) = {layout.num_microbatches}; take"
            f" gbs={2 * layout.pp * layout.mbs * layout.dp} or more"
        ),
    ),
    rule(
        "torch_fill",
        lambda layouts, case: (
            not wants_fill(case.stack)
            or (layouts.pp == 1) | (layouts.num_microbatches >= layouts.pp)
        ),
        lambda layout, case: (
            f"pp={layout.pp} needs {layout.pp} micro batches or more, but gbs / (mbs * dp) ="
            f" {layout.num_microbatches}; lower mbs or dp"
        ),
    ),
    rule("split_backward", _keeps_split_backward, _split_backward_message),
)
