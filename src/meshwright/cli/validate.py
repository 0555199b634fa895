"""`meshwright validate`: how wrong the predictions of published runs are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.flags import FORCE
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright_truth.page import Earlier
    from meshwright_truth.verdicts import Validation

__all__ = ["validate"]

_MARK = "Written by `meshwright validate`"


@command
def validate(
    truth: list[Path] = argument(
        REQUIRED, "Tables of measured training runs.", metavar="TRUTH.csv..."
    ),
    output: Path | None = option(
        None, "Also write the page with all figures.", "--output", "-o", metavar="PAGE.md"
    ),
    predictions: Path | None = option(
        None, "Score these predictions instead of making them.", metavar="CSV"
    ),
    calibration: Path | None = option(None, "What `meshwright calibrate` wrote.", metavar="FILE"),
    profile: Path | None = option(None, "What `meshwright profile` wrote.", metavar="FILE"),
    before: Path | None = option(
        None, "What --json printed earlier: the page's column `before`.", metavar="JSON"
    ),
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
    force: bool = FORCE,
) -> None:
    """Predict published runs and compare the predictions with what was measured.

    Errors are |predicted / measured - 1| of step time and peak memory. Inside sets of runs that
    differ in layout only, the rank correlation says whether better layouts are told from worse
    ones, and the regret how much throughput is lost by running the layout that was predicted to be
    the fastest. Fit is judged by balanced accuracy.

    Prints a line per table; with -o it writes the page docs/accuracy.md, which also has the runs as
    `plan` prices them, by model, chips, layout and software alone. Files that hold no table
    of measured training runs are left out with a warning. With --calibration or --profile the rows
    that they are of are predicted with them.

    Examples:

      meshwright validate truth/*.csv

      meshwright validate truth/*.csv -o docs/accuracy.md --before earlier.json

      meshwright validate runs.csv --predictions predictions.csv --json
    """
    from meshwright.api import measured
    from meshwright.cli.terminal import tell, warn
    from meshwright.platforms.files import check_ours, put_file
    from meshwright.values.errors import require_scorers

    require_scorers()
    from meshwright_truth.page import read_earlier

    check_ours(output, mark=_MARK, force=force)
    earlier = read_earlier(before) if before is not None else None
    found = measured.validate(
        truth,
        predictions=predictions,
        calibration=calibration,
        profile=profile,
        warn=warn,
        tell=tell,
    )
    if output is not None:
        page = _page(found, earlier, () if predictions else truth)
        put_file(output, page, mark=_MARK, force=force)
    if json_output:
        _print_json(found)
    else:
        _print_table(found)


def _page(found: Validation, earlier: Earlier | None, truth: Sequence[Path]) -> str:
    """The page; with the runs of `truth` as `plan` prices them, which takes a minute for all."""
    from meshwright_truth.page import accuracy_page, coverage_section
    from meshwright_truth.plan_path import plan_paths
    from meshwright_truth.studies import studies_of, studies_section
    from meshwright_truth.verdicts import read_measured

    sureness = coverage_section(found.coverage, found.verdicts)
    tables = read_measured(truth).kept if truth else ()
    return accuracy_page(
        found.figures,
        earlier=earlier,
        unanswered=found.unanswered,
        sureness=sureness,
        paths=plan_paths(tables),
        studies=studies_section(studies_of(tables)) if tables else "",
    )


def _print_json(found: Validation) -> None:
    import json

    tables = {name: figures.present() for name, figures in found.figures.items()}
    coverage = {quantity: held.to_dict() for quantity, held in found.coverage.items()}
    print(
        json.dumps(
            {"tables": tables, "unanswered": found.unanswered, "coverage": coverage}, indent=2
        )
    )


def _print_table(found: Validation) -> None:
    from rich.console import Console

    from meshwright.report.columns import Column, print_columns
    from meshwright_truth.page import SUMMARY, show

    columns = [
        Column(heading="table", justify="left"),
        *(Column(heading=words) for _, words in SUMMARY),
    ]
    rows = [
        (name, *(show(key, getattr(figures, key)) for key, _ in SUMMARY))
        for name, figures in found.figures.items()
    ]
    console = Console()
    print_columns(console, columns, rows, more="--json has them")
    for name, reasons in found.unanswered.items():
        for reason, count in reasons.items():
            console.print(
                f"{name}: {counted(count, 'row')} not answered: {reason}",
                highlight=False,
                markup=False,
                soft_wrap=not console.is_terminal,
            )
    for quantity, held in found.coverage.items():
        noun = quantity.replace("_", " ")
        words = (
            f"{noun}: 80 % intervals made without a table hold {100 * held.means['table']:.0f} % of"
            " its runs; docs/accuracy.md has each"
        )
        console.print(words, highlight=False, markup=False, soft_wrap=not console.is_terminal)
