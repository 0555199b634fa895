"""What a user's own runs say of one chip with one software, and how it changes their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from meshwright.trust.intervals import Intervals
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.cluster import Link, Pool
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Factors, Stack
from meshwright.values.units import counted

__all__ = [
    "DISPATCHERS",
    "FACTORS",
    "MEMORY_FACTORS",
    "SETTLED_SHARES",
    "TIME_FACTORS",
    "Calibrated",
    "Calibration",
    "Fitted",
    "LinkRates",
    "Misses",
    "apply_calibration",
    "check_profile",
    "layers_key",
    "measured_share",
    "own_intervals",
    "provenance_of",
]

TimeFactor = Literal["compute", "host", "tensor", "context", "expert", "data", "pipeline"]
MemoryFactor = Literal["activations", "states", "constant"]
TIME_FACTORS: tuple[str, ...] = get_args(TimeFactor)
MEMORY_FACTORS: tuple[str, ...] = get_args(MemoryFactor)
FACTORS = (*TIME_FACTORS, *MEMORY_FACTORS)
"""`host` scales the chip's launch time and the stack's host work, `constant` the stack's context;
the others are fields of Factors."""

DISPATCHERS = ("alltoall", "flex")
SETTLED_SHARES = (
    *("launch_hidden", "tp_overlap", "dp_overlap", "fsdp_overlap", "cp_overlap", "ep_overlap"),
)
SETTLED = ("dispatcher", *SETTLED_SHARES)
"""Figures of Stack that a run may settle, all but the first a share."""
_FACTOR_OF: Mapping[str, str] = {
    **dict.fromkeys(
        ("matmul", "attention", "pointwise", "offload", "recompute", "head", "optimizer"),
        "compute",
    ),
    **dict.fromkeys(("launch", "overhead"), "host"),
    **{
        "tp_comm": "tensor",
        "cp_comm": "context",
        "ep_comm": "expert",
        "fsdp_comm": "data",
        "dp_comm": "data",
        "pp_comm": "pipeline",
    },
    **dict.fromkeys(("activations", "recompute_workspace", "logits", "slack"), "activations"),
    **{
        "weights": "states",
        "gradients": "states",
        "communication": "states",
        "libraries": "constant",
        "context": "constant",
    },
}
"""The factor behind a term; imbalance and bubble are as well known as the rest of the step, and
`optimizer` is asked for by quantity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """One factor, and how much of it is measured."""

    name: str
    """Of FACTORS."""
    value: float
    prior_width: float
    """How far such factors lie from 1 among published runs: standard deviation of the logarithm."""
    width: float
    """The same, once the runs are known."""

    def __post_init__(self) -> None:
        if self.name not in FACTORS:
            raise UnknownNameError("factor", self.name, FACTORS)
        Factors(compute=self.value)
        if not 0 < self.prior_width < 10 or not 0 <= self.width <= self.prior_width * (1 + 1e-9):
            raise ConfigError(
                f"factor {self.name}: width={self.width}: expected 0 to its"
                f" prior_width={self.prior_width}"
            )

    @property
    def measured_frac(self) -> float:
        """Share of what was unknown that the runs tell: 0 leaves the factor at 1, 1 takes it from
        the runs alone."""
        return max(0.0, 1.0 - (self.width / self.prior_width) ** 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRates:
    """A link as a benchmark of collectives saw it."""

    level: Literal["domain", "network"]
    """Inside the fast domain, or between domains."""
    name: str
    """Of the link that it replaces the figures of."""
    bytes_per_s: float
    """Reached by large messages, per chip and direction."""
    latency_s: float
    setup_s: float
    half_message_bytes: float
    source: str
    """Which benchmark, on what."""

    def __post_init__(self) -> None:
        if self.level not in ("domain", "network"):
            raise UnknownNameError("level of a link", str(self.level), ("domain", "network"))
        if not 0 < self.bytes_per_s < float("inf"):
            raise ConfigError(
                f"link {self.name}: bytes_per_s={self.bytes_per_s}: expected a positive number"
            )
        for field in ("latency_s", "setup_s", "half_message_bytes"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ConfigError(
                    f"link {self.name}: {field}={getattr(self, field)}: expected 0 or more"
                )

    def on(self, link: Link) -> Link:
        """Return the link with these figures; its nominal peak is raised where more was seen."""
        peak = max(link.bytes_per_s, self.bytes_per_s)
        return replace(
            link,
            bytes_per_s=peak,
            efficiency=self.bytes_per_s / peak,
            latency_s=self.latency_s,
            setup_s=self.setup_s,
            half_message_bytes=self.half_message_bytes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Misses:
    """Mean |predicted / measured - 1| over the runs."""

    runs: int
    before_frac: float
    """By the stack's constants."""
    after_frac: float
    """Of the runs that were fitted themselves: no proof."""
    left_out_frac: float | None
    """Each run predicted by a fit on the others; None for a single run."""
    spread: float
    """Standard deviation of ln(measured / predicted) to expect of another run of this kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What was fitted, on what, and how well it holds."""

    chip: str
    stack: str
    runs: tuple[str, ...] = ()
    """A line for each run."""
    factors: tuple[Fitted, ...] = ()
    links: tuple[LinkRates, ...] = ()
    step_time: Misses | None = None
    peak_memory: Misses | None = None
    version: str = ""
    """Of the package whose constants the factors multiply."""
    profile: str = ""
    """The profile that the runs were predicted with, in words; empty without one."""
    other_model: bool = False
    """Whether it is asked for a model with other layers."""
    models: tuple[str, ...] = ()
    """What layers the runs had, by `layers_key`; empty where nobody says."""
    settings: tuple[tuple[str, str | float], ...] = ()
    """Figures of the software that `anchor` found, by the names of Stack."""

    def __post_init__(self) -> None:
        for name, value in self.settings:
            _check_setting(name, value)
        for names in ([f.name for f in self.factors], [str(rates.level) for rates in self.links]):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"calibration: {', '.join(twice)} given twice")

    def value(self, name: str) -> float:
        """Return a factor; 1 where none was fitted."""
        return next((f.value for f in self.factors if f.name == name), 1.0)

    def measured_frac(self, name: str) -> float:
        """Return how much of a factor is measured."""
        return next((f.measured_frac for f in self.factors if f.name == name), 0.0)

    def is_of_stack(self, named: str) -> bool:
        """Whether it is of this software: of `NAME@RELEASE` where it was fitted on that release or
        on the software without one."""
        return self.stack in (named, named.partition("@")[0])

    def for_model(self, model: ModelSpec) -> Calibration:
        """Return what the runs say of a model: all of it where they had layers like its own, else
        less.

        Half of the variance of factors lies between models of one chip and one software
        (docs/calibrate.md): n models tell n / (n + 1) of the part that another shares with them,
        which is half of what is to know of it. The spread of their runs says nothing of its.
        """
        known = len(self.models)
        if not known or layers_key(model) in self.models:
            return self
        share = known / (known + 1.0)
        factors = tuple(
            replace(
                f,
                value=f.value**share,
                width=f.prior_width * math.sqrt(1.0 - 0.5 * share * f.measured_frac),
            )
            for f in self.factors
        )
        return replace(self, factors=factors, step_time=None, peak_memory=None, other_model=True)

    def words(self) -> str:
        """Say in one line what it stands on."""
        moved = [f"{f.name} x{f.value:.3g}" for f in self.factors if f.measured_frac >= TOLD]
        links = [f"{rates.name} {rates.bytes_per_s / 1e9:.3g} GB/s" for rates in self.links]
        links += [f"{name}={value}" for name, value in self.settings]
        on = f"{counted(len(self.runs), 'run')} with {self.stack} on {self.chip}"
        other = " (runs of another model, which tell part of it)" if self.other_model else ""
        return f"calibrated on {on}{other}: {', '.join([*moved, *links]) or 'nothing moved'}"


def _check_setting(name: str, value: str | float) -> None:
    if name not in SETTLED:
        raise UnknownNameError("setting of a calibration", name, SETTLED)
    if name == "dispatcher" and value not in DISPATCHERS:
        raise UnknownNameError("dispatcher", str(value), DISPATCHERS)
    if name != "dispatcher" and not (isinstance(value, float | int) and 0 <= value <= 1):
        raise ConfigError(f"setting {name}={value}: expected a share from 0 to 1")


def layers_key(model: ModelSpec) -> str:
    """Name the layers of a model by what shapes their operators, not by how many there are."""
    parts = [
        f"hidden={model.hidden}",
        f"ffn={model.ffn}",
        f"heads={model.num_heads}",
        f"kv_heads={model.num_kv_heads}",
    ]
    if model.moe is not None:
        parts += [
            f"experts={model.moe.num_experts}",
            f"top_k={model.moe.top_k}",
            f"expert_ffn={model.moe.expert_ffn}",
        ]
    return ",".join(parts)


TOLD = 0.05
"""Share of a factor that the runs must tell for it to be named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """A machine and a training software with a calibration in them."""

    pool: Pool
    stack: Stack


def apply_calibration(calibration: Calibration, *, pool: Pool, stack: Stack) -> Calibrated:
    """Return the values with what was measured in them; ConfigError where they are another chip or
    another software."""
    node = pool.node
    if node.chip.name != calibration.chip:
        raise ConfigError(
            f"calibration of {calibration.chip} on {node.chip.name}: calibrate on that chip, or"
            " leave the calibration out"
        )
    named = f"{stack.name}@{stack.release}" if stack.release else stack.name
    if not calibration.is_of_stack(named):
        raise ConfigError(
            f"calibration of stack {calibration.stack} for stack {named}: name that stack, or"
            " leave the calibration out"
        )
    check_profile(
        calibration,
        profile="" if node.chip.tables is None else str(node.chip.tables.meta["source"]),
    )
    value = calibration.value
    rates = {found.level: found for found in calibration.links}
    node = replace(
        node,
        chip=replace(node.chip, launch_s=node.chip.launch_s * value("host")),
        domain_link=rates["domain"].on(node.domain_link) if "domain" in rates else node.domain_link,
        network_link=(
            rates["network"].on(node.network_link) if "network" in rates else node.network_link
        ),
    )
    stack = replace(
        stack,
        step_overhead_s=stack.step_overhead_s * value("host"),
        collective_check_s=stack.collective_check_s * value("host"),
        context_bytes=stack.context_bytes * value("constant"),
        factors=Factors(**{name: value(name) for name in Factors.__slots__}),
    )
    settled: dict[str, Any] = dict(calibration.settings)
    stack = replace(stack, **settled)
    return Calibrated(pool=replace(pool, node=node), stack=stack)


def check_profile(calibration: Calibration, *, profile: str) -> None:
    """Refuse a calibration whose factors multiply other figures of the chip than those in use."""
    if calibration.profile and not profile:
        raise ConfigError(
            f"calibration was fitted with a profile ({calibration.profile}): give it too"
            " (--profile)"
        )
    if calibration.profile != profile:
        fitted = (
            f"with another profile ({calibration.profile})"
            if calibration.profile
            else "without a profile"
        )
        raise ConfigError(
            f"calibration was fitted {fitted} than {profile}: calibrate again with --profile, or"
            " leave one of them out"
        )


def measured_share(
    calibration: Calibration, terms: Mapping[str, float], *, of: Literal["time", "memory"]
) -> float:
    """Return the share of a step's time or of a stage's memory that stands on measured factors.

    Terms without a factor of their own, the waiting of pipelines, count as the rest does.
    """
    factors: dict[str, Any] = {**_FACTOR_OF, "optimizer": "compute" if of == "time" else "states"}
    weights = [
        (size, calibration.measured_frac(factors[term]))
        for term, size in terms.items()
        if term in factors and size > 0
    ]
    total = sum(size for size, _ in weights)
    return sum(size * share for size, share in weights) / total if total else 0.0


def provenance_of(
    calibration: Calibration | None,
    *,
    time_s: Mapping[str, float],
    memory_bytes: Mapping[str, float],
) -> dict[str, dict[str, Any]]:
    """Return what an estimate owes to a calibration, under the key `calibration`."""
    if calibration is None:
        return {}
    time, memory = (
        measured_share(calibration, time_s, of="time"),
        measured_share(calibration, memory_bytes, of="memory"),
    )
    return {
        "calibration": {
            "words": (
                f"{calibration.words()}; measured: {time:.0%} of the step, {memory:.0%} of the"
                " memory"
            ),
            "runs": len(calibration.runs),
            "factors": {factor.name: factor.value for factor in calibration.factors},
            "measured_time_frac": time,
            "measured_memory_frac": memory,
        }
    }


OWN_RUNS = 3
"""Runs of the user's own from which on their spread, not the published one, makes the interval."""
Z90 = 1.2815515655446004
"""The normal distribution's 90 % quantile."""


def own_intervals(
    calibration: Calibration, published: Intervals, *, step_s: float, peak_bytes: float
) -> Intervals:
    """Return the 80 % intervals of an estimate by how far the user's own runs were off when left
    out, where there are enough of them."""
    found = published
    if (step := _own(calibration.step_time)) is not None:
        found = replace(
            found,
            step_s=(step_s / step.factor, step_s * step.factor),
            error=step.words,
            known_by=step.short,
        )
    if (memory := _own(calibration.peak_memory)) is not None:
        found = replace(
            found,
            peak_bytes=(peak_bytes / memory.factor, peak_bytes * memory.factor),
            memory_error=memory.words,
            memory_known_by=memory.short,
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Own:
    """The interval's factor on each side, and what it stands on."""

    factor: float
    words: str
    short: str


def _own(misses: Misses | None) -> _Own | None:
    if misses is None or misses.runs < OWN_RUNS or misses.left_out_frac is None:
        return None
    factor = math.exp(Z90 * misses.spread)
    off = (
        f"{misses.runs} own runs, each left out of the fit in turn, were off by"
        f" {misses.left_out_frac:.1%} in the mean"
    )
    return _Own(
        factor=factor,
        short=f"{misses.runs} runs of yours",
        words=(
            f"{off} ({misses.before_frac:.1%} uncalibrated); allow x{1 / factor:.2f} to"
            f" x{factor:.2f}"
        ),
    )
