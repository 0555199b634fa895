"""What a report says of `explain --json`, and of the best plan explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.report.charts.forms import (
    Axis,
    Cell,
    Column,
    Grid,
    Group,
    Guide,
    Point,
    Points,
    Stack,
)
from meshwright.report.charts.svg import TIME_COLOURS, number
from meshwright.report.parts.part import (
    Part,
    Record,
    Resolve,
    Section,
    asked_words,
    between_words,
    figure_tiles,
    layout_words,
    memory_stack,
    present,
    short_words,
    time_stack,
)
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS, MemoryReading, Reading

__all__ = [
    "constants_info",
    "errors_info",
    "explain_answer_info",
    "explain_part",
    "operators_info",
    "rival_steps_info",
    "rivals_info",
    "roofline_info",
    "stages_info",
    "terms_info",
]

GIGA, TERA = 1e9, 1e12
MILLI = 1e3


def explain_answer_info(record: Record) -> str:
    """Say what one layout takes, what binds it, and whether it fits."""
    words = layout_words(record).replace(",", ", ")
    peak, limit = max(record["peak_memory_gib"]), record["limit_gib"]
    fits = (
        f"{number(peak)} of {number(limit)} GiB on stage {record['fullest_stage']}, fits:"
        f" {record['fits']}"
    )
    sure = f"(80 %: {between_words(record['interval']['step_s'])} s)"
    of = f" of {asked_words(record['request'])}" if "request" in record else ""
    return (
        f"A step{of} with {words} takes {number(record['step_s'])} s {sure}; {fits}."
        f" {record['binding']}"
    )


def terms_info(record: Record) -> Grid:
    """Return each term of the step with what it waits for."""
    columns = (
        *(
            Column(key="term", title="term"),
            Column(key="seconds", title="s", digits=4),
            Column(key="percent", title="%", digits=3),
        ),
        *(
            Column(key="what", title="what it is", wide=True),
            Column(key="bound", title="what it waits for", wide=True),
        ),
    )
    rows = tuple(
        (t["title"], t["seconds"], 100 * t["share"], t["what"], t["bound"]) for t in record["terms"]
    )
    return Grid(
        key="terms",
        title="Terms of the step",
        columns=columns,
        rows=rows,
        sentence=str(record["binding"]),
    )


def stages_info(record: Record) -> Stack:
    """Return memory of every stage by term."""
    bars = [
        (f"stage {stage['stage']}, {stage['layers']} layers", stage["memory"])
        for stage in record["stages"]
    ]
    held = [f"{stage['in_flight']:.3g}" for stage in record["stages"]]
    flight = (
        "Micro batches in flight by stage:"
        f" {', '.join(held[:16])}{', ...' if len(held) > 16 else ''}."
        if len(bars) > 1
        else ""
    )
    sentence = f"Stage {record['fullest_stage']} is the fullest. {flight}".strip()
    return memory_stack(
        bars,
        key="stages",
        title="Memory by stage",
        sentence=sentence,
        limit_gib=record["limit_gib"],
    )


def _rows(record: Record) -> Iterator[Mapping[str, Any]]:
    for layer in record["layers"]:
        yield from layer["operators"]


def roofline_info(record: Record) -> Points | None:
    """Return the forward pass of one layer's operators under the chip's roofs; None in answers of
    older versions, which lack the bytes."""
    rows = [
        row
        for row in _rows(record)
        if row.get("flops") and row.get("moved_bytes") and row["forward_s"]
    ]
    if not rows or "roof" not in record:
        return None
    roof = record["roof"]
    ridge = roof["tflops"] * MILLI / roof["gb_per_s"]
    intensities = [row["flops"] / row["moved_bytes"] for row in rows]
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 3
    memory = Guide(
        title=f"memory: {number(roof['gb_per_s'])} GB/s",
        points=((low, low * roof["gb_per_s"] / MILLI), (ridge, roof["tflops"])),
    )
    peak = Guide(
        title=f"{roof['precision']}: {number(roof['tflops'])} TFLOPS",
        points=((ridge, roof["tflops"]), (high, roof["tflops"])),
    )
    terms = list(dict.fromkeys(row["term"] for row in rows))
    groups = tuple(
        Group(
            title=TIME_READINGS[term].title,
            colour=TIME_COLOURS[term],
            mark="disc" if term == "matmul" else "diamond",
            points=tuple(_operator_point(row) for row in rows if row["term"] == term),
        )
        for term in terms
    )
    best = max(row["flops"] / row["forward_s"] for row in rows) / TERA
    return Points(
        key="roofline",
        title="Operators of one layer under the chip's roofs, forward",
        sentence=(
            f"The fastest reaches {100 * best / roof['tflops']:.0f} % of the {roof['chip']}'s dense"
            " peak. Bytes count each operand and result once; what matrix units have no part in is"
            " in the table, with its GB/s."
        ),
        x=Axis(key="flop_per_byte", title="FLOP per byte of device memory", log=True),
        y=Axis(key="tflops", title="TFLOPS", log=True),
        groups=groups,
        guides=(memory, peak),
    )


def _operator_point(row: Mapping[str, Any]) -> Point:
    label = f"{row['block']}: {row['name']}"
    return Point(
        x=row["flops"] / row["moved_bytes"], y=row["flops"] / row["forward_s"] / TERA, label=label
    )


def operators_info(record: Record) -> Grid:
    """Return every operator of one layer of each kind."""
    columns = (
        *(
            Column(key="layer", title="layer"),
            Column(key="operator", title="operator"),
            Column(key="term", title="term"),
        ),
        *(
            Column(key="forward_ms", title="forward, ms", digits=3),
            Column(key="backward_ms", title="backward, ms", digits=3),
        ),
        *(
            Column(key="tflops", title="TFLOPS, forward", digits=3),
            Column(key="gb_per_s", title="GB/s, forward", digits=3),
        ),
        Column(key="saved_mib", title="kept, MiB", digits=3),
    )
    rows = tuple(
        _operator_row(layer, row) for layer in record["layers"] for row in layer["operators"]
    )
    sentence = (
        "One micro batch on one rank. An exchange moves no device memory here; its link is among"
        " the terms."
    )
    return Grid(
        key="operators",
        title="Operators of one layer",
        columns=columns,
        rows=rows,
        sentence=sentence,
    )


def _operator_row(layer: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Cell, ...]:
    seconds = row["forward_s"]
    rates = [
        row.get(key, 0.0) / seconds / size if seconds and row.get(key) else None
        for key, size in (("flops", TERA), ("moved_bytes", GIGA))
    ]
    name = row["name"] if not row["block"] else f"{row['block']}: {row['name']}"
    return (
        layer["title"],
        name,
        TIME_READINGS[row["term"]].title,
        seconds * MILLI,
        row["backward_s"] * MILLI,
        *rates,
        row["saved_bytes"] / 2**20,
    )


def rivals_info(record: Record) -> Grid:
    """Return the layouts that differ in one axis, those that break a rule among them."""
    columns = (
        *(
            Column(key="change", title="change"),
            Column(key="verdict", title="verdict"),
            Column(key="step_s", title="step, s", digits=4),
        ),
        *(
            Column(key="percent", title="longer by, %", digits=3),
            Column(key="peak_gib", title="peak, GiB", digits=3),
        ),
        Column(key="fits", title="fits"),
        Column(key="why", title="why", wide=True),
    )
    rows = tuple(_rival_row(rival, record["step_s"]) for rival in record["rivals"])
    return Grid(key="rivals", title="One axis changed, dp follows", columns=columns, rows=rows)


def _rival_row(rival: Mapping[str, Any], step_s: float) -> tuple[Cell, ...]:
    if "step_s" not in rival:
        return rival["change"], rival["verdict"], None, None, None, "", rival["reason"]
    largest = sorted(rival["differences_s"].items(), key=lambda item: -abs(item[1]))[:3]
    words = ", ".join(
        f"{TIME_READINGS[term].title} {1e3 * seconds:+,.0f} ms" for term, seconds in largest
    )
    percent = 100 * (rival["step_s"] / step_s - 1)
    return (
        rival["change"],
        rival["verdict"],
        rival["step_s"],
        percent,
        rival["peak_memory_gib"],
        rival.get("fits", ""),
        words,
    )


def rival_steps_info(record: Record) -> Stack:
    """Return the layout's step beside those of its rivals that fit, by term."""
    bars: list[tuple[str, Record]] = [("as it is", {"time": record["time"], "interval": None})]
    for rival in record["rivals"]:
        if "step_s" in rival and rival["over_gib"] <= 0:
            time = {
                term: seconds + rival["differences_s"].get(term, 0.0)
                for term, seconds in record["time"].items()
            }
            bars.append((rival["change"], {"time": time, "interval": None}))
    faster = [rival for rival in record["rivals"] if rival["verdict"] == "faster"]
    risky = [rival["change"] for rival in faster if rival.get("fits") == "at risk"]
    safe = [rival["change"] for rival in faster if rival.get("fits") != "at risk"]
    sentence = (
        f"Faster: {', '.join(safe)}."
        if safe
        else "No single change of an axis makes it faster and leaves the headroom free."
    )
    if risky:
        sentence += f" Faster, but at risk of running out of memory: {', '.join(risky)}."
    return time_stack(
        bars,
        key="rivals-steps",
        title=f"What one change of {short_words(record)} does",
        sentence=sentence,
    )


