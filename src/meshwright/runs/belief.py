"""What is believed of layouts that were not run: distributions of logarithms, moved by the runs
that were. Pure.

The logarithm of measured over predicted step time of layout i is taken to be

    common + sum over k of slope[i, k] * factor[k] + alike[i] + own[i]

`common` is one number for the whole study; `factor[k]` says how far compute, exchanges, launches
are off (the factors of `calibrate`), and slope[i, k] is the share of the step that follows it;
`alike` is a smooth function of the layout's axes; `own` belongs to one layout. So one run moves all
layouts, and those like it most. How large each part is differs from study to study: each
hypothesis has its own sizes and a weight from published studies, which the runs move, so that
misses widen what is believed of the rest. A share of all runs is slow for reasons that are not the
layout's (a busy network, a bad node); such a run tells nothing of others.

The same sum, with sizes that are known, holds of the memory that a layout needs, of which a run
tells on which side of the limit it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from meshwright.values.data import package_rows

__all__ = [
    "Belief",
    "Hypothesis",
    "Prior",
    "Sizes",
    "Slow",
    "believe_bounds",
    "believe_values",
    "correlations",
    "drawn_logs",
    "hypotheses_of",
    "normal_cdf",
    "read_sizes",
]

Floats = NDArray[np.float64]

ALIKE_OCTAVES = 1.5
"""Layouts that are so many doublings of one axis apart share exp(-1/2) of what likeness explains.
Of 1.0, 1.5 and 2.5, the replays (docs/tune.md) tell hardly any difference."""
SETTLED = 1e-6
ROUNDS = 50
LEAST_SHARE = 1e-3
"""Of all draws, below which a hypothesis is left out."""
MOST_SLOW, PAIRS_UP_TO = 2, 8
"""Runs that may be slow together; beyond so many runs one only, for pairs grow as their square."""
EARLY, EARLY_WIDTH = 1e-3, 0.1
"""A run that is faster than believed is hardly ever one of the slow kind."""
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One way in which measured over predicted may differ between the layouts of a study."""

    shared: Floats
    """Covariance of all but what is each layout's own, (N, N)."""
    own: float
    """Variance of what is each layout's own."""
    weight: float
    """Share of published studies that are like it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """Runs that are slow for reasons that are not the layout's."""

    share: float
    """Of all runs."""
    mean: float
    """Of the logarithm by which they are slower, exponentially distributed."""


