"""The binding constraint of a layout, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from meshwright.search.quote import Quote, Setting
from meshwright.search.terms import MEMORY_READINGS, TIME_READINGS, bound_words
from meshwright.units import GIB

__all__ = ["binding_words", "cost_words"]

USEFUL = ("matmul", "attention", "head")
"""Terms that are the model's own arithmetic; everything else is a loss."""


class Alternative(Protocol):
    """What the sentence needs to know of a rival."""

    @property
    def words(self) -> str:
        """What was changed."""

    @property
    def quote(self) -> Quote | None:
        """Its price; None where a rule is broken."""


def binding_words(quote: Quote, rivals: Iterable[Alternative], setting: Setting) -> str:
    """Say what stands in the way: of running at all, or of running faster."""
    if not quote.fits:
        return cost_words(quote, setting)
    faster = [
        (rival.words, rival.quote)
        for rival in rivals
        if rival.quote is not None and rival.quote.step_s < quote.step_s
    ]
    return " ".join(
        [
            cost_words(quote, setting),
            *_faster_words(quote, [pair for pair in faster if pair[1].fits]),
            *_blocked_words(quote, faster),
        ]
    )


def cost_words(quote: Quote, setting: Setting) -> str:
    """Say what one layout costs most, without a look at others: memory where it does not fit, else
    the share of its own arithmetic."""
    return _largest_costs(quote, setting) if quote.fits else _too_much_memory(quote)


def _faster_words(quote: Quote, faster: list[tuple[str, Quote]]) -> list[str]:
    """Name the best rival that fits; one that is faster still by using headroom is said to be at
    risk."""
    if not faster:
        return ["No layout that differs in one axis is faster and fits."]
    safe = [pair for pair in faster if pair[1].verdict == "yes"]
    found = []
    if safe:
        words, best = min(safe, key=lambda pair: pair[1].step_s)
        found.append(f"Faster and fits: {words}, by {1 - best.step_s / quote.step_s:.1%}.")
    words, best = min(faster, key=lambda pair: pair[1].step_s)
    if best.verdict != "yes":
        gain = 1 - best.step_s / quote.step_s
        found.append(
            f"Faster, but at risk, as it needs a part of the headroom: {words}, by {gain:.1%}."
        )
    return found


def _blocked_words(quote: Quote, faster: list[tuple[str, Quote]]) -> list[str]:
    """Name the best rival if only its memory stands in the way."""
    words, best = min(faster, key=lambda pair: pair[1].step_s, default=("", quote))
    if best.fits:
        return []
    over = f"{best.over_bytes / GIB:.1f} GiB more than stage {best.fullest.stage} has"
    return [
        f"Memory stands in the way of more: {words} would be {1 - best.step_s / quote.step_s:.1%}"
        f" faster but needs {over}."
    ]


def _too_much_memory(quote: Quote) -> str:
    fullest = quote.fullest
    term = fullest.largest_term
    return (
        f"Memory of stage {fullest.stage}: it needs {quote.peak_bytes / GIB:.1f} GiB of"
        f" {quote.limit_bytes / GIB:.1f} GiB, {quote.over_bytes / GIB:.1f} GiB too much; most of it"
        f" is {MEMORY_READINGS[term].title} ({fullest.memory_bytes[term] / GIB:.1f} GiB)."
    )


def _largest_costs(quote: Quote, setting: Setting) -> str:
    useful_s = sum(quote.time_s.get(term, 0.0) for term in USEFUL)
    losses = {term: seconds for term, seconds in quote.time_s.items() if term not in USEFUL}
    worst = max(losses, key=lambda term: losses[term])
    reading = TIME_READINGS[worst]
    bound = bound_words(reading.bound, quote.layout, setting.pool)
    loss = f"{reading.title} ({losses[worst] / quote.step_s:.1%}; {bound})"
    share = useful_s / quote.step_s
    if losses[worst] > useful_s:
        return (
            f"{loss[0].upper()}{loss[1:]}: more than the {share:.1%} of the step that the model's"
            " own arithmetic takes."
        )
    return (
        f"Arithmetic: {share:.1%} of the step is the model's own products on"
        f" {setting.pool.node.chip.name}; the largest loss is {loss}."
    )
