"""Which trackers a study is shown in, and what shows it there as its runs end."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from meshwright.runs.loop import View
from meshwright.runs.outcome import read_run_logs
from meshwright.runs.record import RunRecord, StudyFacts
from meshwright.runs.results import StudyTables
from meshwright.runs.store import RUN_LOGS, Store
from meshwright.software.log import Report
from meshwright.values.errors import ConfigError, MissingExtraError
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "TensorBoardTracker",
    "Tracking",
    "WandbOptions",
    "WandbTracker",
    "asked_of",
    "curves",
    "figures",
    "need",
    "read_key",
    "run_name",
    "track",
    "tracked",
]


class Tracker(Protocol):
    """Shows runs that ended."""

    name: str

    def add(self, record: RunRecord, tables: StudyTables, reports: Sequence[Report]) -> None:
        """Show a run with its steps; one that is there already is not shown twice."""


def track(
    trackers: Sequence[Tracker], record: RunRecord, tables: StudyTables, reports: Sequence[Report]
) -> tuple[str, ...]:
    """Give a run to every tracker; return a line for each that failed, which stops no study."""
    lines = []
    for tracker in trackers:
        try:
            tracker.add(record, tables, reports)
        except Exception as error:  # of a network, a server, a library of others
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            lines.append(f"{tracker.name}: {record.run_id} is not shown ({why})")
    return tuple(lines)


def need(module: str, extra: str) -> None:
    """Raise MissingExtraError where a library is absent, without loading it."""
    try:
        found = find_spec(module)
    except ValueError:  # it is set to None in sys.modules
        found = None
    if found is None:
        raise MissingExtraError(module, extra)


def run_name(record: RunRecord, facts: StudyFacts) -> str:
    """Name a run and its folder by model and layout: `llama3-8b-tp2-pp2-dp4-mbs1-none-1f3a9c`."""
    return re.sub(r"[^\w.-]+", "-", f"{facts.model}-{record.run_id}")


def curves(reports: Sequence[Report]) -> list[tuple[int, dict[str, float]]]:
    """Return what reports say by step, in rising order; of a step done twice the later."""
    by_step: dict[int, dict[str, float]] = {}
    for number, report in enumerate(reports, start=1):
        told = {name: getattr(report, name) for name in _CURVES}
        by_step[report.step or number] = _told(told)
    return sorted(by_step.items())


_CURVES = (
    *("step_s", "loss", "grad_norm"),
    *("tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu"),
)


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def figures(row: Mapping[str, str | int | float | None]) -> dict[str, float]:
    """Return the finite numbers of a row."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class TensorBoardTracker:
    """Writes `FOLDER/<model>-<run id>/events...`: the curves of steps, the figures of the tables
    under `study/`, the row as text."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        """Take the folder of `tensorboard --logdir`; MissingExtraError without the library."""
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
            lines = (f"- {name}: {value}" for name, value in _told(row).items())
            writer.add_text("study/run", "\n".join(lines), 0)
        draft.rename(target)


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
    """Return the first line of a key file, as NeMo's launcher does; errors never show it."""
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
                **asked_of(row),
            },
            settings=settings,
        )
        for step, values in curves(reports):
            run.log(values, step=step)
        run.summary.update(_told(row))
        run.finish(exit_code=0 if record.failure is None else 1)
        shown.touch()


_ASKED = (
    *("Model Name", "TP", "PP", "CP", "EP", "VP", "MBS", "GBS"),
    *("Seq Length", "Nodes", "GPUs per Node"),
)


def asked_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a row was known before the run."""
    return {name: value for name, value in _told(row).items() if _before_run(name)}


def _before_run(name: str) -> bool:
    """Whether a column was known before the run."""
    return name in _ASKED or name.startswith("predicted_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracking:
    """What is asked for; MissingExtraError where its library is absent."""

    tensorboard: bool = False
    wandb_project: str | None = None
    wandb_mode: Literal["online", "offline"] = "online"
    wandb_key: str | None = field(default=None, repr=False)
    """None: as wandb finds it itself."""
    mlflow_experiment: str | None = None
    """On the server that MLFLOW_TRACKING_URI names."""

    def __post_init__(self) -> None:
        """Look for the libraries before anything is started."""
        if self.tensorboard:
            need("tensorboardX", "tensorboard")
        if self.wandb_project is not None:
            need("wandb", "wandb")
        if self.mlflow_experiment is not None:
            from meshwright.runs.mlflow import read_server

            read_server()

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
        if self.mlflow_experiment is not None:
            from meshwright.runs.mlflow import MlflowOptions, MlflowTracker, read_server

            place = MlflowOptions(
                server=read_server(),
                experiment=self.mlflow_experiment,
                folder=folder / "mlflow",
                study=store.study.study_id,
            )
            found.append(MlflowTracker(place))
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
                folder = store.run_folder(record.run_id)
                reading = read_run_logs([folder / name for name in RUN_LOGS]).reading
                for line in track(trackers, record, tables, reading.reports if reading else ()):
                    warn(line)

    return shown
