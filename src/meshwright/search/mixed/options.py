"""What each way to cut a layer takes on its pool, for bounds of ways to combine them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.mixed import Site
from meshwright.cost.once import data_exchange_s, optimizer_s
from meshwright.cost.shapes import Floats
from meshwright.layout import Layouts
from meshwright.search.mixed.curves import FIRST, LORA_SHARE, stage_reader

__all__ = ["COUNTS", "OptionTimes", "option_times"]

COUNTS = np.array(
    [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256]
)
"""Layers of a stage for which the exchange is priced; between them the lower one bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionTimes:
    """Seconds of each option, (O,), or (O, C) by COUNTS."""

    forward_s: Floats
    """Of its quickest layer, nothing recomputed; and backward."""
    backward_s: Floats
    first_s: Floats
    """What the first stage takes beyond its layers at most, forward and backward."""
    exchange_s: Floats
    """Reduction and gathering of stages of so many layers, (O, C), nothing hidden."""
    optimizer_s: Floats
    """(O, C)."""

    @staticmethod
    def place(layers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the count that is just not above some layers."""
        return np.asarray(np.searchsorted(COUNTS, layers, side="right") - 1)


def option_times(layouts: Layouts, *, pool: int, site: Site) -> OptionTimes:
    """Price one layer of each layout, and what a step takes once by the layers of the fullest
    stage."""
    reader, rows = stage_reader(layouts, pool=pool, site=site), slice(0, len(layouts))
    forward, backward, dense, expert = (
        reader.slopes(t, rows)
        for t in (reader.forward, reader.backward, reader.dense, reader.expert)
    )
    bases = [
        reader.bases(table, rows, slopes)[:, FIRST]
        for table, slopes in ((reader.forward, forward), (reader.backward, backward))
    ]
    share = LORA_SHARE if site.work.lora_rank else 1.0
    params = [np.outer(share * each.min(axis=1), COUNTS).ravel() for each in (dense, expert)]
    wide, own = (
        layouts.take(np.repeat(np.arange(len(layouts)), len(COUNTS))),
        site.cluster.pools[pool],
    )
    reduce, gather = data_exchange_s(
        wide, *params, pool=own, stack=site.stack, precision=site.work.precision
    )
    optimizer = optimizer_s(wide, *params, pool=own, stack=site.stack)
    return OptionTimes(
        forward_s=forward.min(axis=1),
        backward_s=backward.min(axis=1),
        first_s=np.maximum(0.0, sum(bases)),
        exchange_s=(reduce + gather).reshape(len(layouts), len(COUNTS)),
        optimizer_s=optimizer.reshape(len(layouts), len(COUNTS)),
    )
