"""Lower bounds of boxes of plans, in columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.once import exposed_exchange_s
from meshwright.cost.stages import Floats
from meshwright.search.mixed.boxes import Boxes, Cuts, Limits
from meshwright.search.mixed.curves import FIRST, LAST, MIDDLE, WHOLE
from meshwright.search.mixed.forced import Forced, Places, forced

__all__ = ["bound_s"]

Ints = NDArray[np.int64]


def bound_s(boxes: Boxes, cuts: Cuts, limits: Limits, ceiling_s: Floats) -> Floats:
    """Seconds of a step that no plan of a row undercuts, (R,), of those that take less than the
    ceiling (R,).

    Formula:  the closed form of 1f1b at the first stage of each block, which holds no less than the
              block's layers spread as evenly as memory allows, with the least recompute, the least
              that can lie above and below, and the most stages; the largest over the blocks; and
              what is done once
    Units:    seconds.
    Source:   docs/heterogeneous.md, "Why the bound holds".
    Valid:    tightened boxes.
    Checked:  tests/search/test_mixed.py::test_search_finds_what_brute_force_finds,
              tests/search/test_mixed_bounds.py
    """
    case = _Case(boxes, cuts, limits, ceiling_s)
    chains = case.chains_s()
    return np.asarray(np.where(case.fits, chains + case.once_s(chains) + limits.overhead_s, np.inf))


class _Case:
    """Quantities of the rows that both forms need, (R, K).

    All are the least that any plan of the box has, but for what takes away from a bound: there the
    most. Blocks stand in the order of the pipeline, absent ones at the end of the row.
    """

    def __init__(self, boxes: Boxes, cuts: Cuts, limits: Limits, ceiling_s: Floats) -> None:
        self.boxes, self.cuts, self.limits = boxes, cuts, limits
        ids = boxes.ids
        self.present = ids >= 0
        count = ids.shape[1]
        used = self.present.sum(axis=1)
        self.last = np.arange(count)[None] == used[:, None] - 1
        self.first = np.broadcast_to(np.arange(count)[None] == 0, ids.shape)
        self.s0, self.s1, self.n0, self.n1 = (
            boxes.stages_from,
            boxes.stages_to,
            boxes.layers_from,
            boxes.layers_to,
        )
        self.micro = boxes.num_microbatches[:, None].astype(np.float64)
        self.forward, self.backward = cuts.forward_s[ids], cuts.backward_s[ids]
        layer = self.forward + self.backward
        head, embedding = (
            np.where(end, table[ids], 0.0)
            for end, table in ((self.last, cuts.head_s), (self.first, cuts.first_s))
        )
        # Some stage of a block has as many layers as an even split of the fewest layers over the
        # most stages gives; at the ends of the pipeline another one may be slower.
        self.even = -(-self.n0 // np.maximum(self.s1, 1))
        self.slowest = np.maximum(
            *(_slowest_s(self.n0, self.s1, self.even, layer, more) for more in (head, embedding))
        )
        stages0, stages1 = self.s0.cumsum(axis=1), self.s1.cumsum(axis=1)
        self.depth0, self.depth1 = stages0[:, -1:], stages1[:, -1:]
        # Stages below the first of a block, at least and at most.
        self.below0 = np.maximum(0, self.depth0 - stages0 + self.s0 - 1)
        self.below1 = np.maximum(0, self.depth1 - stages1 + self.s1 - 1)
        # Memory makes stages slower yet: what they must recompute counts in the slowest stage, and
        # in the work above and below the others.
        found = self._forced(ceiling_s)
        self.fits = np.asarray(np.isfinite(found.slowest_s).all(axis=1))
        self.forced = replace(found, slowest_s=np.where(self.fits[:, None], found.slowest_s, 0.0))
        work = self.n0 * layer + head + embedding + self.forced.extra_s
        self.total = work.sum(axis=1, keepdims=True)
        self.above = work.cumsum(axis=1) - work
        self.links = _Links(self)

    def _forced(self, ceiling_s: Floats) -> Forced:
        """What memory makes the stages of each block recompute."""
        shape = self.present.shape

        def flat(values: Any) -> Any:
            return np.broadcast_to(values, shape).reshape(-1)

        micro = self.boxes.num_microbatches[:, None]
        places = Places(
            layers=flat(self.n0),
            stages=flat(self.s1),
            below=flat(np.maximum(0, self.below0 - self.s0 + 1)),
            depth=flat(self.depth0),
            num_microbatches=flat(micro),
            vpp=flat(self.boxes.vpp[:, None]),
            layer_s=flat(self.forward + self.backward),
            most_s=flat(ceiling_s[:, None] / micro),
        )
        found = forced(places, self.cuts.room, flat(self.boxes.ids))
        return Forced(
            slowest_s=found.slowest_s.reshape(shape), extra_s=found.extra_s.reshape(shape)
        )

    def chains_s(self) -> Floats:
        """The longest chain of any block at least, (R,).

        Its slowest stage is at least at the block's first place. If no stage has more layers than
        even ones, then of those that have as many the last lies behind the others; if one has, it
        has a layer more. Of those that are not at an end of the pipeline, it may lie one place
        before.
        """
        ids, links = self.boxes.ids, self.links
        shares = (self.cuts.forward_share[ids], self.cuts.backward_share[ids])
        even = self.even * self.cuts.layer_s[ids]
        behind = np.maximum(0, self.n0 - self.s1 * (self.even - 1) - 1)
        whole = behind - self.last * (links.inner_s > links.any_s)
        nowhere = np.zeros_like(behind)
        first = self._chain(self.slowest, nowhere, links.any_s, shares)
        later = np.minimum(
            self._chain(even, np.maximum(0, whole), links.inner_s, shares),
            self._chain(even + self.cuts.layer_s[ids], nowhere, links.any_s, shares),
        )
        chains = np.maximum(first, later)
        if (self.forced.slowest_s > 0).any():
            # Of a stage that recomputes, more than its share may be backward.
            shares = (shares[0], self.cuts.slow_share[ids])
            chains = np.maximum(
                chains, self._chain(self.forced.slowest_s, nowhere, links.any_s, shares)
            )
        return np.asarray(np.where(self.present, chains, 0.0).max(axis=1))

    def _chain(
        self, slowest: Floats, places: Ints, hold: Floats, shares: tuple[Floats, Floats]
    ) -> Floats:
        """The chain of a stage that takes `slowest`, so many places behind its block's first, all
        in between being as slow, (R, K)."""
        # Both passes at most: stages below hide behind them, so that long ones lower the bound.
        passes = tuple(
            share * slowest + more for share, more in zip(shares, self._beyond(shares), strict=True)
        )
        above = self.above + places * slowest
        below = np.maximum(0.0, self.total - above - slowest)
        counts = (np.maximum(0, self.below0 - places), np.maximum(0, self.below1 - places))
        plain = self._plain(slowest, above, places, below, hold, passes, *counts)
        if not (self.boxes.vpp > 1).any():
            return plain
        return np.where(
            self.boxes.vpp[:, None] > 1,
            self._interleaved(slowest, above, places, below, passes, *counts),
            plain,
        )

    def _beyond(self, shares: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """What either pass of a first stage may take beyond its share of the stage's time."""
        cuts, ids = self.cuts, self.boxes.ids
        beyond = [
            most[ids] - share * cuts.first_s[ids]
            for most, share in zip(
                (cuts.first_forward_s, cuts.first_backward_s), shares, strict=True
            )
        ]
        forward, backward = (np.where(self.first, np.maximum(0.0, more), 0.0) for more in beyond)
        return forward, backward

    # Of messages only so much counts that a stage at the block's first place still takes least, see
    # docs/heterogeneous.md.

    def _plain(
        self,
        slowest: Floats,
        above: Floats,
        places: Ints,
        below: Floats,
        hold: Floats,
        passes: tuple[Floats, ...],
        below0: Ints,
        below1: Ints,
    ) -> Floats:
        # A + M t + max(0, U - n f) + max(0, U - n b) of docs/heterogeneous.md, with messages: A and
        # U at least, n at most.
        m, links = self.micro, self.links
        f, b = passes
        passed = links.above_s + places * links.own_s
        inside = np.maximum(0, self.s0 - 1 - places) * (
            links.own_s - np.minimum(links.own_s, hold / 2)
        )
        back = 2 * np.maximum(0.0, links.total_s - passed - inside)
        once = np.where(below0 > 0, links.next_s, 0.0)
        trip = below + back - below1 * hold - np.where(below1 > 0, links.most_next_s, 0.0)
        waits = np.maximum(0.0, trip - below1 * f) + np.maximum(0.0, trip - below1 * b)
        steady = slowest * m + (m - 1 + below0) * hold + once + waits
        # With fewer micro batches than stages below the pipeline never fills: the last micro batch
        # waits for the one before it, and goes all the way down and back.
        half = slowest - f  # the longer of its passes, at least
        short = np.maximum(
            m * slowest + (m - 1) * hold, slowest + below + back + (m - 1) * (half + hold)
        )
        return np.asarray(
            above + 2 * passed + np.where(m >= below1 + 2, np.maximum(steady, short), short)
        )

    def _interleaved(
        self,
        slowest: Floats,
        above: Floats,
        places: Ints,
        below: Floats,
        passes: tuple[Floats, ...],
        below0: Ints,
        below1: Ints,
    ) -> Floats:
        # As above with all but M t divided by the chunks, and with waits for the forwards and the
        # backwards of all stages in the rounds between a stage's own chunks.
        vpp, m, mean = self.boxes.vpp[:, None].astype(np.float64), self.micro, self.links.mean_s
        message = np.minimum(mean, slowest / (2 * vpp))
        rounds = (vpp - 1) / vpp
        least, most = (
            2 * n + (vpp - 1) * depth for n, depth in ((below0, self.depth0), (below1, self.depth1))
        )
        extra = self.forced.extra_s.sum(axis=1, keepdims=True)
        waits = np.zeros_like(slowest)
        for own, layer, more in zip(
            passes, (self.forward, self.backward), (0.0, extra), strict=True
        ):
            # What a message takes beyond the stage's own pass counts as often as it makes the bound
            # least.
            others = rounds * ((self.n0 * layer).sum(axis=1, keepdims=True) + more)
            slope = message - own / vpp
            waits = waits + np.maximum(
                0.0, others + below / vpp + np.where(slope > 0, least, most) * slope
            )
        steady = m * slowest + np.where(m * vpp >= most + 2, waits, 0.0)
        passed = 2 * np.maximum(0, self.depth0 - 1 - self.below0) * mean + 2 * places * message
        return np.asarray(above / vpp + passed + steady + self.links.stretched_s)

    def once_s(self, chains_s: Floats) -> Floats:
        """What is done once at least, where the chains take so long at least, (R,).

        It hides behind the first stage. One that is slower than a micro batch's share of the chains
        costs more than it hides, as no more than a stage's own time can hide; and so does recompute
        there, where the stages follow each other once.
        """
        ids, cuts, overlap = self.boxes.ids, self.cuts, self.limits.dp_overlap
        first, micro = ids[:, 0], self.micro[:, 0]
        # What the first stage's passes may hide at most, with its most layers and all recomputed,
        # but no longer than a micro batch's share of the chains.
        share_s = chains_s / micro
        most = self.n1[:, 0] - self.s0[:, 0] + 1.0
        layers = np.minimum(most, share_s / cuts.layer_s[first])
        head = self._head(first)
        forward = layers * cuts.most_forward_s[first] + cuts.first_forward_s[first] + head
        redone = np.minimum(most * cuts.slow_backward_s[first], share_s)
        plain = layers * cuts.most_backward_s[first]
        backward = (
            np.where(self.boxes.vpp > 1, np.maximum(plain, redone), plain)
            + cuts.first_backward_s[first]
            + head
        )
        even = np.maximum(self.even, 0)

        def most_of(tables: Floats) -> Floats:
            """Of the block's fullest stage, and of those at the ends of the pipeline."""
            lone = self.s1.sum(axis=1, keepdims=True) == 1
            found = tables[ids, MIDDLE, even]
            for role, here in (
                (FIRST, self.first & ~lone),
                (LAST, self.last & ~lone),
                (WHOLE, np.broadcast_to(lone, ids.shape)),
            ):
                layers = np.where(self.s1 == 1, self.n0, self.boxes.vpp[:, None])
                found = np.where(
                    here & self.present, np.maximum(found, tables[ids, role, layers]), found
                )
            return np.asarray(found)

        reduce, gather = (
            exposed_exchange_s(
                most_of(table),
                overlap * pass_s[:, None],
                chunks=self.boxes.vpp[:, None],
                pp=self.depth1,
            )
            for table, pass_s in ((cuts.reduce_s, backward), (cuts.gather_s, forward))
        )
        return np.asarray(
            np.where(self.present, reduce + gather + most_of(cuts.optimizer_s), 0.0).max(axis=1)
        )

    def _head(self, first: Ints) -> Floats:
        """The head, where the first stage may be the last."""
        return np.where(self.s0.sum(axis=1) == 1, self.cuts.head_s[first], 0.0)


