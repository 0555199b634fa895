"""A fine-tuning grid that runs: each configuration is a run of a study, the best loss first."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.compat.nemo2.grid import GridResult, generate_grid, grid_results, named_combinations
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import Job, JobOptions, parse_mount
from meshwright.platforms.registry import executor
from meshwright.runs.belief import Prior
from meshwright.runs.choose import Options
from meshwright.runs.lock import locked
from meshwright.runs.loop import StudyLimits, Tuner, View, judge_runs
from meshwright.runs.outcome import Measured, RunWork
from meshwright.runs.record import DIGITS, Course, event_of
from meshwright.runs.store import Store, study_folder
from meshwright.runs.training.embedded import held_out, trainer_words
from meshwright.runs.trial import OWN_TRAINER
from meshwright.runs.tune import interrupted_study, with_room
from meshwright.search.problem import dims_of
from meshwright.search.rules.check import complete_layout
from meshwright.search.rules.rule import RuleCase
from meshwright.software.contract import Exported, ExportedFile, Imported, import_text
from meshwright.software.defaults import complete_settings
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.trainer.checks import require_trainable
from meshwright.trainer.job import TrainJob
from meshwright.values.errors import ConfigError
from meshwright.values.stack import find_stack
from meshwright.values.text import write_yaml

__all__ = [
    "GridMember",
    "GridRecord",
    "exported_config",
    "grid_options",
    "grid_record_of",
    "job_of_config",
    "run_grid",
    "work_of_config",
]

_FROM_ELSEWHERE = ("restore_from_path", "restore_from", "peft", "resume.restore_config")
"""What a configuration begins from, or trains beside frozen weights."""
_NO_CHECKPOINTS: Mapping[str, Any] = {"save_dir": None, "load_dir": None, "save_interval": None}


def exported_config(config: Mapping[str, Any], *, name: str, program: str | None) -> Exported:
    """Return what runs it: `program` of NeMo, or the embedded trainer; ConfigError if neither."""
    if program is None:
        return _embedded(config)
    file = ExportedFile(name=f"{name}.yaml", text=write_yaml(dict(config)))
    # NeMo 1.x's scripts are Hydra's; of a recipe the file itself is the word.
    words = (file.name,) if "_target_" in config else ("--config-dir=.", f"--config-name={name}")
    return Exported(target="nemo", files=(file,), command=(program, *words))


def _embedded(config: Mapping[str, Any]) -> Exported:
    _refuse_elsewhere(config)
    found = _imported(config)
    stack, ranks = find_stack(found.stack), _ranks(config)
    case = RuleCase(model=found.model, work=found.work, num_chips=ranks, stack=stack)
    layout = complete_layout(found.layout, case)
    data = tuple(replace(part, path=str(Path(part.path).resolve())) for part in found.settings.data)
    settings = complete_settings(
        replace(found.settings, data=data, **_NO_CHECKPOINTS), model=found.model, work=found.work
    )
    if held_out(settings) is None:
        raise ConfigError(
            "base_config: without data whose split holds out a part (data_prefix, splits_string,"
            " limit_val_batches) there is no validation loss to compare; program= runs NeMo's own"
            " script"
        )
    if found.work.precision not in ("bf16", "fp32"):
        raise ConfigError(
            f"base_config: precision={found.work.precision}: the embedded trainer computes in bf16"
            " or fp32"
        )
    job = TrainJob(
        model=found.model, layout=layout, seq_len=found.work.seq_len, precision=found.work.precision
    )
    require_trainable(job, num_processes=_ranks(config))
    request = {
        "model": dims_of(found.model),
        "seq_len": found.work.seq_len,
        "precision": found.work.precision,
    }
    text = json.dumps({"request": request, "plans": [{"layout": asdict(layout)}]}, indent=1) + "\n"
    words = [word for word in trainer_words(settings, best=0) if not word.startswith("save.")]
    return Exported(
        target=OWN_TRAINER,
        files=(ExportedFile(name="plan.json", text=text),),
        command=("-m", "meshwright.trainer", "plan.json", *words),
    )


def _refuse_elsewhere(config: Mapping[str, Any]) -> None:
    """The embedded trainer begins from random weights, and trains all of them."""
    for path in _FROM_ELSEWHERE:
        for at in (path, f"model.{path}"):
            part: Any = config
            for key in at.split("."):
                part = part.get(key) if isinstance(part, Mapping) else None
            if part not in (None, "", {}) and not (
                isinstance(part, Mapping) and part.get("peft_scheme", "") in (None, "none")
            ):
                raise ConfigError(
                    f"base_config: {at} is set, and the embedded trainer trains all weights from"
                    " the beginning; program= runs NeMo's script"
                )


def _imported(config: Mapping[str, Any]) -> Imported:
    return import_text(
        write_yaml(dict(config)), source=NEMO2_SOURCE if "_target_" in config else NEMO1_SOURCE
    )


def _ranks(config: Mapping[str, Any]) -> int:
    nodes, devices = _size(config)
    return nodes * devices


def _size(config: Mapping[str, Any]) -> tuple[int, int]:
    trainer = config.get("trainer")
    found = [
        trainer.get(key, 1) if isinstance(trainer, Mapping) else 1
        for key in ("num_nodes", "devices")
    ]
    for key, value in zip(("num_nodes", "devices"), found, strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"base_config: trainer.{key}={value}: expected a whole number of 1 or more"
            )
    return found[0], found[1]


def job_of_config(
    config: Mapping[str, Any], exported: Exported, *, options: JobOptions, seconds: int
) -> Job:
    """Return the job of one configuration on the nodes that its trainer names."""
    nodes, devices = _size(config)
    return Job(
        name=options.name or "grid",
        command=exported.command,
        files=exported.files,
        nodes=nodes,
        gpus_per_node=devices,
        launch=options.start,
        time_limit_s=seconds,
        image=options.image,
        mounts=tuple(map(parse_mount, options.mounts)),
        account=options.account,
        partition=options.partition,
        instance=options.instance,
        words=options.words,
    )


def work_of_config(config: Mapping[str, Any]) -> RunWork:
    """Return one step's work, for its log; one sequence of one token where the batch is unknown."""
    found = [
        _found(config, key) for key in ("global_batch_size", "encoder_seq_length", "seq_length")
    ]
    return RunWork(seq_len=found[1] or found[2] or 1, gbs=found[0] or 1, num_chips=_ranks(config))


