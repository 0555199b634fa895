"""What a report says of `plan --json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.report.charts.forms import (
    Axis,
    Cell,
    Grid,
    Group,
    Point,
    Points,
    Stack,
    Timeline,
    table_of,
)
from meshwright.report.charts.svg import BEST, OTHER, number
from meshwright.report.explain_json import explanation_record
from meshwright.report.parts.computed import (
    cells_info,
    mixed_memory_info,
    mixed_timeline_info,
    scaling_info,
    stage_memory_info,
    stage_time_info,
    stages_table_info,
    timeline_info,
)
from meshwright.report.parts.explain import (
    constants_info,
    operators_info,
    rival_steps_info,
    rivals_info,
    roofline_info,
    terms_info,
)
from meshwright.report.parts.lost import lost_info, rivals_waterfall_info
from meshwright.report.parts.machine import machine_info, mixed_machine_info
from meshwright.report.parts.part import (
    Asked,
    Block,
    Part,
    Record,
    Resolve,
    Section,
    Tile,
    Words,
    apart,
    asked_of,
    asked_words,
    between_words,
    drawn,
    figure_tiles,
    is_mixed,
    layout_of,
    layout_words,
    memory_stack,
    present,
    recompute_words,
    sections_of,
    short_words,
    time_stack,
)
from meshwright.search.exhaustive import cells_of
from meshwright.search.explain import SAME_SHARE, explain
from meshwright.search.plan import scaling
from meshwright.search.problem import Problem
from meshwright.search.titles import TIME_READINGS
from meshwright.values.units import counted

__all__ = [
    "cost_front_info",
    "memory_front_info",
    "plan_answer_info",
    "plan_part",
    "plan_tiles_info",
    "plans_info",
    "rejected_info",
    "sources_info",
    "time_info",
    "unbeaten",
    "whole_memory_info",
]


def unbeaten(pairs: Sequence[tuple[float, float]]) -> list[int]:
    """Return which pairs no other beats, by the first (less is better; of the second, more is)."""
    found: list[int] = []
    for place in sorted(range(len(pairs)), key=lambda k: (pairs[k][0], -pairs[k][1])):
        if not found or pairs[place][1] > pairs[found[-1]][1]:
            found.append(place)
    return found


def memory_front_info(record: Record) -> Points:
    """Return throughput against memory of every ranked plan."""
    plans = record["plans"]
    points = [(max(plan["peak_memory_gib"]), plan["tokens_per_s_per_gpu"]) for plan in plans]
    front = unbeaten(points)
    sentence = (
        f"{len(front)} of {counted(len(plans), 'ranked plan')}: others need more memory and are"
        " slower."
    )
    title = "Throughput against memory"
    return _front(plans, points, key="front", title=title, sentence=sentence, axes=_MEMORY_AXES)


def cost_front_info(record: Record) -> Points | None:
    """Return cost against throughput; None where all use the same chips, or without a price."""
    plans = record["plans"]
    prices = [plan["provenance"].get("tokens_per_dollar") for plan in plans]
    used = [sum(part["used"] for part in plan.get("chips", [])) for plan in plans]
    if None in prices or len(set(used)) == 1:
        return None
    points = [
        (1e6 / price, plan["tokens_per_s_per_gpu"] * chips)
        for price, plan, chips in zip(prices, plans, used, strict=True)
    ]
    sentence = "Chips may be left idle: what a token costs against how fast tokens are trained on."
    title = "Throughput against cost"
    return _front(plans, points, key="cost", title=title, sentence=sentence, axes=_COST_AXES)


_MEMORY_AXES = (
    Axis(key="peak_memory_gib", title="GiB on the fullest chip"),
    Axis(key="tokens_per_s_per_gpu", title="tokens/s per GPU"),
)
_COST_AXES = (
    Axis(key="usd_per_million_tokens", title="dollars per million tokens"),
    Axis(key="tokens_per_s", title="tokens/s"),
)


def _front(
    plans: Sequence[Mapping[str, Any]],
    pairs: Sequence[tuple[float, float]],
    *,
    key: str,
    title: str,
    sentence: str,
    axes: tuple[Axis, Axis],
) -> Points:
    points = [
        Point(x=x, y=y, label=short_words(plan), named=place == 0)
        for place, (plan, (x, y)) in enumerate(zip(plans, pairs, strict=True))
    ]
    best = unbeaten(pairs)
    front = tuple(points[place] for place in best)
    others = tuple(point for place, point in enumerate(points) if place not in best)
    groups = (
        Group(title="beaten on both counts", colour=OTHER, mark="ring", points=others),
        Group(
            title="not beaten on both", colour=BEST, mark="diamond", joined="steps", points=front
        ),
    )
    return Points(key=key, title=title, sentence=sentence, x=axes[0], y=axes[1], groups=groups)


SHOWN = 10
"""Plans in a chart; a table has all."""


def plan_answer_info(record: Record, *, limit_gib: float | None) -> str:
    """Say in one sentence what to run, or that nothing fits and how near it comes."""
    request = record["request"]
    if not record["plans"]:
        return _no_answer(record)
    best = record["plans"][0]
    layout = layout_words(best).replace(",", ", ")
    sure = (
        ""
        if best["interval"] is None
        else f" (80 %: {between_words(best['interval']['step_s'])} s)"
    )
    room = "" if limit_gib is None else f" of {number(limit_gib)}"
    fits = {
        "yes": "",
        "at risk": ", at risk of running out of memory",
        "no": ", which does not fit",
    }[best["fits"]]
    return (
        f"Run {asked_words(request)} with {layout}: a step takes {number(best['step_s'])} s{sure}, "
        f"{number(best['tokens_per_s_per_gpu'])} tokens/s a GPU, {100 * best['mfu']:.1f} % MFU, "
        f"{number(max(best['peak_memory_gib']))}{room} GiB on the fullest chip{fits}."
    )


def _no_answer(record: Record) -> str:
    asked = asked_words(record["request"])
    miss = record["search"].get("nearest_miss")
    if miss is None:
        return f"{asked}: no layout fits."
    near = (
        f"the nearest, {layout_words(miss)}, needs {number(miss['over_gib'])} GiB more than a"
        " chip has"
    )
    remedy = f" {miss['remedies'][0]['change']} would do." if miss["remedies"] else ""
    return f"{asked}: no layout fits; {near}.{remedy}"


def plan_tiles_info(record: Record, *, limit_gib: float | None) -> tuple[Tile, ...]:
    """Return the best plan's figures, and what was searched."""
    search = record["search"]
    rejected = sum(record["rejected"].values())
    took = number(search["seconds"])
    note = f"{rejected:,} more rejected; {took} s" if rejected else f"in {took} s"
    best = figure_tiles(record["plans"][0], limit_gib=limit_gib) if record["plans"] else ()
    return (*best, Tile(title="Layouts priced", value=f"{search['layouts']:,}", note=note))


