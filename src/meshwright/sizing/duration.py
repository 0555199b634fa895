"""Wall time, cost, energy and carbon of a training run whose step time is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from meshwright.search.result import Plan
from meshwright.values.errors import ConfigError
from meshwright.values.options import Option
from meshwright.values.units import DAY_S, GB, GIB, HOUR_S, MINUTE_S, parse_duration

__all__ = [
    "Duration",
    "Footprint",
    "Goodput",
    "Reliability",
    "Training",
    "best_interval_s",
    "duration",
    "goodput",
    "share_of",
    "write_s",
]

_MOST_EXPONENT = 3.0
"""exp(3): one attempt in twenty reaches its checkpoint; nobody runs that."""


def _hours(number: float) -> float:
    return number * HOUR_S


def _restart(text: str) -> float:
    return float(parse_duration(text, name="restart"))


def _save_every(text: str) -> float:
    return float(parse_duration(text, name="save_every"))


def _gb(number: float) -> float:
    return number * GB


def _steps(number: int) -> int | None:
    return number or None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """How often chips stop, how long a start takes, and how fast checkpoints are written."""

    chip_mtbf_s: Annotated[
        float,
        Option(
            "Hours between failures of one chip [default: 50000].",
            ("--chip-mtbf-hours",),
            read=_hours,
        ),
    ] = 50_000 * HOUR_S
    """Mean time between failures of one chip with its share of the node. 419 unexpected
    interruptions of 16,384 H100 in 54 days are one in 50,700 chip-hours: Llama 3
    (arXiv:2407.21783), section 3.3.4."""
    restart_s: Annotated[
        float,
        Option(
            "From a failure to the first step again [default: 15m].",
            ("--restart",),
            metavar="TIME",
            kind=str,
            read=_restart,
        ),
    ] = 15 * MINUTE_S
    """From a failure to the first step again: noticed, placed, started, loaded. Assumed."""
    save_interval_s: Annotated[
        float | None,
        Option(
            "Between checkpoints [default: the best, by Daly].",
            ("--save-every",),
            metavar="TIME",
            kind=str,
            read=_save_every,
        ),
    ] = None
    """Seconds of training between checkpoints; None is the best by Daly."""
    write_bytes_per_s_per_node: Annotated[
        float,
        Option(
            "GB/s of one node into shared storage [default: 0.625].",
            ("--write-gb-per-s",),
            read=_gb,
        ),
    ] = 20 * GB / 32
    """Into the shared file system while every node writes: 20 GB/s per 32 nodes, the standard tier
    of NVIDIA's DGX SuperPOD reference architecture; assumed, within 10 %."""

    def __post_init__(self) -> None:
        for name in ("chip_mtbf_s", "restart_s", "write_bytes_per_s_per_node", "save_interval_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value:g}: expected a positive number")


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """How much longer than its steps a run takes."""

    share: float
    """Seconds of steps over seconds on the wall, in (0, 1]."""
    interval_s: float
    """Seconds of training between checkpoints."""
    checkpoint_bytes: float
    """Of one checkpoint, by all nodes."""
    write_s: float
    """Seconds of one checkpoint, in which no step runs."""
    mtbf_s: float
    """Between failures of the whole job."""


def write_s(size_bytes: float, *, nodes: int, reliability: Reliability) -> float:
    """Seconds to write a checkpoint from all nodes at once; the run waits for it."""
    return size_bytes / (nodes * reliability.write_bytes_per_s_per_node)


