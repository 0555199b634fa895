"""What becomes of a training: `meshwright train status`, `logs`, `cancel` and `list`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from meshwright.cli.layout_case import JsonFlag
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import print_json
from meshwright.cli.train_view import print_state, state_line
from meshwright.runs.training.session import (
    cancel_training,
    follow_logs,
    list_trainings,
    state_of,
    training_in,
)

__all__ = [
    "train_cancel",
    "train_list",
    "train_logs",
    "train_status",
]


@command
def train_status(
    folder: Path = argument(REQUIRED, "Of the training.", metavar="FOLDER"),
    json_output: JsonFlag = False,
) -> None:
    """Say how a training is, on whatever platform: its step, loss and rate, its newest checkpoint,
    and each of its jobs.

    The platform is asked for the jobs, their logs for the steps; nothing is changed. The rate is
    that of the last report, beside it what the plan predicts. A platform that does not answer is
    named, and no state is made up.

    Prints a few lines. Exit code 2: there is no training.

    Examples:

      meshwright train status train-llama3-8b-h100-64

      meshwright train status run --json

      meshwright train status run --json | jq .done_steps
    """
    print_state(state_of(training_in(folder)), json_output=json_output)


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
    name = "stderr.log" if stderr else "stdout.log"
    try:
        for chunk in follow_logs(training_in(folder), number=job, name=name, follow=follow):
            sys.stdout.write(chunk)
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


@command
def train_cancel(
    folder: Path = argument(REQUIRED, "Of the training.", metavar="FOLDER"),
) -> None:
    """End every job of a training that has not ended, those first that wait behind others.

    The platform asks the program to end and kills it some time later; the embedded trainer writes a
    checkpoint in between. Nothing is removed: the training goes on from its newest checkpoint by
    `meshwright train FOLDER`.

    Prints the numbers of the jobs. Exit code 2: there is no training.

    Examples:

      meshwright train cancel run

      meshwright train cancel train-llama3-8b-h100-64

      meshwright train cancel run && meshwright train status run
    """
    ended = cancel_training(training_in(folder))
    print(
        f"told to end: job {', '.join(map(str, ended))}" if ended else "no job of it runs or waits"
    )


@command
def train_list(
    root: Path = argument(
        Path("."),
        "Where to look, three levels deep.",
        show_default="(this folder)",
        metavar="[FOLDER]",
    ),
    json_output: JsonFlag = False,
) -> None:
    """List the trainings in and below a folder, with how each is.

    A training is a folder with train.yaml, whatever platform it runs on; each platform is asked for
    the jobs of its own.

    Prints a line for each: its folder, its last job's state, its step, loss and rate.

    Examples:

      meshwright train list

      meshwright train list /shared/runs

      meshwright train list --json
    """
    states = list_trainings(root)
    if json_output:
        print_json([state.to_dict() for state in states])
        return
    for state in states:
        last = state.jobs[-1].status.state if state.jobs else "no job"
        print(f"{state.folder}  {state.launcher}  {last}  {state_line(state)}")
    if not states:
        print(f"no training in {root}")
