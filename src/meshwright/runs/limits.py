"""What a study may spend, and how it chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from meshwright.runs.budget import BUDGET_FORMS, Budget, read_budget
from meshwright.runs.choose import CONFIDENCE, STRATEGIES, Strategy
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.options import Option

__all__ = ["StudyLimits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyLimits:
    """What a study may spend, and how it chooses."""

    max_runs: Annotated[int, Option("Runs of the study, those of earlier starts included.")] = 8
    minutes_per_run: Annotated[
        float, Option("Minutes after which a run is ended.", ("--max-minutes-per-run",))
    ] = 10.0
    queue_minutes: Annotated[
        float, Option("Minutes that a run may wait for its start.", ("--max-queue-minutes",))
    ] = 60.0
    parallel: Annotated[int, Option("Runs at a time.")] = 1
    budget: Annotated[
        Budget | None,
        Option(
            "What the study may cost: hours of one chip, dollars or runs.",
            metavar=BUDGET_FORMS,
            kind=str,
            read=read_budget,
        ),
    ] = None
    tolerance: Annotated[
        float,
        Option("Stop when no layout is likely to be faster than the best by more than this share."),
    ] = 0.02
    confidence: Annotated[float, Option("How likely that must be, from 0.5 to below 1.")] = (
        CONFIDENCE
    )
    run_all: Annotated[bool, Option("Run every candidate, the most promising first.")] = False
    strategy: Annotated[Strategy, Option("predicted, grid, random or optuna.")] = "predicted"

    def __post_init__(self) -> None:
        """Check every number."""
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(f"confidence={self.confidence:g}: expected 0.5 or more, and below 1")
        if self.strategy not in STRATEGIES:
            raise UnknownNameError("strategy", str(self.strategy), STRATEGIES)
        check_amounts(self, ["max_runs", "parallel"], least=1)
        check_amounts(self, ["minutes_per_run", "queue_minutes"])
        if not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"tolerance={self.tolerance:g}: expected a share of the step time, from 0 to"
                " below 1"
            )
