"""Which layout to run next, and when to stop. Pure: the same runs give the same choice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.belief import believe_bounds, drawn_logs
from meshwright.runs.forecasts import Options
from meshwright.values.errors import MissingExtraError

__all__ = [
    "STRATEGIES",
    "Choice",
    "Stop",
    "Strategy",
    "Tried",
    "best_of",
    "chances_of",
    "choose",
    "ends",
    "next_by_optuna",
]

Floats = NDArray[np.float64]
Strategy = Literal["predicted", "grid", "random", "optuna"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CONFIDENCE = 0.7
"""With which a study ends unless told otherwise. On 70 published sets it then stops after 2.5 runs,
says 83 %, is right in 91 % and loses 0.9 % of step time in the mean (docs/tune.md)."""
MOST_LOST = 5.0
"""Tolerances of step time that may be expected to be lost at the end: as sure as it may be, a study
goes on while what is left could be far faster."""
DRAWS = 1536
"""Of the joint distribution: a probability near 0.1 is found to within a percent."""
BY_TIME = 2
"""Runs that are chosen by their expected time. How wide beliefs are is told by other studies until
a study's own runs tell it, and a chance to be the fastest favours what is known least."""
_SEED = 20261121
"""Of the draws, so that a choice can be made again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What became of one layout's run."""

    step_s: float | None = None
    """None where it did not finish, or not yet."""
    noise: float = 0.0
    """Standard deviation of the logarithm of `step_s` from run to run of this layout."""
    ran_out: bool = False
    """Of memory."""
    pending: bool = False

    def with_another(self, other: Tried) -> Tried:
        """Return what two runs of one layout say together.

        Formula:  the mean of ln(step), each weighing as 1 / noise**2, with noise
                  1 / sqrt(sum of 1 / noise**2); of a finished and a failed run the finished one
        Source:   the mean of normal values of known widths
        """
        if self.step_s is None or other.step_s is None:
            found = self if other.step_s is None else other
            return replace(found, pending=self.pending or other.pending)
        if not (self.noise > 0 and other.noise > 0):
            return min(self, other, key=lambda run: run.noise)
        weights = self.noise**-2, other.noise**-2
        logs = math.log(self.step_s), math.log(other.step_s)
        mean = (weights[0] * logs[0] + weights[1] * logs[1]) / sum(weights)
        return replace(self, step_s=math.exp(mean), noise=sum(weights) ** -0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The next run."""

    index: int
    because: str
    confidence: float = 0.0
    """That no layout is faster than the best seen by more than the tolerance."""
    expected_loss: float = math.inf
    """Of step time, by taking the best seen in place of the fastest of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """No further run."""

    because: str
    confidence: float = 1.0
    """As of a choice."""
    expected_loss: float = 0.0


Runs = Mapping[int, Tried]
"""By the layout's place among the options."""


def choose(
    options: Options,
    runs: Runs,
    *,
    strategy: Strategy = "predicted",
    tolerance: float = 0.02,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    repeats: bool = True,
) -> Choice | Stop:
    """Return the next layout, or why there is none; `seed` orders random and optuna.

    By prediction with `repeats` it may be one that ran, where noise hides which of the leaders is
    the best. It ends with this confidence that no layout is faster than the best seen by more
    than the tolerance; never with a tolerance below 0.
    """
    left = [index for index in range(len(options)) if index not in runs]
    if not left:
        best = best_of(runs)
        sure = 1.0
        if best is not None and strategy == "predicted":
            sure = float(chances_of(options, runs, tolerance=tolerance)[best])
        return Stop(because="every candidate has been run", confidence=sure)
    if strategy == "grid":
        index = min(left, key=lambda i: tuple(options.axes[i]))
        return Choice(index=index, because="next of the grid")
    if strategy == "random":
        order = np.random.default_rng(seed).permutation(len(options))
        index = int(next(i for i in order if i in set(left)))
        return Choice(index=index, because="drawn at random")
    if strategy == "optuna":
        index = next_by_optuna(options.axes, runs, left, seed=seed)
        return Choice(index=index, because="by Optuna's TPE")
    return _by_prediction(options, runs, left, tolerance, confidence, repeats=repeats)


def _by_prediction(
    options: Options,
    runs: Runs,
    left: Sequence[int],
    tolerance: float,
    confidence: float,
    *,
    repeats: bool,
) -> Choice | Stop:
    """The layout that is most often as good as the fastest; none where the best seen is it."""
    times = _drawn(options, runs)
    near = _near(times, tolerance)
    best = best_of(runs)
    sure = 0.0 if best is None else float(near[:, best].mean())
    lost = math.inf if best is None else _expected_loss(times, best)
    if best is not None and ends(sure, lost, confidence=confidence, tolerance=tolerance):
        return Stop(
            because=(
                f"with {sure:.0%} confidence no other of {len(options)} candidates is faster than"
                f" the best by more than {tolerance:.1%}, and {lost:.1%} is expected to be lost"
            ),
            confidence=sure,
            expected_loss=lost,
        )
    # What runs already may turn out to be as good: another is worth a run where it would not.
    pending = [index for index, tried in runs.items() if tried.pending]
    covered = np.asarray(near[:, pending].any(axis=1))
    alone = near[:, left] & ~covered[:, None]
    chances, fits = alone.mean(axis=0), np.isfinite(times[:, left]).mean(axis=0)
    order = np.lexsort((options.step.mean[left], -fits, -chances))
    place = int(order[0]) if len(runs) >= BY_TIME else _fastest(times[:, left])
    words = f"as fast as the fastest with {chances[place]:.0%}, fits with {fits[place]:.0%}"
    if best is None:
        return Choice(index=left[place], because=f"{words}; nothing has finished yet")
    again = _again(near, runs, best) if repeats and tolerance >= 0 else None
    if again is not None and again.chance > chances[place]:
        return Choice(
            index=again.index,
            because=(
                f"once more: {again.chance:.0%} that a run within the noise of the best is faster"
                f" by more than {tolerance:.1%}"
            ),
            confidence=sure,
            expected_loss=lost,
        )
    gain = float(-np.expm1(np.minimum(times[:, left[place]] - times[:, best], 0.0)).mean())
    return Choice(
        index=left[place],
        because=f"{words}; expected gain {gain:.1%} of the best step so far",
        confidence=sure,
        expected_loss=lost,
    )


def ends(sure: float, lost: float, *, confidence: float, tolerance: float) -> bool:
    """Whether a study ends that is so sure of its best and expects to lose so much; never with a
    tolerance below 0."""
    return tolerance >= 0 and sure >= confidence and lost <= MOST_LOST * tolerance


def _fastest(times: Floats) -> int:
    """Which is expected to be the fastest of those that fit with one half at least, of all where
    none does: by the median of the draws in which it fits."""
    fits = np.isfinite(times)
    middle = np.nanmedian(np.where(fits, times, np.nan)[:, fits.any(axis=0)], axis=0)
    medians = np.full(times.shape[1], np.inf)
    medians[fits.any(axis=0)] = middle
    return int(np.lexsort((medians, fits.mean(axis=0) < 0.5))[0])


def _near(times: Floats, tolerance: float) -> NDArray[np.bool_]:
    """Which layouts are within the tolerance of the fastest, by draw, (DRAWS, N)."""
    near = times <= (times.min(axis=1) + math.log1p(max(tolerance, 0.0)))[:, None]
    return np.asarray(near & np.isfinite(times))


def _expected_loss(times: Floats, best: int) -> float:
    """Mean over the draws of the share by which the best seen is slower than the fastest."""
    return float(np.expm1(times[:, best] - times.min(axis=1)).mean())


def chances_of(options: Options, runs: Runs, *, tolerance: float = 0.02) -> Floats:
    """Return how likely each layout is within the tolerance of the fastest, (N,)."""
    return np.asarray(_near(_drawn(options, runs), tolerance).mean(axis=0))


def best_of(runs: Runs) -> int | None:
    """Return the fastest seen; None before there is one."""
    timed = {index: tried.step_s for index, tried in runs.items() if tried.step_s is not None}
    return min(timed, key=lambda index: timed[index]) if timed else None


@dataclass(frozen=True, slots=True)
class _Again:
    """A run that is worth another one of the same layout."""

    index: int
    chance: float
    """That a layout that ran is faster than the best by more than the tolerance, for both are
    noisy."""


def _again(near: NDArray[np.bool_], runs: Runs, best: int) -> _Again | None:
    """The noisier of the best and its likeliest rival among those that ran; None without noise."""
    rivals = {
        index: float((near[:, index] & ~near[:, best]).mean())
        for index, tried in runs.items()
        if tried.step_s is not None and tried.noise > 0 and index != best
    }
    if not rivals or any(runs[index].pending for index in (best, *rivals)):
        return None
    rival = max(rivals, key=lambda index: rivals[index])
    noisier = max((best, rival), key=lambda index: runs[index].noise)
    return _Again(noisier, rivals[rival])


def _drawn(options: Options, runs: Runs) -> Floats:
    """Logarithms of what all layouts might take together, (DRAWS, N): of those that ran as far as
    their noise leaves it open, infinite where memory does not suffice or did not."""
    chance = np.random.default_rng(_SEED)
    timed = [index for index, tried in runs.items() if tried.step_s is not None]
    logs = np.array([math.log(runs[index].step_s or math.nan) for index in timed])
    noise = np.array([runs[index].noise for index in timed])
    times = drawn_logs(options.step, timed, logs, noise=noise, count=DRAWS, chance=chance)
    seen = times[:, timed]
    told = [index for index, tried in runs.items() if tried.ran_out or index in timed]
    fill = believe_bounds(options.fill, told, [runs[index].ran_out for index in told])
    normals = chance.standard_normal((2, *times.shape))
    times[fill.draws(normals[0], normals[1]) > 0] = np.inf
    failed = [index for index, tried in runs.items() if not tried.pending]
    times[:, failed] = np.inf
    times[:, timed] = seen
    return times


_FAILED_TIMES = 2.0
"""A run that failed counts as so many times the slowest that finished."""


def next_by_optuna(
    axes: NDArray[np.float64],
    runs: Mapping[int, Tried],
    left: Sequence[int],
    *,
    seed: int,
    sampler: Literal["tpe", "gp"] = "tpe",
) -> int:
    """Return the layout of `left` nearest to what the sampler asks for, told all finished and
    failed runs; that of a Gaussian process needs scipy and torch."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    columns = [k for k in range(axes.shape[1]) if len(set(axes[:, k])) > 1]
    # Optuna's types are invariant dictionaries.
    choices: Any = {
        str(k): optuna.distributions.CategoricalDistribution(sorted(set(axes[:, k].tolist())))
        for k in columns
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = seed + len(runs)
        asks = (
            optuna.samplers.TPESampler(seed=start, multivariate=True, constant_liar=True)
            if sampler == "tpe"
            else optuna.samplers.GPSampler(seed=start)
        )
        study = optuna.create_study(sampler=asks)
        for index, value in _values(runs).items():
            params = {str(k): float(axes[index, k]) for k in columns}
            trial = optuna.trial.create_trial(params=params, distributions=choices, value=value)
            study.add_trial(trial)
        asked = study.ask(choices).params
    wanted = np.array([asked[str(k)] for k in columns])
    apart = ((axes[np.asarray(left)][:, columns] - wanted) ** 2).sum(axis=1)
    return int(left[int(apart.argmin())])


def _values(runs: Mapping[int, Tried]) -> dict[int, float]:
    finished = [tried.step_s for tried in runs.values() if tried.step_s is not None]
    worst = _FAILED_TIMES * max(finished, default=1.0)
    return {
        index: worst if tried.step_s is None else tried.step_s
        for index, tried in runs.items()
        if not tried.pending
    }
