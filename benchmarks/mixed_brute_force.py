"""The search over several kinds of chips against brute force on random small cases, and what its
space leaves out.

    python benchmarks/mixed_brute_force.py [--cases 2000] [--wide 300] [--seed 0]

Every case is a model of two to five layers on two to seven chips of two or three kinds. Every plan
is priced by the cost model itself: each order of the pools, number of stages, split of the layers,
tp, dp, mbs and chunks; stages recompute in the quickest way that fits. Prints in how many cases the
search found a plan as fast, and proved it. For the first `--wide` cases also how much faster plans
become where a pool's stages need not follow each other, have their own tp each, where pools have
unlike dp and mbs, or where stages recompute more than their memory asks for; and how often the
second phase, in which a kind of chip comes back around the best plans, finds what brute force
finds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, pairwise, product
from time import process_time

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.mixed import message_times_s
from meshwright.cost.once import data_exchange_s, exposed_exchange_s, optimizer_s
from meshwright.cost.pipeline import pipeline_of_stages_s
from meshwright.cost.stages import Floats, Stages
from meshwright.cost.step import price_stages
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import Grid, make_grid
from meshwright.search.mixed.orders import returning_plans
from meshwright.search.mixed.plan import AROUND
from meshwright.search.mixed.problem import MixedProblem, Score, resolve_mixed
from meshwright.search.mixed.reprice import Outcome
from meshwright.search.request import PlanRequest
from meshwright.search.space import Rejections
from meshwright.values.layout import RECOMPUTES, SCHEDULES, Layouts

CHIPS = ("a100-40", "a100-80", "a800", "h100", "h200", "h800", "l40s", "mi300x")
SAME = 1e-9
"""Relative difference below which two plans are equally fast."""
RECOMPUTE = frozenset({"recompute"})
Ints = NDArray[np.int64]
Choice = tuple[int, int]
"""Pool and option."""


def random_case(draw: random.Random) -> PlanRequest:
    """A small model on a few chips, of which memory binds in about half."""
    kinds = draw.sample(CHIPS, draw.choice((2, 2, 3)))
    counts = [draw.choice((1, 2, 2, 3, 4) if len(kinds) == 2 else (1, 2)) for _ in kinds]
    hidden = draw.choice((1024, 2048, 4096))
    dims = {
        "layers": draw.randint(2, 5),
        "hidden": hidden,
        "heads": hidden // 128,
        "ffn": 4 * hidden,
        "vocab": draw.choice((32000, 128000)),
    }
    fields = {
        "cluster": ",".join(f"{kind}:{count}" for kind, count in zip(kinds, counts, strict=True)),
        "gpus_per_node": draw.choice((None, 1, 2, 4)),
        "model": ",".join(f"{name}={value}" for name, value in dims.items()),
        "seq_len": 2048,
        "gbs": draw.choice((2, 4, 6, 8, 12, 16)),
        "headroom": 0,
        "max_memory_gib": draw.choice((None, None, 5.0, 7.0, 10.0, 16.0)),
        "pins": {
            "cp": [1],
            "vpp": draw.choice(([1], [1, 2])),
            "mbs": [1, 2],
            "recompute": draw.choice((["none"], ["none", "full"])),
        },
    }
    return PlanRequest.of({key: value for key, value in fields.items() if value is not None})


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a stage of one option takes: arrays are (ways, places, layers), those of a step's end
    (places, layers)."""

    forward_s: Floats
    backward_s: Floats
    """Infinite where it does not fit."""
    once_s: tuple[Floats, Floats, Floats]
    """Reduction, gathering, optimizer."""
    message_s: tuple[float, float]
    """Inside the pool, and to another."""