_AXES = ("tp", "cp", "pp", "vpp", "schedule", "ep", "etp", "dp", "sharding", "mbs", "gbs")


_USUAL = {"cp": 1, "vpp": 1, "schedule": "1f1b", "ep": 1, "etp": None, "sharding": "zero1"}
"""An axis that has this value in every plan is left out."""


def plans_info(record: Record) -> Grid:
    """Return all plans as a table; an axis that has its usual value in every plan is left out."""
    plans = record["plans"]
    usual = {**_USUAL, "gbs": record["request"]["gbs"]}
    axes = [
        (axis, axis, "hidden" if axis in ("sharding", "schedule") else "hidden 9", _axis(axis))
        for axis in _AXES
        if axis not in usual or any(plan["layout"][axis] != usual[axis] for plan in plans)
    ]
    return table_of(
        plans,
        ("rank", "#", 6, "rank"),
        ("layout", "--layout", "wide", layout_words),
        *axes,
        ("recompute", "recompute", "hidden", lambda plan: recompute_words(plan["layout"])),
        ("step_s", "step, s", 4, "step_s"),
        ("likely", "80 %", None, _likely),
        ("step_s_low", "low", "hidden 3", lambda plan: _step_ends(plan)[0]),
        ("step_s_high", "high", "hidden 3", lambda plan: _step_ends(plan)[1]),
        ("beats_next", "beats the next by", "wide", _beats),
        ("tokens_per_s_per_gpu", "tokens/s/GPU", 4, "tokens_per_s_per_gpu"),
        ("mfu_percent", "MFU, %", 3, lambda plan: 100 * plan["mfu"]),
        ("peak_memory_gib", "peak, GiB", 3, lambda plan: max(plan["peak_memory_gib"])),
        ("fits", "fits", None, "fits"),
        key="plans",
        title="Ranked plans",
        sentence=(
            "Best first. Sort by a heading; filter by words (selective) or by figures (tp=4"
            " step_s<18)."
        ),
        marked=0 if plans else None,
    )


