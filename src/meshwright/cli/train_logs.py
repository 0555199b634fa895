"""`meshwright train logs`: what the jobs of a training print."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from meshwright.cli.options import REQUIRED, argument, command, option

__all__ = ["train_logs"]

_INTERRUPTED = 130


@command
def train_logs(
    folder: Path = argument(REQUIRED, "Of the training.", metavar="FOLDER"),
    follow: bool = option(
        False, "Go on printing until the job and those behind it have ended.", "--follow", "-f"
    ),
    job: int | None = option(None, "Number of a job [default: the last]."),
    stderr: bool = option(False, "What it prints on stderr; some platforms keep none apart."),
) -> None:
    """Print the log of a training's last job, or of any.

    On this machine and on Slurm the job itself writes the log; from Kubernetes and Base Command it
    is fetched whenever the job is looked at, every ten seconds with --follow.

    Prints the log as it is. Ctrl-C ends the printing and nothing else.

    Examples:

      meshwright train logs run

      meshwright train logs run --follow

      meshwright train logs run --job 1 --stderr
    """
    from meshwright.runs.training.session import follow_logs, training_in

    name = "stderr.log" if stderr else "stdout.log"
    try:
        for chunk in follow_logs(training_in(folder), number=job, name=name, follow=follow):
            sys.stdout.write(chunk)
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
