"""Wall time, cost, energy and carbon of a training run whose step time is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import ConfigError
from meshwright.search.result import Plan
from meshwright.sizing.goodput import Goodput, Reliability, goodput
from meshwright.units import DAY_S, GIB, HOUR_S

__all__ = ["Duration", "Footprint", "Training", "duration"]

_FORWARD_SHARE = 1 / 3
"""Of a step without recompute: a forward pass is 2 of the 6 FLOP per parameter and token
(arXiv:2001.08361, section 2.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Factors from chip-hours to energy and carbon."""

    power_share: float = 1.1
    """Power of a chip with its share of the server, over the chip's own limit: 330 W measured for a
    V100 of 300 W, host, memory and network included (Patterson et al., arXiv:2104.10350, table
    4)."""
    pue: float = 1.1
    """Power usage effectiveness: what the building adds. 1.10 (same paper, table 4)."""
    kg_co2_per_kwh: float = 0.429
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
    eval_interval: int | None = 1000
    """Steps between evaluations; None evaluates never."""
    eval_steps: int = 10
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
    Checked:  tests/sizing/test_duration.py
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
