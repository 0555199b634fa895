"""A training before its first job: how its layout divides, its length, its limits, its program, and
the job of any number in its chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright.platforms.contract import Platform
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import Job, JobText, job_of
from meshwright.platforms.registry import executor, find_runner
from meshwright.runs.training.folder import jobs_needed, newest_checkpoint
from meshwright.runs.training.request import (
    LAST,
    Software,
    TimeLimits,
    TrainRequest,
    find_software,
    held_out,
    limits_of,
    needed_margin_s,
    split_settings,
    trainer_words,
)
from meshwright.runs.trial import OWN_TRAINER, own_trainer, with_program
from meshwright.search.problem import Asked, Problem
from meshwright.sizing.checkpoints import SAVE_EVERY, CheckpointSize, Retention, checkpoint_size
from meshwright.sizing.duration import Reliability, write_s
from meshwright.sizing.size import TOKENS_PER_PARAM
from meshwright.software.contract import EnvVar, Exported, export_plan
from meshwright.software.defaults import complete_settings, train_steps
from meshwright.software.plan import plan_of
from meshwright.software.registry import find_target
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import ConfigError, MissingWord
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.units import GB, counted, format_count, parse_duration

__all__ = ["Prepared", "divide", "divides", "launcher_of", "prepare", "settings_of"]

_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """A layout on some GPUs."""

    gpus: int
    per_replica: int
    """tp * cp * pp."""
    dp: int | None
    """None where the GPUs are no whole number of replicas."""
    micro_batches: int | None
    """Of one replica in a step; None where the batch does not divide."""
    nearest_gpus: tuple[int, ...] = ()
    """Counts around this one on which plan and batch divide."""
    nearest_gbs: tuple[int, ...] = ()
    """Batches around the plan's that divide on these GPUs."""

    @property
    def divides(self) -> bool:
        """Whether the plan runs."""
        return self.micro_batches is not None

    def words(self, layout: Layout) -> str:
        """Return the sentence of it."""
        per = f"tp {layout.tp} * cp {layout.cp} * pp {layout.pp}"
        if self.dp is None:
            return (
                f"{counted(self.gpus, 'GPU')} are no multiple of {per} ="
                f" {self.per_replica}{self._remedies()}"
            )
        whole = f"{counted(self.gpus, 'GPU')} / ({per}) = dp {self.dp}"
        if self.micro_batches is None:
            return (
                f"{whole}, but gbs {layout.gbs} is no multiple of mbs {layout.mbs} * dp"
                f" {self.dp}{self._remedies()}"
            )
        return (
            f"{whole}; gbs {layout.gbs} / (mbs {layout.mbs} * dp {self.dp}) = {self.micro_batches}"
            " micro batches"
        )

    def _remedies(self) -> str:
        found = [f"{', '.join(map(str, self.nearest_gpus))} GPUs"] if self.nearest_gpus else []
        found += [f"gbs {', '.join(map(str, self.nearest_gbs))}"] if self.nearest_gbs else []
        return f"; {' or '.join(found)} would do" if found else ""


def divide(layout: Layout, *, gpus: int, gpus_per_node: int) -> Division:
    """Return how a layout's replicas and batch divide on some GPUs; dp is the layout's to change,
    its batch is not.

    Formula:  dp = gpus / (tp * cp * pp), micro batches = gbs / (mbs * dp), both whole
    Units:    counts.
    Source:   megatron/core/parallel_state.py. Older documents divide the GPUs by tp * pp alone, and
              the batch by mbs * GPUs
    Checked:  tests/runs/training/test_replicas.py
    """
    per_replica = layout.tp * layout.cp * layout.pp
    dp = gpus // per_replica if gpus % per_replica == 0 and gpus > 0 else None
    batches = (
        layout.gbs // (layout.mbs * dp) if dp is not None and divides(layout, gpus=gpus) else None
    )
    near_gpus: tuple[int, ...] = ()
    near_gbs: tuple[int, ...] = ()
    if batches is None:
        near_gpus = _near_gpus(
            layout, gpus=gpus, per_replica=per_replica, gpus_per_node=gpus_per_node
        )
        near_gbs = () if dp is None else _near_gbs(layout.gbs, layout.mbs * dp)
    return Division(
        gpus=gpus,
        per_replica=per_replica,
        dp=dp,
        micro_batches=batches,
        nearest_gpus=near_gpus,
        nearest_gbs=near_gbs,
    )


