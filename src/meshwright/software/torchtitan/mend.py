"""The few values of a torchtitan TOML that another layout needs."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from typing import Any

from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.mending import fewest, nodes_note, says_layout
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.torchtitan.read import read_titan, titan_matches
from meshwright.software.torchtitan.settings import recompute_mode
from meshwright.software.torchtitan.words import parallelism
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout

__all__ = ["TORCHTITAN_SOURCE", "mended"]

_PARTS = "parallelism.module_fqns_per_model_part"
_FIRST, _LAST = (
    f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last")
)
_EACH = "parallelism.pipeline_parallel_layers_per_stage"


def mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    """Return the TOML with the fewest values changed that make it say a plan's layout."""
    plan = completed(plan)
    layout, layers = plan.layout, plan.model.num_layers

    def same(tried: str) -> bool:
        try:
            read = read_titan(tried)
        except ConfigError:
            return False
        local = tomllib.loads(tried)["training"].get("local_batch_size", 8)
        says = {**read.layout, "gbs": read.work.gbs or local * layout.dp}
        # a pipeline runs a rank's whole share of the batch at once, as it is priced
        whole = layout.pp == 1 or local * layout.dp == layout.gbs
        return whole and says_layout(says, layout, layers=layers)

    text = fewest(text, _ways(found, plan), form="toml", same=same)
    return Mended(text=text, notes=(nodes_note(plan),))


def _ways(found: Imported, plan: TrainingPlan) -> Iterator[dict[str, Any]]:
    """Yield the words of a layout: with the split that torchtitan makes by itself, with an even one
    that it makes, and with every chunk's modules."""
    layout = plan.layout
    words = {f"parallelism.{key}": value for key, value in parallelism(plan, form="toml").items()}
    words["training.local_batch_size"] = layout.mbs if layout.pp == 1 else layout.gbs // layout.dp
    words["training.global_batch_size"] = layout.gbs
    asked = ("recompute", "recompute_layers", "recompute_modules")
    usual = Layout()
    if any(getattr(layout, n) != found.layout.get(n, getattr(usual, n)) for n in asked):
        mode = recompute_mode(plan, name="torchtitan")
        words["activation_checkpoint.mode"] = mode
        if mode == "selective":
            words["activation_checkpoint.selective_ac_option"] = "op"
    parts = words.pop(_PARTS, None)
    if parts is None:
        yield words
        return
    for ends in (1, 0):
        chunks = layout.pp * layout.vpp
        each = math.ceil((plan.model.num_layers + 2 * ends) / chunks)
        cut = {_PARTS: None, _FIRST: ends, _LAST: ends, _EACH: each}
        yield {**words, **cut}
    yield {**words, _PARTS: parts, _EACH: None}


TORCHTITAN_SOURCE = ImportSource(
    name="torchtitan-toml",
    title="torchtitan's TOML",
    matches=titan_matches,
    read=read_titan,
    mend=mended,
    shardings=("zero2", "zero3"),
)
