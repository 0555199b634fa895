"""`meshwright serving validate`: how wrong the predictions of published serving runs are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright_truth.serving_score import ServingFigures

__all__ = ["validate"]


def validate(
    truth: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRUTH.csv...", help="Tables of measured serving runs.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PAGE.md", help="Also write the page with all figures."
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Score these predictions instead of making them."),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for programs.")
    ] = False,
) -> None:
    """Predict published serving runs and compare the predictions with what was measured.

    Errors are |predicted / measured - 1| of TTFT, TPOT, end-to-end latency, new tokens per second
    and chip, and memory; each cell holds mean / median (bias). Rank correlation and best tp say
    whether better configurations are told from worse ones.

    Prints a line per table, for dense models and those with experts apart, and for each engine and
    chip; with -o it writes the page docs/serving_accuracy.md.

    Examples:

      meshwright serving validate inference_*.csv

      meshwright serving validate inference_*.csv -o docs/serving_accuracy.md

      meshwright serving validate served.csv --predictions serving_predictions.csv --json
    """
    from meshwright.runs.measured.files import require_scorers
    from meshwright.runs.measured.serving_predict import predict_serving
    from meshwright.runs.measured.serving_rows import read_serving_table
    from meshwright.values.errors import ConfigError

    require_scorers()
    from meshwright_truth.serving_score import (
        guesses_of_answers,
        read_guesses,
        score_serving,
        serving_accuracy_page,
    )

    tables = [read_serving_table(path) for path in truth]
    reasons: Mapping[str, Mapping[str, int]] = {}
    if predictions is not None:
        guesses = read_guesses(predictions)
    else:
        answers = predict_serving(tables)
        guesses, reasons = guesses_of_answers(answers), answers.reasons
    figures = score_serving(tables, guesses)
    if output is not None:
        try:
            output.write_text(serving_accuracy_page(figures, reasons), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    _print(figures, reasons, as_json=json_output)


def _print(
    figures: Mapping[str, ServingFigures],
    reasons: Mapping[str, Mapping[str, int]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        import json

        print(
            json.dumps(
                {
                    "tables": {name: found.to_dict() for name, found in figures.items()},
                    "unanswered": reasons,
                },
                indent=2,
            )
        )
        return
    from rich.console import Console

    from meshwright.report.columns import Column, print_columns
    from meshwright_truth.serving_score import HEADINGS, cells_of

    columns = [
        Column(heading="table", justify="left"),
        *(Column(heading=heading) for heading in HEADINGS),
    ]
    console = Console()
    print_columns(
        console,
        columns,
        [(name, *cells_of(found)) for name, found in figures.items()],
        more="--json has them",
    )
    for name, found_reasons in reasons.items():
        for reason, count in found_reasons.items():
            console.print(
                f"{name}: {counted(count, 'row')} not answered: {reason}",
                highlight=False,
                markup=False,
                soft_wrap=not console.is_terminal,
            )
