"""The search over several kinds of chips against solvers: CP-SAT of OR-Tools, or HiGHS.

    pip install ortools    # or highspy; both bundle HiGHS, and one process can't import both
    python benchmarks/mixed_solver.py [CASE ...] [--solver cp-sat] [--limit 60]

A problem of the solver is all plans of one dp, mbs, cp, ep, number of chunks and number of stages:
the kind of chip and the tp of each stage, the order of the kinds and the layers of each stage, in
linear words, by the tables of the package's own inner problem. Our search goes first. Of all
problems whose bounds are below its plan's step the solver then gets one after the other, the likely
ones first, with the best step so far as a ceiling. So what it ends with is the best plan of the
space by the closed form, but for plans of one stage, unless problems reached a limit. Prints how
much better its plan is by the closed form, and seconds of processor time.
docs/decisions/0020-own-mixed-search.md has the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from time import process_time
from typing import Any

import numpy as np

from meshwright.cost.collectives import OVERLAP_SLOWDOWN
from meshwright.search.mixed.blocks import Block, Case, Chosen, Solved, table_of, value_s
from meshwright.search.mixed.curves import role_of
from meshwright.search.mixed.cut_book import CutBook
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import Grid, chunks_of, make_grid
from meshwright.search.mixed.problem import MixedProblem, Score, resolve_mixed
from meshwright.search.mixed.ways import ways_of
from meshwright.search.request import PlanRequest
from meshwright.search.rules.pipeline import wants_fill, wants_whole_rounds
from meshwright.search.space import Rejections

CASES = {
    "256": {"cluster": "a800:128,h800:160", "num_gpus": 256, "gbs": 512},
    "2048": {"cluster": "a800:1024,h800:1024", "gbs": 2048},
    "three": {"cluster": "a800:256,h800:256,a100-40:256", "gbs": 1024},
    "million": {"cluster": "a800:524288,h800:524288", "gbs": 16384},
    "four": {"cluster": "a800:128,h800:128,h100:128,a100-80:128", "gbs": 1024},
    "million-four": {"cluster": "a800:262144,h800:262144,h100:262144,a100-80:262144", "gbs": 16384},
}
UNIT_S = 1e-7
"""CP-SAT counts in whole numbers."""
SCALE = 1000
"""By which it multiplies what has fractions."""
SAME = 1e-5
"""Relative difference below which a solver's plan is no better than the ceiling: what its whole
numbers round."""
Words = dict[object, float]
Row = tuple[Words, float, float]
Solver = Callable[["Wholes", float], tuple[list[int] | None, bool]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """One tp on one pool."""

    pool: int
    stages: int
    """That the pool has chips for."""
    block: Block


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A stage at a place with a cut and some layers."""

    stage: int
    cut: int
    layers: int
    forward_s: float
    backward_s: float
    reduce_s: float
    gather_s: float
    optimizer_s: float


def plus(*parts: tuple[Mapping[object, float], float]) -> Words:
    """Add words, each times a number."""
    found: Words = {}
    for words, times in parts:
        for name, value in words.items():
            found[name] = found.get(name, 0.0) + times * value
    return found


