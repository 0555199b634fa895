"""One run of a study of serving; its files are those of any study's run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.runs.loads.figures import Limits
from meshwright.runs.record import Course, event_of
from meshwright.runs.served import Served, ServedPoint, noise_of
from meshwright.runs.serving.deployment import Deployment, deployment_of
from meshwright.serving.request import Objective
from meshwright.values.errors import ConfigError

__all__ = ["PredictedPoint", "ServedRecord", "ServingPrediction", "served_record_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPoint:
    """One load as it was predicted."""

    load: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float
    """New tokens of this copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPrediction:
    """What was predicted of a deployment when it was chosen."""

    points: tuple[PredictedPoint, ...]
    """Loads that the cache holds; fewer than were asked for where it does not hold the rest."""
    cost_s: float
    """Of the best load: chip-seconds of a new token, or seconds of a request."""
    keeps: bool
    """Whether that load is predicted to keep the limits."""
    memory_bytes: float
    """Of the fullest chip at the largest load."""
    limit_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRecord(Course):
    """One deployment, from its prediction to what it served."""

    deployment: Deployment
    predicted: ServingPrediction
    objective: Objective
    limits: Limits

    @property
    def served(self) -> Served | None:
        """What was measured; None where it has not ended, or failed before its first point."""
        return self.outcome if isinstance(self.outcome, Served) else None

    @property
    def best_point(self) -> ServedPoint | None:
        """The load that it serves best within the limits."""
        return None if self.served is None else self.served.best(self.objective, self.limits)

    @property
    def cost_s(self) -> float | None:
        """Of its best load; None where no load keeps the limits, or nothing was measured."""
        best, served = self.best_point, self.served
        return None if best is None or served is None else served.cost_s(best, self.objective)

    @property
    def noise(self) -> float:
        """How far another measurement may be off, as the standard deviation of a logarithm."""
        return 0.0 if self.served is None else noise_of(self.served.measured)

    @property
    def ran_out(self) -> bool:
        """Whether memory ran out before or under any load."""
        return self.failure is not None and self.failure.failure_class == "cuda_oom"

    @property
    def num_chips(self) -> int:
        """Chips of the one copy that was run."""
        return self.deployment.worker.chips

    def to_dict(self) -> dict[str, Any]:
        """Return what is known when it is chosen: the content of `run.json`."""
        return {
            "run_id": self.run_id,
            "number": self.number,
            "deployment": self.deployment.to_dict(),
            "predicted": asdict(self.predicted),
            "objective": self.objective,
            "limits": asdict(self.limits),
            "chosen_because": self.chosen_because,
        }


def served_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> ServedRecord:
    """Read a run back from the content of its two files; ConfigError names the file that is no run
    of serving."""
    try:
        told = content["predicted"]
        points = tuple(PredictedPoint(**point) for point in told["points"])
        record = ServedRecord(
            run_id=content["run_id"],
            number=content["number"],
            deployment=deployment_of(content["deployment"]),
            predicted=ServingPrediction(**{**told, "points": points}),
            objective=content["objective"],
            limits=Limits(**content["limits"]),
            chosen_because=content["chosen_because"],
        )
        for line in events:
            record = record.after(event_of(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{source}: no run of a study of serving ({type(error).__name__}: {error})"
        ) from None
    return record
