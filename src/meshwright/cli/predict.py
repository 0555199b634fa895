"""`meshwright predict`: step time, peak memory and fit of the runs that tables describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer

from meshwright.api import measured
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import print_json, tell, warn
from meshwright.runs.measured.files import Counts, counts

__all__ = ["predict"]


@command
def predict(
    rows: list[Path] = argument(
        REQUIRED, "Tables of training runs, one run per line.", metavar="ROWS.csv..."
    ),
    output: Path = option(
        REQUIRED, "Where the predictions go.", "--output", "-o", metavar="PREDICTIONS.csv"
    ),
    calibration: Path | None = option(None, "What `meshwright calibrate` wrote.", metavar="FILE"),
    profile: Path | None = option(None, "What `meshwright profile` wrote.", metavar="FILE"),
    json_output: bool = option(
        False, "Print the counts as one JSON object for programs.", "--json"
    ),
) -> None:
    """Predict step time, peak memory and fit for every run of a table.

    A row names model, chips, software, layout and batch in the columns of the published-runs
    schema; measured columns are never read and may be absent. Blank dims come from the named model,
    other blanks from the habits of the named software in `runs/measured/frameworks.csv`. A dense
    model
    known by its number of parameters alone (`params_b`, or `own-7b`) is given a shape of that size;
    such rows are counted as rough. The same cost model as in `meshwright plan` prices the row.

    Writes a line per row: source (the file's name without .csv), row_id, step_time_s, peak_mem_gib,
    oom; a row that cannot be answered has blank figures. Prints how many were answered, and the
    reasons of the others. Exit code 1 where none was. Files that hold no table of training runs are
    left out with a warning. With --calibration the rows of its chip and its stack are predicted
    with it, with --profile those of its chip, all others without.

    Examples:

      meshwright predict runs.csv -o predictions.csv

      meshwright predict tables/*.csv -o predictions.csv

      meshwright predict runs.csv -o predictions.csv --json
    """
    answers = measured.predict(
        rows, output=output, calibration=calibration, profile=profile, warn=warn, tell=tell
    )
    found = counts(answers)
    if json_output:
        _print_json(found, output)
    else:
        _print_counts(found)
    if not answers.predictions:
        raise typer.Exit(1)


def _print_json(found: Mapping[str, Counts], output: Path) -> None:
    print_json(
        {
            "output": str(output),
            "tables": {name: asdict(count) for name, count in found.items()},
        }
    )


def _print_counts(found: Mapping[str, Counts]) -> None:
    width = max(len(name) for name in found)
    for name, count in found.items():
        print(f"{name:<{width}}  {count.answered:>6} of {count.rows:>6} rows answered")
        for reason, number in count.assumed.items():
            print(f"{'':<{width}}  {number:>6} of them roughly: {reason}")
        for reason, number in count.unanswered.items():
            print(f"{'':<{width}}  {number:>6} not: {reason}")
