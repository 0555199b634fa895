from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.data.shards import copy, environment, is_there, tasks_in

from meshwright.data.atomic import read_journals
from meshwright.data.steps import StepReport, run_step
from meshwright.data.workers import (
    ALONE,
    Counts,
    Place,
    Totals,
    format_size,
    format_span,
    progress_line,
)

ROOT = Path(__file__).resolve().parents[2]
SIZES = {f"{number}": number % 7 for number in range(40)}


def do(
    folder: Path,
    sizes: dict[str, int],
    *,
    place: Place = ALONE,
    workers: int = 1,
    seconds: float = 0.0,
) -> StepReport:
    tasks = tasks_in(folder, sizes, seconds=seconds)
    return run_step(
        "copy",
        tasks,
        copy,
        state=folder / "state",
        place=place,
        workers=workers,
        still_there=is_there,
        progress=False,
    )


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_all_shards_are_done_and_not_again(tmp_path: Path, workers: int) -> None:
    report = do(tmp_path, SIZES, workers=workers)
    assert report.complete
    assert list(report.records) == list(SIZES)
    assert outputs(tmp_path)["6"] == b"0\n1\n2\n3\n4\n5\n"
    before = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in SIZES}
    (tmp_path / "out" / "3").unlink()
    assert do(tmp_path, SIZES, workers=workers).complete
    again = {name for name in SIZES if (tmp_path / "out" / name).stat().st_mtime_ns != before[name]}
    assert again == {"3"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_that_fails_leaves_the_others(tmp_path: Path, workers: int) -> None:
    report = do(tmp_path, {**SIZES, "bad1": 5}, workers=workers)
    assert report.failed == {"bad1": ("missing", "does not exist")}
    assert (report.complete, report.exit_code, len(report.records)) == (False, 3, 40)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_stops_the_step_with_what_is_done(tmp_path: Path, workers: int) -> None:
    report = do(
        tmp_path, {"large": 9, "full": 5, **{f"s{n}": 1 for n in range(20)}}, workers=workers
    )
    assert report.stopped is not None
    assert "No space left on device; free some space" in report.stopped
    if workers == 1:
        assert "large" in report.records
    assert report.exit_code == 3


@pytest.mark.parametrize("way", ["forkserver", "spawn"])
def test_workers_see_what_was_set_since_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Variables and folder, also where they are forked from a process that is older; and where its
    socket's path would be too long."""
    monkeypatch.setattr(
        "meshwright.data.workers._LONGEST_FOLDER", 1000 if way == "forkserver" else 0
    )
    for number in range(2):
        monkeypatch.setenv("MESHWRIGHT_TEST", str(number))
        monkeypatch.chdir(tmp_path)
        tasks = tasks_in(tmp_path, {"a": 1, "b": 1})
        report = run_step(
            "say",
            tasks,
            environment,
            state=tmp_path / str(number),
            place=ALONE,
            workers=2,
            still_there=is_there,
            progress=False,
        )
        said = {(record["value"], record["folder"]) for record in report.records.values()}
        assert said == {(str(number), str(tmp_path))}


def test_a_worker_that_is_killed_is_said(tmp_path: Path) -> None:
    report = do(tmp_path, {"large": 9, "dies": 5, "s": 1}, workers=2)
    assert report.stopped is not None
    assert "a worker was killed" in report.stopped


def test_ranks_that_start_one_after_the_other_lose_and_repeat_nothing(tmp_path: Path) -> None:
    places = [Place(rank=rank, world_size=3, source="test") for rank in range(3)]
    first = do(tmp_path, SIZES, place=places[0])
    assert (len(first.open_elsewhere), first.complete, first.exit_code) == (
        len(SIZES) - len(first.records),
        False,
        0,
    )
    for place in places[1:]:
        last = do(tmp_path, SIZES, place=place)
    assert last.complete
    shards = [record["shard"] for record in read_journals(tmp_path / "state" / "journal")]
    assert sorted(shards) == sorted(SIZES)


def test_of_ranks_that_run_side_by_side_one_sees_the_end(tmp_path: Path) -> None:
    """Rank 1 starts and ends while rank 0 is at its last shard."""
    places = [Place(rank=rank, world_size=2, source="test") for rank in range(2)]
    reports: list[StepReport] = []

    def meanwhile(task: object, record: object) -> None:
        if not reports:
            reports.append(do(tmp_path, SIZES, place=places[1]))

    tasks = tasks_in(tmp_path, SIZES)
    last = run_step(
        "copy",
        tasks,
        copy,
        state=tmp_path / "state",
        place=places[0],
        still_there=is_there,
        after=meanwhile,
        progress=False,
    )
    assert (reports[0].complete, last.complete, len(last.records)) == (False, True, len(SIZES))


RUN = """
import sys
from pathlib import Path
from tests.data.test_steps import SIZES, do
if __name__ == "__main__":
    print(do(Path(sys.argv[1]), SIZES, workers=2, seconds=0.02).complete)
"""


def test_kills_at_any_moment_leave_the_same_bytes(tmp_path: Path) -> None:
    do(tmp_path / "calm", SIZES)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    folder, random_s = tmp_path / "killed", random.Random(9)
    command, environment = (
        [sys.executable, str(script), str(folder)],
        {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        },
    )
    for _ in range(4):
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(random_s.uniform(0.4, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert last.stdout == "True\n", last.stderr
    assert outputs(folder) == outputs(tmp_path / "calm")


def test_progress_says_files_bytes_rates_and_the_time_left() -> None:
    totals = Totals(
        title="extract",
        files=59166,
        size_bytes=947 * 10**9,
        done_files=10_000,
        done_bytes=160 * 10**9,
    )
    counts = Counts(size_bytes=7 * 10**9, tokens=50_000_000)
    line = progress_line(totals, 437, counts, elapsed_s=100)
    # 780 GB are left at 70 MB/s: 11,143 s
    assert line == "extract: 10,437/59,166 files, 167 GB/947 GB, 70 MB/s, 500k tokens/s, 3h05m left"


def test_sizes_and_spans_for_people() -> None:
    sizes = {
        0: "0 B",
        999: "999 B",
        1500: "1.5 kB",
        999_400: "999 kB",
        999_600: "1 MB",
        947e9: "947 GB",
        2.54e12: "2.54 TB",
        5e15: "5,000 TB",
    }
    assert {size: format_size(size) for size in sizes} == sizes
    assert [format_span(s) for s in (5, 100, 130, 3700, 100_000)] == [
        "5s",
        "100s",
        "2m",
        "1h01m",
        "1d03h",
    ]


def test_progress_is_plain_lines_in_a_log(tmp_path: Path) -> None:
    from meshwright.data.workers import Progress

    stream = io.StringIO()
    with Progress(
        Totals(title="copy", files=2, size_bytes=10),
        lambda: (2, Counts(size_bytes=10)),
        stream=stream,
    ):
        pass
    assert stream.getvalue().startswith("copy: 2/2 files, 10 B/10 B, ")
    assert stream.getvalue().count("\n") == 1


def test_what_workers_are_forked_from_leaves_ctrl_c_to_its_parent(tmp_path: Path) -> None:
    """From its first import, which takes a second: its own traceback stood on the terminal
    otherwise."""
    (tmp_path / "imported.py").write_text(
        "import pathlib,"
        " signal\npathlib.Path('heard').write_text(signal.getsignal(signal.SIGINT).name)\n"
    )
    code = (
        "import pathlib, time\nfrom meshwright.data.steps import"
        " prepare_workers\nprepare_workers(['imported'])\n"
    )
    code += (
        "while not pathlib.Path('heard').exists() or not pathlib.Path('heard').read_text():\n   "
        " time.sleep(0.02)\n"
    )
    own = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=own, check=True, timeout=60)
    assert (tmp_path / "heard").read_text() == "SIG_IGN"
