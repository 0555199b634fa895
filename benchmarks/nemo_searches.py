"""Check every predefined search of `meshwright autoconfigurator` against an exhaustive search.

    python benchmarks/nemo_searches.py [NAME...] [--runs 10] [--jobs 1] [-o PAGE.md]

Of each search configuration: candidates are distinct (layouts, names and the texts that are run),
keep the rules, use exactly the cluster's GPUs and fit by prediction; and none of the layouts that
fit and that the software has words for is predicted faster than the first. Nothing is run. Exit
code 1 where a search fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from meshwright.compat.autoconfigurator.search import Search, search_of
from meshwright.compat.autoconfigurator.settings import search_names
from meshwright.compat.autoconfigurator.words import compose
from meshwright.runs.trial import exported_of, refusal_of
from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import search_space
from meshwright.search.rank import fits_of
from meshwright.search.refine import Repriced, reprice, shortlists, tidy
from meshwright.search.rules.check import explicit_layers
from meshwright.search.space import Rejections, make_space
from meshwright.values.errors import MeshwrightError
from meshwright.values.layout import Layout

KEPT_TOP = 100
"""Layouts are kept as for so many plans: 3,200 of the fastest that fit."""
AGAIN = 100
"""Of the layouts that fit, how many of the fastest by the closed form are priced again with their
pipelines simulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One search."""

    name: str
    faults: tuple[str, ...]
    gpus: int = 0
    candidates: int = 0
    fitting: int = 0
    """Layouts that fit and were compared with the first candidate."""
    first: str = ""
    step_s: float = 0.0
    gap: float = 0.0
    """By how much of its step the first candidate is slower than the best of all; 0: it is the
    best."""
    seconds: float = 0.0
    """Of processor time, for the search that users wait for."""


def check(name: str, *, runs: int = 10, again: int = AGAIN) -> Outcome:
    """Search, and hold the candidates against all layouts."""
    start = time.process_time()
    try:
        search = search_of(compose(words_of(name, runs=runs)))
    except MeshwrightError as error:
        return Outcome(name=name, faults=(f"no candidates: {error}",))
    seconds = time.process_time() - start
    first, rivals = search.members[0], fastest_of_all(search, again=again)
    best_s = min(rival.step_s for rival in rivals)
    gap = first.predicted.step_s / best_s - 1.0
    late = (
        ()
        if gap <= 1e-9
        else (
            (
                f"{min(rivals, key=lambda r: r.step_s).layout.words()} is {gap:.2%} faster and no"
                " candidate"
            ),
        )
    )
    return Outcome(
        name=name,
        faults=(*faults_of(search, runs=runs), *late),
        gpus=search.settings.num_gpus,
        candidates=len(search.members),
        fitting=len(rivals),
        first=first.layout.words(),
        step_s=first.predicted.step_s,
        gap=gap,
        seconds=seconds,
    )


def words_of(name: str, *, runs: int) -> list[str]:
    """Return the words that a user types."""
    local = (
        ["cluster_type=interactive", "search_config.train_settings.chip=a100-80"]
        if name.startswith("tiny/")
        else []
    )
    return [
        f"search_config={name}",
        "auto_configurator_path=/opt/tool",
        f"search_config.train_settings.limit_search_runs={runs}",
        *local,
    ]


def faults_of(search: Search, *, runs: int) -> list[str]:
    """Return what is wrong with the candidates by themselves."""
    problem, gpus = search.prepared.problem, search.settings.num_gpus
    layouts = [member.layout for member in search.members]
    texts = [
        tuple(file.text for file in exported_of(search.tuning.trial, problem, layout).files)
        for layout in layouts
    ]
    found = [] if 1 <= len(layouts) <= runs else [f"{len(layouts)} candidates"]
    found += [
        f"two candidates have one {what}"
        for what, each in _distinct(search, layouts, texts)
        if len(set(each)) < len(layouts)
    ]
    for member, layout in zip(search.members, layouts, strict=True):
        if layout.tp * layout.cp * layout.pp * layout.dp != gpus:
            found.append(
                f"{layout.words()} uses {layout.tp * layout.cp * layout.pp * layout.dp} of {gpus}"
                " GPUs"
            )
        if layout.gbs % (layout.mbs * layout.dp):
            found.append(f"{layout.words()}: gbs is no multiple of mbs * dp")
        if (
            layout.layers_per_stage is not None
            and sum(layout.layers_per_stage) != problem.setting.model.total_layers
        ):
            found.append(f"{layout.words()} leaves layers out")
        if member.predicted.fits != "yes":
            found.append(f"{layout.words()} fits: {member.predicted.fits}")
    return found


def _distinct(
    search: Search, layouts: Sequence[Layout], texts: Sequence[tuple[str, ...]]
) -> list[tuple[str, Sequence[object]]]:
    return [("layout", layouts), ("name", list(search.names.values())), ("text", texts)]


def fastest_of_all(search: Search, *, again: int) -> list[Repriced]:
    """Price every layout, and those that may be the fastest and can be run again, uneven stages
    among them."""
    problem, trial = search.prepared.problem, search.tuning.trial
    wide = replace(problem, request=problem.request.model_copy(update={"top": KEPT_TOP}))
    rejections = Rejections()
    harvest = search_space(wide, make_space(wide, axes_of(wide), rejections), rejections)
    assert harvest.fitting is not None, "a candidate that fits was found before"
    model = problem.setting.model
    layouts = (
        tidy(explicit_layers(harvest.fitting.layouts.row(i), model))
        for i in range(len(harvest.fitting))
    )
    runs = list(
        islice((layout for layout in layouts if refusal_of(trial, problem, layout) is None), again)
    )
    splits = [
        split
        for group in shortlists(problem, [[layout] for layout in runs], count=1)
        for split in group[1:]
    ]
    able = [split for split in splits if refusal_of(trial, problem, split) is None]
    return [
        found
        for found in reprice(problem, dict.fromkeys([*runs, *able]))
        if fits_of(problem, found.peak_bytes) == "yes"
    ]


def main() -> int:
    """Check the searches that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    outcomes = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(partial(check, runs=given.runs), given.names or search_names()):
            outcomes.append(outcome)
            print(row_of(outcome), flush=True)
    failed = [outcome.name for outcome in outcomes if outcome.faults]
    print(
        f"{len(outcomes)} searches, {len(failed)} with"
        f" faults{': ' if failed else ''}{', '.join(failed)}"
    )
    if given.output is not None:
        given.output.write_text(page(outcomes, runs=given.runs), encoding="utf-8")
    return 1 if failed else 0


def row_of(outcome: Outcome) -> str:
    """One line of the table."""
    said = "; ".join(outcome.faults) or "none"
    cells = (
        outcome.name,
        outcome.gpus,
        outcome.candidates,
        f"`{outcome.first}`",
        f"{outcome.step_s:.4g}",
        outcome.fitting,
    )
    return f"| {' | '.join(map(str, cells))} | {said} | {outcome.seconds:.1f} |"


def page(outcomes: Sequence[Outcome], *, runs: int) -> str:
    """The whole table as a page."""
    failed = sum(bool(outcome.faults) for outcome in outcomes)
    head = [
        "# The predefined searches of the NeMo 1.x door, checked",
        "",
        (
            f"Written by `benchmarks/nemo_searches.py`: each of the {len(outcomes)} search"
            f" configurations with `limit_search_runs={runs}`, held against an exhaustive search of"
            " the same request. A fault is a candidate that breaks a rule, does not fit by"
            " prediction, uses other GPUs than the cluster's or is the same run as another, and a"
            f" layout that fits and is predicted faster than all. With faults: {failed}."
        ),
        "",
        "| search | GPUs | candidates | first | step s | compared | faults | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(row_of, outcomes)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