def _axis(name: str) -> Callable[[Record], Cell]:
    return lambda plan: plan["layout"][name]


def _likely(plan: Record) -> str:
    return (
        ""
        if plan["interval"] is None
        else between_words(plan["interval"]["step_s"]).replace(" ", "\N{NO-BREAK SPACE}")
    )


def _beats(plan: Record) -> str:
    return str(plan["provenance"].get("beats_next", ""))


def _step_ends(plan: Mapping[str, Any]) -> Sequence[float | None]:
    ends: Sequence[float | None] = (plan["interval"] or {}).get("step_s", (None, None))
    return ends


def time_info(record: Record) -> Stack:
    """Return the best plans' steps by term."""
    plans = record["plans"][:SHOWN]
    largest = max(plans[0]["time"], key=lambda term: plans[0]["time"][term])
    share = plans[0]["time"][largest] / plans[0]["step_s"]
    words = (
        f"The parts of a step sum to it; {TIME_READINGS[largest].title} are {100 * share:.0f} % of"
        " the best plan's. "
    )
    bars = [(short_words(plan), plan) for plan in plans]
    title = "Step time by term"
    if len(plans) == 1:
        words = f"{words}Whiskers: 80 % interval of the sum."
        return time_stack(bars, key="time", title=title, sentence=words)
    return apart(time_stack(bars, key="time", title=title, sentence=words.strip()))


def whole_memory_info(record: Record, *, limit_gib: float | None) -> Stack:
    """Return the best plans' fullest stage by term."""
    bars = [(short_words(plan), plan["memory"]) for plan in record["plans"][:SHOWN]]
    return memory_stack(
        bars,
        key="memory",
        title="Memory of the fullest stage by term",
        sentence="What one process holds at its peak on the fullest stage of each plan.",
        limit_gib=limit_gib,
        over="layout",
    )


def rejected_info(record: Record) -> Grid:
    """Return why layouts were not ranked."""
    return table_of(
        record["rejected"].items(),
        ("reason", "reason", "wide", 0),
        ("layouts", "layouts", 9, 1),
        key="rejected",
        title="Why layouts were rejected",
        sentence="Each is counted under its first reason.",
    )


_STANDS_ON = {
    "profile": "tables that were measured on your own chip",
    "profile_extrapolated": "those tables, beyond what they hold",
    "tables": "tables that were measured on this chip",
    "kin": "tables of a kindred chip, scaled",
    "formula": "formulas with constants (docs/formulas.md)",
}


def sources_info(plan: Mapping[str, Any]) -> Grid:
    """Return what a plan's figures stand on, and how far off such figures have been."""
    about = plan["provenance"]
    shares = about.get("shares", {}).items()
    rows = [(f"{100 * share:.0f} % of the step", _STANDS_ON[n]) for n, share in shares if share]
    rows += [
        ("pipeline", about["pipeline"]),
        ("kernels", about["kernels"]),
        ("step time, against measured runs", about["error"]),
        ("memory, against measured runs", about["memory_error"]),
    ]
    fitted = ("profile", "calibration", "close")
    rows += [(key, about[key]["words"]) for key in fitted if about.get(key)]
    return table_of(
        rows,
        ("figure", "figure", None, 0),
        ("stands_on", "stands on", "wide", 1),
        key="sources",
        title="What these figures stand on",
    )


