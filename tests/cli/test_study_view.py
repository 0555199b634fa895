"""A study's screen as it goes: what runs, what was learnt, what is left to gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from tests.runs.records import measured, record

from meshwright.cli.study_view import _table
from meshwright.runs.loop import View
from meshwright.runs.outcome import Failure
from meshwright.values.layout import Layout

FAILURE = Failure(
    failure_class="cuda_oom", message="ran out", evidence="CUDA out of memory", step=2
)


def layout(tp: int, dp: int) -> Layout:
    return Layout(tp=tp, pp=1, dp=dp, mbs=1, gbs=64)


def view(**changes: object) -> View:
    plain = View(
        records=(
            replace(record(layout(2, 8)), number=1, state="finished", outcome=measured(2.2)),
            replace(record(layout(4, 4)), number=2, state="finished", outcome=measured(2.6)),
            replace(record(layout(1, 16)), number=3, state="failed", outcome=FAILURE),
            replace(record(layout(8, 2)), number=4, state="submitted"),
        ),
        waits={},
        gpu_hours=1.25,
        last_choice="tp8-dp2: expected gain 1.9% of the best step so far",
        left_to_gain=0.021,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def lines_of(shown: View, width: int) -> list[str]:
    console = Console(width=width, record=True, file=None, force_terminal=False, markup=False)
    with console.capture() as caught:
        console.print(_table(shown))
    return [line.rstrip() for line in caught.get().splitlines()]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_screen_says_how_the_study_stands(width: int) -> None:
    lines = lines_of(view(), width)
    assert max(map(len, lines)) <= width
    [running] = [line for line in lines if line.split()[:1] == ["4"]]
    assert running.endswith("runs")
    assert lines.index(running) < next(
        i for i, line in enumerate(lines) if line.split()[:1] == ["1"]
    )
    # 2.2 and 2.6 over 2.0 that was predicted: x1.1 and x1.3, the median x1.2
    assert "learnt       steps take x1.20 of what was predicted (x1.10 to x1.30)" in lines
    assert "failed       1 run cuda_oom" in lines
    assert "left to gain 2.1%, by which the best is expected to be too slow" in lines
    assert "spent        1.25 GPU-hours" in lines
    assert any(line.startswith("best ") and line.endswith("2.2 s a step") for line in lines)


def test_nothing_is_told_before_it_is_known() -> None:
    start = view(records=(), left_to_gain=None, last_choice="")
    assert lines_of(start, 80)[-2:] == ["best         none yet", "spent        1.25 GPU-hours"]
    ended = lines_of(view(stop="70% sure"), 80)
    assert "stops        70% sure" in ended
    assert not [line for line in ended if line.startswith("left to gain")]
