"""The second phase: kinds of chips with unlike dp and mbs, around the best plans of which these are
common."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from meshwright.search.mixed.found import Found
from meshwright.search.mixed.grid import Grid, Options

__all__ = ["has_unlike_batches", "with_unlike_batches"]


def with_unlike_batches(grid: Grid, around: Collection[int]) -> Grid:
    """Return the grid in which options share everything but dp and mbs, with dp * mbs in common, as
    those numbered `around` have it."""
    own = grid.commons
    keys = np.stack([own.gbs, own.dp * own.mbs, own.cp, own.ep, own.etp, own.sharding], axis=1)
    wanted, first = np.unique(keys[sorted(around)], axis=0), []
    merged = np.full(len(own), -1)
    for number, key in enumerate(wanted):
        rows = np.flatnonzero((keys == key).all(axis=1))
        merged[rows] = number
        first.append(int(rows[0]))
    options = []
    for each in grid.options:
        keep = merged[each.common] >= 0
        options.append(
            Options(
                common=merged[each.common][keep],
                layouts=each.layouts.take(keep),
                stages=each.stages[keep],
            )
        )
    at = np.array(first, dtype=np.int64)
    return replace(
        grid,
        gbs=grid.gbs[at],
        num_microbatches=grid.num_microbatches[at],
        options=tuple(options),
        commons=own.take(at),
    )


def has_unlike_batches(found: Found, grid: Grid) -> bool:
    """Whether a plan's kinds of chips differ in dp."""
    return len({int(grid.options[pool].layouts.dp[option]) for pool, option in found.cuts}) > 1
