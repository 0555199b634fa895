"""Why a layout runs out of memory, and a ladder of fixes, each priced anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any, get_args

from meshwright.confidence import Fits
from meshwright.errors import ConfigError
from meshwright.layout import Layout
from meshwright.search.diff import compare
from meshwright.search.diff_labels import LABELS, Label
from meshwright.search.fixes import Fix, fixes
from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.search.requote import problem_in, requote, setting_of

__all__ = ["Ladder", "Rung", "why_oom"]

MOST_TOGETHER = 3
"""Fixes that are combined where none does alone."""
NO_MATTER = 1e-3
"""Savings below this share of the peak are left out of the ladder."""
VERDICTS: tuple[Fits, ...] = get_args(Fits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One fix, or several together, with what comes out."""

    fixes: tuple[Fix, ...]
    layout: Layout
    setting: Setting
    quote: Quote
    base: Quote
    labels: tuple[Label, ...]
    """What it means for a run that goes on from a checkpoint, mildest first."""

    @property
    def words(self) -> str:
        """What to change."""
        return " and ".join(fix.words for fix in self.fixes)

    @property
    def step_change_frac(self) -> float:
        """Longer step, as a share; negative is faster."""
        return self.quote.step_s / self.base.step_s - 1.0

    @property
    def saved_bytes(self) -> float:
        """Peak memory saved."""
        return self.base.peak_bytes - self.quote.peak_bytes

    @property
    def changes_training(self) -> bool:
        """Whether the loss curve is another one."""
        return "changes training" in self.labels

    @property
    def needs_more_gpus(self) -> bool:
        """Whether it takes a larger cluster."""
        return self.layout.num_chips > self.base.layout.num_chips


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """The answer of `why-oom`."""

    quote: Quote
    rungs: tuple[Rung, ...]
    """Allocator settings first, then by least slowdown; what changes training or needs more GPUs
    comes last."""
    together: Rung | None
    """The fastest combination that fits, where no single fix on the same GPUs does."""


def why_oom(layout: Layout, problem: Problem) -> Ladder:
    """Price every fix of a layout; one that fits gets its ladder too."""
    setting = setting_of(problem)
    base = quotes([layout], setting)[0]
    single = _rungs([(fix,) for fix in fixes(layout, setting)], base, setting)
    helpful = [
        rung
        for rung in single
        if rung.saved_bytes > NO_MATTER * base.peak_bytes or rung.fixes[0].kind == "allocator"
    ]
    rungs = _best_per_kind(helpful)
    mended = any(rung.quote.fits for rung in rungs if not rung.needs_more_gpus)
    together = None if base.fits or mended else _together(helpful, base, setting)
    return _simulated(Ladder(quote=base, rungs=tuple(rungs), together=together), problem)


def _simulated(found: Ladder, problem: Problem) -> Ladder:
    """Put simulated pipelines in the place of the closed form, and the rungs in their order."""
    base = requote([found.quote], problem)[0]

    def again(rung: Rung) -> Rung:
        return replace(
            rung, base=base, quote=requote([rung.quote], problem_in(problem, rung.setting))[0]
        )

    rungs = sorted((again(rung) for rung in found.rungs), key=_place)
    return Ladder(
        quote=base,
        rungs=tuple(rungs),
        together=None if found.together is None else again(found.together),
    )


def _rungs(groups: Iterable[tuple[Fix, ...]], base: Quote, setting: Setting) -> list[Rung]:
    """Apply and price each group of fixes; those that break a rule are left out."""
    cases = [
        (group, *case)
        for group in groups
        if (case := _applied(group, base.layout, setting)) is not None
    ]
    priced = _priced([(layout, changed) for _, layout, changed in cases])
    return [
        Rung(
            fixes=group,
            layout=layout,
            setting=changed,
            quote=quote,
            base=base,
            labels=_labels(group, base.layout, layout, changed),
        )
        for (group, layout, changed), quote in zip(cases, priced, strict=True)
    ]


def _applied(
    group: Sequence[Fix], layout: Layout, setting: Setting
) -> tuple[Layout, Setting] | None:
    try:
        for fix in group:
            layout, setting = fix.apply(layout, setting)
    except ConfigError:
        return None
    return None if setting.broken_rules(layout) else (layout, setting)


def _priced(cases: Sequence[tuple[Layout, Setting]]) -> list[Quote]:
    """Price cases in their order, those of one setting at once."""
    found: dict[int, Quote] = {}
    waiting = list(range(len(cases)))
    while waiting:
        setting = cases[waiting[0]][1]
        chosen = [index for index in waiting if cases[index][1] == setting]
        found.update(
            zip(chosen, quotes([cases[index][0] for index in chosen], setting), strict=True)
        )
        waiting = [index for index in waiting if index not in found]
    return [found[index] for index in range(len(cases))]


def _labels(
    group: Sequence[Fix], before: Layout, after: Layout, setting: Setting
) -> tuple[Label, ...]:
    found = {
        *compare(_fields(before), _fields(after), has_experts=setting.model.moe is not None).labels
    }
    found |= {fix.label for fix in group if fix.label is not None}
    return tuple(label for label in LABELS[1:] if label in found) or LABELS[:1]


def _fields(layout: Layout) -> dict[str, Any]:
    return {field.name: getattr(layout, field.name) for field in fields(layout)}


def _best_per_kind(rungs: Iterable[Rung]) -> list[Rung]:
    """Of each kind the fastest that fits, with headroom if any has it (of more GPUs: the fewest),
    else the one that saves most."""
    best: dict[str, Rung] = {}
    for rung in rungs:
        kind = rung.fixes[0].kind
        if kind not in best or _preference(rung) < _preference(best[kind]):
            best[kind] = rung
    return list(best.values())


def _preference(rung: Rung) -> tuple[int, float, float]:
    if rung.quote.fits:
        return VERDICTS.index(rung.quote.verdict), float(rung.layout.num_chips), rung.quote.step_s
    return VERDICTS.index("no"), rung.quote.peak_bytes, rung.quote.step_s


def _place(rung: Rung) -> tuple[bool, bool, bool, float]:
    return (
        rung.fixes[0].kind != "allocator",
        rung.needs_more_gpus,
        rung.changes_training,
        rung.quote.step_s,
    )


def _together(single: Sequence[Rung], base: Quote, setting: Setting) -> Rung | None:
    """Try pairs, then triples of different kinds on the same GPUs; the first size at which
    something fits has the answer."""
    usable = [
        rung.fixes[0]
        for rung in single
        if not rung.needs_more_gpus and _worth_combining(rung, single)
    ]
    for size in range(2, MOST_TOGETHER + 1):
        groups = [
            group
            for group in combinations(usable, size)
            if len({fix.kind for fix in group}) == size
        ]
        fitting = [rung for rung in _rungs(groups, base, setting) if rung.quote.fits]
        if fitting:
            return min(
                fitting,
                key=lambda rung: (
                    rung.changes_training,
                    rung.quote.verdict != "yes",
                    rung.quote.step_s,
                ),
            )
    return None


def _worth_combining(rung: Rung, single: Sequence[Rung]) -> bool:
    """Leave out the many block sizes of full recompute but one in four, so that the combinations
    stay few."""
    same = [other for other in single if other.fixes[0].kind == rung.fixes[0].kind]
    return len(same) <= 4 or same.index(rung) % (len(same) // 4) == 0 or rung is same[-1]