def plan_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return the answer, what rivals cost, and all that pricing the request again tells."""
    asked = asked_of(record["request"], resolve)
    explained = _explained(record, asked)
    sections = _sections(record, asked, explained) if record["plans"] else ()
    rejected = (rejected_info(record),) if record["rejected"] else ()
    return Part(
        kind="plan",
        title=asked_words(record["request"]),
        answer=plan_answer_info(record, limit_gib=asked.limit_gib),
        tiles=plan_tiles_info(record, limit_gib=asked.limit_gib),
        sections=(*sections, *sections_of(("rejected", "What was rejected", rejected))),
        notes=(*asked.notes, *_computed_notes(record, explained)),
    )


def _explained(record: Record, asked: Asked) -> Record | None:
    """The best plan priced again and explained; None if there is none or it can't be looked up."""
    if asked.problem is None or not record["plans"]:
        return None
    return explanation_record(
        explain(layout_of(record["plans"][0]["layout"]), asked.problem), asked.problem.request
    )


def _computed_notes(record: Record, explained: Record | None) -> tuple[str, ...]:
    """Say what was computed for the page, and where that does not agree with the answer."""
    if explained is None:
        return ()
    notes = [
        "As `plan` printed them: the answer, plans, times, the fullest stage's memory, fronts and"
        " rejections. All else was computed from the request when this page was made."
    ]
    then, now = record["plans"][0]["step_s"], explained["step_s"]
    if abs(now / then - 1) > SAME_SHARE:
        notes.append(
            f"Priced again, the best plan takes {number(now)} s a step, not {number(then)} s: "
            "the answer comes from another version, or its files have changed. Run `plan` again."
        )
    return tuple(notes)


def _sections(record: Record, asked: Asked, explained: Record | None) -> tuple[Section, ...]:
    best = record["plans"][0]
    time: tuple[Block, ...] = (time_info(record),)
    memory: tuple[Block, ...] = (whole_memory_info(record, limit_gib=asked.limit_gib),)
    sources: tuple[Block, ...] = (sources_info(best),)
    computed: tuple[Section, ...] = ()
    if asked.problem is not None and explained is not None:
        time += (terms_info(explained),)
        memory = (stage_memory_info(best, asked.problem), *memory)
        sources += (constants_info(explained),)
        computed = _computed(record, explained, asked.problem)
    if asked.mixed is not None and is_mixed(best):
        memory = (mixed_memory_info(best, asked.mixed), *memory)
        steps = _pipeline(mixed_timeline_info(best, asked.mixed))
        computed = sections_of(("pipeline", "The pipeline", (stages_table_info(best), *steps)))
    pictures = (*_machine(best, asked), *_lost(record))
    fronts = (memory_front_info(record), *present(cost_front_info(record)))
    return (
        *sections_of(
            ("machine", "The machine and its step", pictures),
            ("plans", "Plans", (plans_info(record),)),
            ("time", "Where the time goes", time),
            ("memory", "Where the memory goes", memory),
        ),
        *computed,
        *sections_of(
            ("front", "What else could be had", fronts), ("sources", "What it stands on", sources)
        ),
    )


def _machine(best: Record, asked: Asked) -> tuple[Block, ...]:
    """Return the machine map, where the request can be looked up."""
    if asked.problem is not None:
        return (machine_info(best, asked.problem),)
    if asked.mixed is not None and is_mixed(best):
        return (mixed_machine_info(best, asked.mixed),)
    return ()


def _lost(record: Record) -> tuple[Block, ...]:
    """Return where the best plan's seconds go, and why it beats the next."""
    best, *others = record["plans"]
    return (lost_info(best), *(rivals_waterfall_info(best, other) for other in others[:1]))


def _pipeline(steps: Timeline | str) -> tuple[Block, ...]:
    """Return a step's operations and each stage's time, or the sentence in their place."""
    return (Words(lines=(steps,)),) if isinstance(steps, str) else (steps, stage_time_info(steps))


def _computed(record: Record, explained: Record, problem: Problem) -> tuple[Section, ...]:
    """Sections that the request is priced again for."""
    best = record["plans"][0]
    cells = cells_info(cells_of(problem), record["plans"], problem)
    counts = scaling(problem, layout_of(best["layout"]))
    operators = (*present(roofline_info(explained)), operators_info(explained))
    rivals = (rival_steps_info(explained), rivals_info(explained))
    return sections_of(
        ("pipeline", "The pipeline", _pipeline(timeline_info(best, problem))),
        ("operators", "The operators", operators),
        ("space", "The space around it", (cells, *rivals)),
        ("scaling", "More chips, fewer chips", (drawn(scaling_info(counts, problem)),)),
    )
