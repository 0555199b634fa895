"""`meshwright report`: what other commands found, as a page."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.api.report import FORMATS, chart_bytes, find_chart, page_bytes, report_parts
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import print_json
from meshwright.report.parts.answers import report_record
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["report"]


@command
def report(
    results: list[str] = argument(
        REQUIRED,
        "What a command printed with --json, `-` for standard input, or a study's directory.",
        metavar="RESULT...",
    ),
    output: Path | None = option(
        None, "File to write [default: report.html].", "--output", "-o", metavar="FILE"
    ),
    title: str | None = option(None, "Title of the page [default: the first RESULT's]."),
    form: str = option("html", "html, or for one chart png, svg or md.", "--format"),
    chart: str | None = option(
        None, "The chart of --format png, svg or md; of the second RESULT 2:KEY.", metavar="KEY"
    ),
    json_output: bool = option(
        False, "Print the report's values as one JSON object for programs.", "--json"
    ),
) -> None:
    """Write a page about what other commands found: the answer, tables, charts, and what every
    figure stands on.

    The page is one file that needs no network and no other file. Figures are those of RESULT; what
    a chart needs beyond them is computed from the request inside it by the same cost model, and the
    page says so. Nothing is measured.

    Prints the name of the file. Tables sort and filter; each chart has its numbers as CSV, and
    itself as SVG and PNG. With --format and --chart, one chart alone; a KEY that does not exist is
    answered with those that do.

    Examples:

      meshwright report plans.json -o report.html

      meshwright report plans.json earlier.json --title "Which cluster?" -o report.html

      meshwright report plans.json --format svg --chart time -o time.svg
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if form == "html" and chart is not None:
        raise ConfigError(
            f"--chart {chart} has no effect on a page, which has every chart; give --format png,"
            " svg or md as well"
        )
    parts = report_parts(results)
    if form != "html" and chart is None:
        keys = [each.key for part in parts for each in part.charts]
        raise ConfigError(
            f"--format {form} writes one chart: give --chart, one of"
            f" {', '.join(keys) or '(this report has none)'}"
        )
    if json_output:
        _print_json(report_record(parts))
        if output is None:
            return
    content = (
        page_bytes(parts, title=title)
        if chart is None
        else chart_bytes(find_chart(parts, chart), form)
    )
    path = output or Path(
        "report.html" if chart is None else f"{chart.partition(':')[2] or chart}.{form}"
    )
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    typer.echo(f"written to {path} ({len(content) / 1e6:.2f} MB)", err=json_output)


def _print_json(record: object) -> None:
    print_json(record)
