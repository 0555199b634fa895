"""What is believed of layouts that were not run: normal distributions of logarithms, moved by the
runs that were. Pure.

The logarithm of measured over predicted step time of layout i is taken to be

    common + sum over k of slope[i, k] * factor[k] + alike[i] + own[i]

`common` is one number for the whole study; `factor[k]` says how far compute, exchanges, launches
are off (the factors of `calibrate`), and slope[i, k] is the share of the step that follows it;
`alike` is a smooth function of the layout's axes; `own` belongs to one layout. So one run moves all
layouts, and those like it most. The same holds of the memory that a layout needs, of which a run
tells on which side of the limit it lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Belief", "Prior", "believe_bounds", "believe_values", "correlations", "normal_cdf"]

Floats = NDArray[np.float64]

ALIKE_OCTAVES = 1.5
"""Layouts that are so many doublings of one axis apart share exp(-1/2) of what likeness explains.
Of 1.0, 1.5 and 2.5, the replays (docs/tune.md) tell hardly any difference."""
SETTLED = 1e-6
ROUNDS = 50
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """What is believed of N layouts before any run."""

    mean: Floats
    """Logarithms, (N,)."""
    shared: Floats
    """Covariance of all but what is each layout's own, (N, N)."""
    own: float
    """Variance of what is each layout's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Belief:
    """What is believed of N layouts once some were run; of those themselves what was seen is to be
    taken instead."""

    mean: Floats
    """(N,)."""
    shared: Floats
    """(N, N)."""
    own: float

    @property
    def spread(self) -> Floats:
        """Standard deviation of what a run of each layout would show, (N,)."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.shared), 0.0) + self.own))

    def draws(self, normals: Floats, own_normals: Floats) -> Floats:
        """Turn standard normal numbers, (D, N) each, into what runs of all layouts might show
        together, (D, N)."""
        values, vectors = np.linalg.eigh(self.shared)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(self.mean + normals @ root.T + math.sqrt(self.own) * own_normals)


def correlations(
    *, slopes: Floats, widths: Floats, axes: Floats, noise: float, spread: Floats, mean: Floats
) -> Prior:
    """Return the prior of some layouts.

    Formula:  shared = slopes diag(widths**2) slopes^T + alike * exp(-d**2 / (2 ALIKE_OCTAVES**2)) +
              common; own = noise**2 / 2, and so is alike. common fills up the mean variance to that
              of the intervals, `spread`**2; where these are narrower than the rest, everything is
              scaled down to them instead
    Units:    logarithms.
    Source:   widths and noise: trust/calibration_priors.csv. That half of the noise is shared by
              like layouts is by the replays.
    Valid:    slopes (N, K), widths (K,), axes (N, A) in octaves, spread and mean (N,).
    Checked:  tests/runs/test_belief.py
    """
    apart = ((axes[:, None, :] - axes[None, :, :]) ** 2).sum(axis=2)
    half = noise**2 / 2.0
    shared = (slopes * widths**2) @ slopes.T + half * np.exp(-apart / (2.0 * ALIKE_OCTAVES**2))
    explained, wanted = float(np.diag(shared).mean() + half), float((spread**2).mean())
    scale = min(1.0, wanted / explained)
    return Prior(mean=mean, shared=scale * shared + max(0.0, wanted - explained), own=scale * half)


def believe_values(prior: Prior, rows: Sequence[int], seen: Floats, *, noise: Floats) -> Belief:
    """Return the belief after rows were measured, `seen` as logarithms (R,) with standard
    deviations `noise` (R,)."""
    if not len(rows):
        return Belief(mean=prior.mean, shared=prior.shared, own=prior.own)
    chosen = np.asarray(rows)
    return _conditioned(prior, chosen, seen, prior.own + noise**2)


def believe_bounds(prior: Prior, rows: Sequence[int], above: Sequence[bool]) -> Belief:
    """Return the belief after rows were seen to lie above 0 or below, by expectation propagation.

    Source:   Minka, Expectation Propagation (2001); Rasmussen and Williams, Gaussian Processes for
              Machine Learning, algorithm 3.5
    """
    if not len(rows):
        return Belief(mean=prior.mean, shared=prior.shared, own=prior.own)
    chosen = np.asarray(rows)
    signs = np.where(np.asarray(above), 1.0, -1.0)
    precision, shift = np.zeros(len(chosen)), np.zeros(len(chosen))
    mean, covariance = prior.mean[chosen], prior.shared[np.ix_(chosen, chosen)]
    for _ in range(ROUNDS):
        before = precision.copy()
        for i in range(len(chosen)):
            system = np.eye(len(chosen)) + covariance * precision
            spread = np.linalg.solve(system, covariance)
            centre = np.linalg.solve(system, mean + covariance @ shift)
            precision[i], shift[i] = _site(
                signs[i], float(centre[i]), float(spread[i, i]), precision[i], shift[i], prior.own
            )
        if np.abs(precision - before).max() < SETTLED * (1.0 + before.max()):
            break
    return _conditioned(prior, chosen, shift / precision, 1.0 / precision)


def _site(
    sign: float, centre: float, variance: float, precision: float, shift: float, own: float
) -> tuple[float, float]:
    """The normal factor that stands for one bound: such that the belief keeps the mean and variance
    that the bound gives it."""
    without = 1.0 / max(1.0 / variance - precision, _TINY)
    at = without * (centre / variance - shift)
    wide = math.sqrt(without + own + _TINY)
    z = sign * at / wide
    below = max(float(normal_cdf(np.array(z))), _TINY)
    ratio = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / below
    kept_mean = at + sign * without * ratio / wide
    kept_variance = without - without**2 * ratio * (z + ratio) / wide**2
    found = max(1.0 / max(kept_variance, _TINY) - 1.0 / without, _TINY)
    return found, kept_mean / max(kept_variance, _TINY) - at / without


def _conditioned(prior: Prior, rows: NDArray[np.int64], seen: Floats, noise: Floats) -> Belief:
    """The normal distribution given noisy values of some rows."""
    seen_shared = prior.shared[np.ix_(rows, rows)] + np.diag(noise)
    weights = np.linalg.solve(seen_shared, prior.shared[rows]).T
    mean = prior.mean + weights @ (seen - prior.mean[rows])
    return Belief(mean=mean, shared=prior.shared - weights @ prior.shared[rows], own=prior.own)


def normal_cdf(z: Floats) -> Floats:
    """Return the standard normal distribution's share below z, any shape."""
    beyond = np.vectorize(math.erfc, otypes=[float])(-np.asarray(z) / math.sqrt(2.0))
    return np.asarray(0.5 * beyond)
