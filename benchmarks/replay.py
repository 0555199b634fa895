"""How many runs `tune` needs: published sets of layouts answer in place of a cluster.

    python benchmarks/replay.py TRUTH_DIR [--seeds 20]

A set is what score.py --groups compares: at least 8 finished runs that differ in layout only; rows
that ran out of memory belong to it and cost a run. Each strategy runs layouts of a set until one
within 2 % of the set's best has been measured; the mean number of runs is printed by table.
`predicted` is what `tune` does; `predicted order` learns nothing; grid is the mean over --seeds
orders of the axes, Optuna's TPE that over as many seeds. Rows that can't be predicted come last, in
any order.

No figure that a table was part of is used on it: calibration priors, intervals and the sustained
share of the chip are fitted again without the table, and host times and fragmentation of a software
that were fitted on it are the median of its family.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.runs.choose import Choice, Forecast, Options, Strategy, Tried, choose, options_of
from meshwright.runs.measured.cells import TruthTable, read_table_file
from meshwright.runs.measured.files import fit_known, step_time_of
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import Case, read_row, read_table
from meshwright.trust.intervals import Intervals, find_spread
from meshwright.trust.ridge import Priors
from meshwright.values.stack import find_stack, stack_names
from meshwright_truth.coverage import widening_of
from meshwright_truth.residuals import residuals_of, unknown_software
from meshwright_truth.score import SMALLEST_GROUP, comparison_of
from meshwright_truth.spreads import fit_spreads

TABLES = ("aleph_alpha_layouts", "nanotron_ultrascale", "vtrain", "amp")
NEAR = 0.02
"""How near to the best of its set a layout must be."""
FITTED_FIELDS = {
    "aleph_alpha_layouts": {"eager": ("fragmentation_frac",)},
    "nanotron_ultrascale": {
        "nanotron": (
            "fragmentation_frac",
            "step_overhead_s",
            "kernels_per_layer_scale",
            "pipelined_collective_host_s",
        )
    },
    "vtrain": {"megatron-deepspeed": ("step_overhead_s", "kernels_per_layer_scale")},
    "amp": {},
}
"""Figures of software/*/stack.toml that were fitted on a table."""
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Set:
    """One comparison set."""

    table: str
    name: str
    measured: tuple[float, ...]
    """Seconds; infinite where it ran out of memory."""
    cases: tuple[Case | None, ...]
    """None where the row can't be predicted."""

    @property
    def goal(self) -> float:
        return min(self.measured) * (1.0 + NEAR)


def script(name: str) -> Any:
    """Load a script as a module."""
    loader = SourceFileLoader(name.removesuffix(".py"), str(SCRIPTS / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def sets_of(table: TruthTable) -> Iterator[Set]:
    """Yield the comparison sets of a table, by score.py's rules."""
    members: dict[tuple[str, ...], list[tuple[dict[str, str], float]]] = defaultdict(list)
    for row in table.rows:
        step_s = step_time_of(table.name, row)
        if step_s is not None:
            members[comparison_of(row)].append((dict(row), step_s))
        elif fit_known(row) is False:
            members[comparison_of(row)].append((dict(row), math.inf))
    for key, rows in members.items():
        if sum(math.isfinite(step_s) for _, step_s in rows) >= SMALLEST_GROUP:
            found = [read_row(row, source=table.name) for row, _ in rows]
            answered = {p.row_id for p in predict_rows(found).predictions}
            cases = tuple(
                case if isinstance(case, Case) and case.row_id in answered else None
                for case in found
            )
            yield Set(
                table=table.name,
                name=" ".join(filter(None, key)),
                measured=tuple(s for _, s in rows),
                cases=cases,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """What is known without one table."""

    priors: Priors
    spreads: Any
    shares: dict[str, float]
    """Sustained shares by chip."""
    stack_fields: dict[str, dict[str, float]]

    def applied(self, case: Case) -> Case:
        """Return the run as somebody would predict it who never saw the table."""
        nodes = tuple(
            replace(
                node,
                chip=replace(
                    node.chip,
                    sustained_share=self.shares.get(node.chip.name, node.chip.sustained_share),
                ),
            )
            for node in case.machines.nodes
        )
        given = {name for name, _ in case.stack_changes}
        changes = [
            (name, repr(value))
            for name, value in self.stack_fields.get(case.stack_name, {}).items()
            if name not in given
        ]
        return replace(
            case,
            machines=replace(case.machines, nodes=nodes),
            stack_changes=(*case.stack_changes, *changes),
        )


def elsewhere(tables: Sequence[TruthTable], paths: Sequence[Path], without: str) -> Elsewhere:
    """Fit again what a table was part of."""
    others = [table for table in tables if table.name != without]
    read = [(table, read_table(table)) for table in others]
    answers = predict_rows(case for _, cases in read for case in cases)
    residuals = residuals_of(read, answers, as_family=unknown_software(read))
    spreads = fit_spreads(
        residuals,
        factors={
            q: widening_of([r for r in residuals if r.quantity == q])
            for q in ("step_time", "peak_memory")
        },
    )
    fields = {
        stack: {name: family_median(stack, name) for name in names}
        for stack, names in FITTED_FIELDS[without].items()
    }
    return Elsewhere(
        priors=priors_of(others),
        spreads=spreads,
        shares=shares_of(paths, without),
        stack_fields=fields,
    )


def family_median(stack: str, name: str) -> float:
    """The field's median over the other softwares of the family."""
    family = find_stack(stack).family
    return statistics.median(
        float(getattr(find_stack(o), name))
        for o in stack_names()
        if o != stack and find_stack(o).family == family
    )


def priors_of(tables: Sequence[TruthTable]) -> Priors:
    """What scripts/fit_calibration_priors finds on some tables."""
    fit = script("fit_calibration_priors")
    runs = [run for table in tables for run in fit.runs_of_table(table).runs]
    answered = {(p.source, p.row_id) for p in predict_rows(run.case for run in runs).predictions}
    runs = [run for run in runs if (run.case.source, run.case.row_id) in answered]
    timed = fit.studies([run for run in runs if run.step_s is not None], fit.time_problem)
    weighed = fit.studies([run for run in runs if run.peak_bytes is not None], fit.memory_problem)
    lines = [
        *fit.lines_of(fit.TIME_FACTORS, timed, "step time"),
        *fit.lines_of(fit.MEMORY_FACTORS, weighed, "peak memory"),
    ]
    found = {name: float(width) for name, width, _ in lines}
    noise = {name: found.pop(name) for name in ("step_time_noise", "peak_memory_noise")}
    return Priors(widths=found, **noise)


def shares_of(paths: Sequence[Path], without: str) -> dict[str, float]:
    """What scripts/fit_constants.py finds of sustained shares without a table."""
    fit = script("fit_constants.py")
    data = fit.batches([path for path in paths if path.stem != without])
    what = [constant for constant in fit.constants(data) if constant.field == "sustained_share"]
    values = fit.fit(data, what, rounds=1)
    kin = {row.chip.name: fit._kin_of(row.chip.name) for row in fit.chip_rows()}
    fitted = {name: value for (_, name, _), value in values.items()}
    return {chip: fitted[own] for chip, own in kin.items() if own in fitted}


def options_for(found: Set, known: Elsewhere) -> tuple[Options, list[int]]:
    """What is believed of the rows of a set that can be predicted, and which they are."""
    rows = [i for i, case in enumerate(found.cases) if case is not None]
    cases = [known.applied(case) for i in rows if (case := found.cases[i]) is not None]
    answers = predict_rows(cases).predictions
    assert len(answers) == len(cases)
    forecasts = []
    for case, answer in zip(cases, answers, strict=True):
        kind = case.kind
        intervals = Intervals(
            step_s=find_spread(known.spreads, kind, "step_time").around(answer.step_s),
            peak_bytes=find_spread(known.spreads, kind, "peak_memory").around(answer.used_bytes),
            error="",
            memory_error="",
        )
        limit = min(node.chip.usable_bytes for node in case.machines.nodes)
        forecasts.append(
            Forecast(
                case=case,
                step_s=answer.step_s,
                used_bytes=answer.used_bytes,
                limit_bytes=limit,
                intervals=intervals,
            )
        )
    return options_of(forecasts, priors=known.priors), rows


def runs_needed(
    found: Set, options: Options, rows: Sequence[int], strategy: Strategy, *, seed: int = 0
) -> float:
    """Run layouts until one is near the best; layouts that can't be predicted come last, in any
    order."""
    tried: dict[int, Tried] = {}
    while len(tried) < len(rows):
        choice = choose(options, tried, strategy=strategy, tolerance=-math.inf, seed=seed)
        assert isinstance(choice, Choice)
        step_s = found.measured[rows[choice.index]]
        tried[choice.index] = Tried(ran_out=True) if math.isinf(step_s) else Tried(step_s=step_s)
        if step_s <= found.goal:
            return len(tried)
    rest = [s for i, s in enumerate(found.measured) if i not in rows]
    return len(rows) + expected_at_random(rest, found.goal)


def expected_at_random(steps: Sequence[float], goal: float) -> float:
    """Mean number of draws without replacement until one of those near the best."""
    return (len(steps) + 1) / (sum(s <= goal for s in steps) + 1)


def by_predicted_order(found: Set, known: Elsewhere) -> float:
    """Runs where nothing is learnt: predicted times in order, those that are predicted not to fit
    last."""
    rows = [i for i, case in enumerate(found.cases) if case is not None]
    answers = predict_rows(
        [known.applied(case) for i in rows if (case := found.cases[i]) is not None]
    ).predictions
    order = sorted(range(len(rows)), key=lambda i: (not answers[i].fits, answers[i].step_s))
    for count, i in enumerate(order, start=1):
        if found.measured[rows[i]] <= found.goal:
            return count
    return len(rows) + expected_at_random(
        [s for i, s in enumerate(found.measured) if i not in rows], found.goal
    )


def grid_runs(found: Set, seeds: int) -> float:
    """Mean over orders of the axes of an exhaustive walk."""
    keys = [row_axes(case, i) for i, case in enumerate(found.cases)]
    counts = []
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(keys[0]) - 1)
        walk = sorted(range(len(keys)), key=lambda i: (*(keys[i][k] for k in order), keys[i][-1]))
        counts.append(
            next(n for n, i in enumerate(walk, start=1) if found.measured[i] <= found.goal)
        )
    return statistics.fmean(counts)


def row_axes(case: Case | None, place: int) -> tuple[float, ...]:
    """What a sweep walks over."""
    if case is None:
        return (*(0.0,) * 7, float(place))
    layout = case.layout
    return (
        layout.tp,
        layout.pp,
        layout.dp,
        layout.mbs,
        layout.sp,
        layout.sharding != "none",
        layout.recompute != "none",
        float(place),
    )


def main() -> int:
    """Replay every set by every strategy and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("truth", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sets", action="store_true", help="Print a line per set.")
    options = parser.parse_args()
    paths = sorted(path for path in options.truth.glob("*.csv"))
    tables = [table for path in paths if isinstance(table := read_table_file(path), TruthTable)]
    paths = [path for path in paths if path.stem in {table.name for table in tables}]
    columns: dict[str, dict[str, list[float]]] = {}
    for table in tables:
        if table.name not in TABLES:
            continue
        known = elsewhere(tables, paths, table.name)
        columns[table.name] = defaultdict(list)
        for found in sets_of(table):
            for name, runs in replayed(found, known, options.seeds).items():
                columns[table.name][name].append(runs)
            if options.sets:
                print(
                    found.name,
                    {name: round(values[-1], 1) for name, values in columns[table.name].items()},
                    file=sys.stderr,
                )
    show(columns)
    return 0


def replayed(found: Set, known: Elsewhere, seeds: int) -> dict[str, float]:
    """Runs of one set by strategy."""
    alone = all(case is None for case in found.cases)
    asked, rows = (None, []) if alone else options_for(found, known)

    def mean(strategy: Strategy) -> float:
        assert asked is not None
        return statistics.fmean(
            runs_needed(found, asked, rows, strategy, seed=seed) for seed in range(seeds)
        )

    blind = expected_at_random(found.measured, found.goal)
    steps: dict[str, Callable[[], float]] = {
        "predicted": lambda: (
            blind if asked is None else runs_needed(found, asked, rows, "predicted")
        ),
        "predicted order": lambda: by_predicted_order(found, known),
        "TPE": lambda: blind if asked is None else mean("optuna"),
        "random": lambda: blind,
        "grid": lambda: blind if alone else grid_runs(found, seeds),
    }
    return {name: step() for name, step in steps.items()}


def show(columns: dict[str, dict[str, list[float]]]) -> None:
    """Print the table in Markdown."""
    names = list(next(iter(columns.values())))
    print(f"{date.today().isoformat()}, {platform.machine()}, Python {platform.python_version()}\n")
    print(f"| table | sets | {' | '.join(names)} | most, predicted |")
    print(f"|---|---|{'---|' * (len(names) + 1)}")
    every = {name: [runs for table in columns.values() for runs in table[name]] for name in names}
    for table, found in {**columns, "all sets": every}.items():
        cells = " | ".join(f"{statistics.fmean(found[name]):.1f}" for name in names)
        print(f"| {table} | {len(found['predicted'])} | {cells} | {max(found['predicted']):.0f} |")


if __name__ == "__main__":
    sys.exit(main())
