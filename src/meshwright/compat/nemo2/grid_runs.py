"""A fine-tuning grid that runs: every configuration as a run of a study, on any launcher, and its
best validation loss first."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.compat.nemo2.grid import GridResult, generate_grid, grid_results, named_combinations
from meshwright.compat.nemo2.grid_jobs import (
    GridMember,
    GridRecord,
    exported_config,
    grid_options,
    grid_record_of,
    job_of_config,
    work_of_config,
)
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import Job, JobOptions
from meshwright.platforms.registry import executor
from meshwright.runs.lock import locked
from meshwright.runs.loop import StudyLimits, Tuner, View, judge_runs
from meshwright.runs.store import Store, study_folder
from meshwright.runs.tune import interrupted_study, with_room
from meshwright.software.contract import Exported
from meshwright.values.errors import ConfigError

__all__ = ["run_grid"]

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
    """The configurations, and what each runs."""

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
        """Return the job of a combination."""
        seconds = round(self.limits.minutes_per_run * 60)
        return job_of_config(
            self.configs[name], self.exported[name], options=self.options, seconds=seconds
        )


def _require_different(
    exported: Mapping[str, Exported], combinations: Mapping[str, Mapping[str, Any]]
) -> None:
    """No two combinations are the same run: a key that has no place in the embedded trainer would
    be varied in vain."""
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
