"""What can be named beside models and chips: `meshwright stacks` and `prices`."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

from meshwright.api.catalogues import StackRow, describe_stack, list_prices, list_stacks
from meshwright.cli.options import argument, command
from meshwright.cli.terminal import JsonFlag, print_json, print_page
from meshwright.report.columns import Column, print_items

__all__ = ["prices", "stacks"]

_STACK_COLUMNS = (
    Column(heading="--stack", justify="left", cell=lambda row: row.name),
    Column(
        heading="--to", justify="left", spare=2, under=True, cell=lambda row: ", ".join(row.targets)
    ),
    Column(heading="recipes to", justify="left", cell=lambda row: "".join(row.recipes[1:])),
    Column(heading="what it is", justify="left", spare=1, under=True, cell=lambda row: row.about),
)


@command
def stacks(
    name: str | None = argument(None, "A training software; none lists all."),
    json_output: JsonFlag = False,
) -> None:
    """List the training software that `--stack` names, or show one with what it assumes.

    A stack is one training software as the cost model sees it: what it overlaps, fuses, shards and
    keeps. It holds only what differs from the software that it builds on. What `--to` writes files
    for is priced by the stack that runs them.

    Prints a table of all, with the targets of `--to` that run each and the last release whose
    recipes start it; or one stack's figures, each with its source, and its words of `--switches`.

    Examples:

      meshwright stacks

      meshwright stacks torchtitan

      meshwright stacks --json
    """
    if name is None:
        rows = list_stacks()
        if json_output:
            print_json({"stacks": [asdict(row) for row in rows]})
            return
        print_items(Console(), _STACK_COLUMNS, rows, more="--json has them")
        print_page(["", "`meshwright stacks NAME` shows its figures with their sources."], indent=4)
        return
    row = describe_stack(name)
    if json_output:
        print_json(asdict(row))
    else:
        print_page(_stack_page(row), indent=4)


def _stack_page(row: StackRow) -> list[str]:
    """One stack in lines: what it is, what it builds on, its own figures."""
    lines = [f"{row.name}: {row.about}"]
    lines += [f"builds on {row.builds_on}: what is not listed is as there"] if row.builds_on else []
    lines += [f"written for by --to {', '.join(row.targets)}"] if row.targets else []
    figures = [
        f"  {figure} = {value}: {row.sources[figure]}" for figure, value in row.figures.items()
    ]
    if row.recipes:
        first, last = row.recipes
        lines.append(f"starts by its recipe of model and chip; known of releases {first} to {last}")
    if row.switches:
        lines += ["", "words of --switches:"]
        lines += [f"  {word}: {source}" for word, source in row.switches.items()]
    return [*lines, "", *(figures or ["  no figure of its own"])]


_PRICE_COLUMNS = (
    Column(heading="chip", justify="left", cell=lambda row: row.chip),
    Column(heading="kind", justify="left", cell=lambda row: row.kind),
    Column(heading="USD/h", cell=lambda row: f"{row.usd_per_hour:.2f}"),
    Column(heading="read on", justify="left", cell=lambda row: row.date, spare=2),
    Column(heading="source", justify="left", spare=1, under=True, cell=lambda row: row.source),
)


@command
def prices(json_output: JsonFlag = False) -> None:
    """List the price of an hour of each chip, with its source.

    Costs, tokens per dollar and the cheapest plan stand on those on demand; `compare` shows spot
    and reserved ones beside them. A price is of one chip with its share of the server.
    `--usd-per-hour` puts your own in its place, and so does `usd_per_hour` of a cluster file.

    Prints a table; chips and kinds without a public price are left out.

    Examples:

      meshwright prices

      meshwright prices --json

      meshwright prices | grep h100
    """
    rows = list_prices()
    if json_output:
        print_json({"prices": [asdict(row) for row in rows]})
        return
    print_items(Console(), _PRICE_COLUMNS, rows, more="--json has them")
    print_page(["", "`--usd-per-hour` puts your own price in its place."], indent=4)
