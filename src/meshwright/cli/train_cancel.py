"""`meshwright train cancel`: the end of a training's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["train_cancel"]


def train_cancel(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Of the training.", show_default=False)
    ],
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
