"""How many runs `tune` needs: published sets of layouts answer in place of a cluster.

    python benchmarks/replay.py TRUTH_DIR [--refit] [--seeds 5] [--sets]

A set is one of `meshwright tune --replay`: at least 8 finished runs that differ in layout only;
rows that ran out of memory belong to it and cost a run. The hypotheses of `tune` are fitted again
without the table of the set. With --refit so is everything else that the table was part of, which
takes 20 minutes: calibration priors, intervals and the sustained share of the chip; host times and
fragmentation of a software that were fitted on it are the median of its family.

The first table is what `tune` says at the end, beside what is true; the second the mean number of
runs until one within 2 % of the set's best, by strategy: ranking learns nothing, NeMo's order is
that of AutoConfigurator, random is the expectation, and the samplers of Optuna are means over
--seeds; that of a Gaussian process needs scipy and torch.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.belief import Sizes
from meshwright.runs.choose import Tried, next_by_optuna
from meshwright.runs.forecasts import Forecast, Options, options_of, slopes_and_axes
from meshwright.runs.measured.cells import TruthTable, read_table_file
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import Case, read_table
from meshwright.runs.replay import (
    NEAR,
    ComparisonSet,
    Moment,
    Replayed,
    answers_of,
    course,
    forecasts_of,
    judged,
    sets_of,
)
from meshwright.trust.intervals import Intervals, find_spread
from meshwright.trust.ridge import Priors
from meshwright.values.layout import RECOMPUTES
from meshwright.values.stack import find_stack, stack_names
from meshwright_truth.coverage import widening_of
from meshwright_truth.residuals import residuals_of, unknown_software
from meshwright_truth.spreads import fit_spreads

CONFIDENCES = (0.8, 0.9, 0.95)
FITTED_FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "aleph_alpha_layouts": {"eager": ("fragmentation_frac",)},
    "nanotron_ultrascale": {
        "nanotron": ("fragmentation_frac", "step_overhead_s", "kernels_per_layer_scale"),
        "nanotron-checked": ("fragmentation_frac", "step_overhead_s", "kernels_per_layer_scale"),
    },
    "vtrain": {"megatron-deepspeed": ("step_overhead_s", "kernels_per_layer_scale")},
}
"""Figures of software/*/stack.toml that were fitted on a table."""
Floats = NDArray[np.float64]
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@cache
def script(name: str) -> Any:
    """Load a script as a module."""
    loader = SourceFileLoader(name.removesuffix(".py"), str(SCRIPTS / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A set, and what is believed of it by somebody who never saw its table."""

    found: ComparisonSet
    options: Options
    slopes: Floats
    """How the logarithm of each step follows each factor of time, (N, K)."""


def studies_of(folder: Path, *, refit: bool = False) -> list[Study]:
    """Return every set of the tables of a folder with its beliefs."""
    paths = sorted(folder.glob("*.csv"))
    tables = [table for path in paths if isinstance(table := read_table_file(path), TruthTable)]
    sets = [one for table in tables for one in sets_of(table) if one.cases]
    fit = script("fit_beliefs")
    grid = fit.every_size()
    logs = np.array([fit.evidence(one, grid) for one in sets])
    names = np.array([one.table for one in sets])
    found = []
    for name in dict.fromkeys(names.tolist()):
        rest = names != name
        sizes = fit.fitted(names[rest].tolist(), logs[rest])
        known = elsewhere(tables, paths, name) if refit else None
        found += [
            believed(one, sizes, known) for one, own in zip(sets, names, strict=True) if own == name
        ]
    return found


def believed(found: ComparisonSet, sizes: Sequence[Sizes], known: Elsewhere | None) -> Study:
    """What is believed of a set before its first run."""
    if known is None:
        return study_of(found, forecasts_of(found), sizes, None)
    cases = tuple(known.applied(case) for case in found.cases)
    answers = tuple(predict_rows(cases).predictions)
    again = replace(found, cases=cases, predictions=answers)
    forecasts = [
        replace(
            forecast,
            intervals=Intervals(
                step_s=known.around(forecast.case, "step_time", forecast.step_s),
                peak_bytes=known.around(forecast.case, "peak_memory", forecast.used_bytes),
                error="",
                memory_error="",
            ),
        )
        for forecast in forecasts_of(again)
    ]
    return study_of(again, forecasts, sizes, known.priors)


def study_of(
    found: ComparisonSet,
    forecasts: Sequence[Forecast],
    sizes: Sequence[Sizes],
    priors: Priors | None,
) -> Study:
    """Form the beliefs."""
    options = options_of(forecasts, priors=priors, sizes=sizes)
    return Study(found=found, options=options, slopes=slopes_and_axes(forecasts)[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """What is known without one table."""

    priors: Priors
    spreads: Any
    shares: dict[str, float]
    """Sustained shares by chip."""
    stack_fields: dict[str, dict[str, float]]

    def around(
        self, case: Case, quantity: Literal["step_time", "peak_memory"], figure: float
    ) -> tuple[float, float]:
        """The 80 % interval of a figure."""
        return find_spread(self.spreads, case.kind, quantity).around(figure)

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
        for stack, names in FITTED_FIELDS.get(without, {}).items()
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


Order = Callable[[Study, int], Iterable[int]]
"""Layouts in the order in which a strategy runs them, by a seed."""


def by_ranking(study: Study, seed: int) -> Iterable[int]:
    """Nothing is learnt: predicted times in order, those that are predicted not to fit last."""
    answers = study.found.predictions
    return sorted(range(len(answers)), key=lambda i: (not answers[i].fits, answers[i].step_s))


def by_nemo(study: Study, seed: int) -> Iterable[int]:
    """The order in which AutoConfigurator of NeMo 1.x launches a grid: more recomputation later,
    then by tp, pp and micro batch (NeMo-Framework-Launcher, autoconfig/training_config.py,
    generate_grid_search_configs at 0b2d3fa)."""

    def key(i: int) -> tuple[int, ...]:
        layout = study.found.cases[i].layout
        return RECOMPUTES.index(layout.recompute), layout.tp, layout.pp, layout.mbs, i

    return sorted(range(len(study.found.cases)), key=key)


def by_optuna(sampler: Literal["tpe", "gp"]) -> Order:
    """A sampler of Optuna, told every run."""

    def order(study: Study, seed: int) -> Iterator[int]:
        answer = answers_of(study.found.measured)
        tried: dict[int, Tried] = {}
        while left := [i for i in range(len(study.options)) if i not in tried]:
            index = next_by_optuna(study.options.axes, tried, left, seed=seed, sampler=sampler)
            tried[index] = answer(index)
            yield index

    return order


ORDERS: dict[str, Order] = {
    "ranking": by_ranking,
    "NeMo's order": by_nemo,
    "TPE": by_optuna("tpe"),
    "GP": by_optuna("gp"),
}
SEEDED = ("TPE", "GP")


def runs_needed(study: Study, order: Iterable[int]) -> int:
    """Runs until one is near the best."""
    measured = study.found.measured
    goal = min(measured) * (1.0 + NEAR)
    return next(runs for runs, index in enumerate(order, start=1) if measured[index] <= goal)


def at_random(study: Study) -> float:
    """Mean number of draws without replacement until one of those near the best."""
    measured = study.found.measured
    goal = min(measured) * (1.0 + NEAR)
    return (len(measured) + 1) / (sum(s <= goal for s in measured) + 1)


def told(study: Study) -> dict[float, Replayed]:
    """How a study goes that ends with each confidence; its choices are the same."""
    measured = study.found.measured
    moments = as_far(course(study.options, answers_of(measured)), measured)
    return {c: judged(moments, measured, confidence=c) for c in CONFIDENCES}


def as_far(moments: Iterable[Moment], truth: Sequence[float]) -> list[Moment]:
    """A study's moments until it has found the best and is as sure as any end asks for."""
    kept: list[Moment] = []
    found, goal = False, min(truth) * (1.0 + NEAR)
    for moment in moments:
        kept.append(moment)
        found = found or truth[moment.index] <= goal
        if found and moment.ends(max(CONFIDENCES), tolerance=NEAR):
            break
    return kept


def main() -> int:
    """Replay every set by every strategy and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("truth", type=Path)
    parser.add_argument("--refit", action="store_true", help="Fit all else again too (20 minutes).")
    parser.add_argument("--seeds", type=int, default=5, help="Of Optuna's samplers; 0 without.")
    parser.add_argument("--sets", action="store_true", help="Print a line per set.")
    asked = parser.parse_args()
    studies = studies_of(asked.truth, refit=asked.refit)
    ends: dict[str, list[dict[float, Replayed]]] = defaultdict(list)
    needed: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for study in studies:
        table, found = study.found.table, told(study)
        ends[table].append(found)
        runs: dict[str, float] = {"tune": found[CONFIDENCES[0]].runs_to_2_percent or math.inf}
        for name, order in ORDERS.items():
            seeds = asked.seeds if name in SEEDED else 1
            if seeds:
                counts = [runs_needed(study, order(study, seed)) for seed in range(seeds)]
                runs[name] = statistics.fmean(counts)
        runs["random"] = at_random(study)
        for name, count in runs.items():
            needed[table][name].append(count)
        if asked.sets:
            words = {name: round(count, 1) for name, count in runs.items()}
            print(study.found.name, words, file=sys.stderr)
    print(f"{date.today().isoformat()}, {platform.machine()}, Python {platform.python_version()}\n")
    show_ends([end for ends_of in ends.values() for end in ends_of])
    show_needed(needed)
    return 0


def show_ends(ends: Sequence[dict[float, Replayed]]) -> None:
    """Print in Markdown what was said at the end beside what was true."""
    print(
        "| --confidence | stopped after | said | right | lost in the mean |\n|---|---|---|---|---|"
    )
    for confidence in CONFIDENCES:
        found = [end[confidence] for end in ends]
        right = statistics.fmean(one.regret_frac <= NEAR for one in found)
        said = statistics.fmean(one.stated_confidence for one in found)
        after = statistics.fmean(one.stopped_after for one in found)
        lost = statistics.fmean(one.regret_frac for one in found)
        print(f"| {confidence:.0%} | {after:.2f} | {said:.1%} | {right:.1%} | {lost:.1%} |")


def show_needed(needed: dict[str, dict[str, list[float]]]) -> None:
    """Print in Markdown the runs until one is near the best."""
    names = list(next(iter(needed.values())))
    every = {name: [runs for table in needed.values() for runs in table[name]] for name in names}
    print(f"\n| table | sets | {' | '.join(names)} | tune within 3 |")
    print(f"|---|---|{'---|' * (len(names) + 1)}")
    for table, found in {**needed, "all sets": every}.items():
        cells = " | ".join(f"{statistics.fmean(found[name]):.2f}" for name in names)
        within = statistics.fmean(runs <= 3 for runs in found["tune"])
        print(f"| {table} | {len(found['tune'])} | {cells} | {within:.0%} |")


if __name__ == "__main__":
    sys.exit(main())