class Wholes:
    """All plans of one set of shared values, chunks and stages, in columns and rows."""

    def __init__(
        self, problem: MixedProblem, cuts: list[Cut], case: Case, ceiling_s: float
    ) -> None:
        self.num_gpus, self.layers, self.cuts, self.case, self.ceiling_s = (
            problem.num_gpus,
            problem.site.model.total_layers,
            cuts,
            case,
            ceiling_s,
        )
        self.columns = [
            column
            for stage in range(case.pp)
            for at in range(len(cuts))
            for column in self._columns(stage, at)
        ]
        self.by_stage = [
            [j for j, c in enumerate(self.columns) if c.stage == stage] for stage in range(case.pp)
        ]
        self.bounds: dict[object, tuple[float, bool]] = {}
        self.rows: list[Row] = []

    def _columns(self, stage: int, at: int) -> list[Column]:
        """Stages that fit and don't take as long as the ceiling by themselves."""
        case, block = self.case, self.cuts[at].block
        table = table_of(block, stage=stage, case=case, most=self.layers)
        once = block.once[role_of(stage, case.pp)]
        both = table.forward_s + table.backward_s
        return [
            Column(
                stage=stage,
                cut=at,
                layers=n,
                forward_s=float(table.forward_s[n - 1]),
                backward_s=float(table.backward_s[n - 1]),
                reduce_s=float(once.reduce_s[n]),
                gather_s=float(once.gather_s[n]),
                optimizer_s=float(once.optimizer_s[n]),
            )
            for n in range(case.vpp, self.layers - (case.pp - 1) * case.vpp + 1)
            if case.num_microbatches * both[n - 1] < self.ceiling_s
        ]

    @property
    def possible(self) -> bool:
        """Whether every place has a column."""
        return all(self.by_stage)

    def _add(self, words: Words, low: float, high: float) -> None:
        self.rows.append((words, low, high))

    def write(self) -> None:
        """Write the rows; V + O is the step without its overhead."""
        pp, pools = self.case.pp, sorted({cut.pool for cut in self.cuts})
        whole = [("y", j) for j in range(len(self.columns))] + [
            ("cut", at) for at in range(len(self.cuts))
        ]
        whole += [(name, s, p) for s in range(pp) for p in pools for name in ("pool", "begins")]
        self.bounds = dict.fromkeys(whole, (1.0, True))
        free = [
            (name, s)
            for s in range(pp)
            for name in ("forward", "backward", "below", "reduce", "gather", "link")
        ]
        self.bounds |= dict.fromkeys(
            [*free, "all", "forwards", "backwards", "links", "V", "O"], (np.inf, False)
        )
        self._stages(pools)
        self._pools(pools)
        self._links(pools)
        for stage in range(pp):
            for chain in self._chains(stage):
                self._add(plus(({"V": 1.0}, 1.0), (chain, -1.0)), 0.0, np.inf)
            self._exchange(stage)

    def _chosen(self, numbers: list[int], value: Any = None) -> Words:
        return {("y", j): 1.0 if value is None else float(value(self.columns[j])) for j in numbers}

    def _stages(self, pools: list[int]) -> None:
        """One column a place, whose times and pool follow; all layers of the model."""
        last = self.case.pp - 1
        for s, own in enumerate(self.by_stage):
            self._add(self._chosen(own), 1.0, 1.0)
            self._add({("forward", s): -1.0, **self._chosen(own, lambda c: c.forward_s)}, 0.0, 0.0)
            self._add(
                {("backward", s): -1.0, **self._chosen(own, lambda c: c.backward_s)}, 0.0, 0.0
            )
            under = (
                {}
                if s == last
                else {("below", s + 1): -1.0, ("forward", s + 1): -1.0, ("backward", s + 1): -1.0}
            )
            self._add({("below", s): 1.0, **under}, 0.0, 0.0)
            for p in pools:
                self._add(
                    {("pool", s, p): -1.0, **self._chosen([j for j in own if self._pool(j) == p])},
                    0.0,
                    0.0,
                )
        everything = list(range(len(self.columns)))
        self._add(
            self._chosen(everything, lambda c: c.layers), float(self.layers), float(self.layers)
        )
        self._add(
            self._chosen(everything, lambda c: self.cuts[c.cut].block.chips_per_stage),
            -np.inf,
            float(self.num_gpus),
        )
        self._add(
            {"all": -1.0, ("below", 0): 1.0, ("forward", 0): 1.0, ("backward", 0): 1.0}, 0.0, 0.0
        )
        for name, part in (("forwards", "forward"), ("backwards", "backward")):
            self._add({name: -1.0, **{(part, s): 1.0 for s in range(last + 1)}}, 0.0, 0.0)

    def _pool(self, column: int) -> int:
        return self.cuts[self.columns[column].cut].pool

    def _pools(self, pools: list[int]) -> None:
        """Each pool has one cut, and one run of stages."""
        for p in pools:
            self._add(
                {("cut", at): 1.0 for at, cut in enumerate(self.cuts) if cut.pool == p},
                -np.inf,
                1.0,
            )
            self._add(
                {("pool", 0, p): 1.0, **{("begins", s, p): 1.0 for s in range(1, self.case.pp)}},
                -np.inf,
                1.0,
            )
            for s in range(1, self.case.pp):
                self._add(
                    {("begins", s, p): 1.0, ("pool", s, p): -1.0, ("pool", s - 1, p): 1.0},
                    0.0,
                    np.inf,
                )
        for at, cut in enumerate(self.cuts):
            for own in self.by_stage:
                self._add(
                    {
                        ("cut", at): -1.0,
                        **self._chosen([j for j in own if self.columns[j].cut == at]),
                    },
                    -np.inf,
                    0.0,
                )
            own = [j for j, c in enumerate(self.columns) if c.cut == at]
            self._add({("cut", at): -float(cut.stages), **self._chosen(own)}, -np.inf, 0.0)

    def _links(self, pools: list[int]) -> None:
        """A message is no shorter than either side has it: inside a pool, or to another one."""
        pp = self.case.pp
        across = [cut.block.curve.cross_message_s for cut in self.cuts]
        inside = [
            b.curve.near_message_s if b.chips_per_stage * pp <= b.domain else b.curve.message_s
            for b in (cut.block for cut in self.cuts)
        ]
        for s in range(pp - 1):
            for side, other in ((s, s + 1), (s + 1, s)):
                own = self.by_stage[side]
                self._add(
                    {
                        ("link", s): -1.0,
                        **self._chosen(own, lambda c: min(inside[c.cut], across[c.cut])),
                    },
                    -np.inf,
                    0.0,
                )
                for p in pools:
                    most = max(across[at] for at, cut in enumerate(self.cuts) if cut.pool == p)
                    words = self._chosen(
                        [j for j in own if self._pool(j) == p], lambda c: across[c.cut]
                    )
                    self._add({("link", s): -1.0, ("pool", other, p): -most, **words}, -np.inf, 0.0)
        self._add({"links": -1.0, **{("link", s): 1.0 for s in range(pp - 1)}}, 0.0, 0.0)

    def _chains(self, s: int) -> list[Words]:
        """What V is at least for one stage: the sums whose largest `chain_s` and
        `interleaved_chain_s` are."""
        case, pp = self.case, self.case.pp
        m, v, n = case.num_microbatches, case.vpp, pp - 1 - s
        forward, backward, below = (
            {("forward", s): 1.0},
            {("backward", s): 1.0},
            {("below", s): 1.0},
        )
        both = plus((forward, 1), (backward, 1))
        above = plus(({"all": 1.0}, 1), (below, -1), (both, -1))
        if v > 1:
            w, rounds, link = 2 * n + (v - 1) * pp, (v - 1) / v, {"links": 1.0 / max(1, pp - 1)}
            first = plus((forward, 1 / v), ({"forwards": 1.0}, rounds), (below, 1 / v), (link, w))
            last = plus((backward, 1 / v), ({"backwards": 1.0}, rounds), (below, 1 / v), (link, w))
            base = plus((above, 1 / v), (link, 2 * s))
            if m * v >= w + 2:
                starts, ends = (
                    (plus((forward, (w + 1) / v)), first),
                    (plus((backward, (w + 1) / v)), last),
                )
                return [
                    plus((base, 1), (a, 1), (e, 1), (both, (m * v - w - 1) / v))
                    for a in starts
                    for e in ends
                ]
            return [
                plus((base, 1), each)
                for each in (
                    (both, m),
                    (plus((forward, m), (last, 1)), 1),
                    (plus((first, 1), (backward, m)), 1),
                )
            ]
        stops = float(case.blocking)
        to_next = {("link", s): stops} if n else {}
        hold = plus((to_next, 1), ({("link", s - 1): stops} if s else {}, 1))
        trip = plus((below, 1), ({("link", i): 2.0 for i in range(s, pp - 1)}, 1))
        base = plus((above, 1), ({("link", i): 2.0 for i in range(s)}, 1))
        if m >= n + 2:
            starts, ends = (
                (plus((each, n + 1), (hold, n), (to_next, 1)), plus((each, 1), (trip, 1)))
                for each in (forward, backward)
            )
            return [
                plus((base, 1), (a, 1), (e, 1), (both, m - n - 1), (hold, m - n - 1), (to_next, -1))
                for a in starts
                for e in ends
            ]
        short = (
            plus((both, m)),
            plus((forward, m), (trip, 1), (backward, 1)),
            plus((forward, 1), (trip, 1), (backward, m)),
        )
        return [plus((base, 1), (each, 1), (hold, m - 1)) for each in short]

    def _exchange(self, s: int) -> None:
        """What O is at least for one stage: `exposed_exchange_s` behind the first stage, and the
        optimizer."""
        own, v, hides = self.by_stage[s], self.case.vpp, self.case.dp_overlap
        for name, part in (("reduce", "backward"), ("gather", "forward")):
            for share, times in {(1 / v, 1 / v), (1.0, ((v - 1) * self.case.pp + 1) / v)}:
                words = self._chosen(
                    own, lambda c, name=name, share=share: -share * getattr(c, f"{name}_s")
                )
                self._add(
                    plus((words, 1), ({(part, 0): times * hides}, 1), ({(name, s): 1.0}, 1)),
                    0.0,
                    np.inf,
                )
        slow = OVERLAP_SLOWDOWN
        words = self._chosen(own, lambda c: -(slow * (c.reduce_s + c.gather_s) + c.optimizer_s))
        self._add(
            {"O": 1.0, ("reduce", s): slow - 1, ("gather", s): slow - 1, **words}, 0.0, np.inf
        )

    def value_s(self, chosen: list[int]) -> float:
        """The step of chosen columns by the package's closed form."""
        runs = [
            (at, list(run))
            for at, run in groupby((self.columns[j] for j in chosen), lambda c: c.cut)
        ]
        blocks = [
            replace(self.cuts[at].block, stages=len(run), layers=sum(c.layers for c in run))
            for at, run in runs
        ]
        stages = tuple(
            Chosen(layers=c.layers, way=0, redone=0, forward_s=c.forward_s, backward_s=c.backward_s)
            for _, run in runs
            for c in run
        )
        return value_s(blocks, self.case, Solved(stages=stages, bound_s=0.0))


