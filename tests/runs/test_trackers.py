from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.runs.records import measured, record
from tests.runs.test_tables import FACTS, MODEL
from tests.software.logs.forms import megatron_line

from meshwright import cli
from meshwright.runs.loop import View
from meshwright.runs.outcome import Failure
from meshwright.runs.record import RunRecord
from meshwright.runs.results import StudyTables
from meshwright.runs.store import Store, study_folder
from meshwright.runs.trackers import (
    TensorBoardTracker,
    Tracking,
    WandbOptions,
    WandbTracker,
    read_key,
    run_name,
    track,
    tracked,
)
from meshwright.software.log import Report
from meshwright.software.log_reader import read_log
from meshwright.values.errors import ConfigError, MissingExtraError

KEY = "0123456789abcdef0123456789abcdef01234567"
RUN = replace(record(), state="finished", outcome=measured(2.0))
FAILED = replace(
    record(),
    state="failed",
    outcome=Failure(
        failure_class="cuda_oom", message="ran out", evidence="CUDA out of memory", step=2
    ),
)
TABLES = StudyTables(facts=FACTS, model=MODEL, records=(RUN,))


def reports() -> tuple[Report, ...]:
    reading = read_log(
        "".join(megatron_line(step, 2000 + step, loss=10 - step) for step in (1, 2, 3, 2, 3, 4))
    )
    assert reading is not None
    return reading.reports


needs_wandb = pytest.mark.skipif(
    find_spec("wandb") is None, reason="needs wandb: pip install 'meshwright[wandb]'"
)
needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboardX") is None,
    reason="needs tensorboardX: pip install 'meshwright[tensorboard]'",
)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Read events back: records of a length, its checksum, an Event of protobuf, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    [path] = folder.glob("events.*")
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


@needs_tensorboard
def test_tensorboard_has_curves_and_figures(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.add(RUN, TABLES, reports())
    [folder] = tmp_path.iterdir()
    assert folder.name == f"llama3-8b-{RUN.run_id}" == run_name(RUN, FACTS)
    found = scalars(folder)
    assert found["step_s"] == pytest.approx({1: 2.001, 2: 2.002, 3: 2.003, 4: 2.004})
    assert found["loss"] == {1: 9, 2: 8, 3: 7, 4: 6}
    assert found["study/Time_per_Step"] == {0: 2.0}
    assert found["study/peak_reserved_gib"] == {0: 33.0}


@needs_tensorboard
def test_tensorboard_shows_a_run_once(tmp_path: Path) -> None:
    (tmp_path / f".{run_name(RUN, FACTS)}").mkdir()
    (tmp_path / f".{run_name(RUN, FACTS)}" / "events.half").write_text("of a tuner that was killed")
    for _ in range(2):
        TensorBoardTracker(tmp_path).add(RUN, TABLES, reports())
    [folder] = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 1
    assert "loss" in scalars(folder)


@needs_wandb
@pytest.mark.filterwarnings("default")
def test_wandb_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = WandbOptions(folder=tmp_path, group="5f" * 16, mode="offline", key=KEY)
    for _ in range(2):
        WandbTracker(options).add(RUN, TABLES, reports())
    WandbTracker(options).add(replace(FAILED, run_id="other"), TABLES, ())
    folders = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert [name.partition("-5f5f5f5f-")[2] for name in folders] == sorted(
        [RUN.run_id, "other"], key=lambda name: name == "other"
    )
    assert sorted(path.name for path in (tmp_path / "shown").iterdir()) == sorted(
        [RUN.run_id, "other"]
    )
    [file] = (tmp_path / "wandb").glob(f"offline-run-*-{RUN.run_id}/run-*.wandb")
    content = file.read_bytes()
    for words in (f"llama3-8b-{RUN.run_id}", "Time per Step", "grad_norm", "predicted_step_s"):
        assert words.encode() in content
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in everything
    streams = capfd.readouterr()
    assert KEY not in streams.out + streams.err


def test_the_key_is_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"  {KEY} \nmore\n")
    assert read_key(path) == KEY
    assert KEY not in repr(WandbOptions(folder=tmp_path, group="g", key=read_key(path)))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words here\n", b"x" * 600, b"\xff\xfe secret"]
)
def test_a_file_without_a_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_key(path)
    assert str(path) in str(caught.value)
    assert not any(word in str(caught.value) for word in ("two words", "xxx", "secret"))
    with pytest.raises(ConfigError, match="No such file"):
        read_key(tmp_path / "none")