def divides(layout: Layout, *, gpus: int) -> bool:
    """Whether GPUs make whole replicas, and the batch whole micro batches, as in `divide`."""
    replicas, rest = divmod(gpus, layout.tp * layout.cp * layout.pp)
    return replicas > 0 and not rest and layout.gbs % (layout.mbs * replicas) == 0


def _near_gpus(
    layout: Layout, *, gpus: int, per_replica: int, gpus_per_node: int
) -> tuple[int, ...]:
    """Counts of whole nodes, or within one, nearest first."""
    most = layout.gbs // layout.mbs
    counts = [dp * per_replica for dp in range(1, most + 1) if layout.gbs % (layout.mbs * dp) == 0]
    usable = [count for count in counts if count % gpus_per_node == 0 or count < gpus_per_node]
    return tuple(sorted(sorted(usable, key=lambda count: (abs(count - gpus), count))[:_SHOWN]))


def _near_gbs(gbs: int, unit: int) -> tuple[int, ...]:
    below = gbs // unit * unit
    return tuple(size for size in (below, below + unit) if size > 0)


_SAVES = 10
"""Of a training too short for the usual interval."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything that the jobs of a training are functions of."""

    folder: Path
    """Of the training, absolute."""
    request: TrainRequest
    problem: Problem
    layout: Layout
    step_s: float
    """Predicted."""
    slow_step_s: float
    """The upper end of the prediction's interval."""
    fits: str
    peak_gib: float
    given: TrainingSettings
    """What is said of the training: its length in steps, its checkpoints, and the user's words."""
    settings: TrainingSettings
    """The same, completed."""
    own_words: tuple[str, ...] = ()
    """Of the embedded trainer, as the user gave them."""

    @cached_property
    def platform(self) -> Platform:
        """Where it runs."""
        return find_runner(self.request.launcher)

    @cached_property
    def software(self) -> Software:
        """What trains."""
        return find_software(self.request.software)

    @property
    def total_steps(self) -> int:
        """Of the whole training."""
        assert self.settings.train_steps is not None
        return self.settings.train_steps

    @property
    def tokens_per_step(self) -> int:
        """Of all chips."""
        return self.layout.gbs * self.problem.setting.work.seq_len

    @property
    def nodes(self) -> int:
        """That a job asks for."""
        pool = self.problem.setting.pool
        return max(1, pool.num_chips // pool.node.chips_per_node)

    @cached_property
    def checkpoint(self) -> CheckpointSize:
        """The bytes of one."""
        setting = self.problem.setting
        return checkpoint_size(setting.model, stack=setting.stack, precision=setting.work.precision)

    @property
    def best(self) -> int:
        """Checkpoints of the embedded trainer that stay for their validation loss."""
        return self.request.keep or Retention().best

    @property
    def keeps(self) -> int | None:
        """Checkpoints that stay; None: all."""
        own = self.software.name == OWN_TRAINER and held_out(self.settings) is not None
        return LAST + self.best if own else self.software.keeps

    @property
    def write_s(self) -> float:
        """Seconds of one checkpoint, predicted."""
        given, reliability = self.request.write_gb_per_s, Reliability()
        if given is not None:
            reliability = Reliability(write_bytes_per_s_per_node=given * GB)
        return write_s(self.checkpoint.total_bytes, nodes=self.nodes, reliability=reliability)

    @cached_property
    def limits(self) -> TimeLimits | None:
        """Of one job; None where it has none."""
        request = self.request
        if request.time is None:
            return None
        margin = None
        if request.save_margin is not None:
            margin = parse_duration(request.save_margin, name="save_margin")
        steps = self.settings.eval_steps or 0
        needed_s = needed_margin_s(write_s=self.write_s, step_s=self.slow_step_s, eval_steps=steps)
        limit_s, stops = parse_duration(request.time, name="time"), bool(self.software.stop)
        return limits_of(limit_s, needed_s=needed_s, stops=stops, margin_s=margin)

    @property
    def stops_itself(self) -> bool:
        """Whether the software ends by its own clock, before the platform's limit."""
        return self.limits is not None and self.limits.framework_s is not None

    @property
    def stop_words(self) -> tuple[str, ...]:
        """What makes the software end by its own clock."""
        if self.limits is None or self.limits.framework_s is None:
            return ()
        return self.software.stop_words(self.limits.framework_s)

    @property
    def saved_steps(self) -> int:
        """Of the newest whole checkpoint that is seen from here; 0 without one."""
        return newest_checkpoint(Path(self.settings.save_dir or "")) or 0

    @property
    def train_s(self) -> float:
        """Seconds of all steps, predicted."""
        return self.total_steps * self.step_s

    def needed_jobs(self, *, done_steps: int = 0) -> int:
        """Return the jobs that what is left takes, by the slow end of the prediction."""
        left_s = max(0, self.total_steps - done_steps) * self.slow_step_s
        steps_s = None if self.limits is None else self.limits.steps_s
        return jobs_needed(train_s=left_s, steps_s=steps_s)

    def at_once(self, *, done_steps: int = 0, most: int | None = None) -> int:
        """Return the jobs that are sent together, up to `most`: where the platform starts one
        behind another, as many as are needed."""
        if not self.platform.chains:
            return 1
        needed = self.needed_jobs(done_steps=done_steps)
        return needed if most is None else min(needed, most)

    @cached_property
    def exported(self) -> Exported:
        """What runs, with its limit."""
        if self.software.name == OWN_TRAINER:
            words = trainer_words(self.settings, best=self.best)
            words = (*words, *self.own_words, *self.stop_words)
            return own_trainer(self.problem, self.layout, words=words)
        settings = replace(self.given, extra=(*self.given.extra, *self.stop_words))
        plan = plan_of(Asked(layout=self.layout, problem=self.problem), settings=settings)
        exported = export_plan(plan, target=find_target(self.software.name))
        if self.request.program is None:
            return exported
        return with_program(exported, self.request.program)

    def job(self, *, words: tuple[str, ...] = ()) -> Job:
        """Return the job; `words` are more options for the platform."""
        setting, options = self.problem.setting, self.request.options()
        name, pool = setting.model.name, setting.pool
        job = job_of(self.exported, model=name, pool=pool, options=options)
        return replace(
            job,
            time_limit_s=None if self.limits is None else self.limits.platform_s,
            environment=_environment(job.environment, self.request.environment),
            secrets=tuple(
                name for name, value in self.request.environment.items() if value is None
            ),
            words=(*job.words, *words),
        )

    def launcher(self) -> Executor:
        """Return what starts the jobs."""
        grace_s = 0.0 if self.limits is None else float(self.limits.margin_s)
        return launcher_of(self.request, grace_s=grace_s, write_s=self.write_s)

    def written(self, *, number: int, label: str, after: str | None = None) -> JobText:
        """Return a job's text to the letter."""
        job, directory = self.job(words=self.after_words(after)), self.folder / "jobs" / str(number)
        return self.launcher().written(job, directory=directory, label=label)

    def after_words(self, handle: str | None) -> tuple[str, ...]:
        """Return the options that make a job of Slurm wait for the end of another: a good one where
        the software stops by itself, so that none starts behind a failure; else any, as the limit
        itself is no good end."""
        kind = "afterok" if self.stops_itself else "afterany"
        return () if handle is None else (f"--dependency={kind}:{handle}",)


def launcher_of(request: TrainRequest, *, grace_s: float = 0.0, write_s: float = 0.0) -> Executor:
    """Return the executor of a training; a local job has time to save before it is killed."""
    options: dict[str, Any] = {} if request.kind is None else {"kind": request.kind}
    if "stop_grace_s" in find_runner(request.launcher).option_names:
        options["stop_grace_s"] = max(_LEAST_GRACE_S, grace_s, 2 * write_s)
    return executor(request.launcher, **options)


_LEAST_GRACE_S = 30.0
"""Torchrun gives its ranks as long."""


def prepare(
    request: TrainRequest,
    *,
    folder: Path,
    problem: Problem,
    layout: Layout,
    record: Mapping[str, Any],
) -> Prepared:
    """Return a training of a layout with its plan `record`; ConfigError where it can't be."""
    step_s = float(record["step_s"])
    given, own_words = settings_of(
        request, problem, gbs=layout.gbs, step_s=step_s, folder=folder.absolute()
    )
    interval = record.get("interval") or {}
    prepared = Prepared(
        folder=folder.absolute(),
        request=request,
        problem=problem,
        layout=layout,
        step_s=step_s,
        slow_step_s=float((interval.get("step_s") or [0.0, record["step_s"]])[1]),
        fits=str(record["fits"]),
        peak_gib=max(record["peak_memory_gib"]),
        given=given,
        settings=complete_settings(
            given, model=problem.setting.model, work=replace(problem.setting.work, gbs=layout.gbs)
        ),
        own_words=own_words,
    )
    if request.keep is not None and prepared.software.name != OWN_TRAINER:
        raise ConfigError(
            f"keep={request.keep}: {prepared.software.name} keeps checkpoints by its own settings;"
            " give it as --setting extra"
        )
    if request.keep is not None and held_out(prepared.settings) is None:
        raise ConfigError(
            f"keep={request.keep}: checkpoints stay for their validation loss, and nothing is held"
            " out that one could be taken of: give --data, and --setting split=[99,1,0] where its"
            f" split holds out nothing; the newest {LAST} stay in any case"
        )
    prepared.job()  # what a software or a platform has no words for is refused here
    return prepared


def _no_length(request: TrainRequest, problem: Problem, *, gbs: int, step_s: float) -> ConfigError:
    """Say that a length is needed, and how far the time reaches, where one is given."""
    needed = "a training needs its length where it has no data:"
    if request.time is not None:
        steps = int(parse_duration(request.time, name="time") // step_s)
        tokens = format_count(steps * gbs * problem.setting.work.seq_len)
        return MissingWord(
            f"{needed} {request.time} reaches --steps {steps} of {step_s:.3g} s, {tokens} tokens",
            field="train_steps",
            value=max(1, steps),
        )
    tokens = format_count(TOKENS_PER_PARAM * model_params(problem.setting.model).total)
    return ConfigError(
        f"{needed} --steps 100 to try it, or --tokens {tokens}, {TOKENS_PER_PARAM:g} for each"
        " parameter"
    )


def settings_of(
    request: TrainRequest, problem: Problem, *, gbs: int, step_s: float, folder: Path
) -> tuple[TrainingSettings, tuple[str, ...]]:
    """Return what is said of a training, with its steps and its checkpoints, and the embedded
    trainer's own words."""
    own = request.software == OWN_TRAINER
    given, words = split_settings(request.settings) if own else (dict(request.settings), ())
    try:
        asked = TrainingSettings.of(given)
    except TypeError as error:
        raise ConfigError(f"--setting: {error}") from None
    for name, flag in _OWN_FLAGS:
        if getattr(asked, name) is not None:
            raise ConfigError(
                f"--setting {name}={getattr(asked, name)}: a training says it itself; give {flag}"
            )
    lengths = (asked.train_steps, asked.train_samples, asked.train_tokens)
    if lengths == (None, None, None) and not asked.data:
        raise _no_length(request, problem, gbs=gbs, step_s=step_s)
    work = replace(problem.setting.work, gbs=gbs)
    save_dir = request.save_dir or str(folder / "checkpoints")
    steps = train_steps(complete_settings(asked, model=problem.setting.model, work=work), work)
    every = request.save_every or min(SAVE_EVERY, max(1, steps // _SAVES))
    load_dir = save_dir if find_software(request.software).resumes == "load" else None
    length: dict[str, Any] = {"train_steps": steps, "train_samples": None, "train_tokens": None}
    places: dict[str, Any] = {"save_dir": save_dir, "save_interval": every, "load_dir": load_dir}
    return replace(asked, **length, **places), words


_OWN_FLAGS = (
    ("save_dir", "--save-dir"),
    ("save_interval", "--save-every"),
    ("load_dir", "--save-dir"),
)
"""Settings that a training says itself, and the flags for them."""


def _environment(
    exported: tuple[EnvVar, ...], given: Mapping[str, str | None]
) -> tuple[EnvVar, ...]:
    """The user's values go before the export's."""
    kept = [variable for variable in exported if variable.name not in given]
    own = [
        EnvVar(name=name, value=value, why="given by --env")
        for name, value in given.items()
        if value is not None
    ]
    return (*kept, *own)
