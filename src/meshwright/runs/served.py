"""What one deployment was measured to serve: a point for each load, those that failed with why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.runs.loads.figures import Figures, Limits
from meshwright.serving.request import Objective
from meshwright.trust.calibration import Z90

__all__ = ["Served", "ServedPoint", "served_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPoint:
    """One load on one deployment."""

    load: str
    """`concurrency=8`"""
    figures: Figures | None
    """None where it has none."""
    error: str | None = None
    """Why it counts for nothing; None where every request was answered."""
    evidence: str | None = None
    """The engine's last line, or a line of its log that names the cause."""

    def kept(self, limits: Limits) -> bool:
        """Whether it was measured, and its means keep every limit."""
        if self.error is not None or self.figures is None:
            return False
        times = {
            "ttft_s": self.figures.ttft_s.mean,
            "tpot_s": self.figures.tpot_s.mean,
            "e2e_s": self.figures.e2e_s.mean,
        }
        return limits.kept(times)


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One deployment under its loads."""

    points: tuple[ServedPoint, ...]
    ready_s: float
    """From its start until it took requests."""
    chips: int
    notes: tuple[str, ...] = ()
    """Words of the protocol that the engine refuses."""

    @property
    def measured(self) -> tuple[ServedPoint, ...]:
        """Points that count."""
        return tuple(
            point for point in self.points if point.error is None and point.figures is not None
        )

    def best(self, objective: Objective, limits: Limits) -> ServedPoint | None:
        """Return the point that serves best of those that keep the limits; None where none does."""
        kept = [point for point in self.measured if point.kept(limits)]
        return min(kept, key=lambda point: self.cost_s(point, objective), default=None)

    def cost_s(self, point: ServedPoint, objective: Objective) -> float:
        """What deployments are compared by: chip-seconds of a new token, or seconds of a
        request."""
        assert point.figures is not None
        if objective == "latency":
            return point.figures.e2e_s.mean
        return (
            self.chips / point.figures.tokens_per_s if point.figures.tokens_per_s > 0 else math.inf
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain types; `served_of` reads them back."""
        points = [
            {**asdict(point), "figures": point.figures.to_dict() if point.figures else None}
            for point in self.points
        ]
        return {
            "points": points,
            "ready_s": self.ready_s,
            "chips": self.chips,
            "notes": list(self.notes),
        }


def served_of(content: Mapping[str, Any]) -> Served:
    """Read it back from plain types."""
    found = content["points"]
    points = [
        ServedPoint(
            **{
                **point,
                "figures": None if point["figures"] is None else Figures.of(point["figures"]),
            }
        )
        for point in found
    ]
    return Served(
        points=tuple(points),
        ready_s=content["ready_s"],
        chips=content["chips"],
        notes=tuple(content["notes"]),
    )


def noise_of(points: Sequence[ServedPoint]) -> float:
    """How far another measurement of a load may be off, as the standard deviation of a logarithm.

    Formula:  ln(p90 / p50) / 1.28 of the requests' times is that of one request; of the mean of n
              it is 1 / sqrt(n) as much
    Valid:    requests of equal lengths that vary independently; a machine that is slow for minutes
              shows less than the truth.
    """
    found = [
        math.log(point.figures.e2e_s.p90 / point.figures.e2e_s.p50)
        / Z90
        / math.sqrt(point.figures.requests)
        for point in points
        if point.figures is not None and point.figures.requests and point.figures.e2e_s.p50 > 0
    ]
    return max(found, default=0.0)
