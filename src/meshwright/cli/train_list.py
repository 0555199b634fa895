"""`meshwright train list`: the trainings below a folder."""

from __future__ import annotations

import json
from pathlib import Path

from meshwright.cli.layout_case import JsonFlag
from meshwright.cli.options import argument, command

__all__ = ["train_list"]


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
    from meshwright.cli.train_view import state_line
    from meshwright.runs.training.session import list_trainings

    states = list_trainings(root)
    if json_output:
        print(json.dumps([state.to_dict() for state in states], indent=2))
        return
    for state in states:
        last = state.jobs[-1].status.state if state.jobs else "no job"
        print(f"{state.folder}  {state.launcher}  {last}  {state_line(state)}")
    if not states:
        print(f"no training in {root}")
