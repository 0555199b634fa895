"""What a report says of a training's folder, or of `train --json` where that is to be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.report.charts.forms import (
    Axis,
    Bar,
    Grid,
    Group,
    Guide,
    Point,
    Points,
    Series,
    Stack,
    table_of,
)
from meshwright.report.charts.svg import BEST, SEQUENCE, TIME_COLOURS, number
from meshwright.report.parts.part import (
    Block,
    Part,
    Record,
    Tile,
    Words,
    present,
    sections_of,
    tiles_of,
)
from meshwright.values.units import HOUR_S, counted

__all__ = ["goodput_info", "loss_info", "speed_info", "training_part"]

MOST_POINTS = 500
"""Of a line: more cannot be told apart."""
MINUTE_S = 60.0
_PARTS = (
    ("new_s", "new steps", SEQUENCE[0]),
    ("again_s", "steps done again", BEST),
    ("rest_s", "waiting, starts, checkpoints", TIME_COLOURS["bubble"]),
)


def training_part(record: Record, name: str, resolve: object) -> Part:
    """Return the loss, where the time went, the speed, and every job."""
    seen = record["series"]
    nothing = Words(lines=("Its logs report no step yet.",))
    loss: tuple[Block, ...] = present(loss_info(record))
    time: tuple[Block, ...] = present(goodput_info(record))
    return Part(
        kind="training",
        title=f"{record['model']} on {record['cluster']}",
        answer=_answer(record),
        tiles=_tiles(record),
        sections=sections_of(
            ("loss", "Loss and goodput", (*loss, *time) or (nothing,)),
            ("speed", "Speed", present(speed_info(record))),
            ("jobs", "Jobs", (_jobs(record),) if record["parts"] else ()),
        ),
        notes=()
        if seen or not record["parts"]
        else ("The logs say nothing of steps, so all of the time counts as waiting.",),
    )


def _answer(record: Record) -> str:
    done, total = record["done_steps"], record["total_steps"]
    if done is None:
        return f"{record['training']}: no step yet, {counted(len(record['parts']), 'job')} sent."
    of = "" if total is None else f" of {total:,}"
    losses = [one["loss"] for one in record["series"] if one["loss"] is not None]
    loss = f", loss {number(losses[0])} at first and {number(losses[-1])} now" if losses else ""
    good = record["goodput"]
    share = "" if good is None else f" Goodput is {100 * good:.1f} %: the share in new steps."
    jobs = counted(len(record["parts"]), "job")
    return f"{record['training']}: {done:,}{of} steps by {jobs}{loss}.{share}"


def _tiles(record: Record) -> tuple[Tile, ...]:
    done, total, good = record["done_steps"], record["total_steps"], record["goodput"]
    times = _step_times(record)
    middle = sorted(times)[len(times) // 2] if times else None
    losses = [one["loss"] for one in record["series"] if one["loss"] is not None]
    share = "" if not total or done is None else f"{100 * done / total:.0f} % of {total:,}"
    planned = record["predicted_step_s"]
    return tiles_of(
        ("Steps", None if done is None else f"{done:,}", share),
        ("Loss", number(losses[-1]) if losses else None, "the newest"),
        ("Goodput", None if good is None else f"{100 * good:.1f} %", "of the time in new steps"),
        (
            "Step time",
            None if middle is None else f"{number(middle)} s",
            "" if middle is None else f"x{middle / planned:.2f} of the plan's {number(planned)} s",
        ),
    )


def _step_times(record: Record) -> list[float]:
    return [one["step_s"] for one in record["series"] if one["step_s"] is not None]


def _thinned(seen: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As many as can be told apart, the last one among them."""
    stride = -(-len(seen) // MOST_POINTS)
    return [one for place, one in enumerate(seen) if (len(seen) - 1 - place) % stride == 0]


def loss_info(record: Record) -> Points | None:
    """Return the loss over the steps, with where jobs start; None where no log says it."""
    seen = [one for one in record["series"] if one["loss"] is not None]
    if not seen:
        return None
    line = tuple(
        Point(x=one["step"], y=one["loss"], label=f"step {one['step']:,}", detail=_job(one))
        for one in _thinned(seen)
    )
    first = {one["job"]: one for one in reversed(seen)}
    starts = tuple(
        Point(x=one["step"], y=one["loss"], label=f"job {job}", named=True)
        for job, one in sorted(first.items())
    )
    groups = (
        Group(title="loss", colour=SEQUENCE[0], points=line, mark="none", joined="line"),
        Group(title="first report of a job", colour=BEST, points=starts, mark="diamond"),
    )
    return Points(
        key="loss",
        title="Loss by step",
        sentence=(
            f"From {number(seen[0]['loss'])} to {number(seen[-1]['loss'])} over"
            f" {counted(len(seen), 'report')} of its logs."
        ),
        x=Axis(key="step", title="step", whole=True),
        y=Axis(key="loss", title="loss"),
        groups=groups,
    )


def _job(one: Mapping[str, Any]) -> str:
    again = f", {one['again']} of its steps done again" if one["again"] else ""
    return f"job {one['job']}{again}"


def goodput_info(record: Record) -> Stack | None:
    """Return where the time of each job went; None before there is any."""
    whole = sum(job["whole_s"] for job in record["parts"])
    if whole <= 0:
        return None
    unit, size = ("h", HOUR_S) if whole >= 2 * HOUR_S else ("min", MINUTE_S)
    unit, size = (unit, size) if whole >= 5 * MINUTE_S else ("s", 1.0)
    jobs = [(f"job {job['job']}", job) for job in record["parts"] if job["whole_s"] > 0]
    if len(jobs) > 1:
        every = {key: sum(job[key] for _, job in jobs) for key, *_ in _PARTS}
        jobs.insert(0, ("all jobs", every))
    return Stack(
        key="goodput",
        title="Goodput: where the time went",
        sentence=(
            f"{100 * record['goodput']:.1f} % of the time went into steps that were done for the"
            " first time. A job's time is from the end of the one before to its own end."
        ),
        unit=unit,
        series=tuple(
            Series(key=key.removesuffix("_s"), title=title, colour=colour)
            for key, title, colour in _PARTS
        ),
        bars=tuple(
            Bar(label=label, values=tuple(job[key] / size for key, *_ in _PARTS))
            for label, job in jobs
        ),
        over="job",
    )


def speed_info(record: Record) -> Points | None:
    """Return step times over the steps against the plan's; None where no log says them."""
    seen = [one for one in record["series"] if one["step_s"] is not None]
    if not seen:
        return None
    points = tuple(
        Point(x=one["step"], y=one["step_s"], label=f"step {one['step']:,}", detail=_job(one))
        for one in _thinned(seen)
    )
    ends, planned = (seen[0]["step"], seen[-1]["step"]), record["predicted_step_s"]
    guide = Guide(
        title=f"predicted: {number(planned)} s", points=tuple((at, planned) for at in ends)
    )
    return Points(
        key="speed",
        title="Step time by step",
        sentence="Against the plan that the training was started by.",
        x=Axis(key="step", title="step", whole=True),
        y=Axis(key="step_s", title="step, s", from_zero=True),
        groups=(Group(title="measured", colour=SEQUENCE[0], points=points),),
        guides=(guide,) if ends[0] < ends[1] else (),
    )


def _jobs(record: Record) -> Grid:
    def steps(job: Mapping[str, Any], key: str) -> int:
        return sum(one[key] for one in record["series"] if one["job"] == job["job"])

    return table_of(
        record["parts"],
        ("job", "job", 6, "job"),
        ("steps", "steps", 6, lambda job: steps(job, "steps")),
        ("again", "done again", 6, lambda job: steps(job, "again")),
        *((key, f"{title}, s", 4, key) for key, title, _ in _PARTS),
        ("whole_s", "in all, s", 4, "whole_s"),
        key="jobs",
        title="Every job",
    )
