"""A work flow for one platform: the text of every job, and what was checked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from meshwright.data.fetching import find_corpus
from meshwright.data.footprint import footprint_of, needs_of
from meshwright.data.workers import format_size
from meshwright.platforms.base_command.script import one_gpu_instance
from meshwright.platforms.job import Job, JobText
from meshwright.platforms.registry import job_text
from meshwright.runs.workflows.spec import WorkflowSpec, read_spec
from meshwright.runs.workflows.stages import (
    Stage,
    Trained,
    data_stages,
    notebook_stage,
    read_blend,
    replicas_that_work,
    train_stage,
)
from meshwright.software.contract import ExportedFile
from meshwright.values.errors import ConfigError
from meshwright.values.units import DAY_S, HOUR_S, counted

__all__ = ["RenderedJob", "Workflow", "workflow"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedJob:
    """One job as a platform wants it."""

    stage: str
    does: str
    nodes: int
    folder: str
    text: JobText

    def file(self) -> ExportedFile:
        """Return its file."""
        return ExportedFile(
            name=f"{self.folder}/{self.text.file_name}",
            text=self.text.text,
            executable=self.text.text.startswith("#!"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Workflow:
    """All jobs of a work flow."""

    name: str
    title: str
    launcher: str
    jobs: tuple[RenderedJob, ...]
    """In the order in which they are submitted, each when the one before has ended well; JupyterLab
    may run at any time."""
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    submit_all: ExportedFile | None = None
    """On Slurm, what submits every job behind the one before."""

    def files(self) -> tuple[ExportedFile, ...]:
        """Return everything that is written."""
        return (*(job.file() for job in self.jobs), *([self.submit_all] if self.submit_all else []))

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "name": self.name,
            "title": self.title,
            "launcher": self.launcher,
            "jobs": [
                {
                    "stage": job.stage,
                    "does": job.does,
                    "nodes": job.nodes,
                    "file": job.file().name,
                    "submit": job.text.submit,
                    "text": job.text.text,
                }
                for job in self.jobs
            ],
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
            "submit_all": None if self.submit_all is None else self.submit_all.text,
        }


def workflow(
    spec: WorkflowSpec | str,
    *,
    launcher: str,
    blend: Path | None = None,
    words: Sequence[tuple[str, Any]] = (),
) -> Workflow:
    """Write every job of a work flow for a platform, and check what can be checked before anything
    runs.

    Args:
        spec: what is made; a text is a name or a file, with `words` before its values.
        launcher: a platform, as of `meshwright export --launcher`.
        blend: the weights by tokens that the job `preprocess` wrote; None: all pairs alike.

    Raises:
        ConfigError: the platform has no word for what a job says; a layout that breaks a rule is a
                     LayoutError.
    """
    if isinstance(spec, str):
        spec = read_spec(spec, words=words)
    trained = None
    if spec.train is not None:
        weights = None if blend is None else read_blend(blend, spec)
        trained = train_stage(spec, launcher=launcher, weights=weights)
    stages = [
        *data_stages(spec),
        *([trained.stage] if trained else []),
        *([notebook_stage(spec)] if spec.notebook else []),
    ]
    jobs = tuple(_rendered(number, stage, launcher) for number, stage in enumerate(stages, start=1))
    checks = [_mounted(spec, stage.job) for stage in stages if stage.job.image]
    checks = [check for check in checks if not check.passed] or checks[:1]
    return Workflow(
        name=spec.name,
        title=spec.title,
        launcher=launcher,
        jobs=jobs,
        checks=(*checks, *(_of_training(trained) if trained else ())),
        notes=(_disk(spec), *(trained.notes if trained else ())),
        submit_all=(
            _submit_all(jobs, trained, log_dir=spec.job.log_dir) if launcher == "slurm" else None
        ),
    )


def _rendered(number: int, stage: Stage, launcher: str) -> RenderedJob:
    folder, job = f"{number}-{stage.name}", stage.job
    if launcher == "bcp" and stage.name == "verify":
        # A check asks for no more GPUs than Base Command makes it.
        job = replace(job, instance=one_gpu_instance(job.instance))
    try:
        text = job_text(job, launcher=launcher)
    except ConfigError as error:
        way_out = "; notebook=null does" if stage.name == "notebook" else ""
        raise ConfigError(f"{stage.name}: {error}{way_out}") from None
    return RenderedJob(
        stage=stage.name, does=stage.does, nodes=stage.job.nodes, folder=folder, text=text
    )


def _submit_all(
    jobs: Sequence[RenderedJob], trained: Trained | None, *, log_dir: str | None
) -> ExportedFile:
    """Training comes as often as it takes; a job whose predecessor fails is never started."""
    folders = [
        job.folder
        for job in jobs
        if job.stage != "notebook"
        for _ in range(_rounds(trained) if job.stage == "train" and trained else 1)
    ]
    logs = f"mkdir -p -- {shlex.quote(log_dir)} && " if log_dir else ""
    lines = [
        "#!/usr/bin/env bash",
        (
            "# Submits every job behind the one before it, training as often as it takes by our"
            " prediction; JupyterLab is not among them."
        ),
        "set -euo pipefail",
        'cd -- "$(dirname -- "${BASH_SOURCE[0]}")"',
        "after=()",
        f"for job in {' '.join(folders)}; do",
        f'  answer=$(cd -- "$job" && {logs}sbatch --parsable "${{after[@]}}" job.sbatch)',
        '  echo "$job: $answer"',
        '  after=("--dependency=afterok:${answer%%;*}" --kill-on-invalid-dep=yes)',
        "done",
    ]
    return ExportedFile(name="submit.sh", text="\n".join(lines) + "\n", executable=True)


def _rounds(trained: Trained) -> int:
    """Return how many jobs reach the last step, one after the other."""
    return math.ceil(trained.steps * trained.step_s / (trained.stop_s or trained.limit_s))


def _mounted(spec: WorkflowSpec, job: Job) -> Check:
    """What is made in a container and outside of its mounts is gone with it."""
    folder = PurePosixPath(spec.folder)
    for mount in job.mounts:
        if folder.is_relative_to(mount.target):
            writable = not mount.read_only and mount.kind != "dataset"
            found = f"{spec.folder} is on {mount.source}{'' if writable else ', read only'}"
            return Check(name="mount", passed=writable, found=found)
    found = f"{job.name}: {spec.folder} is on none of its mounts, and would be lost with the job"
    return Check(name="mount", passed=False, found=found)


def _of_training(trained: Trained) -> Sequence[Check]:
    at, nodes, weights = trained.plan.layout, trained.stage.job.nodes, trained.weights
    replicas = replicas_that_work(trained.plan)
    others = ", ".join(str(other) for other in replicas if other != nodes)
    days, rounds = trained.steps * trained.step_s / DAY_S, _rounds(trained)
    stop = "has no stop of its own here"
    if trained.stop_s is not None:
        stop = f"stops at {_hours(trained.stop_s)}"
    jobs = "in one job"
    if rounds != 1:
        jobs = f"{rounds} jobs one after the other; each goes on from the newest checkpoint"
    sizes = f"tp={at.tp} pp={at.pp} cp={at.cp} mbs={at.mbs} gbs={at.gbs}"
    even = abs(sum(weights) - 1) < 1e-9
    pairs = f"{counted(len(weights), 'pair')} of {min(weights):.6f} to {max(weights):.6f}"
    steps = f"{trained.steps:,} steps of {trained.step_s:.3g} s (predicted)"
    divides = f"{nodes} nodes make dp={at.dp}; {sizes} also divide on {others} nodes"
    limits = f"the platform's {_hours(trained.limit_s)}; the software {stop}"
    found = (
        ("replicas", nodes in replicas, divides),
        ("memory", trained.fits != "no", f"fits by our prediction: {trained.fits}"),
        ("weights", even, f"{pairs}, their sum is 1"),
        ("limits", True, limits),
        ("length", True, f"{steps}: {days:.1f} days, {jobs}"),
    )
    return [Check(name=name, passed=passed, found=words) for name, passed, words in found]


def _hours(seconds: int) -> str:
    return f"{seconds / HOUR_S:g} h"


def _disk(spec: WorkflowSpec) -> str:
    found = footprint_of(find_corpus(spec.corpus), chunks=spec.data.chunks)
    peak = next(need.peak_bytes for need in needs_of(found) if need.strategy == "text")
    return (
        f"{spec.folder} needs {format_size(peak)} at its peak, checkpoints not counted; archives"
        " and text go as they are replaced"
    )
