"""Fill what a layout leaves open, by the defaults of the training software."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.errors import ConfigError, LayoutError
from meshwright.layout import Layout
from meshwright.models.spec import ModelSpec
from meshwright.rules._rule import nearest_multiples
from meshwright.rules.experts import usable_modules
from meshwright.rules.software import stack_rules
from meshwright.rules.split import even_split, own_split, split_words
from meshwright.stack import Stack
from meshwright.workload import Workload

__all__ = ["complete_layout", "even_split_words", "explicit_layers"]


def complete_layout(
    fields: dict[str, Any], *, model: ModelSpec, work: Workload, num_chips: int, stack: Stack
) -> Layout:
    """Return the layout of some given fields (see `parse_layout`) with the rest filled in; what is
    given is never changed.

    dp is num_chips / (tp * cp * pp), gbs that of the workload; sp is on with tp > 1; sharding is
    zero1, or zero3 in an FSDP stack; selective recompute takes the stack's first module; layers of
    stages stay open but where the software has a rule of its own.
    """
    given = dict(fields)
    split = int(given.get("tp", 1)) * int(given.get("cp", 1)) * int(given.get("pp", 1))
    if "dp" not in given:
        given["dp"] = _data_parallel(split, given, num_chips)
    if "gbs" not in given:
        if work.gbs is None:
            raise ConfigError("gbs is not given; add gbs=... to the layout, or --gbs")
        given["gbs"] = work.gbs
    elif work.gbs is not None and given["gbs"] != work.gbs:
        raise ConfigError(
            f"gbs={given['gbs']} in the layout and gbs={work.gbs} beside it; give it once"
        )
    given.setdefault("sp", int(given.get("tp", 1)) > 1)
    given.setdefault(
        "sharding",
        "hybrid" if "shard_size" in given else "zero1" if stack.family == "megatron" else "zero3",
    )
    if given.get("recompute") == "selective" and not given.get("recompute_modules"):
        known = usable_modules(model, stack_rules(stack).recompute_modules)
        given["recompute_modules"] = ("ops",) if "ops" in known else tuple(known[:1])
    elif given.get("recompute_modules") and "recompute" not in given:
        given["recompute"] = "selective"
    if stack_rules(stack).splits == "cost" and "layers_per_stage" not in given:
        given["layers_per_stage"] = own_split(model, pp=int(given.get("pp", 1)))
    return Layout(**given)


def _data_parallel(split: int, given: dict[str, Any], num_chips: int) -> int:
    if split < 1 or num_chips % split:
        words = " * ".join(f"{axis}={given.get(axis, 1)}" for axis in ("tp", "cp", "pp"))
        near = " or ".join(map(str, nearest_multiples(num_chips, max(split, 1))))
        raise LayoutError(
            f"{words} = {split} does not divide {num_chips} chips; take {near} chips, or other"
            " sizes"
        )
    return num_chips // split


def explicit_layers(layout: Layout, model: ModelSpec) -> Layout:
    """Return the layout with its uneven split written out; an even one is left alone."""
    if layout.layers_per_stage is not None or model.total_layers % (layout.pp * layout.vpp) == 0:
        return layout
    return replace(
        layout, layers_per_stage=even_split(model.total_layers, pp=layout.pp, vpp=layout.vpp)
    )


def even_split_words(layers: int, *, pp: int, vpp: int) -> str:
    """Say how `layers` are split as evenly as can be, `16 chunks of 3, 16 of 2`."""
    return split_words(even_split(layers, pp=pp, vpp=vpp))