class Prices:
    """What stages of one problem take, by the cost model; each make of stage is priced once, with
    all options of its pool."""

    def __init__(self, problem: MixedProblem, grid: Grid) -> None:
        self.problem, self.grid, self.site = problem, grid, problem.site
        self.layers = problem.site.model.total_layers
        self.known: dict[tuple[int, int, int], list[Stage]] = {}

    def of(self, choice: Choice, pp: int, vpp: int) -> Stage:
        """A stage of an option in a pipeline of so many stages and chunks."""
        key = choice[0], pp, vpp
        if key not in self.known:
            self.known[key] = self._priced(*key)
        return self.known[key][choice[1]]

    def _ways(self) -> list[tuple[int, int, int]]:
        """Kind, block or not, and layers of each way to recompute."""
        plain = [
            (way.kind, 0, way.layers) for way in self.grid.axes.recomputations if not way.block
        ]
        blocks = any(way.block for way in self.grid.axes.recomputations)
        return plain + [
            (RECOMPUTES.index("full"), 1, count) for count in range(1, self.layers) if blocks
        ]

    def _priced(self, pool: int, pp: int, vpp: int) -> list[Stage]:
        site, options, ways = self.site, self.grid.options[pool].layouts, self._ways()
        kinds, blocks, counts = (
            np.tile(np.array(column, dtype=np.int64), len(options))
            for column in zip(*ways, strict=True)
        )
        rows = options.take(np.repeat(np.arange(len(options)), len(ways)))
        same = np.ones(len(rows), dtype=np.int64)
        rows = replace(
            rows,
            pp=pp * same,
            vpp=vpp * same,
            recompute=kinds,
            block_recompute=blocks,
            recompute_layers=counts,
        )
        index, layers = (
            each.ravel()
            for each in np.meshgrid(np.arange(pp), np.arange(1, self.layers + 1), indexing="ij")
        )
        stages = _stages(rows, index, layers)
        found = price_stages(
            rows,
            stages,
            model=site.model,
            pool=site.cluster.pools[pool],
            work=site.work,
            stack=site.stack,
        )
        part = self.problem.parts[pool]
        fits = found.memory.used <= part.setting.limit_bytes - part.headroom_bytes
        whole = (blocks[:, None] > 0) & (
            counts[:, None] * vpp >= layers
        )  # blocks of all layers are full recompute
        backward = np.where(fits & ~whole, found.times.backward_s, np.inf)
        first = slice(None, None, len(ways))
        wide = rows.take(np.repeat(np.arange(len(rows))[first], len(index)))
        once = self._once(
            wide, found.params.dense[first].ravel(), found.params.expert[first].ravel(), pool
        )
        messages = message_times_s(rows, found.message_bytes, pool=pool, site=site)
        shape = (len(options), len(ways), pp, self.layers)
        forward, backward = found.times.forward_s.reshape(shape), backward.reshape(shape)
        ends = [each.reshape(len(options), pp, self.layers) for each in once]
        return [
            Stage(
                forward_s=forward[i],
                backward_s=backward[i],
                once_s=(ends[0][i], ends[1][i], ends[2][i]),
                message_s=(float(messages[0][first][i]), float(messages[1][first][i])),
            )
            for i in range(len(options))
        ]

    def _once(
        self, rows: Layouts, dense: Floats, expert: Floats, pool: int
    ) -> tuple[Floats, Floats, Floats]:
        own, site = self.site.cluster.pools[pool], self.site
        reduce, gather = data_exchange_s(
            rows, dense, expert, pool=own, stack=site.stack, precision=site.work.precision
        )
        return reduce, gather, optimizer_s(rows, dense, expert, pool=own, stack=site.stack)

    def least_s(self, plan: Sequence[Choice], vpp: int, *, free: bool) -> float:
        """The fastest split of stages, seconds per step; each recomputes in any way that fits if
        `free`, else in the quickest."""
        pp = len(plan)
        parts = [self.of(choice, pp, vpp) for choice in plan]
        micro = int(self.grid.options[plan[0][0]].layouts.num_microbatches[plan[0][1]])
        best = np.inf
        links = np.array(
            [
                max(parts[i + k].message_s[plan[i][0] != plan[i + 1][0]] for k in (0, 1))
                for i in range(pp - 1)
            ]
        )
        for split in compositions(self.layers, pp, least=vpp):
            tables = [
                (part.forward_s[:, i, n - 1], part.backward_s[:, i, n - 1])
                for i, (part, n) in enumerate(zip(parts, split, strict=True))
            ]
            pairs = [
                [(f, b) for f, b in zip(*table, strict=True) if np.isfinite(b)] for table in tables
            ]
            if not all(pairs):
                continue
            every = np.array(
                list(product(*pairs))
                if free
                else [[min(pair, key=lambda times: times[1]) for pair in pairs]]
            )
            forward, backward = every[:, :, 0], every[:, :, 1]
            time = pipeline_of_stages_s(
                schedule=SCHEDULES.index("1f1b"),
                vpp=vpp,
                num_microbatches=micro,
                forward_s=forward,
                backward_s=backward,
                p2p_s=np.broadcast_to(links, (len(every), pp - 1)),
                p2p=self.site.stack.p2p,
            ).pipeline_s
            best = min(
                best,
                float(
                    (time + self._once_s(parts, split, forward[:, 0], backward[:, 0], vpp)).min()
                ),
            )
        return best + self.site.stack.step_overhead_s

    def _once_s(
        self,
        parts: Sequence[Stage],
        split: Sequence[int],
        forward: Floats,
        backward: Floats,
        vpp: int,
    ) -> Floats:
        """Exchange and optimizer of the stage where they take longest."""
        overlap = self.site.stack.dp_overlap
        found = np.zeros_like(forward)
        for i, (part, own) in enumerate(zip(parts, split, strict=True)):
            reduce, gather, optimizer = (float(each[i, own - 1]) for each in part.once_s)
            chunks, depth = np.array(vpp), np.array(len(parts))
            exposed = sum(
                exposed_exchange_s(np.array(seconds), overlap * pass_s, chunks=chunks, pp=depth)
                for seconds, pass_s in ((reduce, backward), (gather, forward))
            )
            found = np.maximum(found, exposed + optimizer)
        return found


