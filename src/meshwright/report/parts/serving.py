"""What a report says of `serving plan --json` and `serving simulate --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.report.charts.forms import (
    Axis,
    Column,
    Grid,
    Group,
    Point,
    Points,
    columns_of,
    table_of,
)
from meshwright.report.charts.svg import BEST, OTHER, SEQUENCE, number
from meshwright.report.parts.part import (
    Block,
    Part,
    Record,
    Tile,
    Words,
    present,
    sections_of,
    tiles_of,
    values_info,
)

__all__ = [
    "latency_info",
    "loads_part",
    "options_info",
    "serving_answer_info",
    "serving_front_info",
    "serving_part",
]


def serving_part(record: Record, name: str, resolve: object) -> Part:
    """Return the deployments, the front of throughput and speed, and what was left out."""
    shown = record["plans"] or list(record["nearest"].values())
    asked = (_request_grid(record),) if "request" in record else ()
    charts: tuple[Block, ...] = (
        (serving_front_info(record), latency_info(record)) if record["pareto"] else ()
    )
    rules = (*asked, _definitions(record), *present(_rejected(record)))
    sections = sections_of(
        ("front", "Throughput against speed", charts),
        ("options", "Deployments", (options_info(record),) if shown else ()),
        ("rules", "What the figures are", rules),
    )
    return Part(
        kind="serving plan",
        title=_title(record, name),
        answer=serving_answer_info(record),
        tiles=_tiles(record["plans"][0]) if record["plans"] else (),
        sections=sections,
        notes=tuple(record.get("notes", ())),
    )


def _title(record: Record, name: str) -> str:
    asked = record.get("request")
    if not asked:
        return f"Serving: {name}"
    return (
        f"{asked['model']} on {asked['cluster']}: {asked['input_len']:,} tokens in,"
        f" {asked['output_len']:,} out"
    )


def parts_words(option: Mapping[str, Any]) -> str:
    """Write a deployment: `2 x tp1 pp2 prompts + 1 x tp4 answers on h100`."""
    return " + ".join(map(_part_words, option["parts"]))


def _part_words(part: Mapping[str, Any]) -> str:
    axes = [f"{axis}{n}" for axis, n in part["layout"].items() if n > 1 or axis == "tp"]
    role = [] if part["role"] == "prompts and answers" else [part["role"]]
    return f"{part['workers']} x {' '.join([*axes, *role])} on {part['chip']}"


def serving_answer_info(record: Record) -> str:
    """Say which deployment to run and what users see, or the nearest if none keeps the limits."""
    if not record["plans"]:
        near = next(iter(record["nearest"].items()), None)
        return "No deployment keeps the limits." + (
            f" Nearest by {near[0]}: {_figures(near[1])}." if near else ""
        )
    best = record["plans"][0]
    dear = best["usd_per_million_tokens"]
    cost = "" if dear is None else f", {number(dear)} dollars per million new tokens"
    return f"Serve {best['mode']}: {_figures(best)}{cost}."


def _figures(option: Mapping[str, Any]) -> str:
    return (
        f"{parts_words(option)}, {option['weights']} weights, {option['cache']} cache,"
        f" {option['concurrency']} requests under way: TTFT {number(1e3 * option['ttft_s'])} ms,"
        f" TPOT {number(1e3 * option['tpot_s'])} ms, {number(option['tokens_per_s_per_gpu'])} new"
        " tokens/s a GPU"
    )


def _tiles(best: Mapping[str, Any]) -> tuple[Tile, ...]:
    return tiles_of(
        ("Throughput", f"{number(best['tokens_per_s_per_gpu'])} tokens/s", "new tokens, a GPU"),
        (
            "A user sees",
            f"{number(best['tokens_per_s_per_user'])} tokens/s",
            "after the first token",
        ),
        ("TTFT", f"{number(1e3 * best['ttft_s'])} ms", "mean"),
        ("TPOT", f"{number(1e3 * best['tpot_s'])} ms", "mean"),
        ("Chips", str(best["chips"]), f"{best['concurrency']} requests under way"),
    )


def _option_words(option: Mapping[str, Any]) -> str:
    """Name all that tells one deployment from another."""
    return (
        f"{parts_words(option)}; {option['mode']}, {option['weights']} weights,"
        f" {option['cache']} cache"
    )


_OPTION_COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("rank", "#", 6, "rank"),
    ("what", "deployment", "wide", _option_words),
    ("mode", "mode", "hidden", "mode"),
    ("concurrency", "requests", 6, "concurrency"),
    ("ttft_ms", "TTFT, ms", 4, lambda option: 1e3 * option["ttft_s"]),
    ("tpot_ms", "TPOT, ms", 3, lambda option: 1e3 * option["tpot_s"]),
    ("e2e_s", "whole, s", 3, "e2e_s"),
    ("tokens_per_s_per_gpu", "tokens/s/GPU", 4, "tokens_per_s_per_gpu"),
    ("tokens_per_s_per_user", "tokens/s/user", 3, "tokens_per_s_per_user"),
    ("usd", "$ / 1M tokens", 3, "usd_per_million_tokens"),
    ("chips", "chips", 6, "chips"),
    ("peak_gib", "peak, GiB", 3, lambda o: max(part["peak_memory_gib"] for part in o["parts"])),
    ("weights", "weights", "hidden", "weights"),
    ("cache", "cache", "hidden", "cache"),
    ("deployment", "deployment", "hidden", parts_words),
)


def options_info(record: Record) -> Grid:
    """Return every deployment that keeps the limits, or the nearest ones."""
    ranked = record["plans"]
    shown = ranked or [{**option, "rank": name} for name, option in record["nearest"].items()]
    return table_of(
        shown,
        *_OPTION_COLUMNS,
        key="options",
        title="Deployments",
        sentence=(
            "Best first: those that keep the limits."
            if ranked
            else "Nothing keeps the limits; the nearest by each."
        ),
        marked=0 if ranked else None,
    )


def serving_front_info(record: Record) -> Points:
    """Return tokens per GPU against tokens per user: the front, and what keeps the limits."""
    ends = (0, len(record["pareto"]) - 1)
    front = [
        _front_point(option, named=place in ends) for place, option in enumerate(record["pareto"])
    ]
    ranked = [
        _front_point(option, named=place == 0) for place, option in enumerate(record["plans"])
    ]
    return Points(
        key="front",
        title="New tokens per GPU against new tokens per user",
        sentence=(
            f"No deployment has both more per GPU and more per user than the {len(front)} of the"
            " front."
        ),
        x=Axis(key="tokens_per_s_per_user", title="new tokens/s per user", from_zero=True),
        y=Axis(key="tokens_per_s_per_gpu", title="new tokens/s per GPU", from_zero=True),
        groups=(
            Group(
                title="front of all that fit",
                colour=SEQUENCE[0],
                points=tuple(front),
                mark="diamond",
                joined="line",
            ),
            Group(title="keeps the limits", colour=OTHER, points=tuple(ranked[1:]), mark="ring"),
            Group(
                title="best that keeps them", colour=BEST, points=tuple(ranked[:1]), mark="square"
            ),
        ),
    )


def latency_info(record: Record) -> Points:
    """Return the time to the first token over throughput along the front."""
    front = sorted(map(_first_token_point, record["pareto"]), key=lambda p: (p.x, p.y, p.label))
    chosen = [replace(_first_token_point(option), named=True) for option in record["plans"][:1]]
    return Points(
        key="ttft",
        title="Time to the first token against throughput",
        sentence=(
            "Along the front: what more requests under way cost a user before the first token."
        ),
        x=Axis(key="tokens_per_s_per_gpu", title="new tokens/s per GPU", log=True),
        y=Axis(key="ttft_ms", title="TTFT, ms", log=True),
        groups=(
            Group(title="front", colour=SEQUENCE[0], points=tuple(front), mark="diamond"),
            Group(
                title="best that keeps the limits", colour=BEST, points=tuple(chosen), mark="square"
            ),
        ),
    )


def _first_token_point(option: Mapping[str, Any]) -> Point:
    return Point(x=option["tokens_per_s_per_gpu"], y=1e3 * option["ttft_s"], label=_label(option))


def _label(option: Mapping[str, Any]) -> str:
    return f"{option['mode']}, {option['concurrency']} requests"


def _front_point(option: Mapping[str, Any], *, named: bool) -> Point:
    detail = f"{parts_words(option)}, {option['weights']} weights, {option['cache']} cache"
    x, y = option["tokens_per_s_per_user"], option["tokens_per_s_per_gpu"]
    return Point(x=x, y=y, label=_label(option), detail=detail, named=named)


def _request_grid(record: Record) -> Grid:
    return replace(values_info(record["request"]), key="request", title="What was asked")


def _definitions(record: Record) -> Grid:
    return table_of(
        record["definitions"].items(),
        ("figure", "figure", None, 0),
        ("meaning", "is", "wide", 1),
        key="definitions",
        title="Definitions",
    )


def _rejected(record: Record) -> Grid | None:
    if not record["rejected"]:
        return None
    return table_of(
        record["rejected"].items(),
        ("reason", "reason", "wide", 0),
        ("deployments", "deployments", 9, 1),
        key="rejected",
        title="What was left out",
        sentence=(
            f"{record['search']['priced']:,} deployments and loads were priced; these were not."
        ),
    )


_SEEN = (
    ("ttft_s", "TTFT", 1e3, "ms"),
    ("tpot_s", "TPOT", 1e3, "ms"),
    ("e2e_s", "whole request", 1.0, "s"),
)


def loads_part(record: Record, name: str, resolve: object) -> Part:
    """Return what the requests of a simulated load saw."""
    shown = [
        (title, scale, unit, record[key]) for key, title, scale, unit in _SEEN if key in record
    ]
    columns = (
        *columns_of(("figure", "figure"), ("unit", "unit")),
        *(Column(key=key, title=key, digits=4) for key in ("mean", "p50", "p90", "p99")),
    )
    rows = tuple(
        (title, unit, *(scale * seen[column.key] for column in columns[2:]))
        for title, scale, unit, seen in shown
    )
    grid = Grid(key="seen", title="What requests saw", columns=columns, rows=rows)
    rate = number(record["tokens_per_s_per_gpu"])
    said = ", ".join(
        f"{title} {number(scale * seen['p50'])} {unit} (p99 {number(scale * seen['p99'])})"
        for title, scale, unit, seen in shown
    )
    answer = (
        f"{record['requests']:,} requests on {record['chips']} chips: median {said}; {rate} new"
        " tokens/s a GPU."
    )
    tiles = tuple(
        Tile(
            title=title,
            value=f"{number(scale * seen['p50'])} {unit}",
            note=f"median; p99 {number(scale * seen['p99'])} {unit}",
        )
        for title, scale, unit, seen in shown
    )
    means = Words(
        lines=tuple(
            f"{figure}: {words}." for figure, words in record.get("definitions", {}).items()
        )
    )
    asked = (_request_grid(record),) if "request" in record else ()
    sections = sections_of(("seen", "Latency", (grid, *asked, means)))
    return Part(
        kind="serving simulate",
        title=_title(record, name),
        answer=answer,
        tiles=tiles,
        sections=sections,
    )