def cp_sat(wholes: Wholes, limit_s: float) -> tuple[list[int] | None, bool]:
    """Return the columns of the best plan below the ceiling, if there is one, and whether that is
    sure."""
    from ortools.sat.python import cp_model

    model, rest_s = cp_model.CpModel(), wholes.ceiling_s - wholes.case.overhead_s
    most = int(3 * wholes.ceiling_s / UNIT_S)
    words = {
        name: model.new_bool_var("") if is_whole else model.new_int_var(0, most, "")
        for name, (_, is_whole) in wholes.bounds.items()
    }
    for row, low, high in wholes.rows:
        in_s = any(not wholes.bounds[name][1] for name in row)
        times = [
            (
                round(SCALE * value / (UNIT_S if wholes.bounds[name][1] else 1.0))
                if in_s
                else round(value)
            )
            for name, value in row.items()
        ]
        total = cp_model.LinearExpr.weighted_sum([words[name] for name in row], times)
        slack = 2 * SCALE if in_s and low == high else 0
        if np.isfinite(low):
            model.add(total >= round(low) * (SCALE if in_s else 1) - slack)
        if np.isfinite(high):
            model.add(total <= round(high) * (SCALE if in_s else 1) + slack)
    model.add(words["V"] + words["O"] <= int(rest_s / UNIT_S))
    model.minimize(words["V"] + words["O"])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, limit_s
    status = solver.solve(model)
    sure = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, sure
    return [j for j in range(len(wholes.columns)) if solver.value(words["y", j])], sure


