"""Ridge regression of logarithms: a few factors fitted to a few runs, pulled towards 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshwright.values.data import package_rows

__all__ = [
    "PRIOR_RUNS",
    "Posterior",
    "Priors",
    "Problem",
    "Study",
    "posterior",
    "read_priors",
    "slopes_of",
    "study_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Standard deviations of logarithms."""

    widths: Mapping[str, float]
    """By factor, between studies."""
    step_time_noise: float
    """Of one run about its study."""
    peak_memory_noise: float


@cache
def read_priors() -> Priors:
    """Read `trust/calibration_priors.csv`, which scripts/fit_calibration_priors writes."""
    found = {
        row["name"]: float(row["width"]) for row in package_rows("trust/calibration_priors.csv")
    }
    noise = {name: found.pop(name) for name in ("step_time_noise", "peak_memory_noise")}
    return Priors(widths=found, **noise)


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PROBE = 0.1
"""Change of a logarithm to take slopes by: large beside rounding, small beside the factors."""
ROUNDS = 8
SETTLED = 2e-3
"""Change of a logarithm below which a fit is done: a tenth of the best runs' noise."""
LARGEST_STEP = 1.0
"""Of a logarithm in one round."""
TAILS = 4.0
"""Degrees of freedom of the Student distribution that runs are taken to follow about their fit: on
a shared cluster some are slow."""
MOST_FOLDS = 30
"""Fits that leaving out may take; with more runs, several are left out together."""
PRIOR_RUNS = 4
"""Runs that the published noise counts for beside the user's own."""
NOISE_ROUNDS = 2
"""Times that the spread of the runs is taken anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One quantity of some runs as a function of the logarithms of some factors."""

    names: tuple[str, ...]
    widths: Floats
    """Prior widths, (K,)."""
    noise: float
    measured: Floats
    """Logarithms, (N,)."""
    bound: Ints
    """0: measured; 1: known to lie above (out of memory); -1: known to lie below, (N,)."""
    predict: Callable[[Floats, Ints], Floats]
    """Logarithms predicted with these logarithms of factors for these rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """What a fit found."""

    logs: Floats
    """Of the factors, (K,)."""
    covariance: Floats
    """(K, K)."""
    residuals: Floats
    """Measured less predicted, of the rows of the fit; 0 where a bound is kept."""


def slopes_of(problem: Problem) -> Floats:
    """Return how the logarithm of each prediction follows that of each factor, at 1, (N, K)."""
    rows, size = np.arange(len(problem.measured)), len(problem.names)
    sides = [
        [problem.predict(sign * PROBE * np.eye(size)[k], rows) for sign in (1.0, -1.0)]
        for k in range(size)
    ]
    return np.stack([(up - down) / (2 * PROBE) for up, down in sides], axis=1)


def posterior(problem: Problem, rows: Ints, slopes: Floats) -> Posterior:
    """Fit the factors to some rows.

    Minimises sum of weight * ((measured - predicted) / noise)**2 + sum of (log factor / prior
    width)**2, first with the published noise, then with that of these runs. Slopes are those at 1,
    which no measurement has touched, so that a run that is left out leaves no trace; predictions
    are exact in every round.
    """
    found = _posterior(problem, rows, slopes, np.zeros(len(problem.names)))
    for _ in range(NOISE_ROUNDS):
        found = _posterior(
            replace(problem, noise=_noise(problem, rows, slopes, found)), rows, slopes, found.logs
        )
    return found


def _noise(problem: Problem, rows: Ints, slopes: Floats, found: Posterior) -> float:
    """Spread of these runs about the fit, what the fit itself does not know included, beside
    PRIOR_RUNS of the published spread."""
    told = problem.bound[rows] == 0
    unknown = np.einsum("nk,kl,nl->n", slopes[rows], found.covariance, slopes[rows])
    trust = _trust(problem, found.residuals)
    squares = (trust * found.residuals**2 + unknown)[told]
    return float(
        np.sqrt((PRIOR_RUNS * problem.noise**2 + squares.sum()) / (PRIOR_RUNS + len(squares)))
    )


def _posterior(problem: Problem, rows: Ints, slopes: Floats, logs: Floats) -> Posterior:
    pull, chosen = np.diag(problem.widths**-2.0), slopes[rows]
    residuals = _residuals(problem, logs, rows)
    broken = _residuals(problem, np.zeros(len(problem.names)), rows) != 0
    for _ in range(ROUNDS):
        weights = _weights(problem, rows, residuals, broken)
        precision = chosen.T @ (weights[:, None] * chosen) + pull
        whole = np.linalg.solve(precision, chosen.T @ (weights * residuals) - pull @ logs)
        step = np.clip(whole, -LARGEST_STEP, LARGEST_STEP).astype(np.float64)
        logs, residuals, moved = _descend(problem, rows, logs, step, residuals)
        if moved < SETTLED:
            break
    weights = _weights(problem, rows, residuals, broken)
    precision = chosen.T @ (weights[:, None] * chosen) + pull
    return Posterior(
        logs=logs,
        covariance=np.asarray(np.linalg.inv(precision), dtype=np.float64),
        residuals=residuals,
    )


def _descend(
    problem: Problem, rows: Ints, logs: Floats, step: Floats, residuals: Floats
) -> tuple[Floats, Floats, float]:
    """Go a step, or half of it, and so on, until the fit is better."""
    before = _objective(problem, logs, residuals)
    for _ in range(5):
        tried = np.clip(logs + step, *_RANGE)
        found = _residuals(problem, tried, rows)
        if _objective(problem, tried, found) <= before:
            return tried, found, float(np.abs(tried - logs).max())
        step = step / 2
    return logs, residuals, 0.0


_RANGE = (float(np.log(0.06)), float(np.log(16.0)))


def _objective(problem: Problem, logs: Floats, residuals: Floats) -> float:
    squares = (residuals / problem.noise) ** 2
    misfit = (TAILS + 1) * np.log1p(squares / TAILS) if len(residuals) > 1 else squares
    return float(misfit.sum() + ((logs / problem.widths) ** 2).sum())


def _residuals(problem: Problem, logs: Floats, rows: Ints) -> Floats:
    """Measured less predicted; a bound that is kept has none."""
    if not len(rows):
        return np.zeros(0)
    found = problem.measured[rows] - problem.predict(logs, rows)
    bound = problem.bound[rows]
    kept = np.where(
        bound > 0, np.maximum(found, 0.0), np.where(bound < 0, np.minimum(found, 0.0), found)
    )
    return np.asarray(kept)


def _trust(problem: Problem, residuals: Floats) -> Floats:
    """Less for a run that is far off the others, of which a single run has none."""
    return (
        (TAILS + 1) / (TAILS + (residuals / problem.noise) ** 2)
        if len(residuals) > 1
        else np.ones(len(residuals))
    )


def _weights(problem: Problem, rows: Ints, residuals: Floats, broken: NDArray[np.bool_]) -> Floats:
    """Of each run; a kept bound tells nothing, unless it is the fit that keeps it."""
    silent = (problem.bound[rows] != 0) & (residuals == 0) & ~broken
    return np.where(silent, 0.0, _trust(problem, residuals) / problem.noise**2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """All runs, fitted together and each by the others."""

    full: Posterior
    before: Floats
    """Residuals by the model alone, (N,)."""
    left_out: Floats | None
    """Residual of each run by a fit that has not seen it, (N,); None for a single run."""


def study_of(problem: Problem) -> Study:
    """Fit all runs, and then all but some, again and again."""
    rows, nothing = np.arange(len(problem.measured)), np.zeros(len(problem.names))
    if not len(rows):
        unknown = Posterior(
            logs=nothing, covariance=np.diag(problem.widths**2), residuals=np.zeros(0)
        )
        return Study(full=unknown, before=np.zeros(0), left_out=None)
    slopes = slopes_of(problem)
    return Study(
        full=posterior(problem, rows, slopes),
        before=_residuals(problem, nothing, rows),
        left_out=_left_out(problem, slopes) if len(rows) > 1 else None,
    )


def _left_out(problem: Problem, slopes: Floats) -> Floats:
    """Residual of each run by a fit that has not seen it."""
    rows = np.arange(len(problem.measured))
    found = np.zeros(len(rows))
    for fold in np.array_split(rows, min(MOST_FOLDS, len(rows))):
        others = np.setdiff1d(rows, fold)
        found[fold] = _residuals(problem, posterior(problem, others, slopes).logs, fold)
    return found
