"""From predictions of layouts to what is believed of them before any run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.belief import Prior, correlations
from meshwright.runs.choose import Options
from meshwright.runs.measured.fit import memory_problem, time_problem
from meshwright.runs.measured.measured import MeasuredRun
from meshwright.runs.measured.rows import Case
from meshwright.trust.calibration import MEMORY_FACTORS, TIME_FACTORS, Z90, Calibration
from meshwright.trust.intervals import Intervals
from meshwright.trust.ridge import Priors, read_priors, slopes_of
from meshwright.values.layout import RECOMPUTES, Layout

__all__ = ["Forecast", "axes_of", "options_of"]

SWITCH = math.sqrt(0.5)
"""Of a choice without an order, one column a word: two layouts with different words are as far
apart as one doubling."""

Floats = NDArray[np.float64]


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


def options_of(forecasts: Sequence[Forecast], *, priors: Priors | None = None) -> Options:
    """Return what is believed of some layouts of one model on one cluster."""
    known = priors or read_priors()
    axes = axes_of([forecast.case for forecast in forecasts])
    step_low, step_high = np.array([forecast.intervals.step_s for forecast in forecasts]).T
    peak_low, peak_high = np.array([forecast.intervals.peak_bytes for forecast in forecasts]).T
    limits = np.array([forecast.limit_bytes for forecast in forecasts])
    slopes, wide = _slopes(forecasts, known), _wide(forecasts)
    return Options(
        step=_prior(
            slopes.time,
            TIME_FACTORS,
            axes,
            known,
            known.step_time_noise,
            low=step_low,
            high=step_high,
            wide=wide,
        ),
        fill=_prior(
            slopes.memory,
            MEMORY_FACTORS,
            axes,
            known,
            known.peak_memory_noise,
            low=peak_low / limits,
            high=peak_high / limits,
            wide=wide,
        ),
        axes=axes,
    )


def _wide(forecasts: Sequence[Forecast]) -> float:
    return (
        NEW_KIND
        if any(node.chip.generation == "cpu" for node in forecasts[0].case.machines.nodes)
        else 1.0
    )


def _prior(
    slopes: Floats,
    names: Sequence[str],
    axes: Floats,
    priors: Priors,
    noise: float,
    *,
    low: Floats,
    high: Floats,
    wide: float,
) -> Prior:
    """A log-normal of each 80 % interval."""
    return correlations(
        slopes=slopes,
        widths=wide * np.array([priors.widths[name] for name in names]),
        axes=axes,
        noise=wide * noise,
        mean=(np.log(low) + np.log(high)) / 2.0,
        spread=wide * (np.log(high) - np.log(low)) / (2.0 * Z90),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slopes:
    time: Floats
    memory: Floats


def _slopes(forecasts: Sequence[Forecast], priors: Priors) -> _Slopes:
    """How the logarithm of each step and of each peak follows each factor; 0 on mixed chips, whose
    factors nobody knows."""
    first = forecasts[0].case
    if first.machines.mixed:
        return _Slopes(
            time=np.zeros((len(forecasts), len(TIME_FACTORS))),
            memory=np.zeros((len(forecasts), len(MEMORY_FACTORS))),
        )
    chip = first.machines.nodes[0].chip
    start = Calibration(
        chip=chip.name,
        stack=first.stack_name,
        profile="" if chip.tables is None else str(chip.tables.meta["source"]),
    )
    runs = [MeasuredRun(case=forecast.case, step_s=1.0, fitted=True) for forecast in forecasts]
    return _Slopes(
        time=slopes_of(time_problem(runs, start, priors)),
        memory=slopes_of(memory_problem(runs, start, priors)),
    )


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
    sizes = (
        layout.tp,
        layout.cp,
        layout.ep,
        layout.expert_tp,
        layout.pp,
        layout.vpp,
        layout.dp,
        layout.mbs,
        layout.gbs,
    )
    return [*map(math.log2, sizes), float(layout.sp), float(RECOMPUTES.index(layout.recompute))]


def _others(case: Case) -> tuple[str, ...]:
    layout = case.layout
    work = case.workload
    return (
        layout.sharding,
        layout.schedule,
        "+".join(layout.recompute_modules),
        str(work.attention),
        repr((work, case.stack_changes)),
    )
