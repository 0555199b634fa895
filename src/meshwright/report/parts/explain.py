"""What a report says of `explain --json`, and of the best plan explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.report.charts.forms import (
    Axis,
    Cell,
    Grid,
    Group,
    Guide,
    Point,
    Points,
    Stack,
    table_of,
)
from meshwright.report.charts.svg import TIME_COLOURS, number
from meshwright.report.parts.lost import lost_info
from meshwright.report.parts.part import (
    Part,
    Record,
    Resolve,
    apart,
    asked_words,
    between_words,
    figure_tiles,
    layout_words,
    memory_stack,
    present,
    sections_of,
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
    return table_of(
        record["terms"],
        ("term", "term", None, "title"),
        ("seconds", "s", 4, "seconds"),
        ("percent", "%", 3, lambda term: 100 * term["share"]),
        ("what", "what it is", "wide", "what"),
        ("bound", "what it waits for", "wide", "bound"),
        key="terms",
        title="Terms of the step",
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
        yield from ({**row, "layer": layer["title"]} for row in layer["operators"])


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
        x=row["flops"] / row["moved_bytes"],
        y=row["flops"] / row["forward_s"] / TERA,
        label=label,
        named=True,
    )


def operators_info(record: Record) -> Grid:
    """Return every operator of one layer of each kind."""
    return table_of(
        [
            {"layer": layer["title"], **row}
            for layer in record["layers"]
            for row in layer["operators"]
        ],
        ("layer", "layer", None, "layer"),
        ("operator", "operator", None, _operator),
        ("term", "term", None, lambda row: TIME_READINGS[row["term"]].title),
        ("forward_ms", "forward, ms", 3, lambda row: row["forward_s"] * MILLI),
        ("backward_ms", "backward, ms", 3, lambda row: row["backward_s"] * MILLI),
        ("tflops", "TFLOPS, forward", 3, lambda row: _rate(row, "flops", TERA)),
        ("gb_per_s", "GB/s, forward", 3, lambda row: _rate(row, "moved_bytes", GIGA)),
        ("saved_mib", "kept, MiB", 3, lambda row: row["saved_bytes"] / 2**20),
        key="operators",
        title="Operators of one layer",
        sentence=(
            "One micro batch on one rank. An exchange moves no device memory here; its link is"
            " among the terms."
        ),
    )


def _operator(row: Mapping[str, Any]) -> str:
    return row["name"] if not row["block"] else f"{row['block']}: {row['name']}"


def _rate(row: Mapping[str, Any], key: str, unit: float) -> float | None:
    """How much a second of the forward pass; None where nothing is known of it."""
    return row[key] / row["forward_s"] / unit if row["forward_s"] and row.get(key) else None


def rivals_info(record: Record) -> Grid:
    """Return the layouts that differ in one axis, those that break a rule among them."""
    step_s = record["step_s"]
    return table_of(
        record["rivals"],
        ("change", "change", None, "change"),
        ("verdict", "verdict", None, "verdict"),
        ("step_s", "step, s", 4, lambda rival: rival.get("step_s")),
        ("percent", "longer by, %", 3, lambda rival: _longer(rival, step_s)),
        ("peak_gib", "peak, GiB", 3, lambda rival: rival.get("peak_memory_gib")),
        ("fits", "fits", None, lambda rival: rival.get("fits", "")),
        ("why", "why", "wide", _why),
        key="rivals",
        title="One axis changed, dp follows",
    )


def _longer(rival: Mapping[str, Any], step_s: float) -> float | None:
    return 100 * (rival["step_s"] / step_s - 1) if "step_s" in rival else None


def _why(rival: Mapping[str, Any]) -> str:
    """The largest changes of terms, or the rule that it breaks."""
    if "step_s" not in rival:
        return str(rival["reason"])
    largest = sorted(rival["differences_s"].items(), key=lambda item: -abs(item[1]))[:3]
    return ", ".join(
        f"{TIME_READINGS[term].title} {1e3 * seconds:+,.0f} ms" for term, seconds in largest
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
    title = f"What one change of {short_words(record)} does"
    return apart(time_stack(bars, key="rivals-steps", title=title, sentence=sentence))


def errors_info(record: Record) -> Grid:
    """Return how far off such figures have been."""
    return table_of(
        [("step time", record["error"]), ("memory", record["memory_error"])],
        ("figure", "figure", None, lambda row: f"{row[0]}, against measured runs"),
        ("stands_on", "stands on", "wide", 1),
        key="errors",
        title="How far off such figures have been",
    )


_NO_CONSTANT = {
    "name": None,
    "value": None,
    "source": "no constant moves it: it follows from the layout and the model",
}


def constants_info(record: Record) -> Grid:
    """Return, of every term, its formula and each constant with value and source."""
    readings: tuple[tuple[str, Mapping[str, Reading | MemoryReading]], ...] = (
        ("time", TIME_READINGS),
        ("memory", MEMORY_READINGS),
    )
    rows = [
        {"kind": "", **constant, "term": f"{kind}: {titles[term].title}", "by": basis["formula"]}
        for kind, titles in readings
        for term, basis in record["provenance"][kind].items()
        for constant in basis["constants"] or [_NO_CONSTANT]
    ]
    return table_of(
        rows,
        ("term", "term", None, "term"),
        ("formula", "formula", None, lambda row: row["by"].removeprefix("meshwright.")),
        ("constant", "constant", None, "name"),
        ("value", "value", 4, lambda row: _plain(row["value"])),
        ("moves", "the term moves", 3, _moves),
        ("kind", "kind", None, "kind"),
        ("source", "source", "wide", "source"),
        key="constants",
        title="Formulas and constants of every term",
        sentence=(
            "docs/formulas.md has each formula with its source. A constant is named where moving it"
            " by 1 % moves the term."
        ),
    )


def _moves(constant: Mapping[str, Any]) -> str:
    """How much the term moves for a small step of a constant; empty where the answer is older."""
    change = constant.get("term_change")
    if change is None:
        return "with its shape" if "unit" in constant else ""
    is_memory = constant["term"].startswith("memory")
    size = f"{change / 2**20:+.3g} MiB" if is_memory else f"{change * MILLI:+.3g} ms"
    return f"{size} for {constant['unit']}"


def _plain(value: object) -> Cell:
    return value if isinstance(value, int | float | str) or value is None else str(value)


def explain_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return where time and memory go, what one change does, and every constant."""
    words = short_words(record)
    of = f"{asked_words(record['request'])}: " if "request" in record else ""
    time = time_stack(
        [(words, record)], key="time", title="Step time by term", sentence=str(record["binding"])
    )
    operators = (*present(roofline_info(record)), operators_info(record))
    return Part(
        kind="explain",
        title=f"{of}{words}",
        answer=explain_answer_info(record),
        tiles=figure_tiles(record, limit_gib=record["limit_gib"]),
        sections=sections_of(
            ("time", "Where the time goes", (lost_info(record), time, terms_info(record))),
            ("memory", "Where the memory goes", (stages_info(record),)),
            ("operators", "The operators", operators),
            ("rivals", "What one change does", (rival_steps_info(record), rivals_info(record))),
            ("sources", "What it stands on", (errors_info(record), constants_info(record))),
        ),
    )
