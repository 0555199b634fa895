"""The grid of the search: what all stages share, and each pool's ways to cut a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from meshwright.search.axes import (
    DOMAINS_PER_TP,
    LEAST_TOKENS_PER_CP,
    MOST_UNEVEN_VPP,
    Axes,
    axes_of,
)
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.rules.check import ALL_RULES, broken_rows
from meshwright.search.rules.rule import divisors
from meshwright.search.space import Rejections
from meshwright.values.errors import ConfigError
from meshwright.values.layout import SCHEDULES, SHARDINGS, Layouts

__all__ = ["Grid", "Options", "chunks_of", "make_grid"]

Ints = NDArray[np.int64]
_LATER = (
    *("chips", "stages", "even_split", "split", "interleaving", "two_stacks"),
    *("schedule", "rounds", "fill", "torch_fill", "shard_size"),
)
"""Rules of the whole pipeline, which the search keeps by how it makes plans."""
_RULES = tuple(rule for rule in ALL_RULES if rule.key not in _LATER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Ways to run a stage on one pool that keep the rules, (O,) each."""

    common: Ints
    """Index of what it shares with the other stages."""
    layouts: Layouts
    """mbs, dp, tp and the rest of one stage."""
    stages: Ints
    """Stages that the pool has chips for."""

    @property
    def chips(self) -> Ints:
        """Chips of one stage."""
        return self.layouts.tp * self.layouts.cp * self.layouts.dp


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """What stages may share, (C,), and each pool's options."""

    gbs: Ints
    num_microbatches: Ints
    options: tuple[Options, ...]
    commons: Layouts
    """What stages may share, etp as 1 or 0 for `follows tp`."""
    axes: Axes
    vpp: tuple[int, ...] | None
    """Pinned chunks per stage."""
    pp: tuple[int, ...] | None
    """Pinned stages."""


def make_grid(problem: MixedProblem, rejections: Rejections) -> Grid:
    """Return all that keeps the rules; ConfigError where pins ask for what is not searched here."""
    axes = _axes(problem)
    commons = _commons(problem, axes)
    options = tuple(
        _options(problem, axes, commons, pool, rejections)
        for pool in range(len(problem.cluster.pools))
    )
    pins = problem.request.pins
    return Grid(
        gbs=commons.gbs,
        num_microbatches=commons.num_microbatches,
        options=options,
        commons=commons,
        axes=axes,
        vpp=axes.vpp,
        pp=axes.pp if "pp" in pins else None,
    )


_NOT_HERE = ("layers_per_stage", "shard_size", "recompute_layers", "recompute_method")


def _axes(problem: MixedProblem) -> Axes:
    axes = axes_of(problem.lead)
    pins = problem.request.pins
    for key in _NOT_HERE:
        if key in pins:
            raise ConfigError(
                f"--set {key}=...: over several kinds of chips it is chosen stage by stage; leave"
                " it out"
            )
    one = SCHEDULES.index("1f1b")
    if "schedule" in pins and axes.schedule != (one,):
        raise ConfigError(
            "--set schedule=...: over several kinds of chips 1f1b is searched alone (interleaved"
            " where vpp > 1); leave it out"
        )
    hybrid = SHARDINGS.index("hybrid")
    sharding = tuple(kind for kind in axes.sharding if kind != hybrid)
    if not sharding:
        raise ConfigError(
            "--set sharding=hybrid: over several kinds of chips it is not searched; take zero3 or"
            " zero1"
        )
    return replace(axes, sharding=sharding, schedule=(one,))


