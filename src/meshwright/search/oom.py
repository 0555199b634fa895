"""Why a layout runs out of memory, and a ladder of fixes, each priced anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, get_args

from meshwright.search.diff import LABELS, Label, compare
from meshwright.search.explain import regrid, selective_sets, split_layers
from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.result import layout_dict
from meshwright.search.rules.software import stack_rules
from meshwright.trust.intervals import Fits
from meshwright.values.errors import ConfigError
from meshwright.values.layout import SHARDINGS, Layout

__all__ = [
    "ALLOCATOR_VARIABLES",
    "EXPANDABLE_SLACK_SHARE",
    "Fix",
    "FixKind",
    "Ladder",
    "Rung",
    "edit",
    "fixes",
    "rungs_of",
    "stack_edit",
    "why_oom",
]

EXPANDABLE_SLACK_SHARE = 1 / 3
"""Share of the allocator's slack that is left with expandable segments. Assumed: the mechanism maps
physical pages behind one growing range, so that freed blocks of any size can be joined; GMLake
(arXiv:2401.08156), which does the same, reports that fragmentation of 15 % of memory on average
nearly vanishes. A third is kept for rounding to pages and for the small pool."""
ALLOCATOR_VARIABLES = {
    "nvidia": "PYTORCH_CUDA_ALLOC_CONF",
    "amd": "PYTORCH_HIP_ALLOC_CONF",
    "huawei": "PYTORCH_NPU_ALLOC_CONF",
}
"""By vendor, in lower case. Others' software plans its memory ahead and has no such setting."""
MOST_GPUS_FACTOR = 16
"""More chips than this many times the given ones are no fix."""

FixKind = Literal[
    "allocator",
    "attention",
    "sp",
    "sharding",
    "selective",
    "full",
    "mbs",
    "vpp",
    "schedule",
    "tp",
    "pp",
    "cp",
    "ep",
    "gradients",
    "optimizer",
    "weights",
    "gpus",
]
Case = tuple[Layout, Setting]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One edit; of several of a kind, one is enough."""

    kind: FixKind
    words: str
    apply: Callable[[Layout, Setting], Case]
    """Returns what it makes of a layout and its setting; ConfigError where it cannot be."""
    label: Label | None = None
    """What it means for a run beyond what the layout's own fields say."""


def fixes(layout: Layout, setting: Setting) -> Iterator[Fix]:
    """Yield every single edit that could save memory, valid or not; the allocator's first."""
    yield from _software_fixes(setting)
    yield from _sharding_fixes(layout)
    yield from _recompute_fixes(layout, setting)
    yield from _batch_fixes(layout)
    yield from _grid_fixes(layout, setting)
    yield from _more_gpus(layout)


def edit(**changes: Any) -> Callable[[Layout, Setting], Case]:
    """Return an edit of fields of the layout."""
    return lambda layout, setting: (replace(layout, **changes), setting)


def stack_edit(**changes: Any) -> Callable[[Layout, Setting], Case]:
    """Return an edit of fields of the software."""
    return lambda layout, setting: (
        layout,
        replace(setting, stack=replace(setting.stack, **changes)),
    )


def _rechunk(vpp: int) -> Callable[[Layout, Setting], Case]:
    return lambda layout, setting: (
        split_layers(replace(layout, vpp=vpp, layers_per_stage=None), setting.model),
        setting,
    )


def _software_fixes(setting: Setting) -> Iterator[Fix]:
    stack = setting.stack
    variable = ALLOCATOR_VARIABLES.get(setting.pool.node.chip.vendor.lower())
    if variable is not None:
        slack = stack_edit(fragmentation_frac=stack.fragmentation_frac * EXPANDABLE_SLACK_SHARE)
        yield Fix(kind="allocator", words=f"{variable}=expandable_segments:True", apply=slack)
    if setting.work.attention not in ("flash", "flash1"):
        yield Fix(
            kind="attention",
            words="fused attention",
            apply=lambda la, s: (la, replace(s, work=replace(s.work, attention="flash"))),
        )
    if stack.gradient_bytes > 2 and setting.work.precision not in ("fp32", "tf32"):
        half = stack_edit(gradient_bytes=2.0, reduce_bytes=min(2.0, stack.reduce_bytes))
        yield Fix(
            kind="gradients", words="gradients in 2 bytes", apply=half, label="changes training"
        )


def _sharding_fixes(layout: Layout) -> Iterator[Fix]:
    if layout.tp > 1 and not layout.sp:
        yield Fix(kind="sp", words="sp on", apply=edit(sp=True))
    for kind in SHARDINGS[SHARDINGS.index(layout.sharding) + 1 :]:
        if kind != "hybrid":
            yield Fix(
                kind="sharding",
                words=f"sharding {kind}",
                apply=edit(sharding=kind, shard_size=None),
            )