NEVER_SLOW = Slow(share=0.0, mean=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """What is believed of N layouts before any run."""

    mean: Floats
    """Logarithms, (N,)."""
    shared: Floats
    """Covariance of all but what is each layout's own, (N, N)."""
    own: float
    """Variance of what is each layout's own."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Instead of `shared` and `own`, where sizes are not known."""
    slow: Slow = NEVER_SLOW

    @property
    def alternatives(self) -> tuple[Hypothesis, ...]:
        """The hypotheses; the one that is known where there are none."""
        return self.hypotheses or (Hypothesis(shared=self.shared, own=self.own, weight=1.0),)


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


def hypotheses_of(
    sizes: Sequence[Sizes], *, slopes: Floats, widths: Floats, axes: Floats, common: float
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of a study.

    Formula:  shared = (factors * slopes * widths)(...)^T + trend**2 * axes axes^T + alike**2 *
              exp(-d**2 / (2 octaves**2)) + common**2; own = own**2
    Units:    logarithms.
    Source:   sizes and weights: trust/beliefs.csv, by scripts/fit_beliefs from published studies.
    Valid:    slopes (N, K), widths (K,), axes (N, A) in octaves.
    Checked:  tests/runs/test_belief.py
    """
    centred = axes - axes.mean(axis=0)
    apart = ((axes[:, None, :] - axes[None, :, :]) ** 2).sum(axis=2)
    by_factor, by_trend = (slopes * widths**2) @ slopes.T, centred @ centred.T
    return tuple(
        Hypothesis(
            shared=size.factors**2 * by_factor
            + size.trend**2 * by_trend
            + size.alike**2 * np.exp(-apart / (2.0 * size.octaves**2))
            + common**2,
            own=size.own**2,
            weight=size.weight,
        )
        for size in sizes
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """A line of trust/beliefs.csv: how large the parts are in some published studies."""

    factors: float
    """Times the prior widths of `calibrate`."""
    trend: float
    """Logarithm per doubling of an axis."""
    alike: float
    octaves: float
    own: float
    weight: float


@cache
def read_sizes() -> tuple[Sizes, ...]:
    """Read trust/beliefs.csv, which scripts/fit_beliefs writes."""
    rows = package_rows("trust/beliefs.csv")
    return tuple(Sizes(**{name: float(cell) for name, cell in row.items()}) for row in rows)


def drawn_logs(
    prior: Prior,
    rows: Sequence[int],
    seen: Floats,
    *,
    noise: Floats,
    count: int,
    chance: np.random.Generator,
) -> Floats:
    """Return what runs of all layouts might show together once some were measured, (count, N).

    Every hypothesis is weighed by how well it explains what was seen, with none, one or two of the
    runs taken to be slow for reasons that are not their own.

    Formula:  weight * N(seen - mean; shared + own + noise**2) * slow terms, over hypotheses and
              slow runs; then draws of the normal distribution that each leaves, plus slow ones
    Units:    logarithms.
    Source:   Gaussian process regression (Rasmussen and Williams, 2.2) under each hypothesis;
              Bayes' rule over them.
    Valid:    seen and noise (R,); of rows that ran the draws are what their noise leaves open, and
              of one taken to be slow what it showed.
    Checked:  tests/runs/test_belief.py
    """
    chosen = np.asarray(rows, dtype=np.int64)
    left = seen - prior.mean[chosen]
    told = [
        (hypothesis, kept) for hypothesis in prior.alternatives for kept in _kept(prior, len(rows))
    ]
    logs = np.array(
        [_evidence(one, prior.slow, chosen, left, noise**2, kept) for one, kept in told]
    )
    shares = np.exp(logs - logs.max())
    shares[shares < LEAST_SHARE * shares.sum()] = 0.0
    parts = []
    for (one, kept), times in zip(
        told, chance.multinomial(count, shares / shares.sum()), strict=True
    ):
        if times:
            seen_of = chosen[kept], left[kept], noise[kept] ** 2
            part = _left_over(one, *seen_of, int(times), chance)
            late = chosen[~kept]
            part[:, late] = left[~kept] + noise[~kept] * chance.standard_normal((times, len(late)))
            parts.append(part)
    drawn = prior.mean + chance.permutation(np.concatenate(parts))
    slow = chance.random(drawn.shape) < prior.slow.share
    slow[:, chosen] = False
    return np.asarray(drawn + slow * chance.exponential(prior.slow.mean, drawn.shape))


def _kept(prior: Prior, runs: int) -> Iterator[NDArray[np.bool_]]:
    """Which runs are taken to tell of their layouts: all, all but one, all but two."""
    some = (MOST_SLOW if runs <= PAIRS_UP_TO else 1) if prior.slow.share else 0
    for count in range(min(some, runs) + 1):
        for slow in combinations(range(runs), count):
            kept = np.ones(runs, dtype=np.bool_)
            kept[list(slow)] = False
            yield kept


def _evidence(
    one: Hypothesis,
    slow: Slow,
    rows: NDArray[np.int64],
    left: Floats,
    variance: Floats,
    kept: NDArray[np.bool_],
) -> float:
    """Logarithm of the weight of a hypothesis with these runs kept and the others slow."""
    rest, told = ~kept, rows[kept]
    covariance = one.shared[np.ix_(told, told)] + np.diag(variance[kept] + one.own + SETTLED)
    root = np.linalg.cholesky(covariance)
    solved = np.linalg.solve(root, left[kept])
    found = math.log(one.weight) - 0.5 * float(solved @ solved) - float(np.log(np.diag(root)).sum())
    found -= 0.5 * len(told) * math.log(2.0 * math.pi)
    if not slow.share:
        return found
    found += len(told) * math.log1p(-slow.share) + int(rest.sum()) * math.log(slow.share)
    if rest.any():
        across = one.shared[np.ix_(rows[rest], told)]
        beyond = left[rest] - across @ np.linalg.solve(covariance, left[kept])
        late = -beyond / slow.mean - math.log(slow.mean)
        early = math.log(EARLY) + beyond / EARLY_WIDTH - math.log(EARLY_WIDTH)
        found += float(np.where(beyond > 0, late, early).sum())
    return found


def _left_over(
    one: Hypothesis,
    rows: NDArray[np.int64],
    left: Floats,
    variance: Floats,
    draws: int,
    chance: np.random.Generator,
) -> Floats:
    """Draws of the normal distribution that some runs leave of one hypothesis; what is each
    layout's own is known of those that ran, as far as their noise lets it be."""
    whole = one.shared + one.own * np.eye(len(one.shared))
    seen = whole[np.ix_(rows, rows)] + np.diag(variance + SETTLED)
    weights = np.linalg.solve(seen, whole[rows]).T
    covariance = whole - weights @ whole[rows]
    root = np.linalg.cholesky(covariance + SETTLED * np.eye(len(covariance)))
    normals = chance.standard_normal((draws, len(covariance)))
    return np.asarray(weights @ left + normals @ root.T)


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
