"""`meshwright compare`: one training on several clusters, by days and dollars."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from meshwright.api.catalogues import list_prices
from meshwright.api.comparing import (
    KINDS,
    ComparedRow,
    PriceKind,
    compared_record,
    read_prices,
)
from meshwright.api.comparing import compare as compare_rows
from meshwright.api.report import picture_form, write_picture
from meshwright.cli.flags import FORCE, HfFlag, model_words, training_of
from meshwright.cli.options import REQUIRED, Given, command, fields_of, option
from meshwright.cli.terminal import (
    JsonFlag,
    QuietFlag,
    print_json,
    print_page,
    search_progress,
    tell,
)
from meshwright.report.columns import Column, print_items
from meshwright.search.request import PlanRequest
from meshwright.sizing.estimate import Limits
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.parse import find_server, is_cluster_file
from meshwright.values.units import format_digits, parse_duration, parse_tokens

__all__ = ["compare"]

_SEQ = 8192
_COUNT = 64
_UNLISTED = "not listed"


@command
def compare(
    model: Given = fields_of(PlanRequest, "model"),
    tokens: str = option(REQUIRED, "To train on: 300B, 15T."),
    clusters: str | None = option(
        None, "Clusters to compare: h100:64,mi300x:64,tpu-v6e.", metavar="KIND[:COUNT],..."
    ),
    chips: str | None = option(
        None, "Instead: chips to compare, --count of each; all are those with a price."
    ),
    count: int | None = option(
        None, "Chips of each kind [default: by --deadline or --budget, else 64]."
    ),
    seq: int = option(_SEQ, "Tokens in one sequence.", "--seq"),
    gbs: int | None = option(None, "Global batch in sequences [default: each cluster's best]."),
    budget: float | None = option(None, "USD that the run may cost: 200k.", metavar="USD"),
    deadline: str | None = option(None, "Longest that it may take: 30d.", metavar="TIME"),
    pay: str = option(
        "on-demand", "Price that dollars count: on-demand, spot or reserved.", metavar="KIND"
    ),
    picture: Path | None = option(
        None, "Draw days against dollars: a .png, .svg or .html to write.", metavar="FILE"
    ),
    prices: Path | None = option(
        None, "A CSV of dated prices in place of the catalogue's.", metavar="FILE"
    ),
    precision: Given = fields_of(PlanRequest, "precision"),
    hf: HfFlag = None,
    force: bool = FORCE,
    json_output: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Compare clusters for one training: days, dollars, energy and carbon.

    Each cluster gets its own best plan, by the software of its chips' maker; the run is estimated
    as `meshwright estimate` does, with evaluations, checkpoints and failures. A cluster without
    COUNT takes, of 8, 16, 32 to 4096 chips, the cheapest that keep --deadline; under --budget alone
    the fastest that keep it. Dollars are the chips' hours at the lowest listed price of --pay, of
    another kind where that is not listed. `--prices` names a CSV with chip, kind (on-demand, spot,
    reserved), usd_per_hour, provider, date and source, which takes the catalogue's place.

    Prints a row for each cluster, the cheapest first, with what limits it breaks; `*` marks those
    of which no other is both faster and cheaper. Then the source of each price. A spot price counts
    no work that is lost when chips are taken away. Exit code 1: no cluster keeps --budget and
    --deadline.

    Examples:

      meshwright compare llama3-8b --tokens 2T --clusters h100:64,mi300x:64,tpu-v6e:256

      meshwright compare llama3-8b --tokens 300B --chips h100,h200,b200 --count 16 --budget 50k

      meshwright compare llama3-8b --tokens 2T --chips all --budget 200k --picture front.png

      meshwright compare llama3-70b --tokens 1T --clusters h100:512,b200:256 --deadline 60d --json
    """
    words = model_words(model.get("model"), hf)
    training = training_of(parse_tokens(tokens, name="--tokens"))
    limits = Limits(
        wall_s=None if deadline is None else float(parse_duration(deadline, name="--deadline")),
        usd=budget,
    )
    kind = next((one for one in KINDS if one == pay), None)
    if kind is None:
        raise UnknownNameError("kind of price", pay, KINDS)
    if picture is not None:
        picture_form(picture)
    named, sized = _clusters(clusters, chips, count)
    requests = [
        PlanRequest.of(
            {"model": words, "cluster": one, "seq_len": seq, "gbs": gbs, "top": 1, **precision}
        )
        for one in named
    ]
    known = None if prices is None else read_prices(prices)
    with search_progress("planning for each cluster", quiet=quiet) as progress:
        rows = compare_rows(
            requests,
            training=training,
            limits=limits,
            prices=known,
            pay=kind,
            sized=sized,
            progress=progress,
        )
    record = compared_record(rows, model=words, training=training, limits=limits, pay=kind)
    if picture is not None:
        write_picture(record, "front", picture, force=force)
        tell(f"written to {picture}")
    if json_output:
        print_json(record)
    else:
        print_items(Console(), _COLUMNS, rows, more="--json has them")
        print_page(["", *_footing(rows, kind)], indent=4)
    if all(row.broken for row in rows):
        raise typer.Exit(1)


