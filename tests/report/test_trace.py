"""A step as a trace: every track by hand for a small pipeline, and the rules of Chrome's format for
all schedules."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meshwright.cost.schedules import Pipeline, PipelineSchedule
from meshwright.cost.simulate import simulate
from meshwright.report.trace import chrome_trace, write_trace
from meshwright.search.traced import TracedChunk, TracedStage, TracedStep
from meshwright.values.units import GIB

Events = list[dict[str, Any]]
ONCE = {"exchange between replicas": 0.5, "optimizer": 0.25, "overhead": 0.0}


def step_of(
    schedule: PipelineSchedule,
    *,
    vpp: int = 1,
    micro: int = 3,
    recompute_s: float = 0.0,
    blocking: bool = False,
) -> TracedStep:
    """Two stages with forwards of 1 s and backwards of 2 s, a quarter second of the forward and
    half a second of the backward messages."""
    count = 2 * vpp
    return TracedStep(
        pipeline=Pipeline(
            schedule=schedule,
            pp=2,
            vpp=vpp,
            num_microbatches=micro,
            forward_s=[1.0] * count,
            backward_s=[2.0] * count,
            wgrad_s=[0.75] * count,
            link_s=0.125,
            p2p="blocking" if blocking else "overlapped",
        ),
        stages=tuple(
            TracedStage(name=f"stage {i}: h100 tp2", peak_bytes=40 * GIB, passing_bytes=10 * GIB)
            for i in (0, 1)
        ),
        chunks=tuple(
            TracedChunk(
                layers=4,
                recompute_s=recompute_s,
                forward_messages_s={"tp": 0.25},
                backward_messages_s={"tp": 0.3, "ep": 0.2},
            )
            for _ in range(count)
        ),
        once_s=ONCE,
    )


def events_of(step: TracedStep) -> Events:
    found: Events = json.loads(json.dumps(chrome_trace(step, title="a step"), allow_nan=False))[
        "traceEvents"
    ]
    return found


def tracks_of(events: Events) -> dict[str, Events]:
    """Events by the name of their track."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {
        name: sorted(
            (e for e in events if e["ph"] == "X" and e["tid"] == tid), key=lambda e: e["ts"]
        )
        for tid, name in names.items()
    }


def drawn(track: Events) -> list[tuple[str, float, float]]:
    """Name, start and end in seconds."""
    return [
        (e["name"], round(e["ts"] / 1e6, 6), round((e["ts"] + e["dur"]) / 1e6, 6)) for e in track
    ]


def test_tracks_of_a_small_step_by_hand() -> None:
    """The first stage sends at 1 and gets back at 4.125 what the last one computed from 1.125 on:
    one exchange, which ends after 0.125."""
    tracks = tracks_of(events_of(step_of("1f1b", micro=1, recompute_s=0.5, blocking=True)))
    assert list(tracks) == [
        "stage 0: h100 tp2",
        "stage 1: h100 tp2",
        "stage 0: communication",
        "stage 1: communication",
    ]
    assert drawn(tracks["stage 0: h100 tp2"]) == [
        ("F0", 0.0, 1.0),
        ("bubble", 1.0, 4.125),
        ("message", 4.125, 4.25),
        ("R0", 4.25, 4.75),
        ("B0", 4.75, 6.25),
        ("exchange between replicas", 6.25, 6.75),
        ("optimizer", 6.75, 7.0),
    ]
    assert drawn(tracks["stage 1: h100 tp2"])[:5] == [
        ("bubble", 0.0, 1.0),
        ("message", 1.0, 1.125),
        ("F0", 1.125, 2.125),
        ("R0", 2.125, 2.625),
        ("B0", 2.625, 4.125),
    ]
    assert drawn(tracks["stage 0: communication"]) == [
        ("tp", 0.75, 1.0),
        ("tp", 5.75, 6.05),
        ("ep", 6.05, 6.25),
    ]


def test_memory_rises_to_the_peak_and_falls_to_what_stays() -> None:
    """1f1b: the first of two stages holds two forwards, the last one; 10 of 40 GiB come and go with
    them."""
    events = events_of(step_of("1f1b"))
    memory = [
        [e["args"]["GiB"] for e in events if e["name"] == f"memory of stage {stage}"]
        for stage in (0, 1)
    ]
    held = [
        [e["args"]["held"] for e in events if e["name"] == f"forwards held by stage {stage}"]
        for stage in (0, 1)
    ]
    assert [(each[0], max(each), each[-1]) for each in held] == [(0, 2, 0), (0, 1, 0)]
    assert memory[0][:4] == [30.0, 35.0, 40.0, 35.0] and memory[1][:3] == [30.0, 40.0, 30.0]


@pytest.mark.parametrize(
    ("schedule", "vpp", "blocking"),
    [
        ("1f1b", 1, True),
        ("1f1b", 1, False),
        ("interleaved", 2, False),
        ("gpipe", 1, True),
        ("zero-bubble", 1, False),
        ("dualpipev", 2, False),
    ],
)
def test_every_schedule_keeps_the_rules(
    schedule: PipelineSchedule, vpp: int, blocking: bool
) -> None:
    """Chrome's trace event format: complete events, counters and metadata with their fields; tracks
    that no two events share at once."""
    step = step_of(schedule, vpp=vpp, micro=4, recompute_s=0.5, blocking=blocking)
    events = events_of(step)
    fields = {
        "X": {"name", "cat", "ts", "dur", "pid", "tid"},
        "C": {"name", "ts", "pid", "args"},
        "M": {"name", "pid", "args"},
    }
    assert all(fields[event["ph"]] <= set(event) for event in events)
    assert all(
        math.isfinite(event["ts"]) and event["ts"] >= 0 for event in events if event["ph"] != "M"
    )
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")
    tracks = tracks_of(events)
    for track in tracks.values():
        assert all(
            before["ts"] + before["dur"] <= after["ts"] + 1e-3 for before, after in pairwise(track)
        )  # microseconds
    ends = [
        track[-1]["ts"] + track[-1]["dur"]
        for name, track in tracks.items()
        if name.startswith("stage") and "h100" in name
    ]
    assert ends == pytest.approx([(simulate(step.pipeline).step_s + 0.75) * 1e6] * 2)
    for stage in (0, 1):  # computing, messages, bubbles and what follows fill the step
        whole = tracks[f"stage {stage}: h100 tp2"]
        assert sum(event["dur"] for event in whole) == pytest.approx(ends[stage])
        chunks = [
            track
            for name, track in tracks.items()
            if name.startswith(f"stage {stage}, virtual stage")
        ]
        assert len(chunks) == (vpp if vpp > 1 else 0)
        assert not chunks or sum(map(len, chunks)) == sum(event["cat"] in KINDS for event in whole)


KINDS = ("forward", "backward", "recompute", "weight gradient")


def test_trace_is_written(tmp_path: Path) -> None:
    write_trace(
        tmp_path / "step.json",
        chrome_trace(step_of("1f1b"), title="a step", metadata={"layout": "pp=2"}),
    )
    found = json.loads((tmp_path / "step.json").read_text())
    assert found["otherData"] == {"layout": "pp=2"} and found["displayTimeUnit"] == "ms"
    assert [e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"] == [
        "a step"
    ]
