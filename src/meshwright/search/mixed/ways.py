"""Ways to cut a model over several kinds of chips, each with a bound of what it may score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import beside_compute_s
from meshwright.cost.stages import Floats
from meshwright.search.mixed.grid import Grid, Options
from meshwright.search.mixed.problem import MixedProblem, OptionTimes, Score, option_times

__all__ = ["Ways", "ways_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """Ways to cut: for each pool an option, or -1, (R, P)."""

    options: Ints
    common: Ints
    once_bound: Floats
    """Of plans whose stages follow each other once."""
    chunked_bound: Floats
    """Of interleaved plans."""
    guess: Floats
    """What a plan may score, if its layers were cut to fit."""

    def of(self, pools: tuple[int, ...]) -> Ways:
        """Return those on which exactly some pools take part."""
        present = np.isin(np.arange(self.options.shape[1]), pools)
        keep = ((self.options >= 0) == present).all(axis=1)
        return Ways(**{name: getattr(self, name)[keep] for name in self.__slots__})

    @property
    def bound(self) -> float:
        """No plan scores less."""
        return float(np.minimum(self.once_bound, self.chunked_bound).min(initial=np.inf))


def ways_of(problem: MixedProblem, grid: Grid, score: Score, *, most_chunks: int) -> Ways:
    """Combine the options of all pools that share the rest, each with bounds of its score.

    Formula:  with s the time of the slowest stage, no less than if all chips worked on layers all
              the time, F, B and T the forward, backward and both of all layers, and M micro
              batches, a step takes at least M s; with one chunk a stage at least T and the longer
              pass of s M - 1 times; with up to v at least F + M b + (B - b) / v, with f and b the
              passes of s, and the same with the passes exchanged. T goes with s: a pool has room
              for s over its layer's time on each of its stages. To that comes what is done once: of
              the pool where one layer takes longest, and of the quickest with as many layers as its
              fullest stage has
    Units:    seconds per sequence, times the score's rate.
    Source:   `chain_s` and `interleaved_chain_s` of `cost/pipeline.py`: the first forward or the
              last backward goes the long way.
    Checked:  tests/search/test_mixed.py::test_ways_are_bounded_from_below
    """
    options, common = _combined(problem, grid)
    micro, gbs = grid.num_microbatches[common].astype(np.float64), grid.gbs[common]
    columns = _Columns.of(problem, grid, options)
    room = columns.least_chips <= problem.num_gpus
    layers = problem.site.model.total_layers
    rate = score.rate(
        columns.chips, np.where(columns.present, np.arange(options.shape[1])[None], -1)
    )
    possible = room & (columns.present.sum(axis=1) <= layers)
    slowest = columns.slowest_s(layers, problem.num_gpus)

    deep = np.minimum(columns.stages.sum(axis=1), layers)

    def scored(pipeline_s: Floats, passes: Floats | float = 1.0) -> Floats:
        seconds = columns.with_exchange_s(
            pipeline_s, layers, micro / passes, problem.site.stack.dp_overlap
        )
        whole = (seconds + problem.site.stack.step_overhead_s) / gbs
        return np.asarray(np.where(possible, score.of(whole, rate), np.inf))

    once = scored(columns.once_s(layers, micro, slowest))
    chunked = scored(
        columns.chunked_s(layers, micro, slowest, most_chunks), np.clip(deep, 1.0, micro)
    )
    likely = (micro + deep - 1) * np.where(np.isfinite(slowest), slowest, 0.0)
    guess = np.where(np.isfinite(once), scored(likely), np.inf)
    keep = np.isfinite(np.minimum(once, chunked))
    return Ways(
        options=options[keep],
        common=common[keep],
        once_bound=once[keep],
        chunked_bound=chunked[keep],
        guess=guess[keep],
    )


def _combined(problem: MixedProblem, grid: Grid) -> tuple[Ints, Ints]:
    """Options of each pool that have the rest in common, (R, P), and what that is, (R,)."""
    pools = len(grid.options)
    by_common: list[list[Ints]] = [
        [np.flatnonzero(options.common == c) for options in grid.options]
        for c in range(len(grid.gbs))
    ]
    tables = [
        np.stack(
            np.meshgrid(*[np.concatenate([[-1], found]) for found in each], indexing="ij"), axis=-1
        ).reshape(-1, pools)[1:]
        for each in by_common
    ]
    options = np.concatenate(
        [t for t in tables if len(t)] or [np.zeros((0, pools), dtype=np.int64)]
    ).astype(np.int64)
    common = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    if "tp" in problem.request.same:
        alike = _of_one_tp(grid, options)
        return options[alike], common[alike]
    return options, common


def _of_one_tp(grid: Grid, options: Ints) -> NDArray[np.bool_]:
    """Whether all pools that take part have the same tp, (R,)."""
    sizes = [
        np.append(pool.layouts.tp, 0)[options[:, i]] for i, pool in enumerate(grid.options)
    ]  # option -1 is the last
    table = np.stack(sizes, axis=1)
    return np.asarray(((table == 0) | (table == table.max(axis=1, keepdims=True))).all(axis=1))


def _spread(own: Options, times: OptionTimes | None, chosen: Ints) -> list[Floats]:
    """Columns of a pool's options for the ways that chose them; zeros where they chose none."""
    if times is None:
        return [np.zeros(len(chosen)) for _ in range(5)]
    columns = [
        times.forward_s,
        times.backward_s,
        own.chips.astype(np.float64),
        own.stages.astype(np.float64),
        times.first_s,
    ]
    return [np.where(chosen >= 0, column[chosen], 0.0) for column in columns]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """Of each way and pool, (R, P): zeros where the pool takes no part."""

    present: NDArray[np.bool_]
    forward_s: Floats
    """Of its quickest layer; and backward."""
    backward_s: Floats
    chips: Floats
    """Of a stage."""
    stages: Floats
    """That it has chips for."""

    first_s: Floats
    """What a first stage takes beyond its layers."""
    options: Ints
    priced: tuple[OptionTimes | None, ...]
    """Of each pool."""

    @staticmethod
    def of(problem: MixedProblem, grid: Grid, options: Ints) -> _Columns:
        priced = tuple(
            option_times(own.layouts, pool=pool, site=problem.site) if len(own.common) else None
            for pool, own in enumerate(grid.options)
        )
        columns = [
            _spread(own, times, options[:, pool])
            for pool, (own, times) in enumerate(zip(grid.options, priced, strict=True))
        ]
        forward, backward, chips, stages, first = (
            np.stack([column[i] for column in columns], axis=1) for i in range(5)
        )
        return _Columns(
            present=options >= 0,
            forward_s=forward,
            backward_s=backward,
            chips=chips,
            stages=stages,
            first_s=first,
            options=options,
            priced=priced,
        )

    @property
    def layer_s(self) -> Floats:
        return self.forward_s + self.backward_s

    @property
    def least_chips(self) -> Floats:
        """With one stage on each pool, (R,)."""
        return np.asarray(self.chips.sum(axis=1))

    def slowest_s(self, layers: int, num_gpus: int) -> Floats:
        """The slowest stage at least, (R,): all chips at work all the time, those first that get
        most from a chip; or a lone layer."""
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(self.present, 1.0 / self.layer_s, 0.0)
            # Greedy: chips go first where each gets most done, up to the stages that may be.
            order = np.argsort(
                -np.where(self.present, each / self.chips, -1.0), axis=1, kind="stable"
            )
            room, speed = np.full(len(each), float(num_gpus)), np.zeros(len(each))
            for rank in range(each.shape[1]):
                at = order[:, rank : rank + 1]
                one, size, most = (
                    np.take_along_axis(a, at, axis=1)[:, 0] for a in (each, self.chips, self.stages)
                )
                taken = np.where(
                    size > 0, np.minimum(most, room / np.where(size > 0, size, 1.0)), 0.0
                )
                room, speed = room - taken * size, speed + taken * one
            return np.asarray(np.maximum(layers / speed, self.layer_s.max(axis=1)))

    def once_s(self, layers: int, micro: Floats, slowest: Floats) -> Floats:
        """Seconds of plans with one chunk a stage at least, (R,)."""
        forward, backward = (self._share_of(passes) for passes in (self.forward_s, self.backward_s))
        alone = np.maximum(0.0, micro - np.minimum(self.stages.sum(axis=1), layers))
        rate = np.maximum(
            (micro - 1) * backward + alone * forward, (micro - 1) * forward + alone * backward
        )
        return np.maximum(
            micro * slowest, self._least(layers, slowest, work=self.layer_s, rate=rate)
        )

    def chunked_s(self, layers: int, micro: Floats, slowest: Floats, most_chunks: int) -> Floats:
        """Seconds of interleaved plans at least, (R,)."""
        share, found = 1.0 / max(1, most_chunks), micro * slowest
        for down, up in ((self.forward_s, self.backward_s), (self.backward_s, self.forward_s)):
            rate = (micro - share) * self._share_of(up)
            found = np.maximum(
                found, self._least(layers, slowest, work=down + share * up, rate=rate)
            )
        return found

    def with_exchange_s(
        self, pipeline_s: Floats, layers: int, micro: Floats, overlap: float
    ) -> Floats:
        """Seconds of plans whose pipeline takes so long at least, with what a step takes once,
        (R,).

        Each pool that takes part has a stage with a layer, and some pool a stage with as many as if
        all chips had stages. A first stage that is slower than a micro batch's share of the
        pipeline costs more than the exchange that it hides.
        """
        hidden = overlap * pipeline_s / micro
        with np.errstate(divide="ignore", invalid="ignore"):
            even = np.where(
                self.present.any(axis=1),
                np.ceil(layers / np.maximum(1.0, self.stages.sum(axis=1))),
                0.0,
            )
        each, fullest = np.zeros(len(micro)), np.full(len(micro), np.inf)
        for pool, times in enumerate(self.priced):
            if times is None:
                continue
            here, own = self.present[:, pool], self.options[:, pool]
            for count, most in (
                (np.ones(len(micro), dtype=np.int64), True),
                (even.astype(np.int64), False),
            ):
                at = OptionTimes.place(count)
                seconds = (
                    beside_compute_s(times.exchange_s[own, at], hidden) + times.optimizer_s[own, at]
                )
                if most:
                    each = np.maximum(each, np.where(here, seconds, 0.0))
                else:
                    fullest = np.minimum(fullest, np.where(here, seconds, np.inf))
        return np.asarray(
            pipeline_s + np.maximum(each, np.where(np.isfinite(fullest), fullest, 0.0))
        )

    def _share_of(self, passes: Floats) -> Floats:
        """A pass's share of a stage's time at least, on any pool, (R,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(self.present, passes / self.layer_s, 1.0).min(axis=1))

    def _least(self, layers: int, slowest: Floats, *, work: Floats, rate: Floats) -> Floats:
        """The least of the work of all layers + rate * s over times s of the slowest stage, (R,).

        A pool takes as many layers as s has room for. They go to the pools with least work first,
        so that the sum is convex in s and bends where one more pool is full.
        """
        order = np.argsort(np.where(self.present, work, np.inf), axis=1, kind="stable")
        cost, room, there = (
            np.take_along_axis(a, order, axis=1) for a in (work, self._room(), self.present)
        )
        least = np.where(there, cost, 0.0).sum(axis=1)  # a layer on each
        rest = layers - there.sum(axis=1).astype(np.float64)
        upto = room.cumsum(axis=1)
        found = np.full(len(rest), np.inf)
        # The least lies at a bend, where the pools up to one are just full, or at the slowest stage
        # that all chips together allow.
        for at in range(cost.shape[1]):
            s = np.maximum(slowest, rest / upto[:, at])
            taken = np.diff(np.minimum(upto * s[:, None], rest[:, None]), axis=1, prepend=0.0)
            found = np.minimum(
                found, least + (taken * np.where(there, cost, 0.0)).sum(axis=1) + rate * s
            )
        return found

    def _room(self) -> Floats:
        """Layers per second of all stages that a pool has chips for, (R, P)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(self.present, self.stages / self.layer_s, 0.0))
