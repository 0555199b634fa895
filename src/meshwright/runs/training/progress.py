"""What a training did with its time, by its logs and events alone: no launcher is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from meshwright.runs.training.folder import LOGS, TrainFolder, read_progress
from meshwright.software.log import LogReading

__all__ = ["JobTime", "SeenStep", "training_record"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenStep:
    """One report of a log."""

    job: int
    step: int
    loss: float | None
    step_s: float | None
    """None where the log does not say."""
    steps: int
    """Steps since the report before."""
    again: int
    """Of these, steps that an earlier job had done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTime:
    """Where a job's time went, seconds; the three parts sum to the whole."""

    job: int
    new_s: float
    """In steps that were done for the first time."""
    again_s: float
    """In steps that were done before and lost."""
    rest_s: float
    """The rest: waiting, starts, checkpoints, evaluations."""

    @property
    def whole_s(self) -> float:
        """From the end of the job before, or its own sending, to its end."""
        return self.new_s + self.again_s + self.rest_s


def training_record(training: TrainFolder) -> dict[str, Any]:
    """Return a training as `report` shows it. Of a log so long that its first reports are not kept,
    the steps before them count at the step time of the first that is."""
    plan = training.plan
    best, request = plan["plans"][0], plan["request"]
    work = {"seq_len": int(request["seq_len"]), "gbs": int(best["layout"]["gbs"])}
    chips = (
        best["layout"]["tp"] * best["layout"]["cp"] * best["layout"]["pp"] * best["layout"]["dp"]
    )
    seen = list(_seen(training, work, chips))
    jobs = list(_times(training, seen))
    whole = sum(job.whole_s for job in jobs)
    notes = training.jobs()
    model = request["model"]
    return {
        "training": str(training.folder),
        "model": model if isinstance(model, str) else str(model.get("name", "custom")),
        "cluster": request["cluster"],
        "software": training.request.software,
        "launcher": training.request.launcher,
        "total_steps": notes[-1].total_steps if notes else None,
        "done_steps": max((one.step for one in seen), default=None),
        "tokens_per_step": work["seq_len"] * work["gbs"],
        "predicted_step_s": best["step_s"],
        "predicted_interval_s": (best.get("interval") or {}).get("step_s"),
        "goodput": sum(job.new_s for job in jobs) / whole if whole > 0 else None,
        "series": [asdict(one) for one in seen],
        "parts": [{**asdict(job), "whole_s": job.whole_s} for job in jobs],
    }


def _seen(training: TrainFolder, work: dict[str, int], chips: int) -> Iterator[SeenStep]:
    furthest = 0
    for note in training.jobs():
        reading = read_progress(training.job_folder(note.number))
        if reading is None:
            continue
        every = _interval(reading)
        before: int | None = None
        for report in reading.reports:
            if report.step is None:
                continue
            steps = every if before is None or report.step <= before else report.step - before
            if before is None and reading.num_reports > len(reading.reports):
                steps = max(every, report.step - furthest)  # those before it are not kept
            steps = min(steps, report.step)
            new = max(0, min(steps, report.step - furthest))
            yield SeenStep(
                job=note.number,
                step=report.step,
                loss=report.loss,
                step_s=report.seconds(**work, num_chips=chips),
                steps=steps,
                again=steps - new,
            )
            before, furthest = report.step, max(furthest, report.step)


def _interval(reading: LogReading) -> int:
    """Steps from one report to the next, as mostly seen; 1 of a single report."""
    steps = [report.step for report in reading.reports if report.step is not None]
    gaps = [after - step for step, after in pairwise(steps) if after > step]
    return round(median(gaps)) if gaps else 1


def _times(training: TrainFolder, seen: list[SeenStep]) -> Iterator[JobTime]:
    sent, ended = _moments(training)
    known = [one.step_s for one in seen if one.step_s is not None]
    middle = median(known) if known else 0.0
    before: float | None = None
    for note in training.jobs():
        if note.number not in sent:
            continue
        start = sent[note.number] if before is None else before
        end = ended.get(note.number) or _last_written(training.job_folder(note.number)) or start
        own = [one for one in seen if one.job == note.number]
        new, again = (
            sum((one.step_s or middle) * count for one, count in zip(own, counts, strict=True))
            for counts in ([one.steps - one.again for one in own], [one.again for one in own])
        )
        yield JobTime(
            job=note.number, new_s=new, again_s=again, rest_s=max(0.0, end - start - new - again)
        )
        before = max(start, end)


def _moments(training: TrainFolder) -> tuple[dict[int, float], dict[int, float]]:
    """When jobs were sent, and when they were seen to have ended."""
    found: dict[str, dict[int, float]] = {"submitted": {}, "ended": {}}
    for event in training.events():
        if event.get("event") in found:
            found[event["event"]][int(event["job"])] = float(event["at_s"])
    return found["submitted"], found["ended"]


def _last_written(folder: Path) -> float | None:
    """When a job that still runs last wrote into its logs."""
    times = [(folder / name).stat().st_mtime for name in LOGS if (folder / name).exists()]
    return max(times, default=None)
