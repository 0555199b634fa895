"""`meshwright compare`: one training on several clusters, by days and dollars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console

from meshwright.api.catalogues import list_prices
from meshwright.api.comparing import ComparedRow, read_prices
from meshwright.api.comparing import compare as compare_rows
from meshwright.cli.flags import HfFlag, model_words, training_of
from meshwright.cli.options import REQUIRED, Given, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json, print_page
from meshwright.report.columns import Column, print_items
from meshwright.search.request import PlanRequest
from meshwright.sizing.estimate import Limits
from meshwright.values.errors import ConfigError
from meshwright.values.units import format_digits, parse_duration, parse_tokens

__all__ = ["compare"]

_SEQ = 8192


@command
def compare(
    model: Given = fields_of(PlanRequest, "model"),
    tokens: str = option(REQUIRED, "To train on: 300B, 15T."),
    clusters: str | None = option(
        None, "Clusters to compare: h100:64,mi300x:64,tpu-v6e:256.", metavar="KIND:COUNT,..."
    ),
    chips: str | None = option(
        None, "Instead: chips to compare, --count of each; all are those with a price."
    ),
    count: int = option(64, "Chips of each kind, with --chips."),
    seq: int = option(_SEQ, "Tokens in one sequence.", "--seq"),
    gbs: int | None = option(None, "Global batch in sequences [default: each cluster's best]."),
    budget: float | None = option(None, "USD that the run may cost: 200k.", metavar="USD"),
    deadline: str | None = option(None, "Longest that it may take: 30d.", metavar="TIME"),
    prices: Path | None = option(
        None, "A CSV of dated prices in place of the catalogue's.", metavar="FILE"
    ),
    precision: Given = fields_of(PlanRequest, "precision"),
    hf: HfFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Compare clusters for one training: days, dollars, energy and carbon.

    Each cluster gets its own best plan, by the software of its chips' maker; the run is estimated
    as `meshwright estimate` does, with evaluations, checkpoints and failures. Dollars are the
    chips' hours at the lowest known price; `--prices` names a CSV with chip, kind (on-demand, spot,
    reserved), usd_per_hour, provider, date and source, which takes the catalogue's place.

    Prints a row for each cluster, the cheapest first, with what limits it breaks; `*` marks those
    of which no other is both faster and cheaper. Then the source of each price. Exit code 1: no
    cluster keeps --budget and --deadline.

    Examples:

      meshwright compare llama3-8b --tokens 2T --clusters h100:64,mi300x:64,tpu-v6e:256

      meshwright compare llama3-8b --tokens 300B --chips h100,h200,b200 --count 16 --budget 50k

      meshwright compare llama3-70b --tokens 1T --clusters h100:512,b200:256 --deadline 60d --json
    """
    words = model_words(model.get("model"), hf)
    training = training_of(parse_tokens(tokens, name="--tokens"))
    limits = Limits(
        wall_s=None if deadline is None else float(parse_duration(deadline, name="--deadline")),
        usd=budget,
    )
    requests = [
        PlanRequest.of(
            {"model": words, "cluster": one, "seq_len": seq, "gbs": gbs, "top": 1, **precision}
        )
        for one in _clusters(clusters, chips, count)
    ]
    known = None if prices is None else read_prices(prices)
    rows = compare_rows(requests, training=training, limits=limits, prices=known)
    if json_output:
        print_json({"rows": [row.to_dict() for row in rows]})
    else:
        print_items(Console(), _COLUMNS, rows, more="--json has them")
        print_page(["", *_footing(rows)], indent=4)
    if all(row.broken for row in rows):
        raise typer.Exit(1)


def _clusters(clusters: str | None, chips: str | None, count: int) -> list[str]:
    if (clusters is None) == (chips is None):
        raise ConfigError(
            "give what to compare: --clusters h100:64,mi300x:64, or --chips all --count 64"
        )
    if clusters is not None:
        return list(dict.fromkeys(word.strip() for word in clusters.split(",")))
    if chips == "all":
        return [f"{row.chip}:{count}" for row in list_prices()]
    return [f"{word.strip()}:{count}" for word in str(chips).split(",")]


def _days(row: ComparedRow) -> str:
    return "-" if row.days is None else f"{row.days:.1f}"


def _likely(row: ComparedRow) -> str:
    if row.days_interval is None:
        return "-"
    low, high = row.days_interval
    return f"{format_digits(low)} to {format_digits(high)}"


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value / scale:,.0f}"


_COLUMNS = (
    Column(
        heading="cluster",
        justify="left",
        cell=lambda row: f"{row.cluster}{'*' if row.on_front else ''}",
    ),
    Column(heading="days", cell=_days),
    Column(heading="likely", cell=_likely, spare=1),
    Column(heading="USD", cell=lambda row: _number(row.usd)),
    Column(heading="MWh", cell=lambda row: _number(row.kwh, 1e3), spare=2),
    Column(heading="t CO2", cell=lambda row: _number(row.kg_co2, 1e3), spare=2),
    Column(heading="limits", justify="left", cell=lambda row: ", ".join(row.broken), usual=""),
    Column(
        heading="layout", justify="left", cell=lambda row: row.layout or "", spare=3, under=True
    ),
)


def _footing(rows: list[ComparedRow]) -> Iterator[str]:
    if any(row.on_front for row in rows):
        yield "* no other is both faster and cheaper"
    priced = [row for row in rows if row.usd is not None and not row.broken]
    if priced:
        fastest = min(priced, key=lambda row: row.days or 0.0)
        yield f"cheapest: {priced[0].cluster}; fastest: {fastest.cluster}"
    seen = set()
    for row in rows:
        for price, usd in row.prices:
            if price in seen:
                continue
            seen.add(price)
            at = " ".join(filter(None, (f"{price.kind},", price.provider, price.date))).rstrip(",")
            yield (
                f"{price.chip}: {price.usd_per_hour:.2f} USD/h {at}"
                f" ({row.cluster}: {usd:,.0f} USD); {price.source}"
            )