class _Links:
    """Messages of the rows at least, (R, K); `total_s`, `mean_s` and `stretched_s`, (R, 1)."""

    def __init__(self, case: _Case) -> None:
        cuts, ids, s0, s1 = case.cuts, case.boxes.ids, case.s0, case.s1
        # Inside a pool the network is known where even the shortest pipeline of the box is longer
        # than a fast domain; else a message takes the lesser of both.
        near, inside, size = cuts.near_s[ids], cuts.inside_s[ids], cuts.chips[ids]
        # Inside a pool a message takes the network where even the shortest pipeline of the box is
        # longer than a fast domain, the domain's link where the longest fits in one.
        either = np.where(size * case.depth1 <= cuts.domain[ids], near, np.minimum(near, inside))
        own = np.where(size * case.depth0 > cuts.domain[ids], inside, either)
        far = cuts.across_s[ids]
        following = np.concatenate([far[:, 1:], np.zeros_like(far[:, :1])], axis=1)
        cross = np.where(case.last | ~case.present, 0.0, np.maximum(far, following))
        before = np.concatenate([np.zeros_like(cross[:, :1]), cross[:, :-1]], axis=1)
        passed = np.maximum(0, s0 - 1) * own + cross
        self.own_s, self.total_s = own, passed.sum(axis=1, keepdims=True)
        self.above_s = passed.cumsum(axis=1) - passed
        blocks = float(case.limits.blocking)
        ends = (case.first, case.last)
        self.any_s, self.inner_s = (
            blocks * np.where(case.depth0 < 2, 0.0, each)
            for each in _holds_s(case, own, before, cross, ends)
        )
        lone = s1 == 1
        self.next_s = blocks * np.where(
            case.last, own, np.where(lone, cross, np.minimum(own, cross))
        )
        self.most_next_s = blocks * np.where(
            case.last,
            np.maximum(near, inside),
            np.where(lone, cross, np.maximum(np.maximum(near, inside), cross)),
        )
        least = np.minimum(
            np.where(case.present & (s1 > 1), own, np.inf), np.where(cross > 0, cross, np.inf)
        ).min(axis=1, keepdims=True)
        fixed = (s0 == s1).all(axis=1, keepdims=True)
        even = self.total_s / np.maximum(1, case.depth0 - 1)
        self.mean_s = np.where(fixed, even, np.where(np.isfinite(least), least, 0.0))
        self.stretched_s = self._stretched_s(case)

    def _stretched_s(self, case: _Case) -> Floats:
        """What messages longer than a mean chunk's forward add to interleaved stages."""
        cuts, ids, vpp = case.cuts, case.boxes.ids, case.boxes.vpp[:, None]
        ends = np.where(case.first, cuts.first_forward_s[ids], 0.0) + np.where(
            case.last, cuts.head_s[ids], 0.0
        )
        forward = (case.n1 * cuts.most_forward_s[ids] + np.where(case.present, ends, 0.0)).sum(
            axis=1, keepdims=True
        )
        over = np.maximum(0.0, self.mean_s - forward / (np.maximum(1, case.depth0) * vpp))
        return np.asarray(np.maximum(0, case.micro - case.depth1) * (vpp - 1) * over)


