"""`meshwright train status`: how a training is."""

from __future__ import annotations

from pathlib import Path

from meshwright.cli.layout_case import JsonFlag
from meshwright.cli.options import REQUIRED, argument, command

__all__ = ["train_status"]


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
    from meshwright.cli.train_view import print_state
    from meshwright.runs.training.session import state_of, training_in

    print_state(state_of(training_in(folder)), json_output=json_output)