def highs(wholes: Wholes, limit_s: float) -> tuple[list[int] | None, bool]:
    """The same with HiGHS."""
    import highspy

    names = list(wholes.bounds)
    place = {name: i for i, name in enumerate(names)}
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(names), len(wholes.rows)
    lp.col_cost_ = np.array([float(name in ("V", "O")) for name in names])
    lp.col_lower_, lp.col_upper_ = (
        np.zeros(len(names)),
        np.array([wholes.bounds[name][0] for name in names]),
    )
    lp.row_lower_, lp.row_upper_ = (np.array([row[i] for row in wholes.rows]) for i in (1, 2))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in wholes.rows)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array(
        [place[name] for row, _, _ in wholes.rows for name in row], dtype=np.int32
    )
    lp.a_matrix_.value_ = np.array([value for row, _, _ in wholes.rows for value in row.values()])
    kinds = highspy.HighsVarType
    lp.integrality_ = [
        kinds.kInteger if name[0] in ("y", "cut") else kinds.kContinuous for name in names
    ]  # type: ignore[index]
    solver = highspy.Highs()
    options = {
        "output_flag": False,
        "threads": 1,
        "mip_rel_gap": 1e-7,
        "mip_abs_gap": 0.0,
        "time_limit": limit_s,
    }
    for name, value in {
        **options,
        "objective_bound": wholes.ceiling_s - wholes.case.overhead_s,
    }.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    solver.run()
    sure = solver.modelStatusToString(solver.getModelStatus()) != "Time limit reached"
    if solver.getInfo().primal_solution_status != 2:
        return None, sure
    values = np.array(solver.getSolution().col_value)
    return [j for j in range(len(wholes.columns)) if values[place["y", j]] > 0.5], sure


