"""Boxes that are one plan but for the split of its layers: what they leave to be solved."""

from __future__ import annotations

from meshwright.cost.stages import Floats
from meshwright.search.mixed.blocks import Block, Case, Solved, value_s
from meshwright.search.mixed.boxes import Boxes, Limits
from meshwright.search.mixed.cut_book import CutBook
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.reprice import Found

__all__ = ["Singles"]


class Singles:
    """Reads rows of one search; a leaf is a row by itself."""

    def __init__(self, problem: MixedProblem, limits: Limits, cuts: CutBook, score: Score) -> None:
        self.limits, self.cuts, self.objective = limits, cuts, score
        segments = problem.site.model.segments
        self.prefix = segments[0].num_layers if len(segments) > 1 else 0
        self.even = "layers" in problem.request.same

    def inner(self, leaf: Boxes) -> tuple[tuple[Block, ...], Case]:
        """Return what a leaf leaves to be solved."""
        blocks = tuple(
            self.cuts.block(int(i), stages=int(stages), layers=int(layers))
            for i, stages, layers in zip(
                leaf.ids[0], leaf.stages_from[0], leaf.layers_from[0], strict=True
            )
            if i >= 0
        )
        case = Case(
            num_microbatches=int(leaf.num_microbatches[0]),
            pp=sum(block.stages for block in blocks),
            vpp=int(leaf.vpp[0]),
            blocking=self.limits.blocking,
            dp_overlap=self.limits.dp_overlap,
            overhead_s=self.limits.overhead_s,
            prefix=self.prefix,
            even=self.even,
        )
        return blocks, case

    def found(self, leaf: Boxes, blocks: tuple[Block, ...], case: Case, solved: Solved) -> Found:
        """Return a leaf's plan with the split of its layers."""
        step_s = value_s(blocks, case, solved)
        return Found(
            score=self.score(leaf, step_s),
            step_s=step_s,
            common=int(self.cuts.commons[leaf.ids[0, 0]]),
            cuts=self.cuts_of(leaf),
            blocks=blocks,
            case=case,
            solved=solved,
        )

    def cuts_of(self, leaf: Boxes) -> tuple[tuple[int, int], ...]:
        """Return pool and option of each block of a leaf."""
        return tuple(
            (int(self.cuts.pools[i]), int(self.cuts.numbers[i])) for i in leaf.ids[0] if i >= 0
        )

    def score(self, leaf: Boxes, step_s: float) -> float:
        """Return the score of a leaf whose step takes so long."""
        return float(
            self.objective.of(
                step_s / int(self.cuts.gbs[leaf.ids[0, 0]]), float(self.rate(leaf)[0])
            )
        )

    def rate(self, boxes: Boxes) -> Floats:
        """Return the rate at which seconds count, with the fewest chips of each row."""
        return self.objective.rate(
            boxes.stages_from * self.cuts.table.chips[boxes.ids], self.cuts.pools[boxes.ids]
        )
