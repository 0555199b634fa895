"""How far predictions of a kind of run were off, by `trust/residuals.csv`, and how far constants
that decide between layouts may be, by `trust/uncertainties.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_args

from meshwright.trust.untold import (
    QUANTITIES,
    TOGETHER,
    Apart,
    Assumption,
    Doubt,
    Quantity,
    ServingQuantity,
    that_widen,
    widened,
)
from meshwright.values.data import package_rows
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack, lowest_basis
from meshwright.values.units import GIB, counted
from meshwright.values.workload import Workload

__all__ = [
    "FALLBACKS",
    "LEVELS",
    "LONG_TOKENS",
    "QUANTITIES",
    "SERVING_QUANTITIES",
    "Assumption",
    "Doubt",
    "Fits",
    "Intervals",
    "Kind",
    "Level",
    "Quantity",
    "ServingQuantity",
    "Site",
    "Spread",
    "Spreads",
    "Uncertain",
    "find_serving_spread",
    "find_spread",
    "fits_within",
    "interval",
    "intervals_of",
    "kind_of",
    "serving_interval",
    "serving_kind",
    "spread_of",
    "that_widen",
    "uncertain_constants",
    "widened",
]

Fits = Literal["yes", "at risk", "no"]
Level = Literal["generation", "vendor", "software", "basis", "family", "work", "model", "all"]
Work = Literal["", "lora", "long"]
SERVING_QUANTITIES: tuple[ServingQuantity, ...] = get_args(ServingQuantity)
LEVELS: tuple[Level, ...] = get_args(Level)
"""What the runs of a kind share, from fine to coarse."""
_SHARED: Mapping[Level, tuple[str, ...]] = {
    "generation": ("stack", "what", "generation"),
    "vendor": ("stack", "what", "vendor"),
    "software": ("stack", "what", "any_chip"),
    "basis": ("on_basis", "what"),
    "family": ("family", "what"),
    "work": ("what",),
    "model": ("model", "any_work"),
    "all": (),
}
FALLBACKS: tuple[Level, ...] = ("family", "work", "model", "all")
"""Levels at which no run of the software itself is known."""
LONG_TOKENS = 16384
"""Sequences beyond it are long: attention outweighs the rest there, or is cut over ranks."""
SMALL_PARAMETERS = 1e9
"""Below it a step is mostly what host and software do around its kernels, which predictions know
least: among published runs, times reach 2.5 times the prediction there, 1.3 times above. Of 0.3,
0.5, 1 and 2 billion this one needed the least widening for intervals that hold 80 % of the runs
left out."""
ANY_RUN = "any run"
"""The name of the coarsest kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What decides how well a run is predicted."""

    stack: str
    family: str
    """Of the stack."""
    model: Literal["dense", "moe", "small dense", "small moe"]
    generation: str
    """Of the chip; `mixed` where a run has several kinds of chips."""
    vendor: str
    work: Work = ""
    """Whether adapters are trained, or sequences are long."""
    basis: str = ""
    """The stack that the software builds on in the end, itself where on none; blank: not known."""

    @property
    def what(self) -> str:
        """Model and work, such as `dense lora`."""
        return f"{self.model} {self.work}".rstrip()

    @property
    def any_chip(self) -> str:
        """In the name of the level at which chips are one."""
        return "any chip"

    @property
    def on_basis(self) -> str:
        """In the name of the level at which all that builds on one software is one."""
        return f"built on {self.basis}"

    @property
    def any_work(self) -> str:
        """In the name of the level at which kinds of work are one."""
        return "any work"

    def of(self, quantity: Quantity | ServingQuantity) -> Kind:
        """Return the kind that decides for a quantity: for memory the model's size does not."""
        return (
            self
            if quantity != "peak_memory"
            else replace(self, model="moe" if self.model.endswith("moe") else "dense")
        )

    def at(self, level: Level) -> str:
        """Return the name of the kind at a level, such as `megatron, dense, hopper`; blank where it
        has none."""
        if level == "basis" and not self.basis:
            return ""
        return ", ".join(str(getattr(self, name)).lower() for name in _SHARED[level]) or ANY_RUN


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Measured over predicted, among the published runs of one kind."""

    quantity: Quantity | ServingQuantity
    level: Level
    kind: str
    p10: float
    """A tenth of the runs lie below; and so on."""
    p25: float
    p50: float
    p75: float
    p90: float
    low: float
    """Of runs elsewhere 80 % lie between this and `high`, its inverse: as far from the prediction
    as 80 % of the known, widened for how few they are."""
    high: float
    runs: int
    models: int
    """Models of each table, counted together."""
    tables: int

    @property
    def is_own(self) -> bool:
        """Whether these runs had the same software and generation of chips."""
        return self.level == "generation"

    @property
    def of_software(self) -> bool:
        """Whether these runs had the same software, on whatever chips."""
        return self.level not in FALLBACKS

    def around(self, predicted: float) -> tuple[float, float]:
        """Return the 80 % interval of a predicted value."""
        return predicted * self.low, predicted * self.high

    def words(
        self, kind: Kind, *, assumptions: Sequence[Assumption] = (), apart: Apart = TOGETHER
    ) -> str:
        """Say how wrong such predictions were, and whether the runs are of another kind: one
        interval, that of the estimate, and the runs' median."""
        name, took = _NAMES[self.level].format(kind=self.kind), _VERBS[self.quantity]
        own = f"{self.kind}: " if self.is_own else ""
        low, high = self.low, self.high
        if assumptions or apart:
            low, high = widened((low, high), self.quantity, assumptions, apart=apart)
        untold = f", not told: {', '.join(assumptions)}" if assumptions else ""
        known = (
            f"published runs {name} {took} x{self.p50:.2f} of the prediction in the median"
            f" ({own}{counted(self.runs, 'run')}, {counted(self.tables, 'table')}); allow"
            f" x{low:.2f} to x{high:.2f}{untold}"
        )
        outside = (
            ""
            if self.is_own
            else (
                f"too few published runs of {kind.of(self.quantity).at('generation')}: lower"
                " confidence; "
            )
        )
        return f"{outside}{known}"

    def short_words(self) -> str:
        """Say in a few words which runs it stands on."""
        like = (
            "like it"
            if self.is_own
            else f"{_NAMES[self.level].format(kind=self.kind)}, few like it"
        )
        return f"{self.runs} published run{'' if self.runs == 1 else 's'} {like}"


