"""Rules of the pipeline and of the batch that runs through it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.search.rules.rule import Rule, RuleCase, divisors, nearest_multiples, some
from meshwright.search.rules.software import stack_rules, stacks_with_schedule
from meshwright.search.rules.split import even_split, split_words
from meshwright.values.layout import SCHEDULES, SHARDINGS, Layout, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack

__all__ = [
    "BATCH_RULES",
    "PIPELINE_RULES",
    "wants_fill",
    "wants_whole_rounds",
]

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


def _split_fault(layout: Layout, model: ModelSpec) -> str | None:
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
    if any(entry < 1 for entry in between) or min(split) < 0:
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
        entry is None or _split_fault(layouts.row(i), case.model) is None
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


def _keeps_batch(layouts: Layouts, case: RuleCase) -> Any:
    return layouts.gbs % (layouts.mbs * layouts.dp) == 0


def _batch_message(layout: Layout, case: RuleCase) -> str:
    step = layout.mbs * layout.dp
    near = " or ".join(str(v) for v in nearest_multiples(layout.gbs, step))
    words = f"gbs={layout.gbs} is not divisible by mbs * dp = {layout.mbs} * {layout.dp} = {step}"
    fits = divisors(layout.gbs // layout.dp) if layout.gbs % layout.dp == 0 else []
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


def _keeps_torch_fill(layouts: Layouts, case: RuleCase) -> Any:
    return (
        (layouts.pp == 1) | (layouts.num_microbatches >= layouts.pp)
        if wants_fill(case.stack)
        else True
    )


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
    Rule(
        key="stages",
        sentence="every chunk of the pipeline has a layer",
        columns=("pp", "vpp"),
        keeps=lambda layouts, case: (
            layouts.has_split | (layouts.pp * layouts.vpp <= case.model.total_layers)
        ),
        message=_stages_message,
    ),
    Rule(
        key="even_split",
        sentence="without layers_per_stage the layers are divisible by pp * vpp",
        columns=("pp", "vpp", "layers_per_stage"),
        keeps=_keeps_even,
        message=_even_message,
        source="Megatron-LM arguments.py; --pipeline-model-parallel-layout takes any split",
    ),
    Rule(
        key="split",
        sentence="layers_per_stage has an entry per stage or chunk and sums to the model's layers",
        columns=("pp", "vpp", "layers_per_stage"),
        keeps=_keeps_split,
        message=lambda layout, case: _split_fault(layout, case.model) or "",
        source="Megatron-Core pipeline_parallel_layer_layout.py",
    ),
    Rule(
        key="interleaving",
        sentence="interleaving needs a pipeline",
        columns=("pp", "vpp"),
        keeps=lambda layouts, case: (layouts.vpp == 1) | (layouts.pp > 1),
        message=lambda layout, case: (
            f"vpp={layout.vpp} with pp=1: there is no pipeline to interleave; vpp=1, or pp=2 and"
            " more"
        ),
        source="Megatron-Core parallel_state.py",
    ),
    Rule(
        key="two_stacks",
        sentence="encoder-decoder models are not interleaved",
        columns=("vpp",),
        keeps=lambda layouts, case: (
            layouts.vpp == 1 if case.model.family == "encoder-decoder" else True
        ),
        message=lambda layout, case: (
            f"vpp={layout.vpp}: {case.model.name} has an encoder and a decoder, which interleaving"
            " does not take; vpp=1"
        ),
        family="megatron",
        source="Megatron-Core schedules.py (v0.4 to v0.12)",
    ),
    Rule(
        key="schedule",
        sentence="only 1f1b interleaves; zero-bubble has one chunk per stage, or two in a V",
        columns=("schedule", "vpp"),
        keeps=_keeps_schedule,
        message=_schedule_message,
        source="arXiv:2401.10241; DualPipeV",
    ),
    Rule(
        key="no_schedule",
        sentence="a schedule other than 1f1b needs a pipeline",
        columns=("schedule", "pp"),
        keeps=lambda layouts, case: (
            (layouts.schedule == SCHEDULES.index("1f1b")) | (layouts.pp > 1)
        ),
        message=lambda layout, case: (
            f"schedule={layout.schedule} with pp=1: there is no pipeline to schedule;"
            " schedule=1f1b, or pp=2 and more"
        ),
    ),
    Rule(
        key="software_schedule",
        sentence="the training software has this schedule",
        columns=("schedule",),
        keeps=_keeps_software,
        message=_software_message,
        source="software/*/stack.toml",
    ),
)

BATCH_RULES = (
    Rule(
        key="batch",
        sentence="gbs is divisible by mbs * dp",
        columns=("gbs", "mbs", "dp"),
        keeps=_keeps_batch,
        message=_batch_message,
        source="Megatron-Core num_microbatches_calculator.py",
    ),
    Rule(
        key="rounds",
        sentence="interleaving takes micro batches in whole rounds of pp (PyTorch: of pp or more)",
        columns=("gbs", "mbs", "dp", "pp", "vpp", "schedule"),
        keeps=_keeps_rounds,
        message=_rounds_message,
        source=(
            "Megatron-Core schedules.py (to v0.9 always; later unless"
            " --microbatch-group-size-per-virtual-pipeline-stage is set)"
        ),
    ),
    Rule(
        key="fill",
        sentence="a V of two chunks needs 2 * pp micro batches",
        columns=("gbs", "mbs", "dp", "pp", "vpp", "schedule"),
        keeps=_keeps_fill,
        message=lambda layout, case: (
            f"schedule=zero-bubble with vpp=2 needs 2 * pp = {2 * layout.pp} micro batches, but gbs"
            f" / (mbs * dp) = {layout.num_microbatches}; take"
            f" gbs={2 * layout.pp * layout.mbs * layout.dp} or more"
        ),
        source="DualPipeV",
    ),
    Rule(
        key="torch_fill",
        sentence="PyTorch's pipelines need as many micro batches as stages",
        columns=("gbs", "mbs", "dp", "pp"),
        keeps=_keeps_torch_fill,
        message=lambda layout, case: (
            f"pp={layout.pp} needs {layout.pp} micro batches or more, but gbs / (mbs * dp) ="
            f" {layout.num_microbatches}; lower mbs or dp"
        ),
        source="torch.distributed.pipelining.schedules (2.13), Schedule1F1B",
    ),
    Rule(
        key="split_backward",
        sentence=(
            "a zero-bubble schedule of the embedded trainer keeps weights whole between its two"
            " backward halves, and rounds equal"
        ),
        columns=("schedule", "sharding", "vpp", "gbs", "mbs", "dp", "pp"),
        keeps=_keeps_split_backward,
        message=_split_backward_message,
        source="src/meshwright/trainer/checks.py",
    ),
)
