"""What a run that runs does otherwise than assumed, where its layout does not fit by our count."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from meshwright.cost.kernels import element_bytes
from meshwright.search.oom import Fix, Rung, edit, fixes, rungs_of, stack_edit
from meshwright.search.problem import Asked
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.search.refine import setting_of
from meshwright.search.result import layout_dict
from meshwright.trust.untold import Apart
from meshwright.values.layout import Layout
from meshwright.values.units import GIB

__all__ = ["Ran", "apart_of", "as_ran", "left_open", "ran_words", "what_fits"]

_BY_LADDER = ("gradients", "attention", "selective", "full")
"""Fixes of `why-oom` that a layout leaves open unless it names them."""


def left_open(layout: Layout, setting: Setting, *, told: Collection[str] = ()) -> Iterator[Fix]:
    """Yield what a layout does not tell and software may do otherwise, the least unusual first.

    Gradients, moments and weights in narrower formats and optimizer states on the host are settings
    of software (Megatron-Core's grad_reduce_in_fp32, exp_avg_dtype, fp8_param_gather and
    optimizer_cpu_offload) that no layout has; sharding and recompute are open where it has none and
    no field of them is among the `told` ones.
    """
    stack, half = setting.stack, setting.work.precision not in ("fp32", "tf32")
    ladder = [fix for fix in fixes(layout, setting) if fix.kind in _BY_LADDER]
    fused = setting.pool.node.chip.has_flash_attention and "attention" not in told
    yield from (
        fix for fix in ladder if fix.kind == "gradients" or (fix.kind == "attention" and fused)
    )
    cut = {"sharding", "shard_size"}.intersection(told)
    if layout.sharding == "none" and layout.dp * layout.cp > 1 and not cut:
        yield Fix(kind="sharding", words="sharding zero1", apply=edit(sharding="zero1"))
    if half and stack.moment_bytes > 4.0:
        yield Fix(
            kind="optimizer",
            words="Adam's moments in 2 bytes each",
            apply=stack_edit(moment_bytes=4.0),
        )
    if stack.narrow_weight_copies and element_bytes(setting.work.precision) <= 1.0:
        yield Fix(
            kind="weights",
            words="weights gathered in 8 bits, without casts that stay",
            apply=stack_edit(narrow_weight_copies=0.0),
        )
    if layout.recompute == "none" and not any(name.startswith("recompute") for name in told):
        yield from (fix for fix in ladder if fix.kind in ("selective", "full"))
    yield Fix(
        kind="optimizer",
        words="optimizer states in host memory",
        apply=stack_edit(master_bytes=0.0, moment_bytes=0.0, step_bytes=0.0),
    )


def what_fits(quote: Quote, setting: Setting, *, told: Collection[str] = ()) -> Rung | None:
    """Return the first of what a layout leaves open that makes it fit; else as many as it takes, of
    recompute the last alone; None where all of them do not."""
    alone = list(left_open(quote.layout, setting, told=told))
    single = rungs_of([(fix,) for fix in alone], quote, setting)
    found = next((rung for rung in single if rung.quote.verdict != "no"), None)
    if found is not None:
        return found
    last_of_kind = {fix.kind: fix for fix in alone if fix.kind != "selective"}
    growing = accumulate(((fix,) for fix in last_of_kind.values()), lambda a, b: (*a, *b))
    together = rungs_of(list(growing), quote, setting)
    return next((rung for rung in together if rung.quote.verdict != "no"), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A layout that ran, as it is taken to have run."""

    asked: Asked
    told: Quote
    """As told."""
    rung: Rung | None = None
    """What it must have done otherwise; None where it fits as told, or nothing makes it fit."""

    @property
    def words(self) -> str:
        """Say for people what was taken and why; nothing of a layout that fits as told."""
        if self.told.verdict == "no" and self.rung is None:
            return _lost_words(self.told, "as it ran")
        if self.rung is None:
            return ""
        return (
            f"It ran: as told it would need {_needs(self.told)} by our count; with"
            f" {self.rung.words}, not told, it needs {self.rung.quote.peak_bytes / GIB:.1f} GiB,"
            " and is answered so."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what `--ran` adds to `--json`."""
        rung = self.rung
        return {
            "as_told_gib": self.told.peak_bytes / GIB,
            "as_told_layout": layout_dict(self.told.layout),
            "as_told_step_s": self.told.step_s,
            "taken": [] if rung is None else [fix.words for fix in rung.fixes],
            "words": self.words,
        }


def as_ran(asked: Asked) -> Ran:
    """Return a layout that ran as it must have run by our count: as told where it fits, else with
    the first of what was not told that makes it fit, and wider intervals."""
    setting = setting_of(asked.problem)
    quote = quotes([asked.layout], setting)[0]
    rung = what_fits(quote, setting, told=asked.told) if quote.verdict == "no" else None
    if rung is None:
        return Ran(asked=asked, told=quote)
    taken = replace(
        asked.problem.setting,
        stack=rung.setting.stack,
        work=rung.setting.work,
        apart=apart_of(rung),
    )
    problem = replace(asked.problem, setting=taken)
    return Ran(asked=replace(asked, layout=rung.layout, problem=problem), told=quote, rung=rung)


def apart_of(rung: Rung) -> Apart:
    """Return how far the answer with a fix is from that without."""
    return Apart(
        step_time=abs(math.log(rung.quote.step_s / rung.base.step_s)),
        peak_memory=abs(math.log(rung.quote.peak_bytes / rung.base.peak_bytes)),
    )


def ran_words(quote: Quote, setting: Setting, *, told: Collection[str] = (), hint: str = "") -> str:
    """Say for people which assumption may be wrong, where a layout that runs does not fit, and the
    hint after it; nothing where it does."""
    if quote.verdict != "no":
        return ""
    rung = what_fits(quote, setting, told=told)
    if rung is None:
        return _lost_words(quote, "if it runs")
    return (
        f"It needs {_needs(quote)} by our count. If it runs, something that it leaves open is not"
        f" as assumed: with {rung.words} it needs {rung.quote.peak_bytes / GIB:.1f} GiB.{hint}"
    )


def _lost_words(quote: Quote, where: str) -> str:
    return (
        f"It needs {_needs(quote)} by our count, and nothing that it leaves open makes it fit:"
        f" {where}, model, batch or chips are not as read."
    )


def _needs(quote: Quote) -> str:
    return f"{quote.peak_bytes / GIB:.1f} of {quote.limit_bytes / GIB:.1f} GiB"