def _clusters(
    clusters: str | None, chips: str | None, count: int | None
) -> tuple[list[str], set[str]]:
    """The clusters, and those of them whose number of chips is to be chosen."""
    if (clusters is None) == (chips is None):
        raise ConfigError(
            "give what to compare: --clusters h100:64,mi300x:64, or --chips all --count 64"
        )
    if clusters is not None:
        words = [word.strip() for word in clusters.split(",")]
    else:
        known = dict.fromkeys(row.chip for row in list_prices()) if chips == "all" else None
        words = [word.strip() for word in known or str(chips).split(",")]
    named = dict.fromkeys(words)
    free = {word for word in named if ":" not in word and not is_cluster_file(word)}
    for word in free:
        if find_server(word) is not None:
            raise ConfigError(f"--clusters {word}: say how many of this server, as in {word}:8")
    most = {word: f"{word}:{count or _COUNT}" if word in free else word for word in named}
    sized = set() if count is not None else {most[word] for word in free}
    return list(most.values()), sized


def _days(row: ComparedRow) -> str:
    return "-" if row.days is None else f"{row.days:.1f}"


def _likely(row: ComparedRow) -> str:
    if row.days_interval is None:
        return "-"
    low, high = row.days_interval
    return f"{format_digits(low)} to {format_digits(high)}"


def _usd(kind: PriceKind, row: ComparedRow) -> str:
    if row.days is None:
        return "-"
    usd = row.usd_at(kind)
    return _UNLISTED if usd is None else f"{usd:,.0f}"


def _listed(row: ComparedRow, value: float | None) -> str:
    """Thousands of a figure that stands on the chip's power."""
    if row.days is None:
        return "-"
    return _UNLISTED if value is None else f"{value / 1e3:,.0f}"


_COLUMNS = (
    Column(
        heading="cluster",
        justify="left",
        cell=lambda row: f"{row.cluster}{'*' if row.on_front else ''}",
    ),
    Column(heading="days", cell=_days),
    Column(heading="likely", cell=_likely, spare=1),
    *(Column(heading=f"USD {kind}", cell=partial(_usd, kind)) for kind in KINDS),
    Column(heading="MWh", cell=lambda row: _listed(row, row.kwh), spare=2),
    Column(heading="t CO2", cell=lambda row: _listed(row, row.kg_co2), spare=2),
    Column(heading="limits", justify="left", cell=lambda row: ", ".join(row.broken), usual=""),
    Column(
        heading="layout", justify="left", cell=lambda row: row.layout or "", spare=3, under=True
    ),
)


def _footing(rows: list[ComparedRow], pay: PriceKind) -> Iterator[str]:
    if any(row.on_front for row in rows):
        yield "* no other is both faster and cheaper"
    priced = [row for row in rows if row.usd is not None and not row.broken]
    if priced:
        fastest = min(priced, key=lambda row: row.days or 0.0)
        yield f"cheapest: {priced[0].cluster}; fastest: {fastest.cluster}"
    others = [row for row in rows if row.price_kind not in (None, pay)]
    if others:
        listed = ", ".join(f"{row.cluster} ({row.price_kind})" for row in others)
        yield f"no price {pay} is listed, so another kind counts: {listed}"
    dark = [row.cluster for row in rows if row.days is not None and row.kwh is None]
    if dark:
        yield (
            "no published power of the chip is known, so no energy and no carbon:"
            f" {', '.join(dark)}"
        )
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