def best_interval_s(*, write_s: float, mtbf_s: float) -> float:
    """Seconds of training between two checkpoints that lose the least time.

    Formula:  sqrt(2 * write * mtbf) * (1 + sqrt(write / (2 * mtbf)) / 3 + write / (2 * mtbf) / 9) -
              write, or mtbf where write >= 2 * mtbf
    Units:    s.
    Source:   Daly, Future Generation Computer Systems 22 (2006), the estimate of higher order; its
              first term is Young's (1974)
    Checked:  tests/sizing/test_goodput.py: against a search for the least of `goodput`
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = write_s / (2 * mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def share_of(interval_s: float, *, write_s: float, mtbf_s: float, restart_s: float) -> float | None:
    """Share of the wall time that goes into steps at an interval; None where such a run hardly ever
    reaches its next checkpoint.

    Formula:  interval / (mtbf * exp(restart / mtbf) * (exp((interval + write) / mtbf) - 1))
    Units:    seconds; a share in (0, 1]
    Source:   Daly (2006): the mean time of a run whose failures are exponential and lose the work
              since the last checkpoint
    Valid:    checkpoints that stop the run while they are written; asynchronous ones cost less
    Checked:  tests/sizing/test_goodput.py: against a simulation
    """
    exponent = (interval_s + write_s) / mtbf_s
    if exponent + restart_s / mtbf_s > _MOST_EXPONENT:
        return None
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def goodput(
    *, checkpoint_bytes: float, train_s: float, chips: int, nodes: int, reliability: Reliability
) -> Goodput:
    """Share of the wall time that goes into steps, with failures that come at random; the last step
    is followed by a checkpoint.

    Formula:  `share_of` the interval that is asked for, else of the best one; mtbf = chip_mtbf /
              chips
    Units:    seconds; a share in (0, 1]
    Source:   Daly (2006)
    Valid:    as `share_of`
    Checked:  tests/sizing/test_goodput.py: against a simulation
    """
    mtbf_s = reliability.chip_mtbf_s / chips
    written_s = write_s(checkpoint_bytes, nodes=nodes, reliability=reliability)
    asked_s = reliability.save_interval_s or best_interval_s(write_s=written_s, mtbf_s=mtbf_s)
    interval_s = min(asked_s, train_s)
    share = share_of(interval_s, write_s=written_s, mtbf_s=mtbf_s, restart_s=reliability.restart_s)
    if share is None:
        raise ConfigError(
            f"{chips} chips fail every {mtbf_s / HOUR_S:.2g} h, but a restart and the way to the"
            f" next checkpoint take {(interval_s + written_s + reliability.restart_s) / HOUR_S:.2g}"
            " h: such a run never ends; write faster or save more often"
        )
    return Goodput(
        share=share,
        interval_s=interval_s,
        checkpoint_bytes=checkpoint_bytes,
        write_s=written_s,
        mtbf_s=mtbf_s,
    )


_FORWARD_SHARE = 1 / 3
"""Of a step without recompute: a forward pass is 2 of the 6 FLOP per parameter and token
(arXiv:2001.08361, section 2.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Factors from chip-hours to energy and carbon."""

    power_share: Annotated[
        float, Option("Power of a chip with its part of the server, over the chip's limit.")
    ] = 1.1
    """Power of a chip with its share of the server, over the chip's own limit: 330 W measured for a
    V100 of 300 W, host, memory and network included (Patterson et al., arXiv:2104.10350, table
    4)."""
    pue: Annotated[float, Option("Power usage effectiveness of the building.")] = 1.1
    """Power usage effectiveness: what the building adds. 1.10 (same paper, table 4)."""
    kg_co2_per_kwh: Annotated[float, Option("Of the grid [default: 0.429, the United States].")] = (
        0.429
    )
    """Of the grid: the average of the United States (same paper, table 4)."""

    def __post_init__(self) -> None:
        for name in ("power_share", "pue"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value:g}: expected a positive number")
        if not 0 <= self.kg_co2_per_kwh < float("inf"):
            raise ConfigError(f"kg_co2_per_kwh={self.kg_co2_per_kwh:g}: expected 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """How long is trained, and what stands between the steps."""

    tokens: int
    eval_interval: Annotated[
        int | None, Option("Steps between evaluations; 0 evaluates never.", read=_steps)
    ] = 1000
    """Steps between evaluations; None evaluates never."""
    eval_steps: Annotated[int, Option("Batches of one evaluation.")] = 10
    """Batches of one evaluation."""
    reliability: Reliability = field(default_factory=Reliability)
    footprint: Footprint = field(default_factory=Footprint)

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens={self.tokens}: expected 1 or more")
        if self.eval_interval is not None and self.eval_interval < 1:
            raise ConfigError(f"eval_interval={self.eval_interval}: expected 1 step or more")
        if self.eval_steps < 0:
            raise ConfigError(f"eval_steps={self.eval_steps}: expected 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """A run from its first step to its last, failures and checkpoints included."""

    steps: int
    step_s: float
    tokens: int
    train_s: float
    """In optimizer steps."""
    eval_s: float
    overhead_s: float
    """In checkpoints, lost work and restarts."""
    goodput: Goodput
    interval_s: tuple[float, float]
    """80 % interval of `wall_s`: that of the step time; failures are taken at their mean."""
    chips: int
    nodes: int
    usd: float | None
    """None where nobody said what a chip costs."""
    usd_per_chip_hour: float | None
    kwh: float | None
    """None where the chip's power is unknown."""
    kg_co2: float | None
    watts_per_chip: float | None
    """With its share of the server and the building."""

    @property
    def wall_s(self) -> float:
        """Seconds from start to end: the sum of the parts."""
        return self.train_s + self.eval_s + self.overhead_s

    @property
    def chip_hours(self) -> float:
        """Hours of all chips."""
        return self.chips * self.wall_s / HOUR_S

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types: days and hours, as people count a run."""
        return {
            "days": self.wall_s / DAY_S,
            "interval": {"days": [end / DAY_S for end in self.interval_s]},
            "steps": self.steps,
            "step_s": self.step_s,
            "tokens": self.tokens,
            "time_days": {
                "train": self.train_s / DAY_S,
                "evaluation": self.eval_s / DAY_S,
                "checkpoints_and_failures": self.overhead_s / DAY_S,
            },
            "goodput": self.goodput.share,
            "mtbf_hours": self.goodput.mtbf_s / HOUR_S,
            "save_interval_minutes": self.goodput.interval_s / 60,
            "save_interval_steps": max(1, round(self.goodput.interval_s / self.step_s)),
            "checkpoint_gib": self.goodput.checkpoint_bytes / GIB,
            "checkpoint_write_s": self.goodput.write_s,
            "chips": self.chips,
            "nodes": self.nodes,
            "chip_hours": self.chip_hours,
            "usd": self.usd,
            "usd_per_chip_hour": self.usd_per_chip_hour,
            "mwh": None if self.kwh is None else self.kwh / 1000,
            "watts_per_chip": self.watts_per_chip,
            "tonnes_co2": None if self.kg_co2 is None else self.kg_co2 / 1000,
        }


def duration(
    plan: Plan,
    training: Training,
    *,
    checkpoint_bytes: float,
    chips: int,
    chips_per_node: int,
    seq_len: int,
    tdp_w: float | None,
    usd_per_chip_hour: float | None,
) -> Duration:
    """Wall time, cost, energy and carbon of training `tokens` under a plan.

    Formula:  steps = ceil(tokens / (gbs * seq_len)); wall = (steps * step_s + evaluations *
              eval_steps * step_s / 3) / goodput usd = chips * hours * usd_per_chip_hour; kWh =
              chips * hours * tdp * power_share * pue / 1000
    Units:    s, USD, kWh, kg of CO2 equivalents
    Source:   Daly (2006) for the goodput; Patterson et al. (arXiv:2104.10350), section 2.2, for
              energy and carbon
    Valid:    a plan whose batch is that of the whole run; no ramp
    Checked:  tests/sizing/test_plan.py
    """
    gbs = plan.layout.gbs
    assert gbs is not None, "a plan has a batch"
    steps = -(-training.tokens // (gbs * seq_len))
    train_s = steps * plan.step_s
    evaluations = 0 if training.eval_interval is None else steps // training.eval_interval
    eval_s = evaluations * training.eval_steps * plan.step_s * _FORWARD_SHARE
    nodes = -(-chips // chips_per_node)
    kept = goodput(
        checkpoint_bytes=checkpoint_bytes,
        train_s=train_s,
        chips=chips,
        nodes=nodes,
        reliability=training.reliability,
    )
    busy_s = train_s + eval_s
    wall_s = busy_s / kept.share
    low, high = plan.intervals.step_s
    hours = chips * wall_s / HOUR_S
    footprint = training.footprint
    watts = None if tdp_w is None else tdp_w * footprint.power_share * footprint.pue
    kwh = None if watts is None else hours * watts / 1000
    return Duration(
        steps=steps,
        step_s=plan.step_s,
        tokens=training.tokens,
        train_s=train_s,
        eval_s=eval_s,
        overhead_s=wall_s - busy_s,
        goodput=kept,
        interval_s=(wall_s * low / plan.step_s, wall_s * high / plan.step_s),
        chips=chips,
        nodes=nodes,
        usd=None if usd_per_chip_hour is None else hours * usd_per_chip_hour,
        usd_per_chip_hour=usd_per_chip_hour,
        kwh=kwh,
        kg_co2=None if kwh is None else kwh * footprint.kg_co2_per_kwh,
        watts_per_chip=watts,
    )