def errors_info(record: Record) -> Grid:
    """Return how far off such figures have been."""
    rows = (
        ("step time, against measured runs", record["error"]),
        ("memory, against measured runs", record["memory_error"]),
    )
    columns = (
        Column(key="figure", title="figure"),
        Column(key="stands_on", title="stands on", wide=True),
    )
    return Grid(
        key="errors", title="How far off such figures have been", columns=columns, rows=rows
    )


def constants_info(record: Record) -> Grid:
    """Return, of every term, its formula and each constant with value and source."""
    readings: tuple[tuple[str, Mapping[str, Reading | MemoryReading]], ...] = (
        ("time", TIME_READINGS),
        ("memory", MEMORY_READINGS),
    )
    columns = (
        *(
            Column(key="term", title="term"),
            Column(key="formula", title="formula"),
            Column(key="constant", title="constant"),
        ),
        *(
            Column(key="value", title="value", digits=4),
            Column(key="moves", title="the term moves", digits=3),
            Column(key="kind", title="kind"),
            Column(key="source", title="source", wide=True),
        ),
    )
    rows: list[tuple[Cell, ...]] = []
    bases = [
        (f"{kind}: {titles[term].title}", basis)
        for kind, titles in readings
        for term, basis in record["provenance"][kind].items()
    ]
    for name, basis in bases:
        for constant in basis["constants"] or [
            {
                "name": None,
                "value": None,
                "source": "no constant moves it: it follows from the layout and the model",
            }
        ]:
            rows.append(
                (
                    name,
                    basis["formula"].removeprefix("meshwright."),
                    constant["name"],
                    _plain(constant["value"]),
                    _moves(constant, name),
                    constant.get("kind", ""),
                    constant["source"],
                )
            )
    sentence = (
        "docs/formulas.md has each formula with its source. A constant is named where moving it by"
        " 1 % moves the term."
    )
    return Grid(
        key="constants",
        title="Formulas and constants of every term",
        columns=columns,
        rows=tuple(rows),
        sentence=sentence,
    )


