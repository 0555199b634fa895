"""A fine-tuning grid that runs: each configuration is a run of a study, the best loss first."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.compat.checks import at_path, is_whole, whole
from meshwright.compat.nemo2.grid import GridResult, generate_grid, grid_results, named_combinations
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import Job, JobOptions, parse_mount
from meshwright.platforms.registry import executor
from meshwright.runs.belief import Prior
from meshwright.runs.budget import Budget, read_budget
from meshwright.runs.counts import RunWork
from meshwright.runs.forecasts import Options
from meshwright.runs.limits import StudyLimits
from meshwright.runs.lock import locked
from meshwright.runs.loop import Tuner, View, judge_runs
from meshwright.runs.outcome import Measured
from meshwright.runs.record import DIGITS, Course, event_of
from meshwright.runs.store import Store, study_folder
from meshwright.runs.training.request import (
    held_out,
    trainer_words,
)
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
from meshwright.values.units import counted

__all__ = ["run_grid"]

_FROM_ELSEWHERE = ("restore_from_path", "restore_from", "peft", "resume.restore_config")
"""What a configuration begins from, or trains beside frozen weights."""
_KEPT = ("run_id", "number", "name", "values", "chosen_because")
"""Of a record, in its file."""
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
    model, work = found.model, found.work
    if work.precision not in ("bf16", "fp32"):
        raise ConfigError(
            f"base_config: precision={work.precision}: the embedded trainer computes in bf16 or"
            " fp32"
        )
    job = TrainJob(model=model, layout=layout, seq_len=work.seq_len, precision=work.precision)
    require_trainable(job, num_processes=_ranks(config))
    request = {"model": dims_of(model), "seq_len": work.seq_len, "precision": work.precision}
    text = json.dumps({"request": request, "plans": [{"layout": asdict(layout)}]}, indent=1) + "\n"
    words = [word for word in trainer_words(settings, best=0) if not word.startswith("save.")]
    plan = ExportedFile(name="plan.json", text=text)
    command = ("-m", "meshwright.trainer", plan.name, *words)
    return Exported(target=OWN_TRAINER, files=(plan,), command=command)


def _refuse_elsewhere(config: Mapping[str, Any]) -> None:
    """The embedded trainer begins from random weights, and trains all of them."""
    for path in _FROM_ELSEWHERE:
        for at in (path, f"model.{path}"):
            part = at_path(config, at)
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
    nodes, devices = (_of_trainer(config, key) for key in ("num_nodes", "devices"))
    return nodes, devices


def _of_trainer(config: Mapping[str, Any], key: str) -> int:
    trainer = config.get("trainer")
    value = trainer.get(key, 1) if isinstance(trainer, Mapping) else 1
    return whole(value, f"base_config: trainer.{key}={value}")


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
    if value is not None and is_whole(value):
        return int(value)
    inside = (_found(entry, key) for entry in part.values())
    return next((found for found in inside if found is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class GridRecord(Course):
    """One combination; its id is its name and a digest of what runs."""

    name: str
    values: Mapping[str, Any]
    """By dotted key."""

    @property
    def cost_s(self) -> float | None:
        """Seconds of a step; the best of a grid has the least validation loss."""
        return self.outcome.step_s if isinstance(self.outcome, Measured) else None

    @property
    def noise(self) -> float:
        """Nothing is chosen by it."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KEPT} | {"values": dict(self.values)}


