"""How far apart two predictions of one model on one cluster must be for the model to tell them."""

from __future__ import annotations

import math
from functools import cache

from meshwright.values.data import package_rows

__all__ = ["serving_own", "tie_frac"]


@cache
def tie_frac() -> float:
    """Return the share of a step within which two layouts are a tie.

    Formula:  exp(sqrt(2) * own) - 1, with own the weighted median over the hypotheses of what a
              prediction is off by that no other layout shares
    Units:    share of the faster one's step.
    Source:   `trust/beliefs.csv`, by scripts/fit_beliefs from published studies: measured over
              predicted of layouts of one model, software and cluster. What like layouts share, and
              what follows from compute or exchanges, comes on top: of two layouts that differ more
              the error is larger, so this is the least that any two have.
    Checked:  tests/trust/test_ties.py
    """
    rows = sorted((float(r["own"]), float(r["weight"])) for r in package_rows("trust/beliefs.csv"))
    half, seen = sum(weight for _, weight in rows) / 2.0, 0.0
    for own, weight in rows:
        seen += weight
        if seen >= half:
            return math.expm1(math.sqrt(2.0) * own)
    raise AssertionError("trust/beliefs.csv has no rows")


@cache
def serving_own(what: str) -> float:
    """Return what a prediction of serving throughput is off by that its set does not share: of
    `one pool`, of `two pools`, and of `one pool and two pools` that lie between the two.

    Formula:  1.4826 * median of |ln(measured / predicted) - the set's median|; between two ways the
              root mean square of the difference of their medians
    Units:    standard deviation of the logarithm.
    Source:   `trust/serving_ties.csv`, by scripts/fit_serving_ties.py from published sets: runs of
              one model, chip, engine, precision and lengths.
    Checked:  tests/trust/test_ties.py
    """
    rows = {row["what"]: float(row["own"]) for row in package_rows("trust/serving_ties.csv")}
    return rows[what]
