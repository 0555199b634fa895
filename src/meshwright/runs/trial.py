"""What one run is: a layout, trained for a few steps by the embedded trainer or by any software
that plans are exported to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from meshwright.platforms.job import Job, JobOptions, job_of
from meshwright.search.problem import Asked, Problem, dims_of
from meshwright.software.contract import Exported, ExportedFile, export_plan
from meshwright.software.plan import plan_of
from meshwright.software.registry import find_target
from meshwright.software.settings import TrainingSettings
from meshwright.trainer.checks import require_trainable
from meshwright.trainer.job import TrainJob
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.layout import Layout
from meshwright.values.text import read_yaml, write_yaml

__all__ = [
    "LEAST_STEPS",
    "OWN_TRAINER",
    "Trial",
    "exported_of",
    "job_of_layout",
    "own_trainer",
    "refusal_of",
    "stack_of",
    "with_program",
]

OWN_TRAINER = "meshwright"
"""The software's name where the embedded trainer runs."""
_PRECISIONS = ("bf16", "fp32")
_NO_DATA = "of no effect with the embedded trainer, which runs on random tokens here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """How every run of a study is done."""

    software: str = OWN_TRAINER
    """Or a target of `meshwright export`."""
    steps: int = 10
    program: str | None = None
    """Where the software's program is, such as /opt/Megatron-LM/pretrain_gpt.py."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of TrainingSettings: what the user gives beside the plan."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the software's YAML says besides, by dotted path, where no setting says it."""
    device: str = "auto"
    """Of the embedded trainer."""

    def __post_init__(self) -> None:
        if self.steps < LEAST_STEPS:
            raise ConfigError(
                f"max_steps_per_run={self.steps}: expected {LEAST_STEPS} or more: the first are"
                " warm-up, and a time stands on five behind it"
            )
        if self.software != OWN_TRAINER:
            find_target(self.software)
        elif self.program is not None:
            raise ConfigError(
                f"--program {self.program}: of no effect without --to, the software that it"
                " belongs to"
            )
        elif self.settings:
            raise ConfigError(f"--setting {next(iter(self.settings))}: {_NO_DATA}")
        try:
            TrainingSettings.of(dict(self.settings))
        except TypeError as error:
            raise ConfigError(f"--setting: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types, for study.yaml."""
        found = {**asdict(self), "settings": dict(self.settings), "values": dict(self.values)}
        return found if self.values else {k: v for k, v in found.items() if k != "values"}


LEAST_STEPS = 7
"""A third of these, two, are warm-up; runs/counts.py wants five behind it."""


def stack_of(software: str, settings: Mapping[str, Any]) -> str | None:
    """Name the stack that predicts runs of a software unless the user does; None: any plan's."""
    if software == OWN_TRAINER:
        if str(settings.get("compile", "")).lower() == "true":
            return "embedded-compiled"
        return "embedded"
    stacks = find_target(software).stacks
    return stacks[0] if stacks else None


def exported_of(trial: Trial, problem: Problem, layout: Layout) -> Exported:
    """Return what runs a layout; ConfigError where the software can't."""
    if trial.software == OWN_TRAINER:
        return own_trainer(
            problem, layout, words=(f"steps={trial.steps}", f"device={trial.device}")
        )
    settings = TrainingSettings.of(
        {"eval_steps": 0, **trial.settings, "train_steps": trial.steps, "log_interval": 1}
    )
    plan = plan_of(Asked(layout=layout, problem=problem), settings=settings)
    exported = export_plan(plan, target=find_target(trial.software))
    exported = _with_values(exported, trial.values)
    return exported if trial.program is None else with_program(exported, trial.program)


def _with_values(exported: Exported, values: Mapping[str, Any]) -> Exported:
    """Return an export whose YAML says these values as well; ConfigError where it has none."""
    if not values:
        return exported
    yaml = next((file for file in exported.files if file.name.endswith(".yaml")), None)
    if yaml is None:
        raise ConfigError(f"{exported.target}: it has no YAML to say {', '.join(values)}")
    said = replace(yaml, text=_said(yaml, values))
    files = tuple(said if file is yaml else file for file in exported.files)
    return replace(exported, files=files)


def _said(file: ExportedFile, values: Mapping[str, Any]) -> str:
    """Return a YAML of ours with further values, and its comment."""
    found = read_yaml(file.text, what=file.name)
    for path, value in values.items():
        *above, last = path.split(".")
        section = found
        for key in above:
            section = section.setdefault(key, {})
        section[last] = value
    lines = itertools.takewhile(lambda line: line.startswith("#"), file.text.splitlines())
    return "".join(f"{line}\n" for line in lines) + write_yaml(found)


def own_trainer(problem: Problem, layout: Layout, *, words: Sequence[str]) -> Exported:
    """Return what runs a layout in the embedded trainer by `key=value` words, else ConfigError."""
    setting, request = problem.setting, problem.request
    if setting.work.precision not in _PRECISIONS:
        raise ConfigError(
            f"precision={setting.work.precision}: the embedded trainer computes in bf16 or fp32;"
            " --precision fp32"
        )
    job = TrainJob(
        model=setting.model,
        layout=layout,
        seq_len=request.seq_len,
        precision=cast("Any", setting.work.precision),
    )
    require_trainable(job, num_processes=problem.num_chips)
    content = {
        "request": {
            "model": dims_of(setting.model),
            "seq_len": request.seq_len,
            "precision": setting.work.precision,
        },
        "plans": [{"layout": asdict(layout)}],
    }
    return Exported(
        target=OWN_TRAINER,
        files=(ExportedFile(name="plan.json", text=json.dumps(content, indent=1) + "\n"),),
        command=("-m", "meshwright.trainer", "plan.json", *words),
    )


def with_program(exported: Exported, program: str) -> Exported:
    """Return an export with the user's program; ConfigError where it is started by no path."""
    first, *rest = exported.command
    if not first.endswith(".py"):
        raise ConfigError(
            f"--program {program}: {exported.target} is started as"
            f" `{' '.join(exported.command[:2])}`, which has no path"
        )
    return replace(exported, command=(program, *rest))


def job_of_layout(
    trial: Trial, problem: Problem, layout: Layout, *, options: JobOptions, seconds: int
) -> Job:
    """Return the job of one run, with its limit of time."""
    exported = exported_of(trial, problem, layout)
    job = job_of(
        exported, model=problem.setting.model.name, pool=problem.setting.pool, options=options
    )
    return replace(job, time_limit_s=seconds)


def refusal_of(trial: Trial, problem: Problem, layout: Layout) -> str | None:
    """Say why the software can't run a layout; None where it can."""
    try:
        exported_of(replace(trial, values={}), problem, layout)
    except CannotExpress as error:
        return f"{error.target}: {error.reason}"
    except ConfigError as error:
        return str(error)
    return None
