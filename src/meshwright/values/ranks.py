"""Which ranks form a group: the order in which training software numbers the chips of a layout.

Ranks are numbered with tp fastest, then cp, dp and pp (Megatron-Core's default order
`tp-cp-ep-dp-pp`; torchtitan's, DeepSpeed's and the embedded trainer's meshes agree). Experts cut
the ranks of one stage once more, with etp fastest, then ep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout

__all__ = ["RANK_AXES", "RankAxis", "StageRanks", "group_members", "stage_ranks"]

RankAxis = Literal["tp", "cp", "ep", "dp", "pp"]
RANK_AXES: tuple[RankAxis, ...] = get_args(RankAxis)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRanks:
    """The ranks of one stage of a pipeline, which follow each other."""

    first: int
    tp: int
    cp: int
    dp: int
    ep: int = 1
    etp: int = 1

    @property
    def count(self) -> int:
        """Ranks of the stage."""
        return self.tp * self.cp * self.dp

    def stride_and_size(self, axis: RankAxis) -> tuple[int, int]:
        """Return how far apart neighbours of a group inside the stage are, and how many they are.

        Formula:  tp (1, tp), cp (tp, cp), dp (tp * cp, dp), ep (etp, ep)
        Units:    ranks.
        Source:   megatron/core/parallel_state.py, RankGenerator with the order tp-cp-ep-dp-pp.
        Valid:    every axis but pp, whose groups join stages.
        Checked:  tests/values/test_ranks.py
        """
        known = {
            "tp": (1, self.tp),
            "cp": (self.tp, self.cp),
            "dp": (self.tp * self.cp, self.dp),
            "ep": (self.etp, self.ep),
        }
        return known[axis]


def stage_ranks(layout: Layout | MixedLayout) -> tuple[StageRanks, ...]:
    """Return the ranks of every stage, in the order of the pipeline."""
    if isinstance(layout, Layout):
        cuts: list[tuple[int, int]] = [(layout.tp, layout.dp)] * layout.pp
    else:
        cuts = [(stage.tp, stage.dp) for stage in layout.stages]
    found: list[StageRanks] = []
    first = 0
    for tp, dp in cuts:
        etp = layout.etp if layout.etp is not None else tp
        found.append(StageRanks(first=first, tp=tp, cp=layout.cp, dp=dp, ep=layout.ep, etp=etp))
        first += found[-1].count
    return tuple(found)


def group_members(stages: Sequence[StageRanks], axis: RankAxis, rank: int) -> range:
    """Return the ranks of the group in which a rank is; of pp the rank alone where stages have
    unlike numbers of ranks."""
    at = next(place for place, stage in enumerate(stages) if rank < stage.first + stage.count)
    stage = stages[at]
    if axis == "pp":
        if len({each.count for each in stages}) > 1:
            return range(rank, rank + 1)
        return range(rank - stage.first, stages[-1].first + stage.count, stage.count)
    stride, size = stage.stride_and_size(axis)
    first = rank - (rank - stage.first) // stride % size * stride
    return range(first, first + stride * size, stride)
