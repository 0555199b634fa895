"""What is believed of some layouts before any run, by their predictions and what tells them
apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.belief import (
    Prior,
    Sizes,
    Slow,
    correlations,
    hypotheses_of,
    read_sizes,
)
from meshwright.runs.measured.files import MeasuredRun
from meshwright.runs.measured.fit import memory_problem, profile_of, time_problem
from meshwright.runs.measured.rows import Case
from meshwright.trust.calibration import MEMORY_FACTORS, TIME_FACTORS, Z90, Calibration
from meshwright.trust.intervals import Intervals
from meshwright.trust.ridge import Priors, read_priors, slopes_of
from meshwright.values.layout import RECOMPUTES, Layout

__all__ = [
    "NEW_KIND",
    "SLOW",
    "SWITCH",
    "Forecast",
    "Options",
    "axes_of",
    "options_of",
    "slopes_and_axes",
]

Floats = NDArray[np.float64]
SLOW = Slow(share=0.06, mean=0.66)
"""Of the published runs in 70 studies 3.5 % took more than 1.4 times what their study's others took
of their predictions, x2.21 in the median (scripts/fit_beliefs): an exponential of mean (ln 2.21 -
ln 1.4) / ln 2, of which that share lies beyond 1.4."""


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
    wide = _width_on(forecasts[0].case)

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


def _width_on(case: Case) -> float:
    """How many times as wide beliefs are of runs on these machines."""
    on_cores = any(node.chip.generation == "cpu" for node in case.machines.nodes)
    return NEW_KIND if on_cores else 1.0


def slopes_and_axes(forecasts: Sequence[Forecast]) -> tuple[Floats, Floats]:
    """Return how the logarithm of each step follows each factor of time, (N, K), and what tells the
    layouts apart, (N, A)."""
    return _slopes(forecasts, read_priors())[0], axes_of([forecast.case for forecast in forecasts])


def _wider(size: Sizes, times: float) -> Sizes:
    """Return the same hypothesis with parts so many times as large."""
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
    return np.concatenate((np.array(numbers), _flags([_others(case) for case in cases])), axis=1)


def _flags(others: Sequence[tuple[str, ...]]) -> Floats:
    """A column for each word of each choice."""
    kinds = [
        (k, word) for k in range(len(others[0])) for word in sorted({row[k] for row in others})
    ]
    return np.array([[SWITCH * float(row[k] == word) for k, word in kinds] for row in others])


def _sizes(layout: Layout) -> list[float]:
    names = ("tp", "cp", "ep", "expert_tp", "pp", "vpp", "dp", "mbs", "gbs")
    sizes = (math.log2(getattr(layout, name)) for name in names)
    return [*sizes, float(layout.sp), float(RECOMPUTES.index(layout.recompute))]


def _others(case: Case) -> tuple[str, ...]:
    layout, work = case.layout, case.workload
    modules, changes = "+".join(layout.recompute_modules), repr((work, case.stack_changes))
    return layout.sharding, layout.schedule, modules, str(work.attention), changes
