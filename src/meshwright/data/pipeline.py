"""`run`: a recipe's steps one after the other, by all ranks together, each step once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.data.atomic import create_once, write_whole
from meshwright.data.footprint import DiskPlan
from meshwright.data.recipe import PipelineStep, Recipe, read_recipe
from meshwright.data.steps import STATE
from meshwright.data.verifying import faults_of
from meshwright.data.workers import Place, find_place
from meshwright.platforms.job import Job, JobOptions, JobText, parse_mount
from meshwright.platforms.registry import job_text
from meshwright.values.errors import ConfigError
from meshwright.values.units import parse_duration

__all__ = ["Ended", "RunReport", "StepState", "recipe_job", "run"]


_AS_GIVEN = (
    "image workdir account partition instance log_dir cpus memory shared_memory priority words"
)


def recipe_job(recipe: Path, *, launcher: str, nodes: int, options: Mapping[str, Any]) -> JobText:
    """Write the job that runs a recipe, by the nodes' path; ConfigError if it could not run."""
    found = read_recipe(recipe)
    given = JobOptions.of(options)
    same = {name: getattr(given, name) for name in _AS_GIVEN.split()}
    job = Job(
        name=given.name or f"data-{found.pipeline}",
        command=("meshwright", "data", "run", str(recipe)),
        runs_on="node",
        nodes=nodes,
        gpus_per_node=1,
        asks_for="nodes",
        time_limit_s=None if given.time is None else parse_duration(given.time, name="time"),
        mounts=tuple(map(parse_mount, given.mounts)),
        **same,
    )
    return job_text(job, launcher=launcher)


_POLL_S = 2.0
_FREE_WORDS = ("--workers", "-j", "--timeout", "--tries")
"""How, not what: they may change from start to start."""


StepState = Literal["done before", "done", "failed", "not reached"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One step of a run."""

    name: str
    line: str
    state: StepState
    seconds: float
    """In this start, waiting for other ranks among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What a run of a recipe came to."""

    pipeline: str
    folder: str
    code: int
    """0 all ranks are done, 1 the quota is too small, else that of the step that failed."""
    steps: tuple[Ended, ...]
    too_large: DiskPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "pipeline": self.pipeline,
            "folder": self.folder,
            "code": self.code,
            "steps": [asdict(step) for step in self.steps],
            "too_large": None if self.too_large is None else self.too_large.to_dict(),
        }


def run(
    recipe: Path,
    *,
    execute: Callable[[Sequence[str]], int],
    place: Place | None = None,
    tell: Callable[[str], None] | None = None,
) -> RunReport:
    """Do what is left of a recipe, and return what it came to. `execute` runs the words of a
    command, `meshwright.cli.run`. A step begins when every rank has ended the one before. What is
    done stays done, also when its outputs have been removed since; ConfigError where the recipe has
    changed for a step that is done."""
    found, place, tell = read_recipe(recipe), place or find_place(os.environ), tell or _tell
    if found.too_large is not None:
        for line in found.too_large.lines():
            tell(line)
        left = [_ended(step, "not reached") for step in found.steps]
        return _report(found, found.too_large.exit_code, left)
    state = found.folder / STATE / "run"
    failures = state / "failed"
    own = failures / str(place.rank)
    own.unlink(missing_ok=True)
    old = _seen(failures)
    ended: list[Ended] = []
    for number, step in enumerate(found.steps, start=1):
        begin_s, mark = time.monotonic(), state / _marker(number, step)
        title = f"[{number}/{len(found.steps)}] {step.name}"
        if _is_done(state, number, step):
            tell(f"{title}: done")
            ended.append(_ended(step, "done before"))
            continue
        tell(f"{title}: {step.line()}")
        code = _do(step, mark, place=place, execute=execute, failures=failures, old=old, tell=tell)
        spent_s = time.monotonic() - begin_s
        if code:
            failures.mkdir(parents=True, exist_ok=True)
            write_whole(own, json.dumps({"step": step.name, "code": code}).encode())
            tell(f"{title}: ended with code {code}; start again to go on")
            later = [_ended(step, "not reached") for step in found.steps[number:]]
            return _report(found, code, [*ended, _ended(step, "failed", spent_s), *later])
        ended.append(_ended(step, "done", spent_s))
        create_once(mark, json.dumps({"words": _lasting(step)}).encode())
    steps = f"all {len(found.steps)} steps are" if len(found.steps) > 1 else "the one step is"
    tell(f"{steps} done: {found.folder}")
    return _report(found, 0, ended)


def _ended(step: PipelineStep, state: StepState, seconds: float = 0.0) -> Ended:
    return Ended(name=step.name, line=step.line(), state=state, seconds=seconds)


def _report(found: Recipe, code: int, ended: Sequence[Ended]) -> RunReport:
    return RunReport(
        pipeline=found.pipeline,
        folder=str(found.folder),
        code=code,
        steps=tuple(ended),
        too_large=found.too_large,
    )


def _do(
    step: PipelineStep,
    marker: Path,
    *,
    place: Place,
    execute: Callable[[Sequence[str]], int],
    failures: Path,
    old: Mapping[str, int],
    tell: Callable[[str], None],
) -> int:
    """Do one step, and wait until the other ranks have done it too."""
    if step.on == "rank 0" and place.rank:
        return _wait(marker, place, failures, old, tell)
    if not step.removes:
        code = execute(["data", *step.words])
        return code or _wait(step.manifest, place, failures, old, tell)
    faults = faults_of(step.manifest)
    for fault in faults:
        tell(f"nothing is removed: {fault}")
    if faults:
        return 1
    for path in step.removes:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return 0


def _wait(
    path: Path, place: Place, failures: Path, old: Mapping[str, int], tell: Callable[[str], None]
) -> int:
    """Wait for what the rank that ends last writes; 3 where a rank has failed meanwhile."""
    if path.exists():
        return 0
    if place.world_size == 1:
        tell(f"{path} is not there, although the step ended well; was it removed?")
        return 3
    tell(f"waiting for the other ranks ({path})")
    while not path.exists():
        failed = {name for name, when in _seen(failures).items() if old.get(name) != when}
        if failed:
            tell(f"rank {min(failed, key=int)} has failed")
            return 3
        time.sleep(_POLL_S)
    return 0


def _seen(failures: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in failures.glob("[0-9]*")}


def _marker(number: int, step: PipelineStep) -> str:
    return f"{number:03}-{step.name}.done"


def _lasting(step: PipelineStep) -> list[str]:
    words, skip = [], False
    for word in step.words:
        if skip or word in _FREE_WORDS:
            skip = not skip
            continue
        words.append(word)
    return words or ["remove", *map(str, step.removes)]


def _is_done(state: Path, number: int, step: PipelineStep) -> bool:
    path = state / _marker(number, step)
    try:
        words = json.loads(path.read_bytes())["words"]
    except FileNotFoundError:
        return False
    if words != _lasting(step):
        raise ConfigError(
            f"step {number} ({step.name}) was done as `{' '.join(words)}`; undo the change in the"
            " recipe, or give another folder"
        )
    return True


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
