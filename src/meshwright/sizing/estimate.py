"""Days and cost of a training run under its best plan, held against a deadline and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.search.problem import Problem
from meshwright.search.remedies import with_chips
from meshwright.search.result import Plan, PlanResult
from meshwright.sizing.checkpoints import checkpoint_size
from meshwright.sizing.duration import Duration, Training, duration
from meshwright.sizing.size import Budget, classic_seconds
from meshwright.values.errors import ConfigError
from meshwright.values.models.params import model_params
from meshwright.values.units import DAY_S, TERA, format_count

__all__ = [
    "Limits",
    "RunEstimate",
    "Search",
    "assumed_tflops",
    "classic_tflops",
    "estimate_run",
    "plans_or_none",
    "run_of",
]

Search = Callable[[Problem], PlanResult]
"""Ranked plans of a problem."""
_CLASSIC_SHARE = 140 / 312
"""Of the dense bf16 peak: the 140 TFLOPS that AutoConfigurator assumes of an A100."""
_STEPS = (1 / 8, 1 / 4, 1 / 2, 2, 4, 8, 16, 32)
"""Clusters that are tried, in sizes of the one asked, when a limit is not met."""
_MOST_CHIPS = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a run may take; None is no limit."""

    wall_s: float | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("deadline", self.wall_s), ("max_cost", self.usd)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value:g}: expected a positive number")

    def broken_by(self, run: Duration) -> tuple[str, ...]:
        """Say which limits a run breaks, and by how much."""
        found = []
        if self.wall_s is not None and run.wall_s > self.wall_s:
            found.append(
                f"takes {run.wall_s / DAY_S:.3g} days, the limit is {self.wall_s / DAY_S:.3g}"
            )
        if self.usd is not None and run.usd is not None and run.usd > self.usd:
            found.append(
                f"costs {format_count(run.usd)} USD, the limit is {format_count(self.usd)}"
            )
        return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEstimate:
    """The best plan of a request, and how long and at what cost it trains."""

    result: PlanResult
    plan: Plan | None
    """None where nothing fits; `result` says why."""
    run: Duration | None
    classic_s: float | None
    """By the closed form, with `classic_tflops`."""
    classic_tflops: float
    training: Training
    limits: Limits
    broken: tuple[str, ...]
    """Limits that the run breaks, in words."""
    others: tuple[Duration, ...]
    """Smaller and larger clusters of the same chip, where a limit is broken."""

    @property
    def nearest(self) -> Duration | None:
        """The smallest of the other clusters that keeps every limit."""
        return next((other for other in self.others if not self.limits.broken_by(other)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `estimate --json` prints."""
        footprint, reliability = self.training.footprint, self.training.reliability
        nearest = self.nearest
        return {
            "request": self.result.request.to_dict(),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "run": None if self.run is None else self.run.to_dict(),
            "classic": {
                "tflops_per_gpu": self.classic_tflops,
                "days": None if self.classic_s is None else self.classic_s / DAY_S,
            },
            "constants": {
                "chip_mtbf_hours": reliability.chip_mtbf_s / 3600,
                "restart_minutes": reliability.restart_s / 60,
                "write_gb_per_s_per_node": reliability.write_bytes_per_s_per_node / 1e9,
                "eval_interval": self.training.eval_interval,
                "eval_steps": self.training.eval_steps,
                "power_share": footprint.power_share,
                "pue": footprint.pue,
                "kg_co2_per_kwh": footprint.kg_co2_per_kwh,
            },
            "broken_limits": list(self.broken),
            "other_clusters": [other.to_dict() for other in self.others],
            "nearest": None if nearest is None else nearest.to_dict(),
            "rejected": dict(self.result.rejected),
        }


def classic_tflops(problem: Problem) -> float:
    """TFLOPS of a chip that the closed form assumes: 45 % of the bf16 peak, 140 on an A100."""
    return problem.setting.pool.node.chip.peak_flops_per_s("bf16") * _CLASSIC_SHARE / TERA


def assumed_tflops(problem: Problem, given: float | None) -> float:
    """TFLOPS of one chip in the closed form: those that are given, else `classic_tflops`;
    ConfigError for what is no rate."""
    if given is not None and not 0 < given < float("inf"):
        raise ConfigError(f"tflops={given:g}: expected a positive number")
    return classic_tflops(problem) if given is None else given


def run_of(problem: Problem, plan: Plan, training: Training) -> Duration:
    """Return how long a plan of a problem trains, and at what cost."""
    setting, pool, per_s = problem.setting, problem.setting.pool, problem.usd_per_chip_s
    return duration(
        plan,
        training,
        checkpoint_bytes=checkpoint_size(
            setting.model, stack=setting.stack, precision=setting.work.precision
        ).total_bytes,
        chips=pool.num_chips,
        chips_per_node=pool.node.chips_per_node,
        seq_len=setting.work.seq_len,
        tdp_w=pool.node.chip.tdp_w,
        usd_per_chip_hour=None if per_s is None else per_s * 3600,
    )


def estimate_run(
    problem: Problem,
    training: Training,
    limits: Limits,
    *,
    search: Search,
    series: str = "",
    tflops: float | None = None,
) -> RunEstimate:
    """Plan a problem, and estimate the run of its best plan; where a limit is broken, those of
    other clusters of the chip too.

    ConfigError where a cost is limited and nobody says what a chip costs.
    """
    if limits.usd is not None and problem.usd_per_chip_s is None:
        chip = problem.setting.pool.node.chip.name
        raise ConfigError(
            f"max_cost={limits.usd:g}: the catalogue has no price of {chip}; give usd_per_hour"
            " (--usd-per-hour)"
        )
    result = search(problem)
    plan = result.plans[0] if result.plans else None
    run = None if plan is None else run_of(problem, plan, training)
    broken = () if run is None else limits.broken_by(run)
    assumed = assumed_tflops(problem, tflops)
    budget = Budget(
        chips=problem.num_chips,
        seconds=1.0,
        tokens=training.tokens,
        flops_per_s_per_chip=assumed * TERA,
    )
    return RunEstimate(
        result=result,
        plan=plan,
        run=run,
        classic_s=classic_seconds(
            model_params(problem.setting.model).active, budget, series=series
        ),
        classic_tflops=assumed,
        training=training,
        limits=limits,
        broken=broken,
        others=tuple(_others(problem, training, search)) if broken else (),
    )


def plans_or_none(search: Search, problem: Problem) -> tuple[Plan, ...]:
    """Return the plans of a problem that nobody asked for in so many words; none where no layout
    keeps the rules."""
    try:
        return search(problem).plans
    except ConfigError:
        return ()


def _others(problem: Problem, training: Training, search: Search) -> list[Duration]:
    """Runs on fewer and more nodes of the same kind; sizes that nothing fits on, or that the batch
    does not divide, are left out."""
    found = []
    per_node = problem.setting.pool.node.chips_per_node
    for step in _STEPS:
        chips = round(problem.num_chips * step)
        if chips < 1 or chips > _MOST_CHIPS or (chips > per_node and chips % per_node):
            continue
        other = with_chips(problem, chips)
        plans = plans_or_none(search, other)
        if plans:
            found.append(run_of(other, plans[0], training))
    return found