_NAMES: Mapping[Level, str] = {
    "generation": "of this kind",
    "vendor": "of {kind}",
    "software": "of {kind}",
    "basis": "of software {kind}",
    "family": "of software like {kind}",
    "work": "of {kind} models",
    "model": "of models like {kind}",
    "all": "of any kind",
}
_VERBS: Mapping[str, str] = {"step_time": "took", "peak_memory": "needed"}


Spreads = Mapping[tuple[Quantity | ServingQuantity, str], Spread]
"""By quantity and name of the kind."""


def kind_of(*, model: ModelSpec, chip: Chip, stack: Stack, work: Workload) -> Kind:
    """Return the kind of a run."""
    return Kind(
        stack=stack.name,
        family=stack.family,
        basis=lowest_basis(stack.name),
        model=_size_and_experts(model),
        generation=chip.generation,
        vendor=chip.vendor,
        work="lora" if work.lora_rank else "long" if work.seq_len > LONG_TOKENS else "",
    )


def _size_and_experts(model: ModelSpec) -> Literal["dense", "moe", "small dense", "small moe"]:
    if model_params(model).total < SMALL_PARAMETERS:
        return "small dense" if model.moe is None else "small moe"
    return "dense" if model.moe is None else "moe"


def find_spread(spreads: Spreads, kind: Kind, quantity: Quantity | ServingQuantity) -> Spread:
    """Return the finest known kind that a run belongs to."""
    return next(
        spread
        for level in LEVELS
        if (spread := spreads.get((quantity, kind.of(quantity).at(level)))) is not None
    )


def spread_of(kind: Kind, quantity: Quantity) -> Spread:
    """Return what published runs say of this kind, or of the finest coarser one with enough."""
    return find_spread(_published("trust/residuals.csv"), kind, quantity)


def serving_kind(*, model: ModelSpec, chip: Chip, engine: str, way: str) -> Kind:
    """Return the kind of a serving run: software is the engine and the way it serves (one pool, two
    pools, static batches, as many as fit), its family that way."""
    return Kind(
        stack=f"{engine} {way}",
        family=way,
        model="dense" if model.moe is None else "moe",
        generation=chip.generation,
        vendor=chip.vendor,
    )


def find_serving_spread(kind: Kind, quantity: ServingQuantity) -> Spread:
    """Return what published serving runs say of this kind, or of the finest coarser one with
    enough."""
    return find_spread(_published("trust/serving_residuals.csv"), kind, quantity)


def serving_interval(
    kind: Kind, quantity: ServingQuantity, predicted: float
) -> tuple[float, float]:
    """Return the 80 % interval of a predicted figure of serving."""
    return find_serving_spread(kind, quantity).around(predicted)


