"""What a report says of `plan --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.report.charts.forms import (
    Axis,
    Cell,
    Column,
    Grid,
    Group,
    Point,
    Points,
    Stack,
    columns_of,
)
from meshwright.report.charts.svg import BEST, OTHER, number
from meshwright.report.explain_json import explanation_record
from meshwright.report.infos.computed import (
    cells_info,
    mixed_memory_info,
    mixed_timeline_info,
    scaling_info,
    stage_memory_info,
    stage_time_info,
    stages_table_info,
    timeline_info,
)
from meshwright.report.infos.explain import (
    constants_info,
    operators_info,
    rival_steps_info,
    rivals_info,
    roofline_info,
    terms_info,
)
from meshwright.report.infos.part import (
    Asked,
    Block,
    Part,
    Record,
    Resolve,
    Section,
    Tile,
    Words,
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
    short_words,
    time_stack,
)
from meshwright.search.cells import cells_of
from meshwright.search.explain import SAME_SHARE, explain
from meshwright.search.plan import scaling
from meshwright.search.terms import TIME_READINGS
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright.report.charts.forms import Timeline
    from meshwright.search.problem import Problem

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
    """Return which pairs (less of the first is better, more of the second) no other pair beats, by
    the first."""
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
    return _front(
        plans,
        points,
        key="front",
        title="Throughput against memory",
        sentence=sentence,
        x=_MEMORY,
        y=_SPEED,
    )


def cost_front_info(record: Record) -> Points | None:
    """Return cost against throughput of the whole deployment; None where all plans run on the same
    chips, or a price is not known."""
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
    return _front(
        plans,
        points,
        key="cost",
        title="Throughput against cost",
        sentence=sentence,
        x=_COST,
        y=_WHOLE_SPEED,
    )


_MEMORY = Axis(key="peak_memory_gib", title="GiB on the fullest chip")
_SPEED = Axis(key="tokens_per_s_per_gpu", title="tokens/s per GPU")
_COST = Axis(key="usd_per_million_tokens", title="dollars per million tokens")
_WHOLE_SPEED = Axis(key="tokens_per_s", title="tokens/s")


def _front(
    plans: Sequence[Mapping[str, Any]],
    points: Sequence[tuple[float, float]],
    *,
    key: str,
    title: str,
    sentence: str,
    x: Axis,
    y: Axis,
) -> Points:
    front = unbeaten(points)

    def point(place: int) -> Point:
        return Point(
            x=points[place][0],
            y=points[place][1],
            label=short_words(plans[place]),
            named=place == 0,
        )

    others = tuple(point(place) for place in range(len(plans)) if place not in front)
    best = tuple(point(place) for place in front)
    groups = (
        Group(title="beaten on both counts", colour=OTHER, mark="ring", points=others),
        Group(title="not beaten on both", colour=BEST, mark="diamond", joined="steps", points=best),
    )
    return Points(key=key, title=title, sentence=sentence, x=x, y=y, groups=groups)


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
    searched = Tile(
        title="Layouts priced",
        value=f"{search['layouts']:,}",
        note=(
            f"{rejected:,} more rejected; {number(search['seconds'])} s"
            if rejected
            else f"in {number(search['seconds'])} s"
        ),
    )
    return (
        *(figure_tiles(record["plans"][0], limit_gib=limit_gib) if record["plans"] else ()),
        searched,
    )


_AXES = ("tp", "cp", "pp", "vpp", "schedule", "ep", "etp", "dp", "sharding", "mbs", "gbs")


def plans_info(record: Record) -> Grid:
    """Return all plans as a table; an axis that is the same usual value in every plan is left
    out."""
    plans = record["plans"]
    usual = {
        "cp": 1,
        "vpp": 1,
        "schedule": "1f1b",
        "ep": 1,
        "etp": None,
        "sharding": "zero1",
        "gbs": record["request"]["gbs"],
    }
    axes = [
        axis
        for axis in _AXES
        if axis not in usual or any(plan["layout"][axis] != usual[axis] for plan in plans)
    ]
    columns = (
        *columns_of(("rank", "#", 6)),
        *(
            Column(key=axis, title=axis, digits=None if axis in ("sharding", "schedule") else 9)
            for axis in axes
        ),
        *columns_of(("recompute", "recompute")),
        *(Column(key=key, title=title, digits=digits) for key, title, digits, _ in _FIGURES),
        *columns_of(
            ("fits", "fits"),
            ("beats_next", "beats the next by", "wide"),
            ("layout", "--layout", "wide"),
        ),
    )
    rows = tuple(_row(plan, axes) for plan in plans)
    sentence = (
        "Best first. Sort by a heading; filter by words (selective) or by figures (tp=4 step_s<18)."
    )
    return Grid(
        key="plans",
        title="Ranked plans",
        sentence=sentence,
        columns=columns,
        rows=rows,
        marked=0 if rows else None,
    )


_FIGURES: tuple[tuple[str, str, int, Any], ...] = (
    ("step_s", "step, s", 4, lambda plan: plan["step_s"]),
    ("step_s_low", "low", 3, lambda plan: (plan["interval"] or {}).get("step_s", [None])[0]),
    (
        "step_s_high",
        "high",
        3,
        lambda plan: (plan["interval"] or {}).get("step_s", [None, None])[1],
    ),
    ("tokens_per_s_per_gpu", "tokens/s/GPU", 4, lambda plan: plan["tokens_per_s_per_gpu"]),
    ("mfu_percent", "MFU, %", 3, lambda plan: 100 * plan["mfu"]),
    ("peak_memory_gib", "peak, GiB", 3, lambda plan: max(plan["peak_memory_gib"])),
)


def _row(plan: Mapping[str, Any], axes: Sequence[str]) -> tuple[Cell, ...]:
    layout, about = plan["layout"], plan["provenance"]
    figures = (value(plan) for _, _, _, value in _FIGURES)
    cells = (layout[axis] for axis in axes)
    return (
        plan["rank"],
        *cells,
        recompute_words(layout),
        *figures,
        plan["fits"],
        about.get("beats_next", ""),
        layout_words(plan),
    )


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
    return time_stack(
        bars,
        key="time",
        title="Step time by term",
        sentence=f"{words}Whiskers: 80 % interval of the sum.",
    )


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
    rows = tuple((reason, count) for reason, count in record["rejected"].items())
    columns = columns_of(("reason", "reason", "wide"), ("layouts", "layouts", 9))
    return Grid(
        key="rejected",
        title="Why layouts were rejected",
        columns=columns,
        rows=rows,
        sentence="Each is counted under its first reason.",
    )


def sources_info(plan: Mapping[str, Any]) -> Grid:
    """Return what a plan's figures stand on, and how far off such figures have been."""
    about = plan["provenance"]
    shares = {name: share for name, share in about.get("shares", {}).items() if share}
    words = {
        "profile": "tables that were measured on your own chip",
        "profile_extrapolated": "those tables, beyond what they hold",
        "tables": "tables that were measured on this chip",
        "kin": "tables of a kindred chip, scaled",
        "formula": "formulas with constants (docs/formulas.md)",
    }
    rows: list[tuple[Cell, ...]] = [
        (f"{100 * share:.0f} % of the step", words[name]) for name, share in shares.items()
    ]
    rows += [("pipeline", about["pipeline"]), ("kernels", about["kernels"])]
    rows += [
        ("step time, against measured runs", about["error"]),
        ("memory, against measured runs", about["memory_error"]),
    ]
    rows += [
        (key, about[key]["words"]) for key in ("profile", "calibration", "close") if about.get(key)
    ]
    columns = columns_of(("figure", "figure"), ("stands_on", "stands on", "wide"))
    return Grid(
        key="sources", title="What these figures stand on", columns=columns, rows=tuple(rows)
    )