class Problems:
    """Shared values, chunks and stages of a request, with their cuts."""

    def __init__(self, problem: MixedProblem, grid: Grid) -> None:
        self.problem, self.grid, self.book = problem, grid, CutBook(problem, grid)
        self.known: dict[int, list[Cut]] = {}

    def cuts(self, common: int) -> list[Cut]:
        """The cuts of some shared values."""
        if common not in self.known:
            self.known[common] = [
                Cut(
                    pool=pool,
                    stages=int(options.stages[at]),
                    block=self._block(pool, int(at), len(self.grid.options)),
                )
                for pool, options in enumerate(self.grid.options)
                for at in np.flatnonzero(options.common == common)
            ]
        return self.known[common]

    def _block(self, pool: int, option: int, pools: int) -> Block:
        pair = np.full((1, pools), -1, dtype=np.int64)
        pair[0, pool], pair[0, (pool + 1) % pools] = (
            option,
            0,
        )  # beside another one, so that it is priced as part of a pipeline
        self.book.add(pair)
        return self.book.block(
            int(self.book.ids_of(pool, np.array([option]), piped=True)[0]), stages=1, layers=1
        )

    def open(self, best: float) -> list[tuple[float, float, int, int, int]]:
        """Problems that may score less: the score of an even pipeline, by which they are sorted,
        bound, shared values, chunks, stages."""
        site, grid, layers, found = (
            self.problem.site,
            self.grid,
            self.problem.site.model.total_layers,
            [],
        )
        chunks = chunks_of(self.problem, grid)
        ways = ways_of(self.problem, grid, Score(rates=None), most_chunks=max(chunks))
        for vpp in chunks:
            bounds = ways.once_bound if vpp == 1 else ways.chunked_bound
            for common in map(int, np.unique(ways.common[bounds < best])):
                micro, least = (
                    int(grid.num_microbatches[common]),
                    float(bounds[ways.common == common].min()),
                )
                for pp in range(2, layers // vpp + 1):
                    rounds = (
                        micro % pp
                        if wants_whole_rounds(site.stack)
                        else micro % max(1, micro // pp)
                    )
                    if (wants_fill(site.stack) and pp > micro) or (
                        vpp > 1 and (pp > micro or rounds)
                    ):
                        continue
                    slowest_s, gbs = self._slowest_s(common, pp), int(grid.gbs[common])
                    low = max(least, (micro * slowest_s + site.stack.step_overhead_s) / gbs)
                    if low < best:
                        found.append(
                            ((micro + (pp - 1) / vpp) * slowest_s / gbs, low, common, vpp, pp)
                        )
        return sorted(found)

    def _slowest_s(self, common: int, pp: int) -> float:
        """The slowest stage at least: each pool with the best of all its cuts."""
        layers, pools = (
            self.problem.site.model.total_layers,
            {cut.pool for cut in self.cuts(common)},
        )
        curves = [
            (
                cut,
                float(
                    (
                        cut.block.curve.forward_layer_s
                        + cut.block.curve.backward_layer_s.min(axis=0)
                    ).min()
                ),
            )
            for cut in self.cuts(common)
        ]
        for seconds in sorted({n * each for _, each in curves for n in range(1, layers + 1)}):
            room = sorted(
                (
                    (
                        max(int(seconds / each + 1e-9) for c, each in curves if c.pool == p),
                        max(c.stages for c, _ in curves if c.pool == p),
                    )
                    for p in pools
                ),
                reverse=True,
            )
            left, held = pp, 0
            for most, stages in room:
                taken = min(left, stages)
                left, held = left - taken, held + taken * most
            if held >= layers and not left:
                return seconds
        return np.inf


def main() -> None:
    """Print a line per better plan, and one per case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--solver", choices=("cp-sat", "highs"), default="cp-sat")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one problem")
    parser.add_argument(
        "--total",
        type=float,
        default=600.0,
        help="processor seconds of one case, beyond which the rest stays open",
    )
    asked = parser.parse_args()
    for name in asked.cases:
        compare(name, cp_sat if asked.solver == "cp-sat" else highs, asked.limit, asked.total)


def compare(name: str, solve: Solver, limit_s: float, total_s: float) -> None:
    """Search a case, and let the solver look at what may be better."""
    problem = resolve_mixed(
        PlanRequest.of({"model": "llama2-70b", "seq_len": 4096, "top": 3, **CASES[name]})
    )
    grid, begin = make_grid(problem, Rejections()), process_time()
    outcome = search_mixed(problem, grid, Score(rates=None))
    print(f"{name}: ours {process_time() - begin:.2f} s, gap {outcome.gap:.2%}", flush=True)
    first = best = outcome.best[0].score
    problems, begin = Problems(problem, grid), process_time()
    waiting, solved, late = problems.open(best), 0, 0
    while waiting and process_time() - begin < total_s:
        _, low, common, vpp, pp = waiting.pop(0)
        if low >= best:
            continue
        case = replace(
            outcome.best[0].case,
            num_microbatches=int(grid.num_microbatches[common]),
            pp=pp,
            vpp=vpp,
        )
        gbs = int(grid.gbs[common])
        wholes = Wholes(problem, problems.cuts(common), case, best * gbs * (1 - SAME))
        if not wholes.possible:
            continue
        wholes.write()
        chosen, sure = solve(wholes, limit_s)
        solved, late = solved + 1, late + (not sure)
        if chosen is not None and (value := wholes.value_s(chosen) / gbs) < best * (1 - SAME):
            best, shared = value, grid.commons
            words = (
                f"dp {shared.dp[common]} cp {shared.cp[common]} mbs {shared.mbs[common]} pp {pp}"
                f" vpp {vpp}"
            )
            print(
                f"    {1 - best / first:.3%} below ours after {process_time() - begin:.0f} s:"
                f" {words}",
                flush=True,
            )
    left = sum(each[1] < best for each in waiting)
    seconds = f"{process_time() - begin:.0f} s"
    print(
        f"    {seconds}: {solved} problems solved, of which {late} reached the limit, {left} left",
        flush=True,
    )


if __name__ == "__main__":
    main()
