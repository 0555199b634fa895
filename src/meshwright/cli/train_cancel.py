"""`meshwright train cancel`: the end of a training's jobs."""

from __future__ import annotations

from pathlib import Path

from meshwright.cli.options import REQUIRED, argument, command

__all__ = ["train_cancel"]


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
    from meshwright.runs.training.session import cancel_training, training_in

    ended = cancel_training(training_in(folder))
    print(
        f"told to end: job {', '.join(map(str, ended))}" if ended else "no job of it runs or waits"
    )
