"""What one load showed, and what one deployment served under its loads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from meshwright.serving.request import Objective
from meshwright.trust.calibration import Z90

__all__ = [
    "Answer",
    "Figures",
    "Limits",
    "Served",
    "ServedPoint",
    "Spread",
    "figures_of",
    "limited_times",
    "served_of",
    "spread_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What became of one request; times in seconds after the start of the load."""

    sent_s: float
    first_s: float | None = None
    """When the first token came."""
    last_s: float | None = None
    """When the last token came."""
    gaps_s: tuple[float, ...] = ()
    """Between two messages with tokens."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the server counts them; messages with text where it does not say."""
    error: str | None = None
    """Why it failed; None where it was answered."""

    @property
    def ttft_s(self) -> float:
        """From sending to the first token; NaN of one that failed."""
        return math.nan if self.error or self.first_s is None else self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        """From sending to the last token; NaN of one that failed."""
        return math.nan if self.error or self.last_s is None else self.last_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        """(last - first) / (tokens - 1); NaN of one that failed or has one token."""
        if self.error or self.first_s is None or self.last_s is None or self.output_tokens < 2:
            return math.nan
        return (self.last_s - self.first_s) / (self.output_tokens - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What an answer must keep to be good, and what the slowest of a hundred may take; None is no
    limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    ttft_p99_s: float | None = None
    """Of all requests of a load, as the next two."""
    tpot_p99_s: float | None = None
    e2e_p99_s: float | None = None

    def kept(self, times: Mapping[str, float]) -> bool:
        """Whether times by name keep every limit; one that is not known breaks none."""
        told = ((limit, times.get(name, math.nan)) for name, limit in asdict(self).items())
        return all(limit is None or not time > limit for limit, time in told)

    @property
    def of_p99(self) -> dict[str, float]:
        """Those of the slowest of a hundred that there are."""
        told = asdict(self).items()
        return {name: limit for name, limit in told if "p99" in name and limit is not None}

    @property
    def any(self) -> bool:
        """Whether there is one that a single request may break."""
        return any(limit is not None for limit in (self.ttft_s, self.tpot_s, self.e2e_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How a time varies over requests, seconds; NaN where nobody measured it."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One load on one server."""

    requests: int
    """That were answered."""
    failed: int
    duration_s: float
    """From the first request to the last token."""
    prompt_tokens: int
    output_tokens: int
    ttft_s: Spread
    """From sending a request to its first token."""
    tpot_s: Spread
    """(last token - first token) / (output tokens - 1) of a request."""
    itl_s: Spread
    """Between two messages with tokens."""
    e2e_s: Spread
    """From sending a request to its last token."""
    good_per_s: float | None = None
    """Requests a second that kept the limits; None where there was none."""
    first_error: str | None = None
    """What the first request that failed was told."""

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.requests / self.duration_s if self.duration_s else math.nan

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, prompts not counted."""
        return self.output_tokens / self.duration_s if self.duration_s else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, NaN as None."""
        rates = {"requests_per_s": self.requests_per_s, "tokens_per_s": self.tokens_per_s}
        found: dict[str, Any] = _plain({**asdict(self), **rates})
        return found

    @staticmethod
    def of(content: Mapping[str, Any]) -> Figures:
        """Read them back from plain types."""
        known = {one.name: content[one.name] for one in fields(Figures) if one.name in content}
        spreads = {name: _spread(content[name]) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}
        return Figures(**{**known, **spreads})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _spread(content: Mapping[str, Any]) -> Spread:
    told = content.items()
    return Spread(**{name: math.nan if value is None else float(value) for name, value in told})


def spread_of(values: Iterable[float]) -> Spread:
    """Return mean and percentiles of what is no NaN; percentiles are interpolated linearly."""
    import numpy as np

    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return Spread(mean=math.nan, p50=math.nan, p90=math.nan, p99=math.nan)
    p50, p90, p99 = np.percentile(known, [50, 90, 99]).tolist()
    return Spread(mean=float(known.mean()), p50=p50, p90=p90, p99=p99)


def figures_of(answers: Sequence[Answer], *, limits: Limits | None = None) -> Figures:
    """Return the figures of a load; those of requests that failed count in `failed` alone.

    Throughput is all new tokens over the time from the first request to the last token, as `vllm
    bench serve` has it: a load of few requests a client shows less than one without end, since the
    last ones run beside fewer.
    """
    good = [answer for answer in answers if answer.error is None]
    bad = [answer for answer in answers if answer.error is not None]
    start = min((answer.sent_s for answer in good), default=0.0)
    duration = max((answer.last_s or answer.sent_s for answer in good), default=start) - start
    kept = [answer for answer in good if limits and limits.kept(_times(answer))]
    return Figures(
        requests=len(good),
        failed=len(bad),
        duration_s=duration,
        prompt_tokens=sum(answer.prompt_tokens for answer in good),
        output_tokens=sum(answer.output_tokens for answer in good),
        ttft_s=spread_of(answer.ttft_s for answer in good),
        tpot_s=spread_of(answer.tpot_s for answer in good),
        itl_s=spread_of(gap for answer in good for gap in answer.gaps_s),
        e2e_s=spread_of(answer.e2e_s for answer in good),
        good_per_s=len(kept) / duration if limits is not None and limits.any and duration else None,
        first_error=bad[0].error if bad else None,
    )


def _times(answer: Answer) -> dict[str, float]:
    return {"ttft_s": answer.ttft_s, "tpot_s": answer.tpot_s, "e2e_s": answer.e2e_s}


def limited_times(figures: Figures) -> dict[str, float]:
    """Return what limits are held against, by the limit's name."""
    spreads = {name: getattr(figures, f"{name}_s") for name in ("ttft", "tpot", "e2e")}
    means = {f"{name}_s": spread.mean for name, spread in spreads.items()}
    return means | {f"{name}_p99_s": spread.p99 for name, spread in spreads.items()}


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
        """Whether it was measured, and its means and percentiles keep every limit."""
        if self.error is not None or self.figures is None:
            return False
        return limits.kept(limited_times(self.figures))


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
        return tuple(one for one in self.points if one.error is None and one.figures is not None)

    def best(self, objective: Objective, limits: Limits) -> ServedPoint | None:
        """Return the point that serves best of those that keep the limits; None where none does."""
        kept = [point for point in self.measured if point.kept(limits)]
        return min(kept, key=lambda point: self.cost_s(point, objective), default=None)

    def cost_s(self, point: ServedPoint, objective: Objective) -> float:
        """What deployments are compared by: chip-seconds of a token, or seconds of a request."""
        assert point.figures is not None
        if objective == "latency":
            return point.figures.e2e_s.mean
        rate = point.figures.tokens_per_s
        return self.chips / rate if rate > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return plain types; `served_of` reads them back."""
        points = [
            {**asdict(point), "figures": point.figures.to_dict() if point.figures else None}
            for point in self.points
        ]
        return {**asdict(self), "points": points, "notes": list(self.notes)}


def served_of(content: Mapping[str, Any]) -> Served:
    """Read it back from plain types."""
    points = tuple(map(_point_of, content["points"]))
    return Served(**{**content, "points": points, "notes": tuple(content["notes"])})


def _point_of(content: Mapping[str, Any]) -> ServedPoint:
    figures = None if content["figures"] is None else Figures.of(content["figures"])
    return ServedPoint(**{**content, "figures": figures})


def noise_of(points: Sequence[ServedPoint]) -> float:
    """How far another measurement of a load may be off, as the standard deviation of a logarithm.

    Formula:  ln(p90 / p50) / 1.28 of the requests' times is that of one request; of the mean of n
              it is 1 / sqrt(n) as much
    Valid:    requests of equal lengths that vary independently; a machine that is slow for minutes
              shows less than the truth.
    """
    told = [one.figures for one in points if one.figures is not None and one.figures.requests]
    found = (
        math.log(one.e2e_s.p90 / one.e2e_s.p50) / Z90 / math.sqrt(one.requests)
        for one in told
        if one.e2e_s.p50 > 0
    )
    return max(found, default=0.0)