def _found(part: Any, key: str) -> int | None:
    """The first whole number under a key, at any depth."""
    if not isinstance(part, Mapping):
        return None
    value = part.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return next(
        (found for entry in part.values() if (found := _found(entry, key)) is not None), None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GridRecord(Course):
    """One combination; its id is its name and a digest of what runs."""

    name: str
    values: Mapping[str, Any]
    """By dotted key."""

    @property
    def cost_s(self) -> float | None:
        """Seconds of a step, which says nothing of a grid's best: that is the least validation
        loss."""
        return self.outcome.step_s if isinstance(self.outcome, Measured) else None

    @property
    def noise(self) -> float:
        """Nothing is chosen by it."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "number": self.number,
            "name": self.name,
            "values": dict(self.values),
            "chosen_because": self.chosen_because,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GridMember:
    """One combination before its run."""

    name: str
    values: Mapping[str, Any]
    digest: str

    @staticmethod
    def of(name: str, values: Mapping[str, Any], *, content: Any) -> GridMember:
        """Name a combination by what runs: another program or length is another run."""
        digest = hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode()
        ).hexdigest()[:DIGITS]
        return GridMember(name=name, values=values, digest=digest)

    @property
    def run_id(self) -> str:
        """`llama_grid_search_0-1f3a9c07`."""
        return f"{self.name}-{self.digest}"

    def planned(self, *, number: int, because: str) -> GridRecord:
        return GridRecord(
            run_id=self.run_id,
            number=number,
            name=self.name,
            values=self.values,
            chosen_because=because,
        )


def grid_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> GridRecord:
    """Read a run back from its two files; ConfigError names the file that is no run of a grid."""
    names = ("run_id", "number", "name", "values", "chosen_because")
    try:
        record = GridRecord(**{name: content[name] for name in names})
        for line in events:
            record = record.after(event_of(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source}: no run of a grid ({type(error).__name__}: {error})") from None
    return record


def grid_options(members: Sequence[GridMember]) -> Options:
    """Return options in the order of the grid, without a prior belief: all of them are run."""
    count = len(members)
    even = Prior(mean=np.zeros(count), shared=np.zeros((count, count)), own=1.0)
    return Options(step=even, fill=even, axes=np.arange(count, dtype=float)[:, None])


_STUDY = "study"


def run_grid(
    base_config: Any,
    *,
    param_grid: Mapping[str, Sequence[Any]],
    base_results_dir: str | Path,
    model_name: str = "model",
    limit_search_runs: int = 100,
    max_steps_per_run: int = 100,
    max_minutes_per_run: float = 30.0,
    program: str | None = None,
    launcher: str = "local",
    job: Mapping[str, Any] | None = None,
    parallel: int = 1,
    starter: Executor | None = None,
) -> tuple[GridResult, ...]:
    """Run every combination, or go on with them, and return what `get_grid_results` does: the best
    validation loss first.

    The first arguments are those of `generate_grid`. `program` is NeMo's script, which reads the
    configuration; without one the embedded trainer runs it on this machine, where it can: all
    weights, from the beginning, on .bin/.idx data of which the split holds out a part. `launcher`
    is local, slurm, k8s or bcp, `job` the fields of a job file (docs/jobs.md) in plain types,
    `parallel` how many run at a time. Runs are kept in `<base_results_dir>/study`; those that
    finished are never repeated. `starter` takes the launcher's place. Raises ConfigError for what
    can't be run, Interrupted after Ctrl-C.
    """
    folder = Path(base_results_dir)
    if program is None and launcher != "local":
        raise ConfigError(
            f"launcher={launcher}: give program=, the script of NeMo that reads the configuration"
            " there"
        )
    configs = generate_grid(
        base_config,
        param_grid=param_grid,
        base_results_dir=folder,
        model_name=model_name,
        limit_search_runs=limit_search_runs,
        max_steps_per_run=max_steps_per_run,
    )
    grid = _Grid.of(
        configs,
        program=program,
        combinations=dict(named_combinations(param_grid, model_name)),
        options=JobOptions.of(dict(job or {})),
        limits=StudyLimits(
            max_runs=len(configs) + 1,
            parallel=parallel,
            minutes_per_run=float(max_minutes_per_run),
            strategy="grid",
        ),
    )
    view = _run(grid, folder / _STUDY, starter or executor(launcher), launcher=launcher)
    failures = {
        record.name: (record.failure.failure_class, record.failure.message)
        for record in view.records
        if record.failure is not None
    }
    return grid_results(param_grid, folder, model_name=model_name, failures=failures)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    configs: Mapping[str, Mapping[str, Any]]
    exported: Mapping[str, Exported]
    members: tuple[GridMember, ...]
    program: str | None
    options: JobOptions
    limits: StudyLimits

    @staticmethod
    def of(
        configs: Mapping[str, Any],
        *,
        program: str | None,
        combinations: Mapping[str, Mapping[str, Any]],
        options: JobOptions,
        limits: StudyLimits,
    ) -> _Grid:
        if not all(isinstance(config, Mapping) for config in configs.values()):
            raise ConfigError(
                "base_config: a recipe object is run by an executor of nemo_run (generate_grid"
                " returns them); give its YAML"
            )
        exported = {
            name: exported_config(config, name=name, program=program)
            for name, config in configs.items()
        }
        _require_different(exported, combinations)
        contents = {
            name: [one.command, [(file.name, file.text) for file in one.files]]
            for name, one in exported.items()
        }
        members = tuple(
            GridMember.of(name, combinations[name], content=contents[name]) for name in configs
        )
        return _Grid(
            configs=configs,
            exported=exported,
            members=members,
            program=program,
            options=options,
            limits=limits,
        )

    def job(self, name: str) -> Job:
        seconds = round(self.limits.minutes_per_run * 60)
        return job_of_config(
            self.configs[name], self.exported[name], options=self.options, seconds=seconds
        )


def _require_different(
    exported: Mapping[str, Exported], combinations: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse keys that the embedded trainer has no place for: they would be varied in vain."""
    seen: dict[tuple[Any, ...], str] = {}
    for name, one in exported.items():
        content = (one.command, tuple((file.name, file.text) for file in one.files))
        if content in seen:
            other = combinations[seen[content]]
            keys = [key for key, value in combinations[name].items() if value != other[key]]
            raise ConfigError(
                f"param_grid: {', '.join(keys)}: changes nothing in the embedded trainer; program="
                " runs NeMo's own script"
            )
        seen[content] = name


def _run(grid: _Grid, folder: Path, starter: Executor, *, launcher: str) -> View[GridRecord]:
    starter.check()
    first = grid.members[0].name
    trial = {"kind": "grid", "program": grid.program, "launcher": launcher}
    request = {
        "values": {member.name: dict(member.values) for member in grid.members},
        "runs": [one.run_id for one in grid.members],
    }
    store = study_folder(folder, request=request, trial=trial)
    with locked(store.folder) as lock:
        tuner: Tuner[GridRecord] = Tuner(
            store=Store(folder=store.folder, study=store.study, read=grid_record_of),
            lock=lock,
            candidates=grid.members,
            options=grid_options(grid.members),
            limits=with_room(grid.limits, starter, grid.job(first)),
            executor=starter,
            num_chips=grid.job(first).num_gpus,
            job=lambda record: grid.job(record.name),
            judge=judge_runs(work_of_config(grid.configs[first])),
            now=time.time,
            sleep=time.sleep,
            show=_Lines().show,
        )
        try:
            return tuner.run()
        except KeyboardInterrupt:
            raise interrupted_study(tuner, time.sleep) from None


class _Lines:
    """A line as each run begins and ends."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def show(self, view: View[GridRecord]) -> None:
        for record in view.records:
            words = (
                record.state
                if record.failure is None
                else f"failed, {record.failure.failure_class}: {record.failure.message}"
            )
            if self._said.get(record.name) != words and record.state != "planned":
                self._said[record.name] = words
                print(f"{record.name} {words}", flush=True)
