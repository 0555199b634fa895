"""From measured runs to a calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.measured.files import MeasuredRun
from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.runs.measured.rows import Case
from meshwright.trust.calibration import (
    MEMORY_FACTORS,
    TIME_FACTORS,
    Calibration,
    Fitted,
    LinkRates,
    Misses,
    layers_key,
)
from meshwright.trust.ridge import (
    PRIOR_RUNS,
    Posterior,
    Priors,
    Problem,
    Study,
    read_priors,
    study_of,
)
from meshwright.values.errors import ConfigError
from meshwright.values.stack import find_stack

__all__ = ["FitReport", "RunMiss", "fit_runs", "memory_problem", "profile_of", "time_problem"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TOLD = 1e-3
"""Share of a factor that runs must tell for it to be kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMiss:
    """One run, predicted over measured."""

    words: str
    quantity: str
    before: float
    after: float
    left_out: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FitReport:
    """A calibration, and how far off each run was."""

    calibration: Calibration
    runs: tuple[RunMiss, ...]
    left_out: tuple[str, ...] = ()
    """Runs that can't be predicted, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Quantity:
    """Step time or peak memory of the runs that tell it."""

    name: str
    runs: Sequence[MeasuredRun]
    problem: Problem
    study: Study


def fit_runs(
    runs: Sequence[MeasuredRun],
    *,
    links: Sequence[LinkRates] = (),
    chip: str = "",
    stack: str = "megatron",
    version: str = "",
) -> FitReport:
    """Return the calibration of some runs of one chip and one software.

    Links, of chip `chip`, are put in first, so that factors explain what they leave; `stack` is the
    software where there are no runs. ConfigError where there are several kinds of runs, or none
    that can be predicted.
    """
    empty = Calibration(chip=chip, stack="", links=tuple(links), version=version)
    if links and not runs:
        return FitReport(calibration=replace(empty, stack=find_stack(stack).name), runs=())
    found, software = _kind(runs)
    if chip and chip != found:
        raise ConfigError(
            f"runs on {found}, links of {chip}: give benchmarks of the cluster that the runs"
            " were on"
        )
    start = replace(empty, chip=found, stack=software, profile=profile_of(runs[0].case))
    usable, left_out = _predictable(runs, start)
    if not usable:
        raise ConfigError(f"no run to calibrate on: {left_out[0]}")
    time, memory = quantities = _quantities(usable, start)
    calibration = replace(
        start,
        runs=tuple(run.words() for run in usable),
        models=tuple(sorted({layers_key(run.case.model) for run in usable})),
        factors=tuple(
            factor
            for quantity in quantities
            for factor in _fitted(quantity.problem, quantity.study.full)
        ),
        step_time=_misses(time.problem, time.study),
        peak_memory=_misses(memory.problem, memory.study),
    )
    lines = tuple(line for quantity in quantities for line in _lines(quantity))
    return FitReport(calibration=calibration, runs=lines, left_out=tuple(left_out))


def profile_of(case: Case) -> str:
    """Return what the run's chip was profiled as; empty where the catalogue's figures hold."""
    tables = case.machines.nodes[0].chip.tables
    return "" if tables is None else str(tables.meta["source"])


def _kind(runs: Sequence[MeasuredRun]) -> tuple[str, str]:
    """Chip and software of all runs."""
    kinds = sorted({(run.case.machines.nodes[0].chip.name, run.case.stack_name) for run in runs})
    if not kinds:
        raise ConfigError(
            "no run to calibrate on: give a log, or a CSV with step_time_s or peak_mem_gib"
        )
    if len(kinds) > 1:
        named = "; ".join(f"{name} with {software}" for name, software in kinds[:4])
        raise ConfigError(
            f"runs of {len(kinds)} kinds ({named}): calibrate one chip with one stack at a time;"
            " --stack names one for all"
        )
    return kinds[0]


def _quantities(runs: Sequence[MeasuredRun], start: Calibration) -> tuple[_Quantity, _Quantity]:
    timed = [run for run in runs if run.step_s is not None]
    weighed = [run for run in runs if run.peak_bytes is not None or run.fitted is not None]
    priors = read_priors()
    return (
        _quantity("step time", timed, time_problem(timed, start, priors)),
        _quantity("peak memory", weighed, memory_problem(weighed, start, priors)),
    )


def _quantity(name: str, runs: Sequence[MeasuredRun], problem: Problem) -> _Quantity:
    return _Quantity(name=name, runs=runs, problem=problem, study=study_of(problem))


def _predictable(
    runs: Sequence[MeasuredRun], start: Calibration
) -> tuple[list[MeasuredRun], list[str]]:
    answers = predict_rows(replace(run.case, calibration=start) for run in runs)
    reasons = [(u.source, u.row_id, u.reason) for u in answers.unanswered]
    refused = {(source, row_id) for source, row_id, _ in reasons}
    usable = [run for run in runs if (run.case.source, run.case.row_id) not in refused]
    return usable, [f"{source} {row_id}: {reason}" for source, row_id, reason in reasons]


def time_problem(runs: Sequence[MeasuredRun], start: Calibration, priors: Priors) -> Problem:
    """Return the step times of some runs as a function of the factors of time."""
    measured = np.log([run.step_s for run in runs if run.step_s is not None])
    return _problem(
        runs, start, TIME_FACTORS, priors, priors.step_time_noise, measured, _NO_BOUND, _step_s
    )


def memory_problem(runs: Sequence[MeasuredRun], start: Calibration, priors: Priors) -> Problem:
    """Return the peaks of memory as a function of the factors of memory; a run that is only known
    to fit, or not, gives a bound."""
    usable = [run.case.machines.nodes[0].chip.usable_bytes for run in runs]
    measured = np.log([run.peak_bytes or limit for run, limit in zip(runs, usable, strict=True)])
    bound = [0 if run.peak_bytes is not None else -1 if run.fitted else 1 for run in runs]
    return _problem(
        runs, start, MEMORY_FACTORS, priors, priors.peak_memory_noise, measured, bound, _bytes
    )


_NO_BOUND: Sequence[int] = ()


def _step_s(prediction: Prediction, bound: int) -> float:
    return prediction.step_s


def _bytes(prediction: Prediction, bound: int) -> float:
    return prediction.peak_memory_bytes if bound == 0 else prediction.used_bytes


def _problem(
    runs: Sequence[MeasuredRun],
    start: Calibration,
    names: tuple[str, ...],
    priors: Priors,
    noise: float,
    measured: Floats,
    bounds: Sequence[int],
    figure: Callable[[Prediction, int], float],
) -> Problem:
    """`bounds` are empty where every run was measured."""
    bound = np.array(bounds or [0] * len(runs), dtype=np.int64)

    def predict(logs: Floats, rows: Ints) -> Floats:
        moved = {name: float(np.exp(log)) for name, log in zip(names, logs, strict=True) if log}
        factors = (Fitted(name=k, value=v, prior_width=1.0, width=1.0) for k, v in moved.items())
        trial = replace(start, factors=tuple(factors))
        answers = predict_rows(replace(runs[row].case, calibration=trial) for row in rows)
        found = zip(answers.predictions, rows, strict=True)
        return np.log([figure(one, int(bound[row])) for one, row in found])

    widths = np.array([priors.widths[name] for name in names])
    return Problem(
        names=names, widths=widths, noise=noise, measured=measured, bound=bound, predict=predict
    )


def _misses(problem: Problem, study: Study) -> Misses | None:
    told = problem.bound == 0
    if not told.any():
        return None
    own = np.zeros(0) if study.left_out is None else study.left_out[told]
    variance = (PRIOR_RUNS * problem.noise**2 + (own**2).sum()) / (PRIOR_RUNS + len(own))
    return Misses(
        runs=int(told.sum()),
        before_frac=_miss(study.before[told]),
        after_frac=_miss(study.full.residuals[told]),
        left_out_frac=_miss(own) if len(own) else None,
        spread=float(np.sqrt(variance)),
    )


def _miss(residuals: Floats) -> float:
    return float(np.abs(np.exp(-residuals) - 1.0).mean())


def _fitted(problem: Problem, found: Posterior) -> list[Fitted]:
    widths = np.minimum(np.sqrt(np.diag(found.covariance)), problem.widths)
    rows = zip(problem.names, found.logs, problem.widths, widths, strict=True)
    factors = [
        Fitted(name=name, value=float(np.exp(log)), prior_width=float(prior), width=float(width))
        for name, log, prior, width in rows
    ]
    return [factor for factor in factors if factor.measured_frac > TOLD]


def _lines(quantity: _Quantity) -> list[RunMiss]:
    study = quantity.study
    return [
        RunMiss(
            words=run.words(),
            quantity=quantity.name,
            before=float(np.exp(-study.before[i])),
            after=float(np.exp(-study.full.residuals[i])),
            left_out=None if study.left_out is None else float(np.exp(-study.left_out[i])),
        )
        for i, run in enumerate(quantity.runs)
        if quantity.problem.bound[i] == 0
    ]