def _moves(constant: Mapping[str, Any], name: str) -> str:
    """How much the term moves for a small step of a constant; empty where the answer is older."""
    change = constant.get("term_change")
    if change is None:
        return "with its shape" if "unit" in constant else ""
    size = (
        f"{change / 2**20:+.3g} MiB" if name.startswith("memory") else f"{change * MILLI:+.3g} ms"
    )
    return f"{size} for {constant['unit']}"


def _plain(value: object) -> Cell:
    return value if isinstance(value, int | float | str) or value is None else str(value)


def explain_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return where time and memory go, what one change does, and every constant; all of it stands
    in the answer."""
    time = time_stack(
        [(short_words(record), record)],
        key="time",
        title="Step time by term",
        sentence=str(record["binding"]),
    )
    return Part(
        kind="explain",
        title=(
            f"{asked_words(record['request'])}: {short_words(record)}"
            if "request" in record
            else short_words(record)
        ),
        answer=explain_answer_info(record),
        tiles=figure_tiles(record, limit_gib=record["limit_gib"]),
        sections=(
            Section(key="time", title="Where the time goes", blocks=(time, terms_info(record))),
            Section(key="memory", title="Where the memory goes", blocks=(stages_info(record),)),
            Section(
                key="operators",
                title="The operators",
                blocks=(*present(roofline_info(record)), operators_info(record)),
            ),
            Section(
                key="rivals",
                title="What one change does",
                blocks=(rival_steps_info(record), rivals_info(record)),
            ),
            Section(
                key="sources",
                title="What it stands on",
                blocks=(errors_info(record), constants_info(record)),
            ),
        ),
    )
