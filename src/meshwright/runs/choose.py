"""Which layout to run next, and when to stop. Pure: the same runs give the same choice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.belief import (
    Prior,
    Sizes,
    Slow,
    believe_bounds,
    correlations,
    drawn_logs,
    hypotheses_of,
    read_sizes,
)
from meshwright.runs.measured.files import MeasuredRun
from meshwright.runs.measured.fit import memory_problem, profile_of, time_problem
from meshwright.runs.measured.rows import Case
from meshwright.trust.calibration import MEMORY_FACTORS, TIME_FACTORS, Z90, Calibration
from meshwright.trust.intervals import Intervals
from meshwright.trust.ridge import Priors, read_priors, slopes_of
from meshwright.values.errors import MissingExtraError
from meshwright.values.layout import RECOMPUTES, Layout

__all__ = [
    "STRATEGIES",
    "Choice",
    "Forecast",
    "Options",
    "Stop",
    "Strategy",
    "Tried",
    "axes_of",
    "best_of",
    "chances_of",
    "choose",
    "next_by_optuna",
    "options_of",
    "slopes_and_axes",
]

Floats = NDArray[np.float64]
Strategy = Literal["predicted", "grid", "random", "optuna"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CONFIDENCE = 0.8
"""With which a study ends unless told otherwise."""
DRAWS = 1536
"""Of the joint distribution: a probability near 0.1 is found to within a percent."""
SLOW = Slow(share=0.06, mean=0.66)
"""Of the published runs in 70 studies 3.5 % took more than 1.4 times what their study's others took
of their predictions, x2.21 in the median (scripts/fit_beliefs): an exponential of mean (ln 2.21 -
ln 1.4) / ln 2, of which that share lies beyond 1.4."""
_SEED = 20261121
"""Of the draws, so that a choice can be made again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The layouts that may be run, with what is believed of them: logarithms of seconds, and of
    memory needed over memory there."""

    step: Prior
    fill: Prior
    axes: Floats
    """Of each layout, (N, A), in octaves: what `alike` goes by."""

    def __len__(self) -> int:
        return len(self.step.mean)


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
    if best is not None and tolerance >= 0 and sure >= confidence and lost <= tolerance:
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
    place = int(order[0])
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


SWITCH = math.sqrt(0.5)
"""Of a choice without an order, one column a word: two layouts with different words are as far
apart as one doubling."""


NEW_KIND = 3.0
"""How much wider beliefs are of a kind of machine that no published run is of, processors: on 2
cores steps of tiny-llama took x1.05 to x1.36 of predictions that differed by 4 % only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """One layout that may be run."""

    case: Case
    step_s: float
    used_bytes: float
    """Of the fullest chip."""
    limit_bytes: float
    intervals: Intervals


def options_of(
    forecasts: Sequence[Forecast],
    *,
    priors: Priors | None = None,
    sizes: Sequence[Sizes] | None = None,
) -> Options:
    """Return what is believed of some layouts of one model on one cluster, by what ships unless
    others are given."""
    known = priors or read_priors()
    axes = axes_of([forecast.case for forecast in forecasts])
    step_low, step_high = np.array([forecast.intervals.step_s for forecast in forecasts]).T
    peak_low, peak_high = np.array([forecast.intervals.peak_bytes for forecast in forecasts]).T
    limits = np.array([forecast.limit_bytes for forecast in forecasts])
    on_cores = any(node.chip.generation == "cpu" for node in forecasts[0].case.machines.nodes)
    wide = NEW_KIND if on_cores else 1.0

    def prior(slopes: Floats, names: Sequence[str], noise: float, ends: Sequence[Floats]) -> Prior:
        """A log-normal of each 80 % interval."""
        low, high = np.log(ends[0]), np.log(ends[1])
        return correlations(
            slopes=slopes,
            widths=wide * np.array([known.widths[name] for name in names]),
            axes=axes,
            noise=wide * noise,
            mean=(low + high) / 2.0,
            spread=wide * (high - low) / (2.0 * Z90),
        )

    time, memory = _slopes(forecasts, known)
    peaks = (peak_low / limits, peak_high / limits)
    step = prior(time, TIME_FACTORS, known.step_time_noise, (step_low, step_high))
    hypotheses = hypotheses_of(
        [_wider(size, wide) for size in sizes or read_sizes()],
        slopes=time,
        widths=np.array([known.widths[name] for name in TIME_FACTORS]),
        axes=axes,
        common=wide * float(np.log(step_high / step_low).mean()) / (2.0 * Z90),
    )
    return Options(
        step=replace(step, hypotheses=hypotheses, slow=SLOW),
        fill=prior(memory, MEMORY_FACTORS, known.peak_memory_noise, peaks),
        axes=axes,
    )


def slopes_and_axes(forecasts: Sequence[Forecast]) -> tuple[Floats, Floats]:
    """Return how the logarithm of each step follows each factor of time, (N, K), and what tells the
    layouts apart, (N, A)."""
    return _slopes(forecasts, read_priors())[0], axes_of([forecast.case for forecast in forecasts])


def _wider(size: Sizes, times: float) -> Sizes:
    names = ("factors", "trend", "alike", "own")
    return replace(size, **{name: times * getattr(size, name) for name in names})


def _slopes(forecasts: Sequence[Forecast], priors: Priors) -> tuple[Floats, Floats]:
    """How the logarithm of each step and of each peak follows each factor, each software by its
    own; 0 on mixed chips, whose factors nobody knows."""
    factors = (TIME_FACTORS, MEMORY_FACTORS)
    time, memory = (np.zeros((len(forecasts), len(names))) for names in factors)
    if forecasts[0].case.machines.mixed:
        return time, memory
    stacks = np.array([forecast.case.stack_name for forecast in forecasts])
    for stack in np.unique(stacks):
        rows = np.flatnonzero(stacks == stack)
        time[rows], memory[rows] = _slopes_of_stack(
            [forecasts[row] for row in rows.tolist()], priors
        )
    return time, memory


def _slopes_of_stack(forecasts: Sequence[Forecast], priors: Priors) -> tuple[Floats, Floats]:
    first = forecasts[0].case
    chip, profile = first.machines.nodes[0].chip.name, profile_of(first)
    start = Calibration(chip=chip, stack=first.stack_name, profile=profile)
    runs = [MeasuredRun(case=forecast.case, step_s=1.0, fitted=True) for forecast in forecasts]
    times, peaks = time_problem(runs, start, priors), memory_problem(runs, start, priors)
    return slopes_of(times), slopes_of(peaks)


def axes_of(cases: Sequence[Case]) -> Floats:
    """Return what tells runs apart, (N, A): doublings of each size, and a column for each word of
    the other choices."""
    numbers = [_sizes(case.layout) for case in cases]
    others = [_others(case) for case in cases]
    kinds = [
        (k, word) for k in range(len(others[0])) for word in sorted({row[k] for row in others})
    ]
    flags = [[SWITCH * float(row[k] == word) for k, word in kinds] for row in others]
    return np.concatenate((np.array(numbers), np.array(flags)), axis=1)


def _sizes(layout: Layout) -> list[float]:
    names = ("tp", "cp", "ep", "expert_tp", "pp", "vpp", "dp", "mbs", "gbs")
    sizes = (math.log2(getattr(layout, name)) for name in names)
    return [*sizes, float(layout.sp), float(RECOMPUTES.index(layout.recompute))]


def _others(case: Case) -> tuple[str, ...]:
    layout, work = case.layout, case.workload
    modules, changes = "+".join(layout.recompute_modules), repr((work, case.stack_changes))
    return layout.sharding, layout.schedule, modules, str(work.attention), changes