def test_an_absent_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"\.\[tensorboard\]"):
        TensorBoardTracker(tmp_path)
    with pytest.raises(MissingExtraError, match=r"\.\[wandb\]"):
        WandbTracker(WandbOptions(folder=tmp_path, group="g"))


class Broken:
    name = "broken"

    def add(self, record: RunRecord, tables: StudyTables, reports: Sequence[Report]) -> None:
        raise OSError("no network\nand more")


def test_no_tracker_stops_a_study() -> None:
    assert (
        track([Broken(), Broken()], RUN, TABLES, ())
        == (f"broken: {RUN.run_id} is not shown (OSError: no network)",) * 2
    )
    assert track([], RUN, TABLES, ()) == ()


def test_rows_of_one_run() -> None:
    assert TABLES.row(RUN)["Time per Step"] == 2.0
    assert TABLES.row(FAILED)["failure_class"] == "cuda_oom"
    assert "Time per Step" not in TABLES.row(record())


def study(folder: Path, *records: RunRecord) -> Store:
    store = study_folder(folder, request={"model": "llama3-8b"}, trial={"steps": 6})
    for run in records:
        store.run_folder(run.run_id).mkdir(parents=True, exist_ok=True)
        (store.run_folder(run.run_id) / "stdout.log").write_text(
            "".join(megatron_line(step, 2000) for step in (1, 2, 3))
        )
    return store


def view_of(*records: RunRecord) -> View:
    return View(records=records, waits={}, gpu_hours=0.0)


@needs_tensorboard
def test_runs_are_shown_as_they_end(tmp_path: Path) -> None:
    store = study(tmp_path / "study", RUN)
    seen: list[View] = []
    shown = tracked(
        seen.append,
        Tracking(tensorboard=True),
        store=store,
        facts=FACTS,
        model=MODEL,
        warn=pytest.fail,
    )
    going = view_of(record())
    for view in (going, view_of(RUN), view_of(RUN)):
        shown(view)
    assert len(seen) == 3
    [folder] = (store.folder / "tracking" / "tensorboard").iterdir()
    assert scalars(folder)["step_s"] == pytest.approx({1: 2.0, 2: 2.0, 3: 2.0})


def test_nothing_is_shown_where_nobody_asks(tmp_path: Path) -> None:
    store = study(tmp_path / "study", RUN)
    tracked(lambda view: None, Tracking(), store=store, facts=FACTS, model=MODEL, warn=pytest.fail)(
        view_of(RUN)
    )
    assert not (store.folder / "tracking").exists()


def test_what_a_tracker_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, lines = study(tmp_path / "study", RUN), list[str]()
    monkeypatch.setattr(Tracking, "trackers", lambda self, store: (Broken(),))
    shown = tracked(
        lambda view: None, Tracking(), store=store, facts=FACTS, model=MODEL, warn=lines.append
    )
    for _ in range(2):
        shown(view_of(RUN))
    assert lines == [f"broken: {RUN.run_id} is not shown (OSError: no network)"]


@pytest.mark.parametrize("words", [["--wandb-offline"], ["--wandb-key-file", "key"]])
def test_words_without_effect_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.run(["tune", "tiny-llama", "--cluster", "h100:8", "--seq", "128", "--gbs", "8", *words])
        == 2
    )
    assert f"{words[0]} has no effect without --wandb PROJECT" in capsys.readouterr().err


def test_an_absent_library_stops_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    folder = tmp_path / "study"
    assert (
        cli.run(["tune", "tiny-llama", "--cluster", "local:2", "--tensorboard", "-o", str(folder)])
        == 2
    )
    assert "pip install -e '.[tensorboard]'" in capsys.readouterr().err
    assert not folder.exists()
