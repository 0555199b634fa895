"""What a run that runs does otherwise than assumed, where its layout does not fit by our count."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from meshwright.cost.kernels import element_bytes
from meshwright.search.oom import Fix, Rung, edit, fixes, rungs_of, stack_edit
from meshwright.search.quote import Quote, Setting
from meshwright.values.layout import Layout
from meshwright.values.units import GIB

__all__ = ["left_open", "ran_words", "what_fits"]

_BY_LADDER = ("gradients", "attention", "selective", "full")
"""Fixes of `why-oom` that a layout leaves open unless it names them."""


def left_open(layout: Layout, setting: Setting) -> Iterator[Fix]:
    """Yield what a layout does not tell and software may do otherwise, the least unusual first.

    Gradients, moments and weights in narrower formats and optimizer states on the host are settings
    of software (Megatron-Core's grad_reduce_in_fp32, exp_avg_dtype, fp8_param_gather and
    optimizer_cpu_offload) that no layout has; sharding and recompute are open where it has none.
    """
    stack, half = setting.stack, setting.work.precision not in ("fp32", "tf32")
    ladder = [fix for fix in fixes(layout, setting) if fix.kind in _BY_LADDER]
    yield from (fix for fix in ladder if fix.kind in ("gradients", "attention"))
    if layout.sharding == "none" and layout.dp * layout.cp > 1:
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
    if layout.recompute == "none":
        yield from (fix for fix in ladder if fix.kind in ("selective", "full"))
    yield Fix(
        kind="optimizer",
        words="optimizer states in host memory",
        apply=stack_edit(master_bytes=0.0, moment_bytes=0.0, step_bytes=0.0),
    )


def what_fits(quote: Quote, setting: Setting) -> Rung | None:
    """Return the first of what a layout leaves open that makes it fit; else as many as it takes, of
    recompute the last alone; None where all of them do not."""
    alone = list(left_open(quote.layout, setting))
    single = rungs_of([(fix,) for fix in alone], quote, setting)
    found = next((rung for rung in single if rung.quote.verdict != "no"), None)
    if found is not None:
        return found
    last_of_kind = {fix.kind: fix for fix in alone if fix.kind != "selective"}
    growing = accumulate(((fix,) for fix in last_of_kind.values()), lambda a, b: (*a, *b))
    together = rungs_of(list(growing), quote, setting)
    return next((rung for rung in together if rung.quote.verdict != "no"), None)


def ran_words(quote: Quote, setting: Setting) -> str:
    """Say for people which assumption may be wrong, where a layout that runs does not fit; nothing
    where it does."""
    if quote.verdict != "no":
        return ""
    needs = f"{quote.peak_bytes / GIB:.1f} of {quote.limit_bytes / GIB:.1f} GiB"
    rung = what_fits(quote, setting)
    if rung is None:
        return (
            f"It needs {needs} by our count, and nothing that it leaves open makes it fit: if it"
            " runs, model, batch or chips are not as read."
        )
    return (
        f"It needs {needs} by our count. If it runs, something that it leaves open is not as"
        f" assumed: with {rung.words} it needs {rung.quote.peak_bytes / GIB:.1f} GiB."
    )