def _recompute_fixes(layout: Layout, setting: Setting) -> Iterator[Fix]:
    whole = layout.recompute_method == "uniform" and (layout.recompute_layers or 1) == 1
    if layout.recompute == "full" and whole:
        return
    clean = {"recompute_method": "uniform", "recompute_layers": None, "recompute_modules": ()}
    if layout.recompute != "full":
        for modules in selective_sets(model=setting.model, work=setting.work, stack=setting.stack):
            words = f"recompute {'+'.join(modules)}"
            yield Fix(
                kind="selective",
                words=words,
                apply=edit(**(clean | {"recompute": "selective", "recompute_modules": modules})),
            )
    per_chunk = -(-setting.model.total_layers // (layout.pp * layout.vpp))
    for layers in range(1, per_chunk if stack_rules(setting.stack).full_by_blocks else 1):
        block = {"recompute": "full", "recompute_method": "block", "recompute_layers": layers}
        yield Fix(
            kind="full",
            words=f"recompute {layers} of {per_chunk} layers in full",
            apply=edit(**(clean | block)),
        )
    yield Fix(
        kind="full",
        words="recompute every layer in full",
        apply=edit(**(clean | {"recompute": "full"})),
    )


def _batch_fixes(layout: Layout) -> Iterator[Fix]:
    size = layout.mbs
    while size % 2 == 0:
        size //= 2
        yield Fix(kind="mbs", words=f"mbs {layout.mbs} -> {size}", apply=edit(mbs=size))
    chunks = layout.vpp
    while chunks % 2 == 0:
        chunks //= 2
        yield Fix(kind="vpp", words=f"vpp {layout.vpp} -> {chunks}", apply=_rechunk(chunks))
    if layout.schedule == "gpipe":
        yield Fix(kind="schedule", words="schedule 1f1b", apply=edit(schedule="1f1b"))


def _grid_fixes(layout: Layout, setting: Setting) -> Iterator[Fix]:
    for factor in (2, 4, 8):
        yield _grid_fix(layout, "tp", factor)
        yield _grid_fix(layout, "pp", factor)
        yield _grid_fix(layout, "cp", factor)
        if setting.model.moe is not None:
            yield Fix(
                kind="ep",
                words=f"ep {layout.ep} -> {layout.ep * factor}",
                apply=edit(ep=layout.ep * factor),
            )


def _grid_fix(layout: Layout, axis: Literal["tp", "pp", "cp"], factor: int) -> Fix:
    size = getattr(layout, axis) * factor
    return Fix(
        kind=axis,
        words=f"{axis} {getattr(layout, axis)} -> {size}",
        apply=lambda la, s: (split_layers(regrid(la, **{axis: size}), s.model), s),
    )


def _more_gpus(layout: Layout) -> Iterator[Fix]:
    """Grow one axis and the cluster with it; all else stays."""
    factor = 2
    while factor <= MOST_GPUS_FACTOR:
        yield from (_growth(layout, axis, factor) for axis in ("dp", "pp", "tp", "cp"))
        factor *= 2


def _growth(layout: Layout, axis: str, factor: int) -> Fix:
    size = getattr(layout, axis) * factor

    def apply(given: Layout, setting: Setting) -> Case:
        if axis == "dp" and given.gbs % (given.mbs * size):
            raise ConfigError(f"gbs={given.gbs} is not divisible by mbs * dp = {given.mbs * size}")
        pool = replace(setting.pool, num_chips=setting.pool.num_chips * factor)
        grown = regrid(given, **({"dp": given.dp} | {axis: size}))
        return split_layers(grown, setting.model), replace(setting, pool=pool)

    return Fix(
        kind="gpus",
        words=f"{layout.num_chips * factor} GPUs: {axis} {getattr(layout, axis)} -> {size}",
        apply=apply,
    )


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
    """Allocator settings first, then by slowdown; other training or more GPUs come last."""
    together: Rung | None
    """The fastest combination that fits, where no single fix on the same GPUs does."""


def why_oom(layout: Layout, problem: Problem) -> Ladder:
    """Price every fix of a layout; one that fits gets its ladder too."""
    setting = setting_of(problem)
    base = quotes([layout], setting)[0]
    single = rungs_of([(fix,) for fix in fixes(layout, setting)], base, setting)
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
            rung, base=base, quote=requote([rung.quote], replace(problem, setting=rung.setting))[0]
        )

    rungs = sorted(map(again, found.rungs), key=_place)
    together = None if found.together is None else again(found.together)
    return Ladder(quote=base, rungs=tuple(rungs), together=together)


def rungs_of(groups: Iterable[tuple[Fix, ...]], base: Quote, setting: Setting) -> list[Rung]:
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
    while len(found) < len(cases):
        waiting = [index for index in range(len(cases)) if index not in found]
        setting = cases[waiting[0]][1]
        chosen = [index for index in waiting if cases[index][1] == setting]
        priced = quotes([cases[index][0] for index in chosen], setting)
        found.update(zip(chosen, priced, strict=True))
    return [found[index] for index in range(len(cases))]


def _labels(
    group: Sequence[Fix], before: Layout, after: Layout, setting: Setting
) -> tuple[Label, ...]:
    sides = (layout_dict(layout) for layout in (before, after))
    found = {*compare(*sides, has_experts=setting.model.moe is not None).labels}
    found |= {fix.label for fix in group if fix.label is not None}
    return tuple(label for label in LABELS[1:] if label in found) or LABELS[:1]


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
    """Try pairs, then triples of different kinds on the same GPUs; the first that fit answer."""
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
        fitting = [rung for rung in rungs_of(groups, base, setting) if rung.quote.fits]
        if fitting:
            return min(
                fitting,
                key=lambda r: (r.changes_training, r.quote.verdict != "yes", r.quote.step_s),
            )
    return None


def _worth_combining(rung: Rung, single: Sequence[Rung]) -> bool:
    """Leave out all block sizes of full recompute but one in four: combinations stay few."""
    same = [other for other in single if other.fixes[0].kind == rung.fixes[0].kind]
    return len(same) <= 4 or same.index(rung) % (len(same) // 4) == 0 or rung is same[-1]
