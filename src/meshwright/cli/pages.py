"""Answers as pages: `meshwright report` and `ui`."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

import typer

from meshwright import api
from meshwright.api.report import (
    FORMATS,
    PAGE_MARK,
    Format,
    chart_bytes,
    find_chart,
    page_bytes,
    report_parts,
)
from meshwright.cli.flags import FORCE
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import print_json, tell
from meshwright.platforms.files import put_file
from meshwright.report.parts.answers import report_record
from meshwright.report.parts.part import Part
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["report", "ui"]


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
    force: bool = FORCE,
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
        print_json(report_record(parts))
        if output is None:
            return
    _write(parts, chart, form, output, title=title, beside_json=json_output, force=force)


def _write(
    parts: list[Part],
    chart: str | None,
    form: Format,
    output: Path | None,
    *,
    title: str | None,
    beside_json: bool,
    force: bool,
) -> None:
    """Write the page, or one chart of it, and say where."""
    if chart is None:
        content, name = page_bytes(parts, title=title), "report.html"
    else:
        content = chart_bytes(find_chart(parts, chart), form)
        name = f"{chart.partition(':')[2] or chart}.{form}"
    path = output or Path(name)
    put_file(path, content, mark=PAGE_MARK if chart is None else None, force=force)
    typer.echo(f"written to {path} ({len(content) / 1e6:.2f} MB)", err=beside_json)


@command
def ui(
    state: str = argument(
        "", "A shared address of the page, or its part behind `?`.", metavar="[ADDRESS]"
    ),
    port: int = option(0, "Port of 127.0.0.1; 0 takes one that is free."),
    no_browser: bool = option(False, "Print the address, and open no browser."),
    calibration: Path | None = option(
        None, "What `meshwright calibrate` wrote; all plans then use it.", metavar="FILE"
    ),
    profile: Path | None = option(
        None, "What `meshwright profile` wrote on this chip; likewise.", metavar="FILE"
    ),
    static: Path | None = option(
        None, "Write the page as files for any web host, and serve nothing.", metavar="DIR"
    ),
    pyodide: Path | None = option(
        None, "With --static: a folder with Pyodide, in place of fetching it.", metavar="DIR"
    ),
    json_output: bool = option(False, "Print the address as one JSON object.", "--json"),
) -> None:
    """Open a page where a plan is changed by hand, and every change is priced at once.

    Sliders move model, cluster, batch, sequence, parallel degrees, recomputation and precision;
    step time, memory of each stage, MFU, cost and what binds them follow, by the same formulas and
    simulation as `meshwright explain`. A layout that breaks a rule of the training software shows
    the rule and the nearest values that keep it. Plans are pinned, compared, exported, and shared
    by their address.

    Prints the address. It is served on 127.0.0.1 alone, asks no other machine, and writes nothing.
    Ctrl-C ends it, with exit code 0. Needs a web framework: pip install 'meshwright[ui]'.

    `--static DIR` writes the page for any web host: Python and the pricing run in the reader's
    browser, and every plan is a link. Pyodide is fetched by npm and pip, 8 MB, unless --pyodide
    names a folder that holds it.

    Examples:

      meshwright ui

      meshwright ui --port 8080 --no-browser

      meshwright ui 'model=mixtral-8x7b&cluster=h100:64&gbs=256&layout=tp=2,ep=8,mbs=1' --calibration calibration.yaml

      meshwright ui --static public/
    """  # noqa: E501
    if static is not None:
        _write_static(static, pyodide, calibration=calibration, profile=profile, state=state)
        return
    if pyodide is not None:
        raise ConfigError("--pyodide: of no effect without --static DIR; leave it out")

    def ready(address: str) -> None:
        _say(address, json_output=json_output)
        if not no_browser:
            _open(address)

    with suppress(KeyboardInterrupt):  # the server's loop may take it and return
        api.ui(state, port=port, calibration=calibration, profile=profile, ready=ready)
    tell("stopped")


def _write_static(
    folder: Path,
    pyodide: Path | None,
    *,
    calibration: Path | None,
    profile: Path | None,
    state: str,
) -> None:
    from meshwright.api.whatif import static_page

    if state:
        raise ConfigError(f"{state!r}: of no effect with --static; put it behind the page's own ?")
    size = static_page(folder, pyodide=pyodide, calibration=calibration, profile=profile)
    typer.echo(f"written to {folder} ({size / 1e6:.1f} MB)")
    tell(f"to look at it: python -m http.server --directory {folder}")


def _say(address: str, *, json_output: bool) -> None:
    if json_output:
        print(json.dumps({"address": address}), flush=True)
        return
    print(address, flush=True)
    port = address.split(":")[2].partition("/")[0]
    tell(
        f"from another machine: ssh -L {port}:127.0.0.1:{port} this-machine, then the same address;"
        " Ctrl-C ends it"
    )


def _open(address: str) -> None:
    """Open a browser where there is a screen; elsewhere a text browser would take the terminal."""
    if (
        sys.platform in ("darwin", "win32")
        or os.environ.get("DISPLAY")
        or os.environ.get("WAYLAND_DISPLAY")
    ):
        webbrowser.open(address)
