"""What commands share of the terminal: lines that fit it, and the flag that keeps progress away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

__all__ = ["QuietFlag", "keep_quiet", "print_page", "tell", "warn"]

QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress; warnings and errors stay.")
]


def print_page(lines: Sequence[str], *, indent: int) -> None:
    """Print lines, on a terminal folded at its width with further lines set in; a pipe or a file
    gets them whole."""
    from rich.console import Console

    from meshwright.report.columns import fold

    console = Console()
    for line in "\n".join(lines).split("\n") if lines else ():
        print(fold(line, width=console.width, indent=indent) if console.is_terminal else line)


def tell(line: str) -> None:
    """Say how it goes, beside the answer."""
    typer.echo(line, err=True)


def keep_quiet(line: str) -> None:
    """Say nothing of how it goes."""


def warn(line: str) -> None:
    """Say a warning beside the answer."""
    typer.echo(f"warning: {line}", err=True)
