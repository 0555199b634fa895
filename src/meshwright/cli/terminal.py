"""What commands share of the terminal: lines that fit it, and the flag that keeps progress away."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.report.columns import fold

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "INTERRUPTED",
    "JsonFlag",
    "QuietFlag",
    "keep_quiet",
    "narrow_console",
    "print_json",
    "print_page",
    "search_progress",
    "tell",
    "tell_notes",
    "warn",
]

INTERRUPTED = 130
"""Exit code of what Ctrl-C has ended."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress; warnings and errors stay.")
]


def print_page(lines: Sequence[str], *, indent: int) -> None:
    """Print lines; a terminal gets them folded, further lines set in, a pipe or a file whole."""
    from rich.console import Console

    console = Console()
    for line in "\n".join(lines).split("\n") if lines else ():
        print(fold(line, width=console.width, indent=indent) if console.is_terminal else line)


def narrow_console() -> Console:
    """Return a console that prints words as they are."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def tell(line: str) -> None:
    """Say how it goes, beside the answer."""
    typer.echo(line, err=True)


def keep_quiet(line: str) -> None:
    """Say nothing of how it goes."""


def warn(line: str) -> None:
    """Say a warning beside the answer."""
    typer.echo(f"warning: {line}", err=True)


def tell_notes(lines: Iterable[str]) -> None:
    """Say what a reader of the answer should know."""
    for line in lines:
        typer.echo(f"note: {line}", err=True)


def print_json(record: object) -> None:
    """Print the answer as one object for programs."""
    print(json.dumps(record, indent=2))


@contextmanager
def search_progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on a terminal's stderr while a search runs, which says how much is done of how
    much."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, bound: bar.update(task, completed=done, total=max(done, bound))
