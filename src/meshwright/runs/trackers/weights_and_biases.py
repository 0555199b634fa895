"""Weights & Biases: a run there for each run here, all of a study in one group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from meshwright.errors import ConfigError
from meshwright.logs import Report
from meshwright.runs.record import RunRecord
from meshwright.runs.tables import StudyTables
from meshwright.runs.trackers.tracker import curves, need, run_name

__all__ = ["WandbOptions", "WandbTracker", "read_key"]

_LONGEST_KEY = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbOptions:
    """Where runs go."""

    folder: Path
    """For wandb's own files; `wandb sync` reads them there after runs without a network."""
    project: str = "meshwright"
    group: str
    """The study's name, under which its runs stand together."""
    entity: str | None = None
    mode: Literal["online", "offline"] = "online"
    key: str | None = field(default=None, repr=False)
    """None: as wandb finds it itself (WANDB_API_KEY, ~/.netrc)."""


def read_key(path: Path) -> str:
    """Return the first line of a key file, as NeMo's launcher takes it; ConfigError without a word
    of its content."""
    try:
        with path.open(encoding="utf-8") as handle:
            key = handle.readline(_LONGEST_KEY + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: no key can be read there ({getattr(error, 'strerror', None) or 'not a text'})"
        ) from None
    if not key or len(key) > _LONGEST_KEY or any(letter.isspace() for letter in key):
        raise ConfigError(f"{path}: expected the key of Weights & Biases alone on the first line")
    return key


class WandbTracker:
    """Sends runs to Weights & Biases, or leaves them in a folder for `wandb sync`.

    The key goes to the library alone: not into the environment, which jobs would inherit, nor into
    ~/.netrc.
    """

    name = "wandb"

    def __init__(self, options: WandbOptions) -> None:
        """MissingExtraError where the library is absent."""
        need("wandb", "wandb")
        self._options = options

    def add(self, record: RunRecord, tables: StudyTables, reports: Sequence[Report]) -> None:
        """Send a run: its row as configuration and summary, its steps as history."""
        import wandb

        options = self._options
        run_id = f"{options.group[:8]}-{record.run_id}"
        shown = options.folder / "shown" / record.run_id
        if shown.exists():
            return
        shown.parent.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            api_key=options.key, console="off", silent=True, x_disable_stats=True
        )
        row = tables.row(record)
        run = wandb.init(
            project=options.project,
            entity=options.entity,
            group=options.group,
            id=run_id,
            name=run_name(record, tables.facts),
            dir=str(options.folder),
            mode=options.mode,
            resume="allow",
            reinit="create_new",
            config={
                "layout": record.layout.words(),
                "chosen_because": record.chosen_because,
                **_of_prediction(row),
            },
            settings=settings,
        )
        for step, values in curves(reports):
            run.log(values, step=step)
        run.summary.update({name: value for name, value in row.items() if value is not None})
        run.finish(exit_code=0 if record.failure is None else 1)
        shown.touch()


def _of_prediction(row: dict[str, str | int | float | None]) -> dict[str, str | int | float]:
    """What was known before the run."""
    names = (
        "Model Name",
        "TP",
        "PP",
        "CP",
        "EP",
        "VP",
        "MBS",
        "GBS",
        "Seq Length",
        "Nodes",
        "GPUs per Node",
    )
    return {
        name: value
        for name, value in row.items()
        if value is not None and (name in names or name.startswith("predicted_"))
    }
