"""Arguments that the steps share, and how a step's end is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.data.results import StepResult

__all__ = [
    "ConsumeFlag",
    "InputsArgument",
    "JsonFlag",
    "OutputFileFlag",
    "OutputFlag",
    "WorkersFlag",
    "show",
    "write_json",
]

InputsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders, quoted patterns, or @FILE with a path per line.",
        show_default=False,
    ),
]
OutputFlag = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Where the results go.", show_default=False
    ),
]
WorkersFlag = Annotated[
    int, typer.Option("--workers", "-j", metavar="N", help="Processes of this rank.")
]
ConsumeFlag = Annotated[
    bool,
    typer.Option(
        "--consume", help="Remove each input once what replaces it was read back and is the same."
    ),
]
OutputFileFlag = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the JSON object here too."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]


def show(result: StepResult, *, json_output: bool) -> None:
    """Print a step's end, and leave with its exit code."""
    if json_output:
        import json

        print(json.dumps(result.to_dict(), indent=2))
    else:
        for line in result.lines():
            print(line)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def write_json(path: Path, record: object) -> None:
    """Write an answer to a file as well, whole or not at all."""
    import json

    from meshwright.data.atomic import write_whole
    from meshwright.errors import ConfigError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"--output {path}: {error.strerror}") from None
