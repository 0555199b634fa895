"""What a plan is ranked by: seconds, dollars or joules per sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cost.shapes import Floats

__all__ = ["Score"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Score = seconds per sequence * rate, where the rate is 1, or a sum over the chips in use;
    smaller is better."""

    rates: tuple[float, ...] | None
    """Of one chip of each pool: dollars per second, or watts; None where time alone counts."""
    most_s: float = np.inf
    """Seconds per sequence that a plan may take at most: the deadline."""

    def rate(self, chips: Any, pools: Any) -> Floats:
        """Rate of plans that use `chips` of `pools`, both (R, K); pool -1 is none."""
        if self.rates is None:
            return np.ones(np.shape(chips)[0])
        table = np.array([*self.rates, 0.0])
        return np.asarray((np.asarray(chips) * table[np.asarray(pools)]).sum(axis=1))

    def of(self, seconds_per_sequence: Any, rate: Any) -> Any:
        """Score of plans; infinite where they are too slow."""
        return np.where(
            np.asarray(seconds_per_sequence) > self.most_s,
            np.inf,
            np.asarray(seconds_per_sequence) * rate,
        )
