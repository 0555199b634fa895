"""Layouts that a row leaves open: of those that fit a fastest is taken, as tuned runs are.

Which rule finds again what rows do tell is tried by `benchmarks/blanks.py`. Over 22 tables the
micro batch by this rule is the told one in 68 % of tuned runs (the software's usual one 61 %, one
sequence 58 %), and leaves a time error of 12 % (20 %, 23 %) where told ones leave 11 %. Of
recomputation and sharding the software's habits leave least, 13 and 14 % (the fastest that fits 15
and 16 %): those stay.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.runs.measured.cells import Cells, Rule
from meshwright.runs.measured.machines import WHERE_SHORT
from meshwright.values.layout import Layout

__all__ = ["Tiers", "choices_of_row"]

Tiers = tuple[tuple[Layout, ...], ...]
"""Layouts that may have run. A fastest that fits of the first tier with such a one did; where none
fits anywhere, the one of the last that needs least."""
NOTICED = 0.01
"""Share of a step by which a larger micro batch must be faster: nobody tunes for less. From 0.5 to
2 % the told ones are found as often, without it and from 3 % on a little less."""
STAGES = "stages"
"""In `frameworks.csv`, in place of a micro batch: as many micro batches as stages under a pipeline
(torchtitan: the default of `pipeline_parallel_microbatches`, train configuration of 2024)."""
MOST_SEQUENCES = 64
"""Of a micro batch that is tried; no published run has more."""


def choices_of_row(cells: Cells, framework: Rule, layout: Layout) -> Tiers:
    """Return what the row leaves open: its micro batch, and whether all is recomputed in software
    whose users do so where it would not fit; nothing where it tells them."""
    sizes = _micro_batches(cells, framework, layout)
    usual = tuple(replace(layout, mbs=size) for size in sizes)
    if framework["recompute"] == WHERE_SHORT and not cells.words("recompute"):
        return usual, tuple(replace(each, recompute="full") for each in usual)
    return () if sizes == (layout.mbs,) else (usual,)


def _micro_batches(cells: Cells, framework: Rule, layout: Layout) -> tuple[int, ...]:
    """Powers of two that divide a replica's sequences; under interleaved stages such that the
    micro batches come in rounds."""
    told = cells.text("mbs") or cells.text("ga") or cells.text("gbs") is None
    if told:
        return (layout.mbs,)
    share = layout.gbs // layout.dp
    if framework["mbs_cap"] == STAGES and layout.pp > 1:
        return (share // layout.pp,) if share % layout.pp == 0 and share else (layout.mbs,)
    sizes = (1 << power for power in range(MOST_SEQUENCES.bit_length()))
    found = tuple(
        size
        for size in sizes
        if share % size == 0 and (layout.vpp == 1 or share // size % layout.pp == 0)
    )
    return found or (layout.mbs,)