def interval(
    kind: Kind,
    quantity: Quantity,
    predicted: float,
    assumptions: Sequence[Assumption] = (),
    *,
    apart: Apart = TOGETHER,
) -> tuple[float, float]:
    """Return the 80 % interval of a predicted value."""
    return widened(spread_of(kind, quantity).around(predicted), quantity, assumptions, apart=apart)


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """The 80 % intervals of one estimate, and what they stand on."""

    step_s: tuple[float, float]
    peak_bytes: tuple[float, float]
    """Of the fullest chip."""
    error: str
    """How far off predicted step times of such runs were, in words."""
    memory_error: str
    """The same of peak memory."""
    known_by: str = ""
    """Which runs the times stand on, in a few words."""
    memory_known_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return them as the contract of `plan --json` has it."""
        return {
            "step_s": list(self.step_s),
            "peak_memory_gib": [size / GIB for size in self.peak_bytes],
        }


def intervals_of(
    kind: Kind,
    *,
    step_s: float,
    peak_bytes: float,
    assumptions: Sequence[Assumption] = (),
    apart: Apart = TOGETHER,
) -> Intervals:
    """Return the intervals of an estimate that rests on some assumptions."""
    untold = f"; {', '.join(assumptions)} not told" if assumptions else ""
    time, memory = spread_of(kind, "step_time"), spread_of(kind, "peak_memory")
    return Intervals(
        step_s=interval(kind, "step_time", step_s, assumptions, apart=apart),
        peak_bytes=interval(kind, "peak_memory", peak_bytes, assumptions, apart=apart),
        error=time.words(kind, assumptions=assumptions, apart=apart),
        memory_error=memory.words(kind, assumptions=assumptions, apart=apart),
        known_by=time.short_words() + untold,
        memory_known_by=memory.short_words(),
    )


def fits_within(
    peak_bytes: float,
    *,
    limit_bytes: float,
    headroom_bytes: float,
    slack_bytes: float = 0.0,
) -> Fits:
    """Say whether a peak leaves the headroom free, needs a part of it, or is beyond the limit.

    What the allocator holds beyond tensors (`slack_bytes` of the peak) it gives back before it
    gives up: release_cached_blocks of c10/cuda/CUDACachingAllocator.cpp. A peak that is beyond the
    limit by no more is at risk.
    """
    if peak_bytes - slack_bytes > limit_bytes:
        return "no"
    return "yes" if peak_bytes <= limit_bytes - headroom_bytes else "at risk"


@cache
def _published(name: str) -> Spreads:
    found = map(_spread, package_rows(name))
    return {(spread.quantity, spread.kind): spread for spread in found}


_TEXT = ("quantity", "level", "kind")
_COUNTS = ("runs", "models", "tables")


def _spread(line: Mapping[str, str]) -> Spread:
    numbers = {
        f.name: (int if f.name in _COUNTS else float)(line[f.name])
        for f in fields(Spread)
        if f.name not in _TEXT
    }
    return Spread(**{name: line[name] for name in _TEXT} | numbers)  # type: ignore[arg-type]  # fields by heading


_UNCUT = (1, "none", "zero1")
"""Values of an axis that cut nothing, and kinds of sharding that leave the weights whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What holds the constants: the machines and the software."""

    pool: Pool
    stack: Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertain:
    """One constant and how far it may be off."""

    constant: str
    """Where it is, and its field: `stack.tp_overlap`."""
    title: str
    """Its meaning in words."""
    change: Literal["times", "plus"]
    """Whether the ends multiply the constant or are added to it."""
    low: float
    high: float
    axis: str
    """The field of a layout that says whether it plays a part; empty where it always does."""
    source: str

    def matters_to(self, layout: Layout) -> bool:
        """Whether the constant can change the price of a layout."""
        return not self.axis or getattr(layout, self.axis) not in _UNCUT

    def value(self, site: Site) -> float:
        """Return the constant's present value."""
        return float(getattr(_holder(site, self._place), self._field))

    def ends(self, site: Site) -> Iterator[tuple[float, Site]]:
        """Yield both ends of its interval, and the site with the constant there; an end that
        changes nothing is left out."""
        now = self.value(site)
        for step in (self.low, self.high):
            moved = now * step if self.change == "times" else now + step
            moved = max(0.0, moved) if self._field.endswith("_s") else min(1.0, max(0.0, moved))
            if moved != now:
                yield (
                    moved,
                    _with(
                        site,
                        self._place,
                        {self._field: moved, **self._companions(site, moved / now if now else 1.0)},
                    ),
                )

    def _companions(self, site: Site, factor: float) -> dict[str, float]:
        """Fields that move along: the narrow formats' own sustained share."""
        if self.constant != "chip.sustained_share":
            return {}
        share = getattr(site.pool.node.chip, "narrow_sustained_share", None)
        return {} if share is None else {"narrow_sustained_share": min(1.0, share * factor)}

    @property
    def _place(self) -> str:
        return self.constant.partition(".")[0]

    @property
    def _field(self) -> str:
        return self.constant.partition(".")[2]


def _holder(site: Site, place: str) -> Any:
    if place == "stack":
        return site.stack
    return site.pool.node.chip if place == "chip" else getattr(site.pool.node, place)


def _with(site: Site, place: str, changes: dict[str, float]) -> Site:
    holder = replace(_holder(site, place), **changes)
    if place == "stack":
        return replace(site, stack=holder)
    parts: dict[str, Any] = {place: holder}
    return replace(site, pool=replace(site.pool, node=replace(site.pool.node, **parts)))


@cache
def uncertain_constants() -> tuple[Uncertain, ...]:
    """Return every constant of the table."""
    return tuple(
        Uncertain(**row | {end: float(row[end]) for end in ("low", "high")})  # type: ignore[arg-type]  # fields by heading
        for row in package_rows("trust/uncertainties.csv")
    )
