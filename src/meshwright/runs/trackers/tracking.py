"""Which trackers a study is shown in, and what shows it there as its runs end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from meshwright.models.spec import ModelSpec
from meshwright.runs.loop import View
from meshwright.runs.outcome import read_run_logs
from meshwright.runs.record import StudyFacts
from meshwright.runs.store import RUN_LOGS, Store
from meshwright.runs.tables import StudyTables
from meshwright.runs.trackers.tensorboard import TensorBoardTracker
from meshwright.runs.trackers.tracker import Tracker, need, track
from meshwright.runs.trackers.weights_and_biases import WandbOptions, WandbTracker

__all__ = ["Tracking", "tracked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracking:
    """What is asked for; MissingExtraError where its library is absent."""

    tensorboard: bool = False
    wandb_project: str | None = None
    wandb_mode: Literal["online", "offline"] = "online"
    wandb_key: str | None = field(default=None, repr=False)
    """None: as wandb finds it itself."""

    def __post_init__(self) -> None:
        """Look for the libraries before anything is started."""
        if self.tensorboard:
            need("tensorboardX", "tensorboard")
        if self.wandb_project is not None:
            need("wandb", "wandb")

    def trackers(self, store: Store) -> tuple[Tracker, ...]:
        """Make the trackers of a study; their files are in its folder, under `tracking`."""
        folder, found = store.folder / "tracking", list[Tracker]()
        if self.tensorboard:
            found.append(TensorBoardTracker(folder / "tensorboard"))
        if self.wandb_project is not None:
            options = WandbOptions(
                folder=folder / "wandb",
                project=self.wandb_project,
                group=store.study.study_id,
                mode=self.wandb_mode,
                key=self.wandb_key,
            )
            found.append(WandbTracker(options))
        return tuple(found)


def tracked(
    show: Callable[[View], None],
    tracking: Tracking,
    *,
    store: Store,
    facts: StudyFacts,
    model: ModelSpec,
    warn: Callable[[str], None],
) -> Callable[[View], None]:
    """Return what shows a moment of a study, and gives every run that has ended since to the
    trackers; `warn` gets what they refuse."""
    trackers = tracking.trackers(store)
    done: set[str] = set()

    def shown(view: View) -> None:
        show(view)
        tables = StudyTables(facts=facts, model=model, records=view.records)
        for record in view.records if trackers else ():
            if record.outcome is not None and record.run_id not in done:
                done.add(record.run_id)
                reading = read_run_logs(
                    [store.run_folder(record.run_id) / name for name in RUN_LOGS]
                ).reading
                for line in track(trackers, record, tables, reading.reports if reading else ()):
                    warn(line)

    return shown
