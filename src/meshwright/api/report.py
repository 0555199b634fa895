"""Reports: reads RESULTs, has their parts made, and writes the page or one chart of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from meshwright import __version__, api
from meshwright.platforms.files import put_file, read_input
from meshwright.platforms.hidden import hide
from meshwright.report.charts.draw import alone, chart_markdown
from meshwright.report.charts.forms import Chart
from meshwright.report.charts.svg import chart_css
from meshwright.report.page import page_html
from meshwright.report.parts.answers import part_of
from meshwright.report.parts.part import Part, Record
from meshwright.runs.counts import refused_record
from meshwright.runs.training.folder import read_folder
from meshwright.runs.training.progress import training_record
from meshwright.runs.tune import study_record, work_of_problem
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.problem import Problem
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, MissingExtraError, UnknownNameError
from meshwright.values.hardware.parse import LOCAL

__all__ = [
    "FORMATS",
    "PAGE_MARK",
    "Format",
    "chart_bytes",
    "find_chart",
    "page_bytes",
    "picture_form",
    "read_result",
    "report_parts",
    "write_picture",
    "write_report",
]

Format = Literal["html", "png", "svg", "md"]
FORMATS: tuple[Format, ...] = get_args(Format)
STANDARD_INPUT = "-"
PAGE_MARK = '<meta name="generator" content="Meshwright'
"""Near the start of every page."""


def write_report(
    results: Iterable[str | Path | Mapping[str, Any]],
    *,
    output: str | Path,
    title: str | None = None,
    force: bool = False,
) -> Path:
    """Write a page about some results: what commands print with --json (files, or the objects), and
    directories of studies.

    `write_report(["plan.json", meshwright.plan(...).to_dict()], output="report.html")`. Returns the
    page's path. ConfigError where a result cannot be read, or where another's file is there and
    `force` is not given; MissingExtraError without jinja2.
    """
    path = Path(output)
    content = page_bytes(report_parts(results), title=title)
    put_file(path, content, mark=PAGE_MARK, force=force)
    return path


def picture_form(path: Path) -> Format:
    """Return the form that a picture's name ends in; ConfigError for no known one."""
    form = next((form for form in FORMATS if path.suffix == f".{form}"), None)
    if form is None:
        raise ConfigError(f"{path}: expected a name that ends in .png, .svg, .html or .md")
    return form


def write_picture(
    record: Mapping[str, Any], chart: str, path: Path, *, force: bool = False
) -> None:
    """Write one chart of a result, or its whole page where the name ends in .html.

    ConfigError where another's file is there and `force` is not given.
    """
    form = picture_form(path)
    parts = report_parts([record])
    page = form == "html"
    content = page_bytes(parts) if page else chart_bytes(find_chart(parts, chart), form)
    put_file(path, content, mark=PAGE_MARK if page else None, force=force)


def report_parts(results: Iterable[str | Path | Mapping[str, Any]]) -> list[Part]:
    """Return a part for each result."""
    read = [(read_result(result), _name(result)) for result in results]
    if not read:
        raise ConfigError(
            "report needs a RESULT: what a command printed with --json, or the directory of a study"
        )
    return [part_of(record, name=name, resolve=_resolve) for record, name in read]


def _resolve(request: Record) -> Problem | MixedProblem:
    asked = PlanRequest.of(request)
    return api.mixed_problem_of(asked) or api.problem_of(asked)


def _name(result: str | Path | Mapping[str, Any]) -> str:
    return (
        "values"
        if isinstance(result, Mapping) or str(result) == STANDARD_INPUT
        else Path(result).name
    )


def read_result(result: str | Path | Mapping[str, Any]) -> Record:
    """Return the object of a result; ConfigError where there is none."""
    if isinstance(result, Mapping):
        return result
    if str(result) != STANDARD_INPUT and Path(result).is_dir():
        training = read_folder(Path(result))
        return (
            _counted(study_record(Path(result))) if training is None else training_record(training)
        )
    try:
        text = (
            sys.stdin.read()
            if str(result) == STANDARD_INPUT
            else read_input(Path(result)).decode("utf-8")
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{result}: cannot be read"
            f" ({getattr(error, 'strerror', None) or 'not a text in UTF-8'})"
        ) from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{result}: not what a command prints with --json ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{result}: expected one JSON object, as commands print with --json, got"
            f" {type(content).__name__}"
        )
    return _with_steps(content)