def _holds_s(
    case: _Case, own: Floats, before: Floats, cross: Floats, ends: tuple[Any, Any]
) -> tuple[Floats, Floats]:
    """Messages that stop a stage of a block for each micro batch: of any stage, and of a full one
    that is at no end of the pipeline."""
    first, last = ends
    one, several = case.s0 <= 1, case.s1 > 1
    lone, top, bottom = before + cross, before + own, own + cross
    any_s = np.where(several, np.minimum(np.minimum(top, bottom), 2 * own), lone)
    any_s = np.where(one, np.minimum(any_s, lone), any_s)
    inner = np.minimum(np.where(first, np.inf, top), np.where(last, np.inf, bottom))
    inner = np.where(several, np.minimum(inner, np.where(case.s1 > 2, 2 * own, np.inf)), np.inf)
    inner = np.where(one & ~first & ~last, np.minimum(inner, lone), inner)
    full = case.n0 - case.s1 * (case.even - 1)  # stages with at least the even count
    some = (full > first.astype(np.int64) + last) & np.isfinite(inner)
    return any_s, np.where(some, inner, any_s)


def _slowest_s(layers: Ints, stages: Ints, even: Ints, layer_s: Floats, head_s: Floats) -> Floats:
    """The slowest stage of a block at least: layers spread evenly, of which the stage at the end
    takes fewer where it has more to do."""
    plain = even * layer_s
    with np.errstate(divide="ignore", invalid="ignore"):
        cross = np.where(layer_s > 0, (layers + head_s / layer_s) / np.maximum(stages, 1), 0.0)
    found = np.full(plain.shape, np.inf)
    for each in (np.floor(cross), np.ceil(cross)):
        of_last = np.maximum(1.0, layers - (stages - 1) * each)
        found = np.minimum(
            found, np.maximum(np.where(stages > 1, each * layer_s, 0.0), of_last * layer_s + head_s)
        )
    return np.asarray(np.where(head_s > 0, np.maximum(plain * (stages == 0), found), plain))