def plan_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return the answer, what rivals cost, and all that the request tells when it is priced
    again."""
    asked = asked_of(record["request"], resolve)
    explained = _explained(record, asked)
    sections = _sections(record, asked, explained) if record["plans"] else []
    if record["rejected"]:
        sections.append(
            Section(key="rejected", title="What was rejected", blocks=(rejected_info(record),))
        )
    return Part(
        kind="plan",
        title=asked_words(record["request"]),
        answer=plan_answer_info(record, limit_gib=asked.limit_gib),
        tiles=plan_tiles_info(record, limit_gib=asked.limit_gib),
        sections=tuple(sections),
        notes=(*asked.notes, *_computed_notes(record, explained)),
    )


def _explained(record: Record, asked: Asked) -> Record | None:
    """The best plan, priced again and explained; None where there is none, or the request can't be
    looked up."""
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


def _sections(record: Record, asked: Asked, explained: Record | None) -> list[Section]:
    best = record["plans"][0]
    time: tuple[Block, ...] = (time_info(record),)
    memory: tuple[Block, ...] = (whole_memory_info(record, limit_gib=asked.limit_gib),)
    sources: tuple[Block, ...] = (sources_info(best),)
    computed: list[Section] = []
    if asked.problem is not None and explained is not None:
        time += (terms_info(explained),)
        memory = (stage_memory_info(best, asked.problem), *memory)
        sources += (constants_info(explained),)
        computed = _computed(record, explained, asked.problem)
    if asked.mixed is not None and is_mixed(best):
        memory = (mixed_memory_info(best, asked.mixed), *memory)
        steps = _pipeline(mixed_timeline_info(best, asked.mixed))
        computed = [
            Section(key="pipeline", title="The pipeline", blocks=(stages_table_info(best), *steps))
        ]
    fronts = (*present(memory_front_info(record)), *present(cost_front_info(record)))
    return [
        Section(key="plans", title="Plans", blocks=(plans_info(record),)),
        Section(key="time", title="Where the time goes", blocks=time),
        Section(key="memory", title="Where the memory goes", blocks=memory),
        *computed,
        Section(key="front", title="What else could be had", blocks=fronts),
        Section(key="sources", title="What it stands on", blocks=sources),
    ]


def _pipeline(steps: Timeline | str) -> tuple[Block, ...]:
    """Return a step's operations and what each stage does with its time, or the sentence that
    stands in their place."""
    return (Words(lines=(steps,)),) if isinstance(steps, str) else (steps, stage_time_info(steps))


def _computed(record: Record, explained: Record, problem: Problem) -> list[Section]:
    """Sections that the request is priced again for."""
    best = record["plans"][0]
    cells = cells_info(cells_of(problem), record["plans"], problem)
    counts = scaling(problem, layout_of(best["layout"]))
    return [
        Section(
            key="pipeline", title="The pipeline", blocks=_pipeline(timeline_info(best, problem))
        ),
        Section(
            key="operators",
            title="The operators",
            blocks=(*present(roofline_info(explained)), operators_info(explained)),
        ),
        Section(
            key="space",
            title="The space around it",
            blocks=(cells, rival_steps_info(explained), rivals_info(explained)),
        ),
        Section(
            key="scaling",
            title="More chips, fewer chips",
            blocks=(drawn(scaling_info(counts, problem)),),
        ),
    ]
