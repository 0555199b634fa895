"""Explain one layout: time and memory by term, what binds it, and why its nearest rivals win or
lose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.layout import Layout
from meshwright.rules import Violation
from meshwright.search.binding import binding_words
from meshwright.search.changes import Change, neighbours
from meshwright.search.operators import LayerTable, layer_tables
from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.search.requote import requote, setting_of
from meshwright.search.terms import (
    MEMORY_READINGS,
    TIME_READINGS,
    MemoryReading,
    Provenance,
    Reading,
    bound_words,
    provenance,
)

__all__ = ["Explanation", "Rival", "TimeTerm", "Verdict", "explain", "term_differences"]

SAME_SHARE = 0.005
"""Step times closer than this share are called the same: a tenth of the best tables' median
error."""

Verdict = Literal[
    "faster", "same", "slower", "faster, does not fit", "slower, does not fit", "breaks a rule"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeTerm:
    """One term of the step's time."""

    term: str
    title: str
    seconds: float
    share: float
    """Of the step."""
    what: str
    bound: str
    """The unit or link that it waits for."""
    provenance: Provenance


@dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """A layout that differs in one axis."""

    axis: str
    words: str
    layout: Layout | None
    verdict: Verdict
    quote: Quote | None
    """None where a rule is broken."""
    differences_s: tuple[tuple[str, float], ...] = ()
    """Terms by how much they change the step, largest first."""
    reason: str = ""
    """The rule that it breaks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """All that is known about one layout in one setting."""

    setting: Setting
    quote: Quote
    time: tuple[TimeTerm, ...]
    """Terms that take any time, largest first; they sum to the step."""
    layers: tuple[LayerTable, ...]
    memory_provenance: dict[str, Provenance]
    binding: str
    rivals: tuple[Rival, ...]


def explain(layout: Layout, problem: Problem) -> Explanation:
    """Explain a layout; one that does not fit is explained all the same."""
    setting = setting_of(problem)
    changes = _valid_or_broken(
        neighbours(layout, model=setting.model, work=setting.work, stack=setting.stack), setting
    )
    priced = requote(
        quotes(
            [layout, *(change.layout for change in changes if change.layout is not None)], setting
        ),
        problem,
    )
    quote, others = priced[0], iter(priced[1:])
    rivals = [
        _rival(change, next(others) if change.layout is not None else None, quote)
        for change in changes
    ]
    chosen = _best_per_axis(rivals)
    return Explanation(
        setting=setting,
        quote=quote,
        time=_time_terms(quote, setting),
        layers=layer_tables(layout, setting),
        memory_provenance={
            term: _provenance(MEMORY_READINGS[term], layout, setting)
            for term in quote.fullest.memory_bytes
        },
        binding=binding_words(quote, chosen, setting),
        rivals=chosen,
    )


def _valid_or_broken(changes: Iterable[Change], setting: Setting) -> list[Change]:
    """Take the layout out of the changes that break a rule, and give the rule as the reason."""
    return [
        change if change.layout is None else _checked(change, setting.broken_rules(change.layout))
        for change in changes
    ]


def _checked(change: Change, broken: list[Violation]) -> Change:
    return replace(change, layout=None, reason=broken[0].message) if broken else change


def _rival(change: Change, quote: Quote | None, base: Quote) -> Rival:
    if quote is None:
        return Rival(
            axis=change.axis,
            words=change.words,
            layout=change.layout,
            verdict="breaks a rule",
            quote=None,
            reason=change.reason,
        )
    return Rival(
        axis=change.axis,
        words=change.words,
        layout=change.layout,
        verdict=_verdict(quote, base),
        quote=quote,
        differences_s=term_differences(base, quote),
    )


def _verdict(quote: Quote, base: Quote) -> Verdict:
    ratio = quote.step_s / base.step_s
    if not quote.fits:
        return "faster, does not fit" if ratio < 1 else "slower, does not fit"
    if abs(ratio - 1) < SAME_SHARE:
        return "same"
    return "faster" if ratio < 1 else "slower"


def term_differences(a: Quote, b: Quote) -> tuple[tuple[str, float], ...]:
    """Return how much longer each term of `b` is than of `a`, largest change first; terms without
    any are left out."""
    terms = dict.fromkeys([*a.time_s, *b.time_s])
    changes = [(term, b.time_s.get(term, 0.0) - a.time_s.get(term, 0.0)) for term in terms]
    noise_s = 1e-9 * a.step_s
    return tuple(sorted((c for c in changes if abs(c[1]) > noise_s), key=lambda c: -abs(c[1])))


def _best_per_axis(rivals: Iterable[Rival]) -> tuple[Rival, ...]:
    """Keep every size of an axis, but one way each of recomputing selectively; fastest that fits
    first, broken rules last."""
    kept: dict[str, Rival] = {}
    for rival in sorted(rivals, key=_rank):
        selective = (
            rival.layout is not None
            and rival.axis == "recompute"
            and rival.layout.recompute == "selective"
        )
        kept.setdefault("selective" if selective else rival.words, rival)
    return tuple(kept.values())


def _rank(rival: Rival) -> tuple[int, float]:
    if rival.quote is None:
        return 2, 0.0
    return (0 if rival.quote.fits else 1), rival.quote.step_s


def _provenance(reading: Reading | MemoryReading, layout: Layout, setting: Setting) -> Provenance:
    return provenance(
        reading, layout=layout, pool=setting.pool, work=setting.work, stack=setting.stack
    )


def _time_terms(quote: Quote, setting: Setting) -> tuple[TimeTerm, ...]:
    terms = []
    for term, seconds in quote.time_s.items():
        if abs(seconds) < 1e-9 * quote.step_s:
            continue
        reading = TIME_READINGS[term]
        terms.append(
            TimeTerm(
                term=term,
                title=reading.title,
                seconds=seconds,
                share=seconds / quote.step_s,
                what=reading.what,
                bound=bound_words(reading.bound, quote.layout, setting.pool),
                provenance=_provenance(reading, quote.layout, setting),
            )
        )
    return tuple(sorted(terms, key=lambda t: -t.seconds))
