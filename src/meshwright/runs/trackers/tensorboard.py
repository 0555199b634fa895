"""TensorBoard: a folder of events for each run, written by tensorboardX."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from meshwright.logs import Report
from meshwright.runs.record import RunRecord
from meshwright.runs.tables import StudyTables
from meshwright.runs.trackers.tracker import curves, figures, need, run_name

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker:
    """Writes `FOLDER/<model>-<run id>/events...`: the curves of steps, the figures of the tables
    under `study/`, the row as text."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        """Take the folder that `tensorboard --logdir` is given; MissingExtraError where the library
        is absent."""
        need("tensorboardX", "tensorboard")
        self._folder = folder

    def add(self, record: RunRecord, tables: StudyTables, reports: Sequence[Report]) -> None:
        """Write a run, whole or not at all: its folder gets its name when all is in it."""
        from tensorboardX import SummaryWriter

        target = self._folder / run_name(record, tables.facts)
        if target.exists():
            return
        draft = self._folder / f".{target.name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        row = tables.row(record)
        with SummaryWriter(str(draft)) as writer:
            for step, values in curves(reports):
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            for name, value in figures(row).items():
                writer.add_scalar(f"study/{re.sub(r'[^a-zA-Z0-9_.-]+', '_', name)}", value, 0)
            writer.add_text(
                "study/run",
                "\n".join(f"- {name}: {value}" for name, value in row.items() if value is not None),
                0,
            )
        draft.rename(target)
