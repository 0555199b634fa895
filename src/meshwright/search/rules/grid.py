"""Rules of the grid of ranks: chips, heads, widths, sequence, sharding, number formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.search.rules.rule import RuleCase, divisors, nearest_words, rule, some
from meshwright.search.rules.software import stack_rules
from meshwright.values.layout import RECOMPUTES, SHARDINGS, Layout, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import counted

__all__ = ["GRID_RULES"]

_MULTIPLE_OF = {"fp8": 16, "fp8-blockwise": 16, "mxfp8": 32, "nvfp4": 16}
"""Elements of which each dim of a low-precision product is a multiple (Transformer Engine's
assert_dim_for_fp8_exec; MXFP8 scales 32)."""


def _chips_message(layout: Layout, case: RuleCase) -> str:
    split = layout.tp * layout.cp * layout.pp
    words = f"tp={layout.tp} * cp={layout.cp} * pp={layout.pp} = {split}"
    if case.num_chips % split == 0:
        fits = case.num_chips // split
        return (
            f"{words}, * dp={layout.dp} = {layout.num_chips} chips, but the cluster has"
            f" {case.num_chips}; dp={fits} uses them all"
        )
    axes = [
        f"{axis} may be {some(_dividing(case.num_chips, layout, axis))}"
        for axis in ("tp", "cp", "pp")
        if getattr(layout, axis) > 1
    ]
    return (
        f"{words} does not divide {case.num_chips} chips; {'; '.join(axes)}; or take"
        f" {nearest_words(case.num_chips, split)} chips"
    )


def _dividing(num_chips: int, layout: Layout, axis: str) -> list[int]:
    others = layout.tp * layout.cp * layout.pp // getattr(layout, axis)
    return divisors(num_chips // others) if num_chips % others == 0 else divisors(num_chips)


def _has_attention(model: ModelSpec) -> bool:
    return model.hybrid is None or model.hybrid.attention_layers > 0


def _keeps_heads(layouts: Layouts, case: RuleCase) -> Any:
    return not _has_attention(case.model) or case.model.num_heads % layouts.tp == 0


def _keeps_kv_heads(layouts: Layouts, case: RuleCase) -> Any:
    if not _has_attention(case.model) or case.model.mla is not None:
        return True
    heads = case.model.num_kv_heads
    copied = (layouts.tp % heads == 0) if case.copies_kv else np.zeros(len(layouts), dtype=bool)
    return (heads % layouts.tp == 0) | copied


def _kv_heads_message(layout: Layout, case: RuleCase) -> str:
    heads = case.model.num_kv_heads
    since = stack_rules(case.stack).kv_copies_from
    text = (
        f"num_kv_heads={heads} is not divisible by tp={layout.tp}; tp may be"
        f" {some(divisors(heads))}"
    )
    if case.copies_kv:
        return f"{text}, or a multiple of {heads}, where KV heads are copied"
    if since is not None and layout.tp % heads == 0:
        return (
            f"{text}; Megatron-Core {case.megatron_version} refuses it, from 0.16.1 on KV heads are"
            " copied"
        )
    return text


def _has_ffn(model: ModelSpec) -> bool:
    return model.ffn > 0 and (
        model.moe is None or model.moe.first_dense_layers > 0 or model.moe.layer_frequency > 1
    )


def _widths(model: ModelSpec) -> dict[str, int]:
    """Widths that tensor parallelism cuts."""
    widths = {"ffn": model.ffn} if _has_ffn(model) else {}
    if model.moe is not None and model.moe.shared_ffn:
        widths["shared_ffn"] = model.moe.shared_ffn
    if model.mamba is not None:
        widths |= {"mamba heads": model.mamba.num_heads, "mamba groups": model.mamba.num_groups}
    if model.delta is not None:
        widths["delta key heads"] = model.delta.num_key_heads
    return widths


def _keeps_widths(layouts: Layouts, case: RuleCase) -> Any:
    keeps = np.ones(len(layouts), dtype=bool)
    for width in _widths(case.model).values():
        keeps &= width % layouts.tp == 0
    return keeps


def _widths_message(layout: Layout, case: RuleCase) -> str:
    bad = [f"{name}={width}" for name, width in _widths(case.model).items() if width % layout.tp]
    fits = [
        tp
        for tp in divisors(case.model.num_heads)
        if all(width % tp == 0 for width in _widths(case.model).values())
    ]
    return f"{', '.join(bad)} not divisible by tp={layout.tp}; tp may be {some(fits)}"


def _keeps_context(layouts: Layouts, case: RuleCase) -> Any:
    return (layouts.cp == 1) | (case.work.seq_len % (2 * layouts.cp) == 0)


def _context_message(layout: Layout, case: RuleCase) -> str:
    seq, step = case.work.seq_len, 2 * layout.cp
    fits = [1, *[cp for cp in divisors(seq) if cp > 1 and seq % (2 * cp) == 0]]
    return (
        f"seq_len={seq} is not divisible by 2 * cp = {step}; cp may be {some(fits)}, or take"
        f" seq_len={nearest_words(seq, step)}"
    )


def _swapped_heads(model: ModelSpec) -> int:
    return model.num_heads if model.mla is not None else model.num_kv_heads


def _keeps_context_heads(layouts: Layouts, case: RuleCase) -> Any:
    swaps = case.model.refuses_ring or case.work.cp_comm_type == "a2a"
    if not swaps or case.stack.family != "megatron":
        return True
    heads = _swapped_heads(case.model)
    return (layouts.cp == 1) | (heads % (layouts.tp * layouts.cp) == 0)


def _context_heads_message(layout: Layout, case: RuleCase) -> str:
    heads = _swapped_heads(case.model)
    fits = [cp for cp in divisors(heads) if heads % (layout.tp * cp) == 0] or [1]
    asked = case.work.cp_comm_type == "a2a" and not case.model.refuses_ring
    reason = "as cp_comm_type=a2a says" if asked else "as its attention has a window or sinks"
    why = f"cp={layout.cp} swaps tokens for heads, {reason}"
    return (
        f"{why}: {heads} KV heads are not divisible by tp * cp = {layout.tp * layout.cp}; cp may be"
        f" {some(fits)}"
    )


def _keeps_context_mixers(layouts: Layouts, case: RuleCase) -> Any:
    mamba = case.model.mamba
    if case.model.delta is not None:
        return layouts.cp == 1
    if mamba is None or case.stack.family != "megatron":
        return True
    groups = np.maximum(mamba.num_groups // layouts.tp, 1)
    whole = np.maximum(groups, layouts.cp) % np.minimum(groups, layouts.cp) == 0
    return (layouts.cp == 1) | ((mamba.num_heads % (layouts.tp * layouts.cp) == 0) & whole)


def _context_mixers_message(layout: Layout, case: RuleCase) -> str:
    mamba = case.model.mamba
    if mamba is None:
        return (
            f"cp={layout.cp}: delta attention over parts of a sequence is not priced; cp may be 1"
        )
    heads, groups = mamba.num_heads // layout.tp, max(1, mamba.num_groups // layout.tp)
    fits = [cp for cp in divisors(heads) if max(groups, cp) % min(groups, cp) == 0]
    return (
        f"cp={layout.cp} cuts {heads} heads of mixers in {counted(groups, 'group')} a"
        f" tensor-parallel rank; cp may be {some(fits)}"
    )


def _keeps_sequence(layouts: Layouts, case: RuleCase) -> Any:
    return (layouts.sp == 0) | (case.work.seq_len % (layouts.tp * layouts.cp) == 0)


def _sequence_message(layout: Layout, case: RuleCase) -> str:
    step = layout.tp * layout.cp
    return (
        f"sp=1: seq_len={case.work.seq_len} is not divisible by tp * cp = {step}; take"
        f" seq_len={nearest_words(case.work.seq_len, step)}, or sp=0"
    )


def _keeps_sharding(layouts: Layouts, case: RuleCase) -> Any:
    rules = stack_rules(case.stack)
    always = [SHARDINGS.index(s) for s in SHARDINGS if s in rules.shardings]
    alone = [SHARDINGS.index(s) for s in SHARDINGS if s in rules.shardings_without_pp]
    return np.isin(layouts.sharding, always) | (
        np.isin(layouts.sharding, alone) & (layouts.pp == 1)
    )


def _sharding_message(layout: Layout, case: RuleCase) -> str:
    rules = stack_rules(case.stack)
    if layout.sharding in rules.shardings_without_pp:
        words = (
            f"sharding={layout.sharding} with pp={layout.pp}: stack {case.stack.name} has it with"
            " pp=1 only"
        )
        return f"{words}; sharding may be {some(rules.shardings)}"
    fits = [*rules.shardings, *(rules.shardings_without_pp if layout.pp == 1 else ())]
    return (
        f"sharding={layout.sharding}: stack {case.stack.name} does not have it; sharding may be"
        f" {some(fits)}"
    )


def _keeps_shard_size(layouts: Layouts, case: RuleCase) -> Any:
    hybrid = layouts.sharding == SHARDINGS.index("hybrid")
    grouped = np.isin(layouts.sharding, [SHARDINGS.index(name) for name in _grouped(case)])
    whole = layouts.dp * layouts.cp
    fits = (whole % layouts.shard_size == 0) & (layouts.shard_size % layouts.cp == 0)
    return np.where(hybrid | grouped, fits, layouts.shard_size == whole)


def _grouped(case: RuleCase) -> tuple[str, ...]:
    """Shardings whose groups may be smaller than all ranks, beside hybrid."""
    return stack_rules(case.stack).grouped_shardings


def _shard_size_message(layout: Layout, case: RuleCase) -> str:
    whole = layout.dp * layout.cp
    if layout.sharding not in ("hybrid", *_grouped(case)):
        known = " or ".join(("hybrid", *_grouped(case)))
        return (
            f"shard_size={layout.shard_size} with sharding={layout.sharding}: it belongs to"
            f" sharding={known}"
        )
    fits = [layout.cp * groups for groups in divisors(layout.dp)]
    words = (
        "holds no whole context-parallel groups"
        if whole % (layout.shard_size or whole) == 0
        else f"does not divide dp * cp = {whole}"
    )
    return f"shard_size={layout.shard_size} {words}; shard_size may be {some(fits)}"


def _cut_dims(layout_tp: int, model: ModelSpec) -> dict[str, float]:
    dims = {"hidden": float(model.hidden)}
    if _has_attention(model) and model.mla is None:
        dims["num_heads * head_dim / tp"] = model.num_heads * model.head_dim / layout_tp
    if _has_ffn(model):
        dims["ffn / tp"] = model.ffn / layout_tp
    return dims


def _keeps_precision(layouts: Layouts, case: RuleCase) -> Any:
    step = _MULTIPLE_OF.get(case.work.precision)
    if step is None:
        return True
    good = [
        tp
        for tp in np.unique(layouts.tp)
        if all(dim % step == 0 for dim in _cut_dims(int(tp), case.model).values())
    ]
    return np.isin(layouts.tp, good)


def _precision_message(layout: Layout, case: RuleCase) -> str:
    step = _MULTIPLE_OF[case.work.precision]
    bad = [
        f"{name} = {dim:g}" for name, dim in _cut_dims(layout.tp, case.model).items() if dim % step
    ]
    return (
        f"precision={case.work.precision} needs dims that are multiples of {step}:"
        f" {', '.join(bad)}; take a smaller tp or bf16"
    )


def _keeps_compiled(layouts: Layouts, case: RuleCase) -> Any:
    if case.stack.name != "embedded-compiled":
        return True
    return (layouts.recompute != RECOMPUTES.index("selective")) & (layouts.tp == 1)


def _compiled_message(layout: Layout, case: RuleCase) -> str:
    words = f"stack embedded-compiled with tp={layout.tp}, recompute={layout.recompute}"
    return f"{words}: it takes tp=1, and recompute=none or full; stack embedded takes them all"


GRID_RULES = (
    rule("chips", lambda layouts, case: layouts.num_chips == case.num_chips, _chips_message),
    rule(
        "heads",
        _keeps_heads,
        lambda layout, case: (
            f"heads={case.model.num_heads} is not divisible by tp={layout.tp}; tp may be"
            f" {some(divisors(case.model.num_heads))}"
        ),
    ),
    rule("kv_heads", _keeps_kv_heads, _kv_heads_message),
    rule("widths", _keeps_widths, _widths_message),
    rule(
        "sequence_parallel",
        lambda layouts, case: (layouts.sp == 0) | (layouts.tp > 1),
        lambda layout, case: (
            "sp=1 with tp=1: there is no tensor-parallel group to split the sequence over; sp=0, or"
            " tp=2 and more"
        ),
    ),
    rule("context", _keeps_context, _context_message),
    rule("context_heads", _keeps_context_heads, _context_heads_message),
    rule("context_mixers", _keeps_context_mixers, _context_mixers_message),
    rule("sequence", _keeps_sequence, _sequence_message),
    rule("sharding", _keeps_sharding, _sharding_message),
    rule("shard_size", _keeps_shard_size, _shard_size_message),
    rule("precision", _keeps_precision, _precision_message),
    rule("compiled", _keeps_compiled, _compiled_message),
)
