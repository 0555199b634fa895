"""Best-first branch and bound over plans on several kinds of chips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.shapes import Floats
from meshwright.search.axes import MOST_UNEVEN_VPP
from meshwright.search.mixed.alike import solve_alike
from meshwright.search.mixed.bounds import Boxes, Cuts, Limits, bound_s, likely_plans, tightened
from meshwright.search.mixed.cut_book import CutBook
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.inner import Block, Case, Solved, solve, value_s
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.mixed.score import Score
from meshwright.search.mixed.ways import Ways, ways_of

__all__ = ["Found", "Outcome", "search_mixed"]

Ints = NDArray[np.int64]
SAME = 1e-9
"""Relative difference below which two plans are equally good."""
BATCH = 64
"""Ways to cut that are opened at once."""
BOXES = 4096
"""Boxes that are split at once."""
MOST_BOXES = 2_000_000
"""Boxes split at most; beyond, the gap says what is left open."""
SEEDS = 16
"""Likely plans that are solved before the search."""
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06)
"""Of the stages that there could be, how many a likely plan has."""
FILLED = 3
"""Likely plans tried per plan that is asked for, where the search met fewer."""
MOST_SOLVED = 600
"""Inner problems solved at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One plan by the closed form."""

    score: float
    """Smaller is better, see Score."""
    step_s: float
    common: int
    cuts: tuple[tuple[int, int], ...]
    """Pool and option of each block."""
    blocks: tuple[Block, ...]
    case: Case
    solved: Solved


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search brought."""

    best: tuple[Found, ...]
    """Best first, one of each group of plans that share their cuts, with one chunk per stage and with several."""
    bound: float
    """No plan of the space scores less."""
    ways: int
    """Ways to cut, of which each stands for all its stages, orders and layers."""
    boxes: int
    solved: int

    @property
    def gap(self) -> float:
        """How much better than the best found a plan might be, as a share of it; 0 where none can."""
        if not self.best:
            return 0.0
        left = 1.0 - self.bound / self.best[0].score
        return left if left > SAME else 0.0


def search_mixed(problem: MixedProblem, grid: Grid, score: Score, *, most_solved: int = MOST_SOLVED) -> Outcome:
    """Return the best plans of the grid, and a bound of all.

    Plans with one chunk per stage and interleaved ones are searched apart: the closed form of the latter is less sure, so that the best of
    both are told apart by the simulation.
    """
    ways, cuts = ways_of(problem, grid, score), CutBook(problem, grid)
    chunks = _chunks(problem, grid)
    families = [family for family in ([v for v in chunks if v == 1], [v for v in chunks if v > 1]) if family]
    outcomes = [_Search(problem, grid, score, most_solved, ways, cuts, family).run() for family in families]
    return Outcome(
        best=tuple(sorted((found for outcome in outcomes for found in outcome.best), key=lambda found: found.score)),
        bound=min(outcome.bound for outcome in outcomes),
        ways=len(ways.bound),
        boxes=sum(outcome.boxes for outcome in outcomes),
        solved=sum(outcome.solved for outcome in outcomes),
    )


