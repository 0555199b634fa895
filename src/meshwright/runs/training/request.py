"""What is asked of a training: its software, its time, and its words for the trainer of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from meshwright.platforms.base_command.script import base_command_time
from meshwright.platforms.job import JobOptions
from meshwright.platforms.registry import find_runner
from meshwright.platforms.slurm.script import slurm_time
from meshwright.runs.trial import OWN_TRAINER
from meshwright.software.embedded import LAST
from meshwright.software.folders import TimeForm, Training, all_software
from meshwright.software.registry import TARGETS
from meshwright.software.settings import TrainingSettings
from meshwright.trainer.job import job_keys
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.lines import check_lines
from meshwright.values.options import Option
from meshwright.values.units import DAY_S, HOUR_S, MINUTE_S, parse_duration

__all__ = [
    "LAST",
    "LEAST_MARGIN_S",
    "SOFTWARE",
    "Software",
    "TimeLimits",
    "TrainRequest",
    "default_margin_s",
    "find_software",
    "held_out",
    "limits_of",
    "needed_margin_s",
    "split_settings",
    "trainer_words",
    "written",
]

LEAST_MARGIN_S = 30 * MINUTE_S
"""NVIDIA's walk-through for Base Command leaves 30 minutes of a limit of five days (5D, and
4:23:30:00 in the software)."""
_MARGIN_SHARE = 20
"""Of a short limit no more than a twentieth is left for the end, unless the end needs more."""
_WRITES = 2
"""Checkpoints that may have to be written: the one under way, and the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLimits:
    """Of one job."""

    platform_s: int
    """After which the platform ends it."""
    framework_s: int | None
    """After which the software ends by itself; None: it can't."""
    margin_s: int
    """What lies between, for the step at hand and the last checkpoint."""
    needed_s: int
    """What the end needs by prediction."""

    @property
    def steps_s(self) -> int:
        """Seconds of a job in which it may step."""
        return self.platform_s if self.framework_s is None else self.framework_s


def needed_margin_s(*, write_s: float, step_s: float, eval_steps: int) -> int:
    """Seconds that the end of a job needs.

    Formula:  2 * write + step + eval_steps * step / 3, rounded up
    Units:    s.
    Why:      a checkpoint may be under way when the time is over; the step at hand ends, an
              evaluation goes before the last checkpoint (a step has three passes of the model's
              FLOPs, an evaluation one), and that is written
    Checked:  tests/runs/training/test_limits.py
    """
    return math.ceil(_WRITES * write_s + step_s * (1 + eval_steps / 3))