def _commons(problem: MixedProblem, axes: Axes) -> Layouts:
    """Every (cp, ep, etp or not, dp, mbs, sharding) with its batch; etp = 1 or 0 for `follows
    tp`."""
    seq_len = problem.site.work.seq_len
    cps = (
        axes.cp
        if "cp" in problem.request.pins
        else tuple(
            cp for cp in divisors(seq_len) if cp == 1 or seq_len // cp >= LEAST_TOKENS_PER_CP
        )
    )
    etps = axes.etp if axes.etp is not None else (1, 0) if axes.ep != (1,) else (0,)
    rows = [
        (cp, ep, etp, dp, mbs, gbs, sharding)
        for cp, ep, etp, mbs, sharding in product(cps, axes.ep, etps, axes.mbs, axes.sharding)
        for dp in _replicas(problem, axes, mbs)
        if (gbs := problem.request.gbs or problem.max_gbs // (mbs * dp) * (mbs * dp)) > 0
        and gbs % (mbs * dp) == 0
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    one, zero = np.ones(len(table), dtype=np.int64), np.zeros(len(table), dtype=np.int64)
    columns = dict(zip(("cp", "ep", "etp", "dp", "mbs", "gbs", "sharding"), table.T, strict=True))
    return Layouts(
        tp=one,
        sp=zero,
        pp=2 * one,
        vpp=one,
        shard_size=columns["dp"] * columns["cp"],
        recompute=zero,
        block_recompute=zero,
        recompute_layers=zero - 1,
        recompute_modules=zero,
        schedule=zero,
        offload=zero,
        optimizer=zero,
        **columns,  # type: ignore[arg-type]  # every key is a column
    )


def _replicas(problem: MixedProblem, axes: Axes, mbs: int) -> list[int]:
    """Data-parallel sizes: divisors of a given batch, else of the pools' chips."""
    if axes.dp is not None:
        return list(axes.dp)
    pools = [problem.cluster.pools[pool] for pool in problem.team]
    most = max(pool.num_chips for pool in pools)
    if problem.request.gbs is not None:
        return (
            divisors(problem.request.gbs // mbs, min(most, problem.num_gpus))
            if problem.request.gbs % mbs == 0
            else []
        )
    own = [pool.num_chips for pool in pools]
    counts = {min(problem.num_gpus, sum(own)), *own}
    return sorted(
        {dp for count in counts for dp in divisors(count, min(most, problem.max_gbs // mbs))}
    )


def _options(
    problem: MixedProblem, axes: Axes, commons: Layouts, number: int, rejections: Rejections
) -> Options:
    pool, part = problem.cluster.pools[number], problem.parts[number]
    tps = (
        axes.tp
        if "tp" in problem.request.pins
        else tuple(_tensor_sizes(DOMAINS_PER_TP * pool.node.domain_size))
    )
    sps = axes.sp
    pairs = np.array(
        [(tp, sp) for tp in tps for sp in (sps if sps is not None else (int(tp > 1),))],
        dtype=np.int64,
    ).reshape(-1, 2)
    rows = commons.take(np.repeat(np.arange(len(commons)), len(pairs)))
    tp, sp = (np.tile(column, len(commons)) for column in pairs.T)
    layouts = replace(rows, tp=tp, sp=sp, etp=np.where(rows.etp == 0, tp, rows.etp))
    common = np.repeat(np.arange(len(commons)), len(pairs))
    stages = np.minimum(pool.num_chips, problem.num_gpus) // (tp * layouts.cp * layouts.dp)
    keep = (stages > 0) & (number in problem.team)
    for rule, broken in broken_rows(layouts, part.case, _RULES):
        rejections.add(f"rule: {rule.sentence}", int(np.count_nonzero(keep & broken)))
        keep &= ~broken
    twice = (
        (layouts.etp == tp) & (rows.etp > 0) & (len(axes.ep) > 1) & (axes.etp is None)
    )  # etp = 1 and `follows tp` are one for tp = 1
    keep &= ~twice
    return Options(common=common[keep], layouts=layouts.take(keep), stages=stages[keep])


def _tensor_sizes(number: int) -> list[int]:
    """Return the divisors of a number of chips that share links, and of half of it."""
    return sorted({*divisors(number), *divisors(max(1, number // DOMAINS_PER_TP))})


def chunks_of(problem: MixedProblem, grid: Grid) -> list[int]:
    """Return the chunks per stage to search: to MOST_UNEVEN_VPP, and divisors of the layers."""
    if grid.vpp is not None:
        return list(grid.vpp)
    layers = problem.site.model.total_layers
    if problem.site.model.family == "encoder-decoder":
        return [1]
    return [v for v in range(1, layers // 2 + 1) if v <= MOST_UNEVEN_VPP or layers % v == 0] or [1]