def _with_steps(content: dict[str, Any]) -> Record:
    """What `train --json` printed with the steps of its folder, where that is to be seen."""
    if not {"training", "done_steps", "jobs"} <= set(content) or "series" in content:
        return content
    training = read_folder(Path(str(content["training"])))
    return content if training is None else training_record(training)


def _counted(study: Record) -> Record:
    """A study's object with the runs that do not count as measured among those that failed."""
    if not any(run.get("measured") for run in study["runs"]):
        return study
    least_s = _least_step_s(study["request"])
    runs = [_counted_run(run, least_s) for run in study["runs"]]
    done = [run for run in runs if run.get("measured")]
    best = min(done, key=lambda run: float(run["measured"]["step_s"]), default=None)
    return {**study, "runs": runs, "best": best}


def _least_step_s(request: Record) -> float:
    """Seconds of a step at an MFU of 100 %; 0 where the request does not tell, or the peak is that
    of a probe of processors."""
    if str(request.get("cluster", "")).partition(":")[0] == LOCAL:
        return 0.0
    try:
        problem = _resolve(request)
    except ConfigError:
        return 0.0
    return work_of_problem(problem).least_step_s if isinstance(problem, Problem) else 0.0


def _counted_run(run: Record, least_s: float) -> Record:
    measured = run.get("measured")
    why = None if measured is None else refused_record(measured, least_s)
    if why is None:
        return run
    failure = {"failure_class": "refused", "message": why, "evidence": None, "step": None}
    kept = {key: value for key, value in run.items() if key != "measured"}
    return {**kept, "state": "failed", "failure": failure}


def page_bytes(parts: list[Part], *, title: str | None = None) -> bytes:
    """Return the page of some parts."""
    made = f"Meshwright {__version__}, {datetime.now().astimezone():%d %B %Y %H:%M %Z}"
    return hide(page_html(parts, title=title or _title(parts), made=made)).encode("utf-8")


def _title(parts: list[Part]) -> str:
    first, others = parts[0].title, len(parts) - 1
    return f"{first} and {others} more" if others else first


def find_chart(parts: list[Part], key: str) -> Chart:
    """Return a chart by its key, of several parts the first that has it, or that of `2:time`."""
    number, colon, rest = key.partition(":")
    chosen, name = (
        (parts, key)
        if not colon
        else (parts[int(number) - 1 : int(number)] if number.isdigit() else [], rest)
    )
    found = {chart.key: chart for part in reversed(chosen) for chart in part.charts}
    if name not in found:
        every = [
            chart.key if len(parts) == 1 else f"{n}:{chart.key}"
            for n, part in enumerate(parts, 1)
            for chart in part.charts
        ]
        raise UnknownNameError("chart of this report", key, every)
    return found[name]


def chart_bytes(chart: Chart, form: Format) -> bytes:
    """Return one chart as a file: an image, or its numbers as a table in Markdown."""
    if form == "md":
        return chart_markdown(chart).encode("utf-8")
    drawn = alone(chart)
    return drawn.encode("utf-8") if form == "svg" else _png(drawn)


def _png(drawn: str) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise MissingExtraError("resvg_py", "report") from None
    fonts: dict[str, Any] = {"font_family": "DejaVu Sans", "sans_serif_family": "DejaVu Sans"}
    with_words, without = (
        bytes(
            resvg_py.svg_to_bytes(
                svg_string=_PROBE.format(words=words), style_sheet=chart_css("light"), **fonts
            )
        )
        for words in ("Wg", "")
    )
    if with_words == without:
        raise ConfigError(
            "--format png: no font was found to write with; apt-get install fonts-dejavu-core, or"
            " --format svg"
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn, zoom=2, **fonts))


_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><text x="2" y="15"'
    ' class="ink">{words}</text></svg>'
)
"""Words that nothing draws where there are no fonts: a chart would come out without any, in
silence."""
