"""When there is no answer: why, how near the nearest miss is, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import Found, search_space
from meshwright.search.problem import Problem
from meshwright.search.refine import reprice
from meshwright.search.result import NearestMiss, Remedy
from meshwright.search.rules.check import check_layout, complete_layout
from meshwright.search.rules.rule import some
from meshwright.search.space import Rejections, make_space
from meshwright.values.errors import ConfigError, LayoutError
from meshwright.values.layout import parse_layout

__all__ = ["explain_empty_space", "nearest_miss", "with_chips"]

MOST_DOUBLINGS = 12
"""Clusters of up to 4096 times the chips are tried for a plan that fits."""
FAR = 64
"""Chips more or fewer within which usable counts are looked for."""


def explain_empty_space(problem: Problem, rejections: Rejections) -> None:
    """Raise the error that says why no layout keeps the rules, and the nearest values that work."""
    if problem.request.pins:
        _raise_for_pins(problem)
    if problem.request.gbs is not None:
        batches = sorted(_working_batches(problem))
        if batches:
            near = " or ".join(map(str, _nearest(batches, problem.request.gbs)))
            raise ConfigError(
                f"gbs={problem.request.gbs}: no data-parallel size of {problem.num_chips} chips"
                f" divides it; nearest that work: gbs={near} on {problem.num_chips} chips, or"
                f" {_usable_words(problem)}"
            )
    reasons = some(sorted(rejections.counts, key=lambda r: -rejections.counts[r]), most=3)
    raise ConfigError(
        f"no layout of {problem.setting.model.name} uses up {problem.num_chips} chips ({reasons});"
        f" {_usable_words(problem)}"
    )


def _raise_for_pins(problem: Problem) -> None:
    """Hold the first pinned values against the rules, the rest filled in."""
    pins = problem.request.pins.items()
    fields = parse_layout(",".join(f"{key}={values[0]}" for key, values in pins))
    if "layers_per_stage" in fields:
        fields = {"pp": max(1, len(fields["layers_per_stage"]) // fields.get("vpp", 1)), **fields}
    split = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    gbs, dp = problem.request.gbs or problem.max_gbs, max(1, problem.num_chips // split)
    case = replace(problem.case, work=replace(problem.setting.work, gbs=None))
    found = check_layout(complete_layout({"gbs": gbs, "dp": dp, **fields}, case), case)
    words = " ".join(f"{key}={','.join(map(str, values))}" for key, values in pins)
    why = "; also: ".join(v.message for v in found) or "leave one of them out"
    raise LayoutError(f"no layout keeps the rules under {words}: {why}")


def _working_batches(problem: Problem) -> set[int]:
    """Batches around the wanted one that some data-parallel size divides."""
    wanted = problem.request.gbs or 1
    grid = make_space(problem, axes_of(problem), Rejections()).grid
    sizes = {int(dp) for dp in grid.dp}
    near = {value for dp in sizes for value in (wanted // dp * dp, -(-wanted // dp) * dp)}
    return near - {0}


def _nearest(values: list[int], wanted: int) -> list[int]:
    """The nearest value below and above."""
    below, above = [v for v in values if v < wanted], [v for v in values if v > wanted]
    return [*below[-1:], *above[:1]]


def with_chips(problem: Problem, num_chips: int) -> Problem:
    """Return the problem on another number of the same chips."""
    setting = problem.setting
    return replace(
        problem, setting=replace(setting, pool=replace(setting.pool, num_chips=num_chips))
    )


def _is_usable(problem: Problem) -> bool:
    space = make_space(problem, axes_of(problem), Rejections())
    if problem.request.gbs is None:
        return bool((space.grid.dp <= problem.max_gbs).any())
    return bool((problem.request.gbs % space.grid.dp == 0).any()) if len(space.grid) else False


def _usable_words(problem: Problem) -> str:
    """Name the nearest numbers of chips that some layout uses up."""
    chips = problem.num_chips
    near = [
        next((c for c in steps if c >= 1 and _is_usable(with_chips(problem, c))), None)
        for steps in _steps(chips)
    ]
    words = " or ".join(str(c) for c in near if c is not None)
    return f"take {words} chips" if words else f"no number of chips within {FAR} of {chips} works"


def _steps(chips: int) -> tuple[range, range]:
    return range(chips - 1, max(0, chips - FAR), -1), range(chips + 1, chips + FAR)


def nearest_miss(problem: Problem, misses: Found) -> NearestMiss:
    """Return the layout that needs least memory, and changes under which one fits."""
    [priced] = reprice(problem, [misses.layouts.row(0)])
    return NearestMiss(
        layout=priced.layout,
        over_bytes=priced.peak_bytes - problem.setting.limit_bytes,
        memory_bytes=priced.memory_bytes,
        remedies=tuple(_remedies(problem)),
    )


def _remedies(problem: Problem) -> Iterator[Remedy]:
    """Without the pins, on more chips, and both."""
    free = replace(problem, request=problem.request.model_copy(update={"pins": {}}))
    if problem.request.pins:
        found = _first_fit(free)
        if found is not None:
            yield _remedy(
                free,
                found,
                "leave the pins out: --set "
                + " --set ".join(f"{k}=..." for k in problem.request.pins),
            )
    for case, words in ((problem, ""), (free, " and no pins")):
        if words and not problem.request.pins:
            continue
        for doubling in range(1, MOST_DOUBLINGS):
            larger = with_chips(case, problem.num_chips * 2**doubling)
            found = _first_fit(larger)
            if found is not None:
                chip = problem.setting.pool.node.chip.name
                yield _remedy(
                    larger, found, f"more chips: --cluster {chip}:{larger.num_chips}{words}"
                )
                return


def _first_fit(problem: Problem) -> Found | None:
    """The best layout that fits, if any."""
    rejections = Rejections()
    space = make_space(problem, axes_of(problem), rejections)
    if not len(space.grid):
        return None
    return search_space(problem, space, rejections).fitting


def _remedy(problem: Problem, found: Found, change: str) -> Remedy:
    [priced] = reprice(problem, [found.layouts.row(0)])
    return Remedy(
        change=change,
        num_chips=problem.num_chips,
        layout=priced.layout,
        step_s=priced.step_s,
        peak_bytes=priced.peak_bytes,
    )