def default_margin_s(limit_s: int, *, needed_s: int) -> int:
    """Seconds that are left free before a limit where the user says nothing.

    Formula:  max(needed, min(30 minutes, limit / 20)), rounded up to minutes where the limit is ten
              minutes or more
    Units:    s.
    Source:   30 minutes of five days, as NVIDIA's walk-through for Base Command has it
    Checked:  tests/runs/training/test_limits.py
    """
    wanted = max(needed_s, min(LEAST_MARGIN_S, limit_s // _MARGIN_SHARE))
    return wanted if limit_s < 10 * MINUTE_S else -(-wanted // MINUTE_S) * MINUTE_S


def limits_of(
    limit_s: int, *, needed_s: int, stops: bool, margin_s: int | None = None
) -> TimeLimits:
    """Return the limits of a job in their order; ConfigError where they leave no time to train.

    `stops` says whether the software can end by itself; `margin_s` is the user's.
    """
    margin = default_margin_s(limit_s, needed_s=needed_s) if margin_s is None else margin_s
    if margin >= limit_s:
        raise ConfigError(
            f"time={limit_s} s: {margin} s of it are left for the last checkpoint, and none to"
            f" train; ask for more than {2 * margin}"
            f" s{'' if margin_s is None else ', or for a smaller --save-margin'}"
        )
    return TimeLimits(
        platform_s=limit_s,
        framework_s=limit_s - margin if stops else None,
        margin_s=margin,
        needed_s=needed_s,
    )


def written(seconds: int, form: TimeForm) -> str:
    """Return a duration in the form that a platform or a software reads; ConfigError where it is
    too short for the form."""
    if form == "days-hours:minutes:seconds":
        return slurm_time(seconds)
    if form == "nDnHnMnS":
        return base_command_time(seconds)
    if form == "seconds":
        return str(seconds)
    if form == "decimal minutes":
        return f"{seconds / MINUTE_S:.6g}"
    if form == "minutes":
        if seconds < MINUTE_S:
            raise ConfigError(
                f"time: the software counts whole minutes, and {seconds} s are left for its steps;"
                " ask for more time"
            )
        return str(seconds // MINUTE_S)
    days, rest = divmod(seconds, DAY_S)
    hours, rest = divmod(rest, HOUR_S)
    return f"{days:02}:{hours:02}:{rest // MINUTE_S:02}:{rest % MINUTE_S:02}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Software(Training):
    """One software that trains, with the words that end it."""

    def stop_words(self, seconds: int) -> tuple[str, ...]:
        """Return the words that end it after a time."""
        return tuple(word.format(limit=written(seconds, self.form)) for word in self.stop)


SOFTWARE: tuple[Software, ...] = tuple(
    Software(**{one.name: getattr(row, one.name) for one in fields(row)})
    for software in all_software()
    for row in software.training
)
"""In the order of `meshwright export --to`."""


def find_software(name: str) -> Software:
    """Return a row; UnknownNameError for a software that is no export's, or that can't be started
    by a job script and gone on with."""
    for row in SOFTWARE:
        if row.name == name.lower():
            return row
    hint = ""
    if name.lower() in {target.name for target in TARGETS}:
        hint = (
            "; its export is no job that could be gone on with: `meshwright export` writes its"
            " files"
        )
    raise UnknownNameError(
        "software to train with", name, [row.name for row in SOFTWARE], hint=hint
    )


_POSITIVE = ("most_jobs", "save_every", "keep", "write_gb_per_s", "quota_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """What is trained, by what, where, for how long."""

    plan: Mapping[str, Any]
    """The fields of its PlanRequest; the layout stands in plan.json."""
    launcher: Annotated[
        str, Option("local, slurm, k8s, bcp, bcprun, runai, lepton, sky or pai-dlc.")
    ] = "local"
    software: Annotated[
        str,
        Option(
            "Software that trains, as `export --to` [default: the embedded trainer].", ("--to",)
        ),
    ] = OWN_TRAINER
    """A target of `meshwright export`, or the embedded trainer."""
    program: Annotated[str | None, Option("With --to: where its program is.", metavar="PATH")] = (
        None
    )
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of TrainingSettings; for the embedded trainer also its own words."""
    time: Annotated[
        str | None, Option("Limit on the job's time: 5D, 10h, 23:30:00, 4:23:30:00.")
    ] = None
    """Limit of one job; None: none."""
    save_margin: Annotated[
        str | None,
        Option(
            "From the software's own stop to that limit [default: by a checkpoint's write time].",
            metavar="TIME",
        ),
    ] = None
    most_jobs: Annotated[
        int | None,
        Option(
            "Jobs that this start may send [default: as many as the length needs].", ("--jobs",)
        ),
    ] = None
    """Jobs that one start may send; None: as many as the target needs, by prediction where they are
    sent at once."""
    save_dir: Annotated[
        str | None,
        Option("Of checkpoints, as the job sees it [default: in the training].", metavar="DIR"),
    ] = None
    save_every: Annotated[
        int | None, Option("Steps [default: 2000, or a tenth of a shorter training].")
    ] = None
    keep: Annotated[
        int | None,
        Option(
            "Of the embedded trainer: best checkpoints that stay beside the newest two"
            " [default: 10]."
        ),
    ] = None
    kind: Annotated[
        str | None,
        Option("On Kubernetes: trainjob, pytorchjob, jobset, mpijob [default: trainjob]."),
    ] = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables of the program; None: a secret, from the environment of who submits."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Of JobOptions."""
    write_gb_per_s: Annotated[
        float | None, Option("Of one node into that storage [default: 0.625].")
    ] = None
    quota_bytes: int | None = None
    """Of the checkpoints' storage; None: what is free, where it can be seen."""

    def __post_init__(self) -> None:
        """Refuse what no training can be."""
        check_lines(self)
        platform = find_runner(self.launcher)
        object.__setattr__(self, "launcher", platform.launcher)
        find_software(self.software)
        check_amounts(self, _POSITIVE)
        for name in ("time", "save_margin"):
            if getattr(self, name) is not None:
                parse_duration(getattr(self, name), name=name)
        if self.save_margin is not None and self.time is None:
            raise ConfigError(
                f"save_margin={self.save_margin}: of no effect without a limit (--time)"
            )
        if self.kind is not None and "kind" not in platform.option_names:
            raise ConfigError(
                f"kind={self.kind}: of no effect on {self.launcher}; it is Kubernetes' kind of job"
            )
        if self.program is not None and self.software == OWN_TRAINER:
            raise ConfigError(
                f"--program {self.program}: of no effect with the embedded trainer; name its"
                " software (--to)"
            )
        options = self.options()
        for name in ("time", "name", "log_dir"):
            if (given := getattr(options, name)) is not None:
                raise ConfigError(
                    f"job: {name}={given}: a training says it itself (--time, the folder's"
                    " own names and logs)"
                )

    @staticmethod
    def of(given: Mapping[str, Any]) -> TrainRequest:
        """Build a request from plain values; an unknown key is an error with the nearest one."""
        known = [entry.name for entry in fields(TrainRequest)]
        for key in given:
            if key not in known:
                raise UnknownNameError("key of a training", str(key), known)
        return TrainRequest(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types; what is not said is left out."""
        found = asdict(self)
        job = found["job"].items()
        found["job"] = {key: list(one) if isinstance(one, tuple) else one for key, one in job}
        return {key: value for key, value in found.items() if value not in (None, {})}

    def options(self) -> JobOptions:
        """Return what the user says of the job."""
        given = {name: value for name, value in self.job.items() if value not in (None, (), [])}
        return JobOptions.of(given)


_WORDS: Mapping[str, str] = {
    "train_steps": "steps",
    "seed": "seed",
    "init_std": "init_std",
    "learning_rate": "optimizer.learning_rate",
    "min_learning_rate": "optimizer.least_learning_rate",
    "warmup_steps": "optimizer.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_eps": "optimizer.epsilon",
    "clip_gradient": "optimizer.clip_norm",
    "save_dir": "save.folder",
    "save_interval": "save.every",
}
"""Settings by their words in the trainer."""
_ELSEWHERE = ("train_tokens", "train_samples", "data", "split", "eval_interval", "eval_steps")
"""Settings that become words by a rule."""
PLACES = (*_WORDS, *_ELSEWHERE)
"""Settings that the embedded trainer has a word for."""
_TAKEN = (
    *("steps", "minutes", "metrics", "data.blend"),
    *("save.folder", "save.every", "save.best", "save.resume"),
)
"""Words of the trainer that a training says itself."""


def split_settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return settings of any software, and the trainer's own `key=value` words; ConfigError for
    what it has no place for."""
    shared = [field.name for field in fields(TrainingSettings)]
    ours = PLACES
    known = [*ours, *(key for key in job_keys() if key not in _TAKEN)]
    for key in given:
        if key in shared and key not in known:
            raise ConfigError(
                f"{key}={given[key]}: the embedded trainer has no place for it; leave it out,"
                " or name a software (--to)"
            )
        if key not in known:
            raise UnknownNameError("setting", str(key), known)
    words = tuple(f"{key}={_json(value)}" for key, value in given.items() if key not in ours)
    return {key: value for key, value in given.items() if key in ours}, words


def trainer_words(settings: TrainingSettings, *, best: int) -> tuple[str, ...]:
    """Return the words of completed settings; of checkpoints the best stay beside the newest, where
    a validation loss tells them."""
    values = ((word, getattr(settings, name)) for name, word in _WORDS.items())
    words = [f"{word}={_json(value)}" for word, value in values if value is not None]
    if settings.data:
        pairs = [text for dataset in settings.data for text in (repr(dataset.weight), dataset.path)]
        words.append(f"data.blend={json.dumps(pairs)}")
    if (share := held_out(settings)) is not None:
        words += [
            f"valid.share={share:.6g}",
            f"valid.every={settings.eval_interval}",
            f"valid.batches={settings.eval_steps}",
            f"save.best={best}",
        ]
    return tuple(words)


def held_out(settings: TrainingSettings) -> float | None:
    """Return the share of the documents held out, the second of `split`; None for none."""
    split = settings.split or ()
    if not settings.data or not settings.eval_steps or len(split) < 2:
        return None
    return split[1] / sum(split) or None


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
