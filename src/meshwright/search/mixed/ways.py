"""Ways to cut a model over several kinds of chips, each with a bound of what it may score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.shapes import Floats
from meshwright.search.mixed.curves import layer_times_s
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.mixed.score import Score

__all__ = ["Ways", "ways_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """Ways to cut: for each pool an option, or -1, (R, P)."""

    options: Ints
    common: Ints
    bound: Floats
    guess: Floats
    """What a plan may score, if its layers were cut to fit."""


def ways_of(problem: MixedProblem, grid: Grid, score: Score) -> Ways:
    """Combine the options of all pools that share the rest, each with a bound of its score.

    Formula:  a step takes at least M times the time of the slowest stage, which is no less than if all chips worked on layers all the time;
              and at least all layers once and the slowest stage's longer pass M - 1 times
    """
    pools = len(grid.options)
    by_common: list[list[Ints]] = [[np.flatnonzero(options.common == c) for options in grid.options] for c in range(len(grid.gbs))]
    tables = [
        np.stack(np.meshgrid(*[np.concatenate([[-1], found]) for found in each], indexing="ij"), axis=-1).reshape(-1, pools)[1:]
        for each in by_common
    ]
    options = np.concatenate([t for t in tables if len(t)] or [np.zeros((0, pools), dtype=np.int64)]).astype(np.int64)
    common = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    if "tp" in problem.request.same:
        alike = _of_one_tp(grid, options)
        options, common = options[alike], common[alike]
    micro, gbs = grid.num_microbatches[common].astype(np.float64), grid.gbs[common]
    parts = [_pool_columns(problem, grid, pool, options[:, pool]) for pool in range(pools)]
    layer, forward, chips, stages = (np.stack([part[i] for part in parts], axis=1) for i in range(4))
    present = options >= 0
    speed = _most_speed(layer, chips, stages, present, problem.num_gpus)
    layers = problem.site.model.total_layers
    with np.errstate(divide="ignore"):
        slowest = np.maximum(layers / speed, np.where(present, layer, 0.0).max(axis=1))
    quickest = np.where(present, layer, np.inf).min(axis=1)
    backward_share = (1 - np.where(present, forward / np.maximum(layer, 1e-30), 1.0)).min(axis=1)
    seconds = np.maximum(micro * slowest, layers * quickest + (micro - 1) * slowest * backward_share)
    rate = score.rate(np.where(present, chips, 0), np.where(present, np.arange(pools)[None], -1))
    room = np.where(present, chips, 0).sum(axis=1) <= problem.num_gpus
    bound = np.where(room & (present.sum(axis=1) <= layers), score.of((seconds + problem.site.stack.step_overhead_s) / gbs, rate), np.inf)
    keep = np.isfinite(bound)
    deep = np.minimum(np.where(present, stages, 0.0).sum(axis=1), layers)
    guess = np.where(keep, (micro + deep - 1) * np.where(np.isfinite(slowest), slowest, 0.0) / gbs * rate, np.inf)
    return Ways(options=options[keep], common=common[keep], bound=bound[keep], guess=guess[keep])


def _of_one_tp(grid: Grid, options: Ints) -> NDArray[np.bool_]:
    """Whether all pools that take part have the same tp, (R,)."""
    sizes = [np.append(pool.layouts.tp, 0)[options[:, i]] for i, pool in enumerate(grid.options)]  # option -1 is the last
    table = np.stack(sizes, axis=1)
    return np.asarray(((table == 0) | (table == table.max(axis=1, keepdims=True))).all(axis=1))


def _pool_columns(problem: MixedProblem, grid: Grid, pool: int, index: Ints) -> list[Floats]:
    """Of each row's option of a pool: its quickest layer, that one's forward, its chips a stage, its stages; zeros where absent."""
    options = grid.options[pool]
    if not len(options.common):
        return [np.zeros(len(index)) for _ in range(4)]
    forward, backward = layer_times_s(options.layouts, pool=pool, site=problem.site)
    columns = [(forward + backward).min(axis=1), forward.max(axis=1), options.chips.astype(np.float64), options.stages.astype(np.float64)]
    return [np.where(index >= 0, column[index], 0.0) for column in columns]


def _most_speed(layer: Floats, chips: Floats, stages: Floats, present: NDArray[np.bool_], num_gpus: int) -> Floats:
    """Layers per second of all stages that the chips can make at most: those that get most from a chip first, (R,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(present, 1.0 / layer, 0.0)
        order = np.argsort(-np.where(present, each / chips, -1.0), axis=1, kind="stable")
        room, speed = np.full(len(layer), float(num_gpus)), np.zeros(len(layer))
        for rank in range(layer.shape[1]):
            at = order[:, rank : rank + 1]
            one, size, most = (np.take_along_axis(a, at, axis=1)[:, 0] for a in (each, chips, stages))
            taken = np.where(size > 0, np.minimum(most, room / np.where(size > 0, size, 1.0)), 0.0)
            room, speed = room - taken * size, speed + taken * one
    return speed
