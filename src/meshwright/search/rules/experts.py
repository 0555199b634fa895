"""Rules of experts and of recomputation."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.search.rules.rule import Rule, RuleCase, divisors, some
from meshwright.search.rules.software import stack_rules, stacks_with_axis
from meshwright.search.rules.split import own_split
from meshwright.values.layout import (
    RECOMPUTE_MODULES,
    RECOMPUTES,
    SHARDINGS,
    Layout,
    Layouts,
    module_bits,
)
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "EXPERT_RULES",
    "PROGRAM_RULES",
    "RECOMPUTE_RULES",
    "usable_modules",
]

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


def _folds(layout: Layout) -> int:
    return layout.tp * layout.cp * layout.dp


def _folding_message(layout: Layout, case: RuleCase) -> str:
    group = _folds(layout)
    fits = [ep for ep in divisors(_experts(case)) if group % (ep * layout.expert_tp) == 0]
    return (
        f"ep={layout.ep} * etp={layout.expert_tp} = {layout.ep * layout.expert_tp} does not divide"
        f" tp * cp * dp = {group}, the chips that experts share;"
        f" {f'ep may be {some(fits)}' if fits else f'etp may be {some(divisors(group))}'}"
    )


def _keeps_expert_width(layouts: Layouts, case: RuleCase) -> Any:
    return True if case.model.moe is None else case.model.moe.expert_ffn % layouts.etp == 0


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
    Rule(
        key="experts",
        sentence="experts are divisible by ep; ep needs experts",
        columns=("ep",),
        keeps=lambda layouts, case: _experts(case) % layouts.ep == 0,
        message=_experts_message,
        source="Megatron-LM arguments.py: num_experts",
    ),
    Rule(
        key="expert_tensor",
        sentence="a model without experts has no etp of its own",
        columns=("tp", "etp"),
        keeps=lambda layouts, case: layouts.etp == layouts.tp if case.model.moe is None else True,
        message=lambda layout, case: (
            f"etp={layout.expert_tp}: {case.model.name} has no experts; leave etp out"
        ),
    ),
    Rule(
        key="folding",
        sentence=(
            "ep * etp divides tp * cp * dp: experts share the chips of a pipeline stage and are no"
            " extra ones"
        ),
        columns=("tp", "cp", "dp", "ep", "etp"),
        keeps=lambda layouts, case: (
            True
            if case.model.moe is None
            else (layouts.tp * layouts.cp * layouts.dp) % (layouts.ep * layouts.etp) == 0
        ),
        message=_folding_message,
        source=(
            "Megatron-Core parallel_state.py: expert_tensor_model_pipeline_parallel_size divides"
            " the world size"
        ),
    ),
    Rule(
        key="expert_width",
        sentence="the experts' width is divisible by etp",
        columns=("etp",),
        keeps=_keeps_expert_width,
        message=_expert_width_message,
        source="Megatron-Core tensor_parallel/layers.py",
    ),
    Rule(
        key="expert_sequence",
        sentence="experts with tensor parallelism need sequence parallelism",
        columns=("tp", "sp"),
        keeps=lambda layouts, case: (
            True if case.model.moe is None else (layouts.tp == 1) | (layouts.sp > 0)
        ),
        message=lambda layout, case: (
            f"tp={layout.tp} with sp=0: {case.model.name} has experts, which need sequence"
            " parallelism; sp=1"
        ),
        family="megatron",
        source="Megatron-Core moe_layer.py: MoELayer.forward",
    ),
)

RECOMPUTE_RULES = (
    Rule(
        key="recompute_modules",
        sentence="selective recompute names modules that the software and the model have",
        columns=("recompute", "recompute_modules"),
        keeps=_keeps_modules,
        message=_modules_message,
        source=(
            f"Megatron-Core transformer_config.py: recompute_modules; {len(RECOMPUTE_MODULES)}"
            " names known"
        ),
    ),
    Rule(
        key="recompute_layers",
        sentence="recompute_layers belongs to full recompute and is no more than a chunk's layers",
        columns=(
            "recompute",
            "recompute_method",
            "recompute_layers",
            "pp",
            "vpp",
            "layers_per_stage",
        ),
        keeps=_keeps_recompute_layers,
        message=_recompute_layers_message,
        source="Megatron-Core recompute.py",
    ),
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
    return min(own[:-1]) > 0 and own == (split or even)


def _cut_message(layout: Layout, case: RuleCase) -> str:
    own = own_split(case.model, pp=layout.pp) or ()
    if min(own[:-1]) < 1:
        return (
            f"pp={layout.pp}: stack {case.stack.name} cuts by cost and would leave a stage without"
            f" layers; pp={max(1, layout.pp // 2)}"
        )
    return (
        f"stack {case.stack.name} cuts by cost, and nothing changes that:"
        f" layers_per_stage={'+'.join(map(str, own))} with pp={layout.pp}"
    )


PROGRAM_RULES = (
    Rule(
        key="software_axis",
        sentence="the training software has these kinds of parallelism",
        columns=("tp", "sp", "pp", "vpp", "cp", "ep", "etp"),
        keeps=_keeps_axes,
        message=_axes_message,
        source="software/*/stack.toml",
    ),
    Rule(
        key="half_precision",
        sentence="software that casts in sharded data parallelism has two ranks to shard over",
        columns=("tp", "pp", "dp", "cp", "sharding"),
        keeps=_keeps_half,
        message=_half_message,
        source="torchtitan config/configs.py: mixed_precision_param",
    ),
    Rule(
        key="own_cut",
        sentence="stages have the layers that the training software gives them",
        columns=("pp", "layers_per_stage"),
        keeps=_keeps_cut,
        message=_cut_message,
        source="nanotron models/base.py build_model (2411b022)",
    ),
)