@dataclass(frozen=True, kw_only=True, slots=True)
class GridMember:
    """One combination before its run."""

    name: str
    values: Mapping[str, Any]
    digest: str

    @staticmethod
    def of(name: str, values: Mapping[str, Any], *, content: Any) -> GridMember:
        """Name a combination by what runs: another program or length is another run."""
        text = json.dumps(content, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
        return GridMember(name=name, values=values, digest=digest)

    @property
    def run_id(self) -> str:
        """`llama_grid_search_0-1f3a9c07`."""
        return f"{self.name}-{self.digest}"

    def planned(self, *, number: int, because: str) -> GridRecord:
        known: dict[str, Any] = {"run_id": self.run_id, "name": self.name, "values": self.values}
        return GridRecord(number=number, chosen_because=because, **known)


def grid_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> GridRecord:
    """Read a run back from its two files; ConfigError names the file that is no run of a grid."""
    try:
        record = GridRecord(**{name: content[name] for name in _KEPT})
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
    budget: str | None = None,
    starter: Executor | None = None,
) -> tuple[GridResult, ...]:
    """Run every combination, or go on with them, and return what `get_grid_results` does: the best
    validation loss first.

    The first arguments are those of `generate_grid`. `program` is NeMo's script, which reads the
    configuration; without one the embedded trainer runs it on this machine, where it can: all
    weights, from the beginning, on .bin/.idx data of which the split holds out a part. `launcher`
    is local, slurm, k8s or bcp, `job` the fields of a job file (docs/jobs.md) in plain types,
    `parallel` how many run at a time, `budget` what all may cost (50gpuh or 6runs; dollars need a
    price, which no configuration names). Runs are kept in `<base_results_dir>/study`; those that
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
    grid = _Grid(
        configs=configs,
        combinations=dict(named_combinations(param_grid, model_name)),
        program=program,
        options=JobOptions.of(dict(job or {})),
        seconds=round(float(max_minutes_per_run) * 60),
    )
    minutes, most = float(max_minutes_per_run), len(configs) + 1
    limits = StudyLimits(
        max_runs=most,
        parallel=parallel,
        minutes_per_run=minutes,
        strategy="grid",
        budget=_budget(budget),
    )
    view = _run(grid, limits, folder / _STUDY, starter, launcher=launcher)
    ended = sum(record.outcome is not None for record in view.records)
    print(f"{ended} of {counted(len(configs), 'configuration')} ran: {view.stop}", flush=True)
    return grid_results(param_grid, folder, model_name=model_name, failures=_failures(view.records))


def _budget(text: str | None) -> Budget | None:
    found = None if text is None else read_budget(text)
    if found is not None and found.unit == "usd":
        raise ConfigError(f"budget={text}: no price is known here; give GPU-hours or runs")
    return found


def _failures(records: Iterable[GridRecord]) -> dict[str, tuple[str, str]]:
    """Class and words of each that failed, by name."""
    failed = {record.name: record.failure for record in records if record.failure is not None}
    return {name: (one.failure_class, one.message) for name, one in failed.items()}


@dataclass(frozen=True, kw_only=True)
class _Grid:
    configs: Mapping[str, Any]
    combinations: Mapping[str, Mapping[str, Any]]
    program: str | None
    options: JobOptions
    seconds: int

    @cached_property
    def exported(self) -> dict[str, Exported]:
        if not all(isinstance(config, Mapping) for config in self.configs.values()):
            raise ConfigError(
                "base_config: a recipe object is run by an executor of nemo_run (generate_grid"
                " returns them); give its YAML"
            )
        found = {
            name: exported_config(config, name=name, program=self.program)
            for name, config in self.configs.items()
        }
        _require_different(found, self.combinations)
        return found

    @cached_property
    def members(self) -> tuple[GridMember, ...]:
        return tuple(
            GridMember.of(name, self.combinations[name], content=_content(one))
            for name, one in self.exported.items()
        )

    def job(self, name: str) -> Job:
        config, one = self.configs[name], self.exported[name]
        return job_of_config(config, one, options=self.options, seconds=self.seconds)


def _content(one: Exported) -> tuple[Any, ...]:
    """What runs."""
    return one.command, tuple((file.name, file.text) for file in one.files)


def _require_different(
    exported: Mapping[str, Exported], combinations: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse keys that the embedded trainer has no place for: they would be varied in vain."""
    seen: dict[tuple[Any, ...], str] = {}
    for name, one in exported.items():
        content = _content(one)
        if content in seen:
            other = combinations[seen[content]]
            keys = [key for key, value in combinations[name].items() if value != other[key]]
            raise ConfigError(
                f"param_grid: {', '.join(keys)}: changes nothing in the embedded trainer; program="
                " runs NeMo's own script"
            )
        seen[content] = name


def _run(
    grid: _Grid, limits: StudyLimits, folder: Path, starter: Executor | None, *, launcher: str
) -> View[GridRecord]:
    first = grid.members[0].name
    starter = starter or executor(launcher)
    starter.check()
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
            limits=with_room(limits, starter, grid.job(first)),
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
            words: str = record.state
            if record.failure is not None:
                words = f"failed, {record.failure.failure_class}: {record.failure.message}"
            if self._said.get(record.name) != words and record.state != "planned":
                self._said[record.name] = words
                print(f"{record.name} {words}", flush=True)
