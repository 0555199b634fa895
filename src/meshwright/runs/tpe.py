"""Optuna's tree-structured Parzen estimator over the same layouts, for those who want it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import MissingExtraError

if TYPE_CHECKING:
    from meshwright.runs.choose import Tried

__all__ = ["next_by_tpe"]

_FAILED_TIMES = 2.0
"""A run that failed counts as so many times the slowest that finished."""


def next_by_tpe(
    axes: NDArray[np.float64], runs: Mapping[int, Tried], left: Sequence[int], *, seed: int
) -> int:
    """Return the layout of `left` nearest to what the sampler asks for, told all finished and
    failed runs."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    columns = [k for k in range(axes.shape[1]) if len(set(axes[:, k])) > 1]
    choices = {
        str(k): optuna.distributions.CategoricalDistribution(sorted(set(axes[:, k].tolist())))
        for k in columns
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=seed + len(runs), multivariate=True, constant_liar=True
        )
        study = optuna.create_study(sampler=sampler)
        for index, value in _values(runs).items():
            params = {str(k): float(axes[index, k]) for k in columns}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=_any(choices), value=value)
            )
        asked = study.ask(_any(choices)).params
    wanted = np.array([asked[str(k)] for k in columns])
    apart = ((axes[np.asarray(left)][:, columns] - wanted) ** 2).sum(axis=1)
    return int(left[int(apart.argmin())])


def _any(values: Any) -> Any:
    """Optuna's types are invariant dictionaries."""
    return values


def _values(runs: Mapping[int, Tried]) -> dict[int, float]:
    finished = [tried.step_s for tried in runs.values() if tried.step_s is not None]
    worst = _FAILED_TIMES * max(finished, default=1.0)
    return {
        index: worst if tried.step_s is None else tried.step_s
        for index, tried in runs.items()
        if not tried.pending
    }
