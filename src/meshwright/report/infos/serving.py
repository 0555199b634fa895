"""What a report says of `serving plan --json` and `serving simulate --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.report.charts.forms import Axis, Cell, Column, Grid, Group, Point, Points
from meshwright.report.charts.svg import BEST, OTHER, SEQUENCE, number
from meshwright.report.infos.anything import values_info
from meshwright.report.infos.part import Block, Part, Record, Section, Tile, Words

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
    sections = [
        *(
            [Section(key="options", title="Deployments", blocks=(options_info(record),))]
            if shown
            else []
        ),
        *(
            [Section(key="front", title="Throughput against speed", blocks=charts)]
            if charts
            else []
        ),
        Section(
            key="rules",
            title="What the figures are",
            blocks=(*asked, _definitions(record), *_rejected(record)),
        ),
    ]
    return Part(
        kind="serving plan",
        title=_title(record, name),
        answer=serving_answer_info(record),
        tiles=_tiles(record["plans"][0]) if record["plans"] else (),
        sections=tuple(sections),
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
    return " + ".join(
        f"{part['workers']} x"
        f" {' '.join(f'{axis}{size}' for axis, size in part['layout'].items() if size > 1 or axis == 'tp')}{'' if part['role'] == 'prompts and answers' else ' ' + part['role']}"  # noqa: E501
        f" on {part['chip']}"
        for part in option["parts"]
    )


def serving_answer_info(record: Record) -> str:
    """Say which deployment to run and what users see, or the nearest where nothing keeps the
    limits."""
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
    return (
        Tile(
            title="Throughput",
            value=f"{number(best['tokens_per_s_per_gpu'])} tokens/s",
            note="new tokens, a GPU",
        ),
        Tile(
            title="A user sees",
            value=f"{number(best['tokens_per_s_per_user'])} tokens/s",
            note="after the first token",
        ),
        Tile(title="TTFT", value=f"{number(1e3 * best['ttft_s'])} ms", note="mean"),
        Tile(title="TPOT", value=f"{number(1e3 * best['tpot_s'])} ms", note="mean"),
        Tile(
            title="Chips",
            value=str(best["chips"]),
            note=f"{best['concurrency']} requests under way",
        ),
    )


_COLUMNS = (
    *(
        Column(key="rank", title="#", digits=6),
        Column(key="mode", title="mode"),
        Column(key="concurrency", title="requests", digits=6),
    ),
    *(
        Column(key="ttft_ms", title="TTFT, ms", digits=4),
        Column(key="tpot_ms", title="TPOT, ms", digits=3),
    ),
    *(
        Column(key="e2e_s", title="whole, s", digits=3),
        Column(key="tokens_per_s_per_gpu", title="tokens/s/GPU", digits=4),
    ),
    *(
        Column(key="tokens_per_s_per_user", title="tokens/s/user", digits=3),
        Column(key="usd", title="$ / 1M tokens", digits=3),
    ),
    *(
        Column(key="chips", title="chips", digits=6),
        Column(key="peak_gib", title="peak, GiB", digits=3),
    ),
    *(
        Column(key="weights", title="weights"),
        Column(key="cache", title="cache"),
        Column(key="deployment", title="deployment"),
    ),
)


def options_info(record: Record) -> Grid:
    """Return every deployment that keeps the limits, or the nearest ones."""
    ranked = record["plans"]
    rows = tuple(_row(option["rank"], option) for option in ranked) or tuple(
        _row(name, option) for name, option in record["nearest"].items()
    )
    words = (
        "Best first: those that keep the limits."
        if ranked
        else "Nothing keeps the limits; the nearest by each."
    )
    return Grid(
        key="options",
        title="Deployments",
        columns=_COLUMNS,
        rows=rows,
        sentence=words,
        marked=0 if ranked else None,
    )


def _row(rank: Cell, option: Mapping[str, Any]) -> tuple[Cell, ...]:
    peak = max(part["peak_memory_gib"] for part in option["parts"])
    return (
        *(
            rank,
            option["mode"],
            option["concurrency"],
            1e3 * option["ttft_s"],
            1e3 * option["tpot_s"],
            option["e2e_s"],
        ),
        *(
            option["tokens_per_s_per_gpu"],
            option["tokens_per_s_per_user"],
            option["usd_per_million_tokens"],
            option["chips"],
            peak,
        ),
        *(option["weights"], option["cache"], parts_words(option)),
    )


def serving_front_info(record: Record) -> Points:
    """Return tokens per GPU against tokens per user: the front, and the deployments that keep the
    limits."""
    front = [_front_point(option, named=False) for option in record["pareto"]]
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
        x=Axis(key="tokens_per_s_per_user", title="new tokens/s per user", log=True),
        y=Axis(key="tokens_per_s_per_gpu", title="new tokens/s per GPU", log=True),
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
    points = sorted(
        (option["tokens_per_s_per_gpu"], 1e3 * option["ttft_s"], _label(option))
        for option in record["pareto"]
    )
    best = record["plans"][:1]
    chosen = tuple(
        Point(x=o["tokens_per_s_per_gpu"], y=1e3 * o["ttft_s"], label=_label(o), named=True)
        for o in best
    )
    return Points(
        key="ttft",
        title="Time to the first token against throughput",
        sentence=(
            "Along the front: what more requests under way cost a user before the first token."
        ),
        x=Axis(key="tokens_per_s_per_gpu", title="new tokens/s per GPU", log=True),
        y=Axis(key="ttft_ms", title="TTFT, ms", log=True),
        groups=(
            Group(
                title="front",
                colour=SEQUENCE[0],
                points=tuple(Point(x=x, y=y, label=label) for x, y, label in points),
                mark="diamond",
            ),
            Group(title="best that keeps the limits", colour=BEST, points=chosen, mark="square"),
        ),
    )


def _label(option: Mapping[str, Any]) -> str:
    return f"{option['mode']}, {option['concurrency']} requests"


def _front_point(option: Mapping[str, Any], *, named: bool) -> Point:
    detail = f"{parts_words(option)}, {option['weights']} weights, {option['cache']} cache"
    x, y = option["tokens_per_s_per_user"], option["tokens_per_s_per_gpu"]
    return Point(x=x, y=y, label=_label(option), detail=detail, named=named)


def _request_grid(record: Record) -> Grid:
    found = values_info(record["request"])
    return Grid(key="request", title="What was asked", columns=found.columns, rows=found.rows)


def _definitions(record: Record) -> Grid:
    columns = (Column(key="figure", title="figure"), Column(key="meaning", title="is", wide=True))
    return Grid(
        key="definitions",
        title="Definitions",
        columns=columns,
        rows=tuple(record["definitions"].items()),
    )


def _rejected(record: Record) -> tuple[Grid, ...]:
    if not record["rejected"]:
        return ()
    columns = (
        Column(key="reason", title="reason", wide=True),
        Column(key="deployments", title="deployments", digits=9),
    )
    sentence = f"{record['search']['priced']:,} deployments and loads were priced; these were not."
    return (
        Grid(
            key="rejected",
            title="What was left out",
            columns=columns,
            rows=tuple(record["rejected"].items()),
            sentence=sentence,
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
        *(Column(key="figure", title="figure"), Column(key="unit", title="unit")),
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
    sections = (Section(key="seen", title="Latency", blocks=(grid, *asked, means)),)
    return Part(
        kind="serving simulate",
        title=_title(record, name),
        answer=answer,
        tiles=tiles,
        sections=sections,
    )
