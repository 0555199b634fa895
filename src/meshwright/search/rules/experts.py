"""Rules of experts and of recomputation."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.search.rules.rule import RuleCase, divisors, rule, some
from meshwright.search.rules.software import stack_rules, stacks_with_axis
from meshwright.search.rules.split import own_split
from meshwright.values.layout import RECOMPUTES, SHARDINGS, Layout, Layouts, module_bits
from meshwright.values.models.spec import ModelSpec

__all__ = ["EXPERT_RULES", "PROGRAM_RULES", "RECOMPUTE_RULES", "usable_modules"]

_FULL, _SELECTIVE = RECOMPUTES.index("full"), RECOMPUTES.index("selective")


def _experts(case: RuleCase) -> int:
    return case.model.moe.num_experts if case.model.moe is not None else 1


def _experts_message(layout: Layout, case: RuleCase) -> str:
    if case.model.moe is None:
        return f"ep={layout.ep}: {case.model.name} has no experts; ep=1"
    return (
        f"num_experts={_experts(case)} is not divisible by ep={layout.ep}; ep may be"
        f" {some(divisors(_experts(case)))}"
    )


def _folding_message(layout: Layout, case: RuleCase) -> str:
    group = layout.tp * layout.cp * layout.dp
    fits = [ep for ep in divisors(_experts(case)) if group % (ep * layout.expert_tp) == 0]
    return (
        f"ep={layout.ep} * etp={layout.expert_tp} = {layout.ep * layout.expert_tp} does not divide"
        f" tp * cp * dp = {group}, the chips that experts share;"
        f" {f'ep may be {some(fits)}' if fits else f'etp may be {some(divisors(group))}'}"
    )


def _expert_width_message(layout: Layout, case: RuleCase) -> str:
    width = case.model.moe.expert_ffn if case.model.moe is not None else 1
    return (
        f"expert_ffn={width} is not divisible by etp={layout.expert_tp}; etp may be"
        f" {some(divisors(width, 64))}"
    )


def usable_modules(model: ModelSpec, modules: tuple[str, ...]) -> list[str]:
    """Return those recompute modules that the model has."""
    has_experts, has_mla = model.moe is not None, model.mla is not None
    has_shared = model.moe is not None and model.moe.shared_ffn > 0
    has_ffn = model.moe is None or model.moe.first_dense_layers > 0 or model.moe.layer_frequency > 1
    present = {
        "mla_up_proj": has_mla,
        "moe": has_experts,
        "moe_act": has_experts,
        "shared_experts": has_shared,
        "mlp": has_ffn,
        "mlp_act": has_ffn,
    }
    return [module for module in modules if present.get(module, True)]


def _keeps_modules(layouts: Layouts, case: RuleCase) -> Any:
    fits = module_bits(usable_modules(case.model, stack_rules(case.stack).recompute_modules))
    bits, selective = layouts.recompute_modules, layouts.recompute == _SELECTIVE
    return np.where(selective, (bits > 0) & (bits & ~fits == 0), bits == 0)


def _modules_message(layout: Layout, case: RuleCase) -> str:
    fits = usable_modules(case.model, stack_rules(case.stack).recompute_modules)
    if layout.recompute != "selective":
        shown = "+".join(layout.recompute_modules)
        return (
            f"recompute_modules={shown} with recompute={layout.recompute}: modules belong to"
            " recompute=selective"
        )
    if not fits:
        return (
            f"recompute=selective: stack {case.stack.name} recomputes every layer or none;"
            " recompute=full or none"
        )
    if not layout.recompute_modules:
        return (
            f"recompute=selective names no module; recompute_modules may be {some(fits)}, joined"
            " by +"
        )
    bad = [module for module in layout.recompute_modules if module not in fits]
    return (
        f"recompute_modules={'+'.join(bad)}: {case.model.name} on stack {case.stack.name} has"
        f" {some(fits)}"
    )


def _chunk_most(layouts: Layouts, case: RuleCase) -> Any:
    """Layers of a layout's largest chunk."""
    most = -(-case.model.total_layers // (layouts.pp * layouts.vpp))
    for row, split in enumerate(layouts.chunk_layers or ()):
        if split is not None:
            most[row] = -(-max(split) // (layouts.vpp[row] if len(split) == layouts.pp[row] else 1))
    return most


def _keeps_recompute_layers(layouts: Layouts, case: RuleCase) -> Any:
    full, block, count = (
        layouts.recompute == _FULL,
        layouts.block_recompute > 0,
        layouts.recompute_layers,
    )
    within = (count <= _chunk_most(layouts, case)) & (count >= np.where(block, 0, 1))
    return (count < 0) | (full & within)


def _recompute_layers_message(layout: Layout, case: RuleCase) -> str:
    if layout.recompute != "full":
        return (
            f"recompute_layers={layout.recompute_layers} with recompute={layout.recompute}: it"
            " belongs to recompute=full"
        )
    most = int(_chunk_most(Layouts.of([layout]), case)[0])
    least = 0 if layout.recompute_method == "block" else 1
    return (
        f"recompute_layers={layout.recompute_layers}: a chunk has {most} layers; expected {least}"
        f" to {most}"
    )


EXPERT_RULES = (
    rule("experts", lambda layouts, case: _experts(case) % layouts.ep == 0, _experts_message),
    rule(
        "expert_tensor",
        lambda layouts, case: case.model.moe is not None or layouts.etp == layouts.tp,
        lambda layout, case: (
            f"etp={layout.expert_tp}: {case.model.name} has no experts; leave etp out"
        ),
    ),
    rule(
        "folding",
        lambda layouts, case: (
            case.model.moe is None
            or (layouts.tp * layouts.cp * layouts.dp) % (layouts.ep * layouts.etp) == 0
        ),
        _folding_message,
    ),
    rule(
        "expert_width",
        lambda layouts, case: (
            case.model.moe is None or case.model.moe.expert_ffn % layouts.etp == 0
        ),
        _expert_width_message,
    ),
    rule(
        "expert_sequence",
        lambda layouts, case: case.model.moe is None or (layouts.tp == 1) | (layouts.sp > 0),
        lambda layout, case: (
            f"tp={layout.tp} with sp=0: {case.model.name} has experts, which need sequence"
            " parallelism; sp=1"
        ),
    ),
)

RECOMPUTE_RULES = (
    rule("recompute_modules", _keeps_modules, _modules_message),
    rule("recompute_layers", _keeps_recompute_layers, _recompute_layers_message),
)


_WITHOUT = {"tp": 1, "sp": 0, "pp": 1, "vpp": 1, "cp": 1, "ep": 1}
"""What an axis is where a software does not have it; etp is tp."""


def _lacking(layouts: Layouts, axis: str) -> Any:
    """Rows that do without the axis."""
    return layouts.etp == layouts.tp if axis == "etp" else getattr(layouts, axis) == _WITHOUT[axis]


def _keeps_axes(layouts: Layouts, case: RuleCase) -> Any:
    has = stack_rules(case.stack).axes
    good = np.ones(len(layouts), dtype=bool)
    for axis in (*_WITHOUT, "etp"):
        if axis not in has:
            good &= _lacking(layouts, axis)
    return good


def _axes_message(layout: Layout, case: RuleCase) -> str:
    has, row = stack_rules(case.stack).axes, Layouts.of([layout])
    axis = next(
        axis for axis in (*_WITHOUT, "etp") if axis not in has and not _lacking(row, axis).all()
    )
    value = int(getattr(layout, axis)) if axis != "etp" else layout.expert_tp
    without = f"etp={layout.tp}" if axis == "etp" else f"{axis}={_WITHOUT[axis]}"
    return (
        f"{axis}={value}: stack {case.stack.name} does not have it, so {without}; stacks with it:"
        f" {some(stacks_with_axis(axis))}"
    )


def _keeps_half(layouts: Layouts, case: RuleCase) -> Any:
    if not stack_rules(case.stack).half_by_sharding or case.work.precision in ("fp32", "tf32"):
        return True
    sharded = (layouts.sharding != SHARDINGS.index("none")) & (layouts.dp * layouts.cp > 1)
    return sharded | ((layouts.tp == 1) & (layouts.pp == 1))


def _half_message(layout: Layout, case: RuleCase) -> str:
    given = (
        f"tp={layout.tp}, pp={layout.pp}, dp={layout.dp}, cp={layout.cp},"
        f" sharding={layout.sharding}"
    )
    words = (
        f"precision={case.work.precision} with {given}: stack {case.stack.name} casts in sharded"
        " data parallelism and would run in fp32"
    )
    return f"{words}; dp=2 with sharding=zero3, or precision=fp32"


def _keeps_cut(layouts: Layouts, case: RuleCase) -> Any:
    if stack_rules(case.stack).splits != "cost":
        return True
    own = {int(pp): own_split(case.model, pp=int(pp)) for pp in np.unique(layouts.pp)}
    given = layouts.chunk_layers or (None,) * len(layouts)
    return np.array(
        [_is_own(own[int(pp)], split, case) for pp, split in zip(layouts.pp, given, strict=True)],
        dtype=bool,
    )


def _is_own(own: tuple[int, ...] | None, split: tuple[int, ...] | None, case: RuleCase) -> bool:
    if own is None:
        return True
    each, rest = divmod(case.model.num_layers, len(own))
    even = None if rest else (each,) * len(own)
    return own == (split or even)


def _cut_message(layout: Layout, case: RuleCase) -> str:
    own = own_split(case.model, pp=layout.pp) or ()
    return (
        f"stack {case.stack.name} cuts by cost, and nothing changes that:"
        f" layers_per_stage={'+'.join(map(str, own))} with pp={layout.pp}"
    )


PROGRAM_RULES = (
    rule("software_axis", _keeps_axes, _axes_message),
    rule("half_precision", _keeps_half, _half_message),
    rule("own_cut", _keeps_cut, _cut_message),
)
