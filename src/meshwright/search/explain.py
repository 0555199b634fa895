"""Explain one layout: time and memory by term, what binds it, why rivals win or lose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from meshwright.search.exchange import ContextWay, context_way
from meshwright.search.operators import LayerTable, layer_tables
from meshwright.search.problem import Problem
from meshwright.search.provenance import Basis, Depth, Provenance, basis_of
from meshwright.search.quote import Quote, Setting, host_words, quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.rules.check import explicit_layers
from meshwright.search.rules.software import stack_rules
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS, bound_words
from meshwright.values.errors import ConfigError
from meshwright.values.layout import RECOMPUTES, SHARDINGS, Layout
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.units import GIB
from meshwright.values.workload import Workload

__all__ = [
    "Axis",
    "Change",
    "Explanation",
    "Rival",
    "Rivals",
    "TimeTerm",
    "Verdict",
    "binding_words",
    "cost_words",
    "explain",
    "neighbours",
    "regrid",
    "rivals_of",
    "selective_sets",
    "split_layers",
    "term_differences",
]

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
    found = _faster_words(quote, [pair for pair in faster if pair[1].fits])
    return " ".join([cost_words(quote, setting), *found, *_blocked_words(quote, faster)])


def cost_words(quote: Quote, setting: Setting) -> str:
    """Say what one layout costs most, without a look at others: memory where it does not fit, else
    the share of its own arithmetic."""
    return _largest_costs(quote, setting) if quote.fits else _too_much_memory(quote)


def _faster_words(quote: Quote, faster: list[tuple[str, Quote]]) -> list[str]:
    """Name the best rival that fits; one that is faster by using headroom is said to be at risk."""
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
    if best.fits or best.host_over:
        return []
    over = f"{best.over_bytes / GIB:.1f} GiB more than stage {best.fullest.stage} has"
    return [
        f"Memory stands in the way of more: {words} would be {1 - best.step_s / quote.step_s:.1%}"
        f" faster but needs {over}."
    ]


def _too_much_memory(quote: Quote) -> str:
    fullest = quote.fullest
    if quote.over_bytes <= 0:
        return f"It fits the chips, but not their host: {host_words(quote)}."
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


Axis = Literal["tp", "sp", "cp", "ep", "pp", "vpp", "schedule", "mbs", "recompute", "sharding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A layout that differs from another one in one axis; dp follows."""

    axis: Axis
    words: str
    """What was changed to what, `tp 8 -> 16`."""
    layout: Layout | None
    """None where the chips cannot be divided so."""
    reason: str = ""
    """Why there is none."""


def split_layers(layout: Layout, model: ModelSpec) -> Layout:
    """Write out the split of layers that a pipeline cannot divide evenly; more chunks than layers
    stay for the rules to refuse."""
    return (
        explicit_layers(layout, model) if layout.pp * layout.vpp <= model.total_layers else layout
    )


def neighbours(layout: Layout, *, model: ModelSpec, work: Workload, stack: Stack) -> list[Change]:
    """Return the changes of one axis: sizes doubled and halved, other recomputes and shardings."""
    found: list[Change] = []
    for axis in ("tp", "pp", "cp"):
        found += [
            _resized(layout, axis, size, model) for size in _double_and_half(getattr(layout, axis))
        ]
    if model.moe is not None:
        found += [_plain(layout, "ep", ep=size) for size in _double_and_half(layout.ep)]
    if layout.pp > 1:
        found += [_rechunked(layout, size, model) for size in _double_and_half(layout.vpp)]
        found += [
            _plain(layout, "schedule", schedule=name)
            for name in stack_rules(stack).searched_schedules
            if name != layout.schedule
        ]
    found += [_plain(layout, "mbs", mbs=size) for size in _double_and_half(layout.mbs)]
    if layout.tp > 1:
        found.append(_plain(layout, "sp", sp=not layout.sp))
    return [
        *found,
        *_recompute_changes(layout, model=model, work=work, stack=stack),
        *_sharding_changes(layout),
    ]


def _double_and_half(size: int) -> Iterator[int]:
    yield size * 2
    if size % 2 == 0:
        yield size // 2


