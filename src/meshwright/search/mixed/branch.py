"""Best-first branch and bound over plans on several kinds of chips."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from heapq import nsmallest
from itertools import permutations
from math import factorial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.bounds import bound_s
from meshwright.search.mixed.boxes import Boxes, Cuts, Limits, likely_plans, tightened
from meshwright.search.mixed.cut_book import CutBook, Singles
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.inner import solve, solve_alike
from meshwright.search.mixed.near import (
    evenly_split,
    expected_s,
    recomputes_unlike,
    restaged,
    sibling_plans,
    unlike_plans,
)
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.reprice import SAME, Found, Outcome
from meshwright.search.mixed.ways import Ways
from meshwright.search.rules.pipeline import wants_fill, wants_whole_rounds

__all__ = ["FAMILY_MARGIN", "MOST_SOLVED", "FamilySearch", "candidates_of"]

Ints = NDArray[np.int64]
BATCH = 64
"""Ways to cut that are opened at once at first; twice as many each time."""
MOST_ROWS = 2**15
"""Boxes of ways that are opened at once."""
BOXES = 4096
"""Boxes that are split at once."""
FREE_WORK = 600_000
"""Boxes that are made before the search becomes content with less than the best; a stage of an
inner problem counts as STAGE_WORK."""
STAGE_WORK = 60
SLACK_PER_WORK = 0.01
"""By how much of the best plan's score what is left open may be better, per further FREE_WORK; the
gap says how much it is."""
MOST_WORK = 800_000
"""Beyond, everything is left open."""
SEEDS = 16
"""Likely plans that are solved before the search."""
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06)
"""Of the stages that there could be, how many a likely plan has."""
FILLED = 3
"""Beaten, and likely, plans tried per plan that is asked for, where the search solved fewer."""
SIBLINGS_OF = 2
"""Best interleaved plans of which those beside them are tried."""
MOST_SIBLINGS = 64
"""Plans beside the best that are tried."""
SPARE = 8
"""Plans priced again beyond those that are asked for: the simulation may order them differently."""
FAMILY_MARGIN = 1.1
"""Interleaved plans are searched to so many times the best score of others: their closed form is
less sure, and the simulation decides."""
NEAR = 1.04
"""Interleaved plans up to so many times the best by the closed form are split and simulated."""
MOST_NEAR = 256
"""Of them, at most; beaten plans that are kept in mind."""
NEAR_WORK = 50_000
"""Boxes beyond which such plans are no longer looked for."""
NEAR_KEPT = 6
"""Of them, how many are priced again."""
BESIDE = 4
"""Plans beside the best that are tried for each that is asked for."""
OTHERS_WORK = 60_000
"""Boxes that are made for the plans behind the best; beyond, the rest is left open."""
MOST_SOLVED = 10**9
"""Inner problems solved at most."""


def candidates_of(top: int) -> int:
    """Return how many plans are priced again for so many that are asked for."""
    return 2 * top + SPARE


class FamilySearch:
    """One run over all ways to cut, with the given numbers of chunks per stage."""

    def __init__(
        self,
        problem: MixedProblem,
        grid: Grid,
        score: Score,
        most_solved: int,
        ways: Ways,
        cuts: CutBook,
        chunks: list[int],
        *,
        ceiling: float,
    ) -> None:
        self.problem, self.grid, self.score, self.most_solved = problem, grid, score, most_solved
        self.site = problem.site
        self.layers = self.site.model.total_layers
        self.limits = Limits(
            layers=self.layers,
            num_gpus=problem.num_gpus,
            blocking=self.site.stack.p2p == "blocking",
            whole_rounds=wants_whole_rounds(self.site.stack),
            filled=wants_fill(self.site.stack),
            dp_overlap=self.site.stack.dp_overlap,
            overhead_s=self.site.stack.step_overhead_s,
            pp=grid.pp,
        )
        self.ways, self.cuts, self.chunks = ways, cuts, chunks
        self.singles = Singles(problem, self.limits, cuts, score)
        self.rows_per_way = factorial(len(grid.options)) * len(chunks)
        self.bounds = ways.once_bound if chunks == [1] else ways.chunked_bound
        self.groups: dict[Hashable, Found] = {}
        self.choices: dict[Hashable, Found] = {}
        self.leaves_of: dict[Hashable, Boxes] = {}
        self.top, self.most_work = 1, MOST_WORK
        self.ceiling = self.given = ceiling
        self.margin = 1.0 if chunks == [1] else NEAR
        self.open_bound = np.inf
        self.boxes = self.solved = self.work = 0
        self.leaves: list[Boxes] = []
        self.likely: Boxes | None = None
        self.beaten: Boxes | None = None

    def run(self) -> Outcome:
        # Best first: once a way's bound is above the ceiling, so are those of all behind it.
        order = np.argsort(self.bounds, kind="stable")
        self._seed(np.argsort(self.ways.guess, kind="stable")[:SEEDS])
        self._open(order)
        self._fill()
        return self._outcome(self._near())

    def others(self, ceiling: float) -> Outcome:
        """Search on for as many plans as are asked for, once the best is proven."""
        self.top, self.most_work = self.problem.request.top, self.work + OTHERS_WORK
        self.open_bound, self.margin, self.leaves = np.inf, 1.0, []
        self.given, self.ceiling = ceiling, min(ceiling, self._last_score())
        self._beside()
        self._open(np.argsort(self.bounds, kind="stable"))
        return self._outcome(())

    def _last_score(self) -> float:
        """The score of the last plan that is asked for, of those that are known."""
        scores = nsmallest(self.top, (found.score for found in self.choices.values()))
        return scores[-1] if len(scores) == self.top else np.inf

    def _outcome(self, near: tuple[Found, ...]) -> Outcome:
        bound = min(self.open_bound, self.ceiling)
        return Outcome(
            best=tuple(sorted(self.choices.values(), key=attrgetter("score"))),
            orders=tuple(sorted(self.groups.values(), key=attrgetter("score"))),
            near=near,
            bound=bound,
            later_bound=bound,
            ways=len(self.ways.common),
            boxes=self.boxes,
            solved=self.solved,
        )

    def _open(self, order: Ints) -> None:
        """Open ways to cut until none may hold a plan that is asked for."""
        bounds, start, size = self.bounds, 0, BATCH
        while start < len(order):
            batch = order[start : start + size]
            batch = batch[self._promising(bounds[batch], self.margin)]
            if not len(batch) or self._is_spent():
                # What is dropped unsolved must lower the proof's bound.
                self._leave_open(bounds[batch])
                break
            self._branch(self._root(self.ways, batch))
            # Few at first, as each solved plan lowers the ceiling; a batch has its own cost too.
            start, size = start + size, max(BATCH, min(2 * size, MOST_ROWS // self.rows_per_way))

    def _is_spent(self) -> bool:
        return self.work > self.most_work or self.solved >= self.most_solved

    def _promising(self, bounds: Floats, margin: float = 1.0) -> NDArray[np.bool_]:
        """Whether sets of plans with these bounds are searched; what is dropped though it may be
        better is left open.

        With a margin those too that are so many times as slow, in a search that is not long.
        """
        # A long search becomes content with less, step by step: an end at a fixed amount of work
        # would leave everything open at once, and the gap with it.
        slack = SLACK_PER_WORK * max(0.0, self.work / FREE_WORK - 1.0)
        keep = bounds < self.ceiling * (
            margin if margin > 1 and self.work < NEAR_WORK else 1 - max(SAME, slack)
        )
        if slack:
            self._leave_open(bounds[~keep & (bounds < self.ceiling)])
        return np.asarray(keep)

    def _leave_open(self, bounds: Floats) -> None:
        self.open_bound = min(self.open_bound, float(bounds.min(initial=np.inf)))

    def _seed(self, chosen: Ints) -> None:
        """Solve a likely plan of each of some ways, so that the search begins with a ceiling."""
        if not len(chosen):
            return
        root = self._root(self.ways, chosen)
        cuts = self.cuts.table
        # A box is narrowed here by its rules alone, as nothing is known to beat.
        roomy = replace(root, bound_s=np.zeros(len(root)))
        boxes = tightened(roomy, cuts, self.limits, np.full(len(root), np.inf))
        likely = Boxes.concat(
            [likely_plans(boxes, cuts, self.limits, share=share) for share in SHARES]
        )
        self.likely = likely = self._ordered(likely)
        for i in range(min(SEEDS, len(likely))):
            if likely.bound_s[i] < self.ceiling:
                self._solve(likely.take(slice(i, i + 1)))

    def _fill(self) -> None:
        """Solve beaten plans near the best until there are as many as are priced again, and likely
        ones until as many as are asked for."""
        top = self.problem.request.top
        near, wanted = FAMILY_MARGIN * self.ceiling, candidates_of(top)
        self._try(self.beaten, most=FILLED * top, wanted=wanted, below=near)
        self._try(self.likely, most=FILLED * top, wanted=top, below=self.given)

    def _try(self, plans: Boxes | None, *, most: int, wanted: int, below: float) -> None:
        """Solve some plans of other groups, until there are as many groups as wanted."""
        for i in range(min(most, 0 if plans is None else len(plans))):
            if len(self.groups) >= wanted:
                return
            assert plans is not None
            one = plans.take(slice(i, i + 1))
            if (self.singles.cuts_of(one), int(one.vpp[0])) not in self.groups:
                self._solve(one, below=below)

    def _beside(self) -> None:
        """Solve plans a few stages or chunks away from the best, for a low ceiling."""
        best = nsmallest(self.top, self.groups.items(), key=lambda item: item[1].score)
        leaves = [self.leaves_of[key] for key, found in best if len(found.solved.stages) > 1]
        if not leaves:
            return
        beside = self._ordered(
            Boxes.concat(
                [restaged(leaf, self.singles.caps_of(leaf), self.chunks) for leaf in leaves]
            )
        )
        left = BESIDE * self.top
        for i in range(len(beside)):
            if not left or beside.bound_s[i] >= self.ceiling:
                return
            if self.singles.choice_of(beside, i) not in self.choices:
                self._solve(beside.take(slice(i, i + 1)), below=self.given)
                left -= 1

    def _siblings(self) -> Boxes | None:
        """Plans beside the best interleaved ones, those that may be best first."""
        best = [
            self.leaves_of[key]
            for key, found in sorted(self.groups.items(), key=lambda item: item[1].score)
            if found.case.vpp > 1
        ]
        if not best:
            return None
        return unlike_plans(
            self._ordered(
                Boxes.concat([sibling_plans(leaf, self.chunks) for leaf in best[:SIBLINGS_OF]])
            )
        )

    def _ordered(self, plans: Boxes) -> Boxes:
        """Those that keep the rules, by what they may score."""
        cuts, nothing = self.cuts.table, np.full(len(plans), np.inf)
        kept = tightened(plans, cuts, self.limits, nothing)
        seconds = (
            bound_s(kept, cuts, self.limits, nothing[: len(kept)]) / self.cuts.gbs[kept.ids[:, 0]]
        )
        kept = replace(kept, bound_s=np.asarray(self.score.of(seconds, self.singles.rate(kept))))
        return kept.take(np.argsort(kept.bound_s, kind="stable"))

    # Boxes

    def _root(self, ways: Ways, batch: Ints) -> Boxes:
        """One box per order of the pools and number of chunks."""
        options = ways.options[batch]
        self.cuts.add(options)
        micro = self.grid.num_microbatches[ways.common[batch]]
        parts = []
        for present in np.unique(options >= 0, axis=0):
            rows, pools = (
                np.flatnonzero(((options >= 0) == present).all(axis=1)),
                np.flatnonzero(present),
            )
            # The place of a pool decides how many micro batches it holds, so that each order is a
            # box of its own; in one box the bound would take the best place for every pool.
            orders = np.array(list(permutations(range(len(pools)))))
            parts.append(
                self._boxes(
                    pools, options[rows][:, pools], micro[rows], orders, np.array(self.chunks)
                )
            )
            if len(pools) == 1 and 1 in self.chunks:
                parts.append(self._boxes(pools, options[rows][:, pools], micro[rows], orders, None))
        return Boxes.concat(parts)

    def _boxes(
        self, pools: Ints, options: Ints, micro: Ints, orders: Ints, chunks: Ints | None
    ) -> Boxes:
        """Boxes of ways that use the same pools; without `chunks`, of models that are not cut."""
        chosen = np.ones(1, dtype=np.int64) if chunks is None else chunks
        shape = (len(options), len(orders), len(chosen), len(self.grid.options))
        ids = np.stack(
            [
                self.cuts.ids_of(pool, options[:, i], piped=chunks is not None)
                for i, pool in enumerate(pools)
            ],
            axis=1,
        )
        caps = np.stack(
            [self.grid.options[pool].stages[options[:, i]] for i, pool in enumerate(pools)], axis=1
        )

        def filled(values: Ints, absent: int) -> Ints:
            whole = np.full(shape, absent, dtype=np.int64)
            whole[..., : len(pools)] = values[:, orders][:, :, None, :]
            return whole.reshape(-1, shape[-1])

        least = 1 if len(pools) > 1 or chunks is None else 2
        lowest = filled(np.full_like(ids, least), 0)
        stages = filled(np.minimum(caps, self.layers if chunks is not None else 1), 0)
        count = shape[1] * shape[2]
        return Boxes(
            ids=filled(ids, -1),
            stages_from=lowest,
            stages_to=stages,
            layers_from=lowest,
            layers_to=np.where(lowest > 0, self.layers, 0),
            num_microbatches=np.repeat(micro, count),
            vpp=np.tile(chosen, len(options) * shape[1]),
            bound_s=np.zeros(len(lowest)),
        )

    def _branch(self, root: Boxes) -> None:
        """Split boxes, the most promising first, until each is solved, beaten or left open."""
        self.work += len(root)
        boxes = self._priced(root)
        while len(boxes) or self.leaves:
            if self._is_spent():
                self._leave_open(
                    np.concatenate([boxes.bound_s, *(leaves.bound_s for leaves in self.leaves)])
                )
                self.leaves.clear()
                return
            # Leaves whose bounds are below all open boxes go first: the ceiling that they bring may
            # beat boxes before these are halved.
            self._solve_leaves(float(boxes.bound_s.min(initial=np.inf)))
            boxes = boxes.take(self._promising(boxes.bound_s, self.margin))
            if not len(boxes):
                continue
            first = np.argsort(boxes.bound_s, kind="stable")
            at_once = max(
                BOXES, len(boxes) // 4
            )  # of many, more, as those that wait are copied each time
            self.boxes += len(first[:at_once])
            self.work += 2 * len(first[:at_once])
            halves = self._priced(boxes.take(first[:at_once]).halves())
            boxes = Boxes.concat([boxes.take(first[at_once:]), halves])

    def _priced(self, boxes: Boxes) -> Boxes:
        """Narrow and bound boxes; what is beaten is dropped, what is one plan is put aside."""
        if not len(boxes):
            return boxes
        cuts = self.cuts.table
        # Narrowing goes first: the bound of a box takes the least of each interval, and is the
        # closer to its plans the shorter these are.
        near = self.margin if self.work < NEAR_WORK else 1.0
        boxes = tightened(boxes, cuts, self.limits, self._ceiling_s(boxes, cuts), margin=near)
        if not len(boxes):
            return boxes
        seconds = bound_s(boxes, cuts, self.limits, self._ceiling_s(boxes, cuts))
        gbs = self.cuts.gbs[boxes.ids[:, 0]]
        boxes = replace(
            boxes, bound_s=np.asarray(self.score.of(seconds / gbs, self.singles.rate(boxes)))
        )
        single = boxes.width.max(axis=1, initial=0.0) == 0
        promising = self._promising(boxes.bound_s) & ~self._outdone(boxes)
        # A single plan that is beaten is remembered all the same: the closed form that beats it is
        # not what decides in the end.
        self._remember(boxes.take(single & ~promising))
        wide = self._promising(boxes.bound_s, self.margin) & (promising | (boxes.vpp > 1))
        promising = np.where(single, promising, wide)
        boxes, single = boxes.take(promising), single[promising]
        if single.any():
            self.leaves.append(boxes.take(single))
        return boxes.take(~single)

    def _outdone(self, boxes: Boxes) -> NDArray[np.bool_]:
        """Which boxes hold layers alone, and none that beat the best known of their stages."""
        found = np.zeros(len(boxes), dtype=bool)
        lone = (boxes.stages_from == boxes.stages_to).all(axis=1)
        # Other orders of the best are wanted too, for the simulation.
        for row in np.flatnonzero(lone) if self.top > 1 else ():
            known = self.choices.get(self.singles.choice_of(boxes, int(row)))
            found[row] = known is not None and boxes.bound_s[row] >= known.score * (1 - SAME)
        return found

    def _remember(self, plans: Boxes) -> None:
        """Keep the best of the plans that are beaten: the simulation may order them differently."""
        near = plans.take(plans.bound_s < FAMILY_MARGIN * self.ceiling)
        if len(near):
            known = near if self.beaten is None else Boxes.concat([self.beaten, near])
            self.beaten = known.take(np.argsort(known.bound_s, kind="stable")[:MOST_NEAR])

    def _ceiling_s(self, boxes: Boxes, cuts: Cuts, below: float | None = None) -> Floats:
        """Seconds of a step that a plan of a row may take to score less than `below`, or than the
        best so far."""
        per_sequence = np.minimum(
            (self.ceiling if below is None else below) / self.singles.rate(boxes), self.score.most_s
        )
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
            leaf = leaves.take(slice(at, at + 1))
            if not self._promising(leaf.bound_s).all():
                break
            if not self._outdone(leaf).any():
                self._solve(leaf)
            at += 1
        rest = leaves.take(slice(at, len(leaves)))
        promising = self._promising(rest.bound_s)
        self._remember(rest.take(~promising))
        left = rest.take(promising)
        self.leaves = [left] if len(left) else []

    def _solve(self, leaf: Boxes, *, below: float | None = None) -> None:
        """Solve a plan's inner problem, where that may score less than `below`, or than the best so
        far."""
        blocks, case = self.singles.inner(leaf)
        if case.even and any(block.layers % block.stages for block in blocks):
            return
        self.solved += 1
        self.work += STAGE_WORK * sum(block.stages for block in blocks)
        ceiling_s = float(self._ceiling_s(leaf, self.cuts.table, below)[0])
        solver = solve_alike if "recompute" in self.problem.request.same else solve
        solved = solver(blocks, case, below_s=ceiling_s)
        if solved is None:
            return
        found = self.singles.found(leaf, blocks, case, solved)
        # The inner problem is proven by the closed form too, and its bound is part of the proof.
        if solved.bound_s < found.step_s * (1 - SAME):
            self._leave_open(np.array([self.singles.score(leaf, solved.bound_s)]))
        if not np.isfinite(found.score):
            return
        key = found.cuts, found.case.vpp
        known = self.groups.get(key)
        if known is None or found.score < known.score:
            self.groups[key], self.leaves_of[key] = found, leaf
        known = self.choices.get(found.choice)
        if known is None or found.score < known.score:
            self.choices[found.choice] = found
        # What is worse than the last of the plans that are asked for is of no use.
        self.ceiling = min(self.ceiling, self._last_score())

    def _near(self) -> tuple[Found, ...]:
        """Interleaved plans nearly as good by the closed form, the best expected ones first."""
        if self.margin == 1 or self.beaten is None:
            return ()
        leaves, plans = (
            self.beaten.take(self.beaten.bound_s < self.margin * self.ceiling),
            list[Found](),
        )
        beside = self._siblings()
        if beside is not None:
            leaves = Boxes.concat([leaves, beside.take(slice(0, MOST_SIBLINGS))])
        known = {found.stages for found in self.groups.values()}
        alike = "recompute" in self.problem.request.same
        for i in range(len(leaves)):
            leaf = leaves.take(slice(i, i + 1))
            blocks, case = self.singles.inner(leaf)
            solved = evenly_split(blocks, case)
            if solved is None or (alike and recomputes_unlike(blocks, solved)):
                continue
            found = self.singles.found(leaf, blocks, case, solved)
            if found.stages not in known:
                plans.append(found)
        plans.sort(key=lambda found: found.score)  # the simulation has room for the first of them
        expected = expected_s(plans)
        order = sorted(
            (float(s) / plan.step_s * plan.score, i)
            for i, (s, plan) in enumerate(zip(expected, plans, strict=True))
        )
        return tuple(plans[i] for score, i in order[:NEAR_KEPT] if np.isfinite(score))