def _stages(rows: Layouts, index: Ints, layers: Ints) -> Stages:
    """Stages of all places and layers, for each row."""
    pp, vpp, micro = rows.pp[:, None], rows.vpp[:, None], rows.num_microbatches[:, None]
    held = np.where(
        vpp == 1,
        np.minimum(pp - index, micro),
        np.minimum(2 * (pp - index - 1) + (vpp - 1) * pp + 1, micro * vpp) / vpp,
    )
    shape = held.shape
    return Stages(
        index=np.broadcast_to(index, shape),
        layers=np.broadcast_to(layers, shape),
        prefix_layers=np.zeros(shape),
        last=np.broadcast_to(index == pp - 1, shape),
        in_flight=held.astype(np.float64),
        real=np.ones(shape, dtype=bool),
        mtp=np.zeros(shape, dtype=bool),
    )


def compositions(total: int, parts: int, *, least: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as so many of `least` or more."""
    spare = total - parts * (least - 1)
    for cuts in combinations(range(1, spare), parts - 1):
        yield tuple(b - a + least - 1 for a, b in pairwise((0, *cuts, spare)))


def classes(grid: Grid) -> list[list[Choice]]:
    """Options of all pools that could share a pipeline: of equal batch, micro batches and
    everything but tp, dp and mbs."""
    found: dict[tuple[int, ...], list[Choice]] = {}
    for pool, options in enumerate(grid.options):
        rows = options.layouts
        for option in range(len(rows)):
            key = (
                int(rows.gbs[option]),
                int(rows.dp[option] * rows.mbs[option]),
                int(rows.sharding[option]),
                int(rows.cp[option]),
            )
            found.setdefault(key, []).append((pool, option))
    return list(found.values())


def sequences(
    problem: MixedProblem, grid: Grid, choices: Sequence[Choice], *, wide: bool
) -> Iterator[tuple[Choice, ...]]:
    """Pipelines that the chips allow; those of the stated space alone where not `wide`."""
    caps = [pool.num_chips for pool in problem.cluster.pools]

    def longer(
        plan: tuple[Choice, ...], left: list[int], spare: int
    ) -> Iterator[tuple[Choice, ...]]:
        if plan:
            yield plan
        if len(plan) == problem.site.model.total_layers:
            return
        for choice in choices:
            pool, chips = choice[0], int(grid.options[choice[0]].chips[choice[1]])
            more = (*plan, choice)
            if chips <= min(left[pool], spare) and (wide or faults(grid, more) == frozenset()):
                rest = left.copy()
                rest[pool] -= chips
                yield from longer(more, rest, spare - chips)

    yield from longer((), caps, problem.num_gpus)


def faults(grid: Grid, plan: Sequence[Choice]) -> frozenset[str]:
    """What of a pipeline is outside of the stated space."""
    runs = [pool for pool, _ in groupby(plan, key=lambda choice: choice[0])]
    rows = [(grid.options[pool].layouts, option) for pool, option in plan]
    of_pool: dict[int, set[int]] = {}
    for pool, option in plan:
        of_pool.setdefault(pool, set()).add(int(grid.options[pool].layouts.tp[option]))
    found = {
        "order": len(set(runs)) < len(runs),
        "tp": any(len(sizes) > 1 for sizes in of_pool.values()),
        "batch": len({int(layouts.dp[option]) for layouts, option in rows}) > 1,
    }
    return frozenset(name for name, holds in found.items() if holds)


def brute_force(problem: MixedProblem, grid: Grid, *, wide: bool) -> dict[frozenset[str], float]:
    """The least seconds per step by what is outside of the stated space, and how many pipelines
    were looked at."""
    prices = Prices(problem, grid)
    best: dict[frozenset[str], float] = {}
    for choices in classes(grid):
        for plan in sequences(problem, grid, choices, wide=wide):
            kind = faults(grid, plan)
            micro = int(grid.options[plan[0][0]].layouts.num_microbatches[plan[0][1]])
            for vpp in grid.vpp or (1,):
                if vpp > 1 and (
                    len(plan) == 1 or micro % len(plan) or vpp * len(plan) > prices.layers
                ):
                    continue
                best[kind] = min(best.get(kind, np.inf), prices.least_s(plan, vpp, free=False))
                if wide and not kind:
                    best[RECOMPUTE] = min(
                        best.get(RECOMPUTE, np.inf), prices.least_s(plan, vpp, free=True)
                    )
    return best


def returns(problem: MixedProblem, grid: Grid, outcome: Outcome) -> float:
    """Seconds per step of the best plan of the second phase, in which a kind comes back."""
    around = {
        frozenset(found.cuts): found for found in reversed(outcome.best) if len(found.cuts) > 1
    }
    plans = returning_plans(
        [*around.values()][::-1][:AROUND],
        problem,
        grid,
        Score(rates=None),
        below=outcome.best[0].score,
    )
    return min((found.step_s for found in plans), default=np.inf)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--wide", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw, start = random.Random(asked.seed), process_time()
    answered = none = found = proven = faster = reached = 0
    lost: dict[str, list[float]] = {}
    for number in range(asked.cases):
        request = random_case(draw)
        problem = resolve_mixed(request)
        grid = make_grid(problem, Rejections())
        best = brute_force(problem, grid, wide=number < asked.wide)
        stated, outcome = (
            best.get(frozenset(), np.inf),
            search_mixed(problem, grid, Score(rates=None)),
        )
        if not np.isfinite(stated):
            assert not outcome.best, f"{request}: a plan where none fits"
            none += 1
            continue
        answered += 1
        gbs = int(grid.gbs[0])
        assert outcome.bound * gbs <= stated * (1 + SAME), (
            f"{request}: the bound {outcome.bound * gbs} is above a plan of {stated}"
        )
        is_found = bool(outcome.best) and outcome.best[0].score * gbs <= stated * (1 + SAME)
        found, proven = found + is_found, proven + (is_found and outcome.gap == 0)
        if not is_found:
            print(
                f"missed: {stated} s, found"
                f" {outcome.best[0].score * gbs if outcome.best else None}: {request}"
            )
        if (number + 1) % 100 == 0:
            print(
                f"{number + 1} cases: {answered} with a plan, {found} found, {proven} proven,"
                f" {process_time() - start:.0f} s",
                flush=True,
            )
        if number < asked.wide:
            back = best.get(frozenset({"order"}), np.inf)
            faster += back < stated * (1 - SAME)
            reached += back < stated * (1 - SAME) and returns(problem, grid, outcome) <= back * (
                1 + SAME
            )
            for name in ("order", "tp", "batch", "recompute"):
                lost.setdefault(name, []).append(
                    stated / min(stated, best.get(frozenset({name}), np.inf)) - 1
                )
            lost.setdefault("all", []).append(stated / min(best.values()) - 1)
    print(
        f"{asked.cases} cases, {process_time() - start:.0f} s of processor time: nothing fits in"
        f" {none}, as brute force and the search say"
    )
    print(f"of {answered} others: as fast as brute force in {found}, gap 0 in {proven}")
    print(
        f"a kind that comes back is faster in {faster} of {len(lost.get('order', []))}; the second"
        f" phase finds the best in {reached}"
    )
    for name, shares in lost.items():
        better, tail = sum(share > SAME for share in shares), np.quantile(shares, 0.95)
        print(
            f"left out, {name:<9} faster in {better} of {len(shares)}; mean {np.mean(shares):.3%},"
            f" 95 % {tail:.2%}, most {max(shares):.2%}"
        )


if __name__ == "__main__":
    main()