def regrid(layout: Layout, **sizes: int) -> Layout:
    """Return the layout with other tp, cp, pp or dp on the same chips; ConfigError where the chips
    cannot be divided so.

    Sequence parallelism comes with tensor parallelism and goes with it; a split of layers by hand
    does not survive another pp.
    """
    grid = {name: sizes.get(name, getattr(layout, name)) for name in ("tp", "cp", "pp")}
    ranks = grid["tp"] * grid["cp"] * grid["pp"]
    dp = sizes.get("dp", layout.num_chips // ranks)
    if "dp" not in sizes and layout.num_chips % ranks:
        text = " * ".join(f"{name}={size}" for name, size in grid.items() if size > 1)
        raise ConfigError(f"{layout.num_chips} GPUs are not divisible by {text}")
    changes: dict[str, Any] = {**grid, "dp": dp}
    changes["sp"] = grid["tp"] > 1 and (layout.sp or layout.tp == 1)
    if grid["pp"] != layout.pp:
        changes["layers_per_stage"] = None
    if grid["pp"] == 1:
        changes |= {"vpp": 1, "schedule": "1f1b"}
    parts = layout.shard_size if layout.sharding == "hybrid" else None
    if parts is not None and dp * grid["cp"] % parts:
        changes["shard_size"] = None
    return replace(layout, **changes)


def _resized(layout: Layout, axis: Axis, size: int, model: ModelSpec) -> Change:
    words = f"{axis} {getattr(layout, axis)} -> {size}"
    try:
        return Change(
            axis=axis, words=words, layout=split_layers(regrid(layout, **{axis: size}), model)
        )
    except ConfigError as error:
        return Change(axis=axis, words=words, layout=None, reason=str(error))


def _rechunked(layout: Layout, vpp: int, model: ModelSpec) -> Change:
    changed = split_layers(replace(layout, vpp=vpp, layers_per_stage=None), model)
    return Change(axis="vpp", words=f"vpp {layout.vpp} -> {vpp}", layout=changed)


def _plain(layout: Layout, axis: Axis, **changes: Any) -> Change:
    before, after = getattr(layout, axis), changes[axis]
    moved = ("on" if after else "off") if isinstance(after, bool) else f"{before} -> {after}"
    return Change(axis=axis, words=f"{axis} {moved}", layout=replace(layout, **changes))


def selective_sets(*, model: ModelSpec, work: Workload, stack: Stack) -> list[tuple[str, ...]]:
    """Return the sets of recompute modules that the software has and that free something here."""
    useless = set() if work.attention not in ("flash", "flash1") else {"core_attn"}
    useless |= set() if model.mla is not None else {"mla_up_proj"}
    useless |= set() if model.moe is not None else {"moe", "moe_act", "shared_experts"}
    moe = model.moe
    if moe is not None and not moe.first_dense_layers and moe.layer_frequency == 1:
        useless |= {"mlp", "mlp_act"}
    return [
        modules for modules in stack_rules(stack).searched_modules if not useless & set(modules)
    ]


def _recompute_changes(
    layout: Layout, *, model: ModelSpec, work: Workload, stack: Stack
) -> Iterator[Change]:
    for kind in RECOMPUTES:
        if kind == "selective":
            for modules in selective_sets(model=model, work=work, stack=stack):
                if (layout.recompute, layout.recompute_modules) != (kind, modules):
                    yield _recomputing(
                        layout,
                        f"recompute {'+'.join(modules)}",
                        recompute=kind,
                        recompute_modules=modules,
                    )
        elif kind != layout.recompute:
            yield _recomputing(layout, f"recompute {kind}", recompute=kind)


def _recomputing(layout: Layout, words: str, **changes: Any) -> Change:
    clean = {"recompute_method": "uniform", "recompute_layers": None, "recompute_modules": ()}
    return Change(axis="recompute", words=words, layout=replace(layout, **(clean | changes)))


def _sharding_changes(layout: Layout) -> Iterator[Change]:
    for kind in SHARDINGS:
        if kind not in (layout.sharding, "hybrid"):
            yield Change(
                axis="sharding",
                words=f"sharding {kind}",
                layout=replace(layout, sharding=kind, shard_size=None),
            )


SAME_SHARE = 0.005
"""Step times closer than this are the same: a tenth of the best tables' median error."""

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
    basis: Basis
    """What every term stands on, those that take nothing among them."""
    binding: str
    rivals: tuple[Rival, ...]

    @property
    def context_way(self) -> ContextWay | None:
        """How context-parallel ranks exchange; None without them."""
        at = self.setting
        return context_way(
            self.quote.layout, model=at.model, pool=at.pool, work=at.work, stack=at.stack
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rivals:
    """One layout beside those that differ from it in one axis."""

    quote: Quote
    """Of the layout itself."""
    rivals: tuple[Rival, ...]
    """The best of each axis."""
    binding: str
    """What stands in the way, in words."""


def rivals_of(layout: Layout, problem: Problem) -> Rivals:
    """Price what differs from a layout in one axis; one that does not fit has rivals too."""
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
    return Rivals(quote=quote, rivals=tuple(chosen), binding=binding_words(quote, chosen, setting))


def explain(layout: Layout, problem: Problem, *, depth: Depth = "functions") -> Explanation:
    """Explain a layout; one that does not fit is explained all the same.

    `depth` says whether its terms name the functions that made them, or the constants too.
    """
    basis = basis_of(layout, problem, depth=depth)
    setting, found = setting_of(problem), rivals_of(layout, problem)
    return Explanation(
        setting=setting,
        quote=found.quote,
        time=_time_terms(found.quote, setting, basis),
        layers=layer_tables(layout, setting),
        memory_provenance=dict(basis.memory),
        basis=basis,
        binding=found.binding,
        rivals=found.rivals,
    )


def _valid_or_broken(changes: Iterable[Change], setting: Setting) -> list[Change]:
    """Take the layout out of the changes that break a rule, and give the rule as the reason."""
    found = []
    for change in changes:
        broken = [] if change.layout is None else setting.broken_rules(change.layout)
        found.append(replace(change, layout=None, reason=broken[0].message) if broken else change)
    return found


def _rival(change: Change, quote: Quote | None, base: Quote) -> Rival:
    return Rival(
        axis=change.axis,
        words=change.words,
        layout=change.layout,
        verdict="breaks a rule" if quote is None else _verdict(quote, base),
        quote=quote,
        differences_s=() if quote is None else term_differences(base, quote),
        reason=change.reason,
    )


def _verdict(quote: Quote, base: Quote) -> Verdict:
    ratio = quote.step_s / base.step_s
    if not quote.fits:
        return "faster, does not fit" if ratio < 1 else "slower, does not fit"
    if abs(ratio - 1) < SAME_SHARE:
        return "same"
    return "faster" if ratio < 1 else "slower"


def term_differences(a: Quote, b: Quote) -> tuple[tuple[str, float], ...]:
    """Return how much longer each term of `b` is than of `a`, the largest change first."""
    terms = dict.fromkeys([*a.time_s, *b.time_s])
    changes = [(term, b.time_s.get(term, 0.0) - a.time_s.get(term, 0.0)) for term in terms]
    noise_s = 1e-9 * a.step_s
    return tuple(sorted((c for c in changes if abs(c[1]) > noise_s), key=lambda c: -abs(c[1])))


def _best_per_axis(rivals: Iterable[Rival]) -> tuple[Rival, ...]:
    """Keep every size, but of selective recompute the best; fastest that fits first."""
    kept: dict[str, Rival] = {}
    for rival in sorted(rivals, key=_rank):
        selective = rival.layout is not None and rival.layout.recompute == "selective"
        selective = selective and rival.axis == "recompute"
        kept.setdefault("selective" if selective else rival.words, rival)
    return tuple(kept.values())


def _rank(rival: Rival) -> tuple[int, float]:
    if rival.quote is None:
        return 2, 0.0
    return (0 if rival.quote.fits else 1), rival.quote.step_s


def _time_terms(quote: Quote, setting: Setting, basis: Basis) -> tuple[TimeTerm, ...]:
    terms = [
        TimeTerm(
            term=term,
            title=TIME_READINGS[term].title,
            seconds=seconds,
            share=seconds / quote.step_s,
            what=TIME_READINGS[term].what,
            bound=bound_words(TIME_READINGS[term].bound, quote.layout, setting.pool),
            provenance=basis.time[term],
        )
        for term, seconds in quote.time_s.items()
        if abs(seconds) >= 1e-9 * quote.step_s
    ]
    return tuple(sorted(terms, key=lambda t: -t.seconds))