def _chunks(problem: MixedProblem, grid: Grid) -> list[int]:
    """Chunks per stage that are searched: up to MOST_UNEVEN_VPP, and further divisors of the layers."""
    if grid.vpp is not None:
        return list(grid.vpp)
    layers = problem.site.model.total_layers
    if problem.site.model.family == "encoder-decoder":
        return [1]
    return [v for v in range(1, layers // 2 + 1) if v <= MOST_UNEVEN_VPP or layers % v == 0] or [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A box before it is put in columns."""

    ids: list[int]
    least: int
    """Stages of each block."""
    most: list[int]
    num_microbatches: int
    vpp: int


class _Search:
    """One run over all ways to cut, with the given numbers of chunks per stage."""

    def __init__(
        self, problem: MixedProblem, grid: Grid, score: Score, most_solved: int, ways: Ways, cuts: CutBook, chunks: list[int]
    ) -> None:
        self.problem, self.grid, self.score, self.most_solved = problem, grid, score, most_solved
        self.site = problem.site
        self.layers = self.site.model.total_layers
        self.limits = Limits(
            layers=self.layers,
            num_gpus=problem.num_gpus,
            blocking=self.site.stack.p2p == "blocking",
            whole_rounds=self.site.stack.family == "megatron",
            dp_overlap=self.site.stack.dp_overlap,
            overhead_s=self.site.stack.step_overhead_s,
            pp=grid.pp,
        )
        self.ways, self.cuts, self.chunks = ways, cuts, chunks
        self.groups: dict[object, Found] = {}
        self.ceiling = np.inf
        self.open_bound = np.inf
        self.boxes = self.solved = 0
        self.leaves: list[Boxes] = []
        self.likely: Boxes | None = None

    def run(self) -> Outcome:
        ways = self.ways
        order = np.argsort(ways.bound, kind="stable")
        self._seed(np.argsort(ways.guess, kind="stable")[:SEEDS])
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            batch = batch[ways.bound[batch] < self.ceiling * (1 - SAME)]
            if not len(batch) or self._is_spent():
                self._leave_open(ways.bound[batch])
                break
            self._branch(self._root(ways, batch))
        self._fill()
        best = tuple(sorted(self.groups.values(), key=lambda found: found.score))
        return Outcome(best=best, bound=min(self.open_bound, self.ceiling), ways=len(ways.bound), boxes=self.boxes, solved=self.solved)

    def _is_spent(self) -> bool:
        return self.boxes > MOST_BOXES or self.solved >= self.most_solved

    def _leave_open(self, bounds: Floats) -> None:
        self.open_bound = min(self.open_bound, float(bounds.min(initial=np.inf)))

    def _seed(self, chosen: Ints) -> None:
        """Solve a likely plan of each of some ways, so that the search begins with a ceiling."""
        if not len(chosen):
            return
        root = self._root(self.ways, chosen)
        cuts = self.cuts.table
        roomy = replace(root, bound_s=np.zeros(len(root)))
        boxes = tightened(roomy, cuts, self.limits, np.full(len(root), np.inf))
        likely = Boxes.concat([likely_plans(boxes, cuts, self.limits, share=share) for share in SHARES])
        likely = tightened(likely, cuts, self.limits, np.full(len(likely), np.inf))
        if not len(likely):
            return
        likely = replace(likely, bound_s=bound_s(likely, cuts, self.limits, np.full(len(likely), np.inf)) / self.cuts.gbs[likely.ids[:, 0]])
        likely = replace(likely, bound_s=np.asarray(self.score.of(likely.bound_s, self._rate(likely, cuts))))
        likely = likely.take(np.argsort(likely.bound_s, kind="stable"))
        for i in range(min(SEEDS, len(likely))):
            if likely.bound_s[i] < self.ceiling:
                self._solve(likely.take(slice(i, i + 1)))
        self.likely = likely

    def _fill(self) -> None:
        """Solve more likely plans, whatever the best, until there are as many as are asked for."""
        wanted = self.problem.request.top
        if self.likely is None:
            return
        for i in range(min(FILLED * wanted, len(self.likely))):
            if len(self.groups) >= wanted:
                return
            self._solve(self.likely.take(slice(i, i + 1)), beaten="kept")

    # Boxes

    def _root(self, ways: Ways, batch: Ints) -> Boxes:
        """One box per order of the pools and number of chunks."""
        self.cuts.add(ways.options[batch])
        rows: list[_Row] = []
        for way in batch:
            options, common = ways.options[way], int(ways.common[way])
            present = [pool for pool in range(len(options)) if options[pool] >= 0]
            caps = [int(self.grid.options[pool].stages[options[pool]]) for pool in present]
            micro = int(self.grid.num_microbatches[common])
            if len(present) == 1 and 1 in self.chunks:
                alone = self.cuts.id_of(present[0], options[present[0]], piped=False)
                rows.append(_Row(ids=[alone], least=1, most=[1], num_microbatches=micro, vpp=1))
            for vpp in self.chunks:
                for order in permutations(range(len(present))):
                    ids = [self.cuts.id_of(present[i], options[present[i]], piped=True) for i in order]
                    most = [caps[i] for i in order]
                    rows.append(_Row(ids=ids, least=1 if len(ids) > 1 else 2, most=most, num_microbatches=micro, vpp=vpp))
        return self._boxes(rows, ways.options.shape[1])

    def _boxes(self, rows: list[_Row], count: int) -> Boxes:
        def filled(values: list[list[int]], absent: int) -> Ints:
            return np.array([[*each, *[absent] * (count - len(each))] for each in values], dtype=np.int64)

        ids = filled([row.ids for row in rows], -1)
        present = ids >= 0
        lowest = np.where(present, np.array([row.least for row in rows])[:, None], 0)
        return Boxes(
            ids=ids,
            stages_from=lowest,
            stages_to=np.minimum(filled([row.most for row in rows], 0), self.layers),
            layers_from=lowest,
            layers_to=np.where(present, self.layers, 0),
            num_microbatches=np.array([row.num_microbatches for row in rows], dtype=np.int64),
            vpp=np.array([row.vpp for row in rows], dtype=np.int64),
            bound_s=np.zeros(len(rows)),
        )

    def _branch(self, root: Boxes) -> None:
        """Split boxes, the most promising first, until each is solved, beaten or left open."""
        boxes = self._priced(root)
        while len(boxes) or self.leaves:
            if self._is_spent():
                self._leave_open(np.concatenate([boxes.bound_s, *(leaves.bound_s for leaves in self.leaves)]))
                self.leaves.clear()
                return
            self._solve_leaves(float(boxes.bound_s.min(initial=np.inf)))
            boxes = boxes.take(boxes.bound_s < self.ceiling * (1 - SAME))
            if not len(boxes):
                continue
            first = np.argsort(boxes.bound_s, kind="stable")
            self.boxes += len(first[:BOXES])
            halves = self._priced(boxes.take(first[:BOXES]).halves())
            boxes = Boxes.concat([boxes.take(first[BOXES:]), halves])

    def _priced(self, boxes: Boxes) -> Boxes:
        """Narrow and bound boxes; what is beaten is dropped, what is one plan is put aside."""
        if not len(boxes):
            return boxes
        cuts = self.cuts.table
        boxes = tightened(boxes, cuts, self.limits, self._ceiling_s(boxes, cuts))
        if not len(boxes):
            return boxes
        seconds = bound_s(boxes, cuts, self.limits, self._ceiling_s(boxes, cuts))
        gbs = self.cuts.gbs[boxes.ids[:, 0]]
        boxes = replace(boxes, bound_s=np.asarray(self.score.of(seconds / gbs, self._rate(boxes, cuts))))
        boxes = boxes.take(boxes.bound_s < self.ceiling * (1 - SAME))
        single = boxes.width.max(axis=1, initial=0.0) == 0
        if single.any():
            self.leaves.append(boxes.take(single))
        return boxes.take(~single)

    def _rate(self, boxes: Boxes, cuts: Cuts) -> Floats:
        return self.score.rate(boxes.stages_from * cuts.chips[boxes.ids], self.cuts.pools[boxes.ids])

    def _ceiling_s(self, boxes: Boxes, cuts: Cuts) -> Floats:
        """Seconds of a step that a plan of a row may take to be of use."""
        per_sequence = np.minimum(self.ceiling / self._rate(boxes, cuts), self.score.most_s)
        return np.asarray(per_sequence * self.cuts.gbs[boxes.ids[:, 0]])

    # Leaves

    def _solve_leaves(self, lowest: float) -> None:
        """Solve the plans that no open box may beat."""
        if not self.leaves:
            return
        leaves = Boxes.concat(self.leaves)
        leaves = leaves.take(np.argsort(leaves.bound_s, kind="stable"))
        at = 0
        while at < len(leaves) and leaves.bound_s[at] <= lowest and not self._is_spent():
            if leaves.bound_s[at] >= self.ceiling * (1 - SAME):
                break
            self._solve(leaves.take(slice(at, at + 1)))
            at += 1
        left = leaves.take(np.flatnonzero((np.arange(len(leaves)) >= at) & (leaves.bound_s < self.ceiling * (1 - SAME))))
        self.leaves = [left] if len(left) else []

    def _solve(self, leaf: Boxes, *, beaten: Literal["dropped", "kept"] = "dropped") -> None:
        ids = [int(i) for i in leaf.ids[0] if i >= 0]
        blocks = tuple(
            self.cuts.block(i, stages=int(stages), layers=int(layers))
            for i, stages, layers in zip(ids, leaf.stages_from[0], leaf.layers_from[0], strict=False)
        )
        case = Case(
            num_microbatches=int(leaf.num_microbatches[0]),
            vpp=int(leaf.vpp[0]),
            blocking=self.limits.blocking,
            dp_overlap=self.limits.dp_overlap,
            overhead_s=self.limits.overhead_s,
            prefix=self.site.model.segments[0].num_layers if len(self.site.model.segments) > 1 else 0,
            even="layers" in self.problem.request.same,
        )
        if case.even and any(block.layers % block.stages for block in blocks):
            return
        self.solved += 1
        cuts = self.cuts.table
        ceiling_s = float(self._ceiling_s(leaf, cuts)[0]) if beaten == "dropped" else np.inf
        solver = solve_alike if "recompute" in self.problem.request.same else solve
        solved = solver(blocks, case, below_s=ceiling_s)
        if solved is None:
            return
        seconds, gbs, rate = value_s(blocks, case, solved), int(self.cuts.gbs[ids[0]]), float(self._rate(leaf, cuts)[0])
        scored = float(self.score.of(seconds / gbs, rate))
        self._leave_open(np.array([float(self.score.of(solved.bound_s / gbs, rate))]))
        if not np.isfinite(scored):
            return
        found = Found(
            score=scored,
            step_s=seconds,
            common=int(self.cuts.commons[ids[0]]),
            cuts=tuple((int(self.cuts.pools[i]), int(self.cuts.numbers[i])) for i in ids),
            blocks=blocks,
            case=case,
            solved=solved,
        )
        known = self.groups.get(found.cuts)
        if known is None or found.score < known.score:
            self.groups[found.cuts] = found
        self.ceiling = min(self.ceiling, scored)
