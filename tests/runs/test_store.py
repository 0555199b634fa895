"""The study's directory: nothing is lost, nothing is mixed up, nothing of others is touched."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from tests.runs.records import measured, record

from meshwright.runs.outcome import Failure
from meshwright.runs.record import Event, run_id_of, told_fields
from meshwright.runs.store import read_store, study_folder
from meshwright.values.errors import ConfigError, StudyError
from meshwright.values.layout import Layout

REQUEST = {"model": "tiny-llama", "cluster": "h100:8", "seq_len": 64}
TRIAL = {"software": "meshwright", "steps": 8}


def test_a_run_reads_back_with_every_event(tmp_path: Path) -> None:
    store = study_folder(tmp_path / "study", request=REQUEST, trial=TRIAL)
    layout = Layout(
        tp=2,
        pp=2,
        dp=2,
        gbs=8,
        recompute="selective",
        recompute_modules=("core_attn",),
        layers_per_stage=(3, 5),
    )
    planned = store.plan(record(layout), Event(at_s=1.0, event="planned"))
    store.add(planned, Event(at_s=2.0, event="submitting"))
    store.add(planned, Event(at_s=3.0, event="submitted", handle="4711"))
    store.add(planned, Event(at_s=9.0, event="finished", outcome=measured(1.5)))
    (found,) = read_store(tmp_path / "study").records()
    assert found == replace(
        record(layout),
        state="finished",
        handle="4711",
        attempts=1,
        outcome=measured(1.5),
        planned_s=1.0,
        submitted_s=3.0,
        ended_s=9.0,
    )


def test_a_failure_reads_back_as_one(tmp_path: Path) -> None:
    store = study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    failure = Failure(
        failure_class="cuda_oom",
        message="out of memory",
        evidence="CUDA out of memory. Tried to allocate 2 GiB",
        step=3,
    )
    planned = store.plan(record(), Event(at_s=1.0, event="planned"))
    store.add(planned, Event(at_s=2.0, event="failed", outcome=failure))
    (found,) = store.records()
    assert found.state == "failed"
    assert found.failure == failure
    assert found.measured is None


def test_a_run_that_was_about_to_be_submitted_is_known_as_such(tmp_path: Path) -> None:
    store = study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    planned = store.plan(record(), Event(at_s=1.0, event="planned"))
    store.add(planned, Event(at_s=2.0, event="submitting"))
    (found,) = store.records()
    assert found.state == "planned"
    assert found.submitting
    assert store.add(found, Event(at_s=3.0, event="lost")).submitting is False


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_line_cut_short_by_a_kill_is_no_event_and_spoils_none(tmp_path: Path, cut: int) -> None:
    store = study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    planned = store.plan(record(), Event(at_s=1.0, event="planned"))
    path = store.run_folder(planned.run_id) / "events.jsonl"
    whole = path.read_bytes()
    store.add(planned, Event(at_s=2.0, event="submitted", handle="1"))
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert store.records()[0].state == "planned"
    store.add(planned, Event(at_s=3.0, event="submitted", handle="2"))
    assert store.records()[0].handle == "2"


def test_ids_tell_layouts_apart_that_differ_in_any_field() -> None:
    layout = Layout(tp=2, pp=2, dp=2, gbs=8)
    others = [
        replace(layout, sp=True),
        replace(layout, sharding="zero1"),
        replace(layout, gbs=16),
        replace(layout, layers_per_stage=(1, 2)),
    ]
    assert len({run_id_of(other) for other in [layout, *others]}) == 5
    assert run_id_of(layout).startswith("tp2-pp2-dp2-mbs1-none-")


def test_a_field_that_comes_later_leaves_the_ids_of_older_studies_as_they_are() -> None:
    @dataclass(frozen=True)
    class Older:
        tp: int = 1

    @dataclass(frozen=True)
    class Newer(Older):
        overlap: bool = False

    told = partial(told_fields, always=("tp",), usual=asdict(Newer()))
    assert told(Newer(tp=2)) == asdict(Older(tp=2))
    assert told(Newer(tp=1)) == {"tp": 1}
    assert told(Newer(tp=2, overlap=True)) == {"tp": 2, "overlap": True}


def test_ids_of_layouts_are_those_of_earlier_studies() -> None:
    """Golden: a study that was begun with an earlier version goes on under these names."""
    uneven = Layout(pp=2, dp=2, gbs=8, layers_per_stage=(3, 4), recompute="selective")
    assert run_id_of(Layout(tp=2, pp=2, dp=2, gbs=8)) == "tp2-pp2-dp2-mbs1-none-9347f17f"
    named = run_id_of(replace(uneven, recompute_modules=("core_attn",)))
    assert named == "tp1-pp2-dp2-mbs1-selective-5556dcc7"


def test_a_study_from_before_a_field_is_the_same_study(tmp_path: Path) -> None:
    older = {**TRIAL, "limits": {"ttft_s": 0.5}}
    study_folder(tmp_path, request=REQUEST, trial=older)
    newer = {**TRIAL, "limits": {"ttft_s": 0.5, "ttft_p99_s": None}}
    asked, usual = {**REQUEST, "racks": False}, {"racks": False}
    study_folder(tmp_path, request=asked, trial=newer, usual=usual)
    with pytest.raises(StudyError, match="racks=False where True is asked for"):
        study_folder(tmp_path, request={**REQUEST, "racks": True}, trial=newer, usual=usual)
    with pytest.raises(StudyError, match="limits"):
        asks = {**TRIAL, "limits": {"ttft_s": 0.5, "ttft_p99_s": 1.0}}
        study_folder(tmp_path, request=REQUEST, trial=asks)


def test_another_study_is_refused_with_what_differs(tmp_path: Path) -> None:
    study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    with pytest.raises(
        StudyError, match=r"another study, with seq_len=64 where 128 is asked for now"
    ):
        study_folder(tmp_path, request={**REQUEST, "seq_len": 128}, trial=TRIAL)
    with pytest.raises(StudyError, match=r"steps=8 where 9 is asked for"):
        study_folder(tmp_path, request=REQUEST, trial={**TRIAL, "steps": 9})
    again = study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    assert again.study == read_store(tmp_path).study


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StudyError, match=r"holds thesis\.tex and no study\.yaml"):
        study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["study: 2\n", "[]", "study: 1\nrequest: 3\n", "a: [", "\0"])
def test_a_broken_study_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises((StudyError, ConfigError), match=r"study\.yaml"):
        study_folder(tmp_path, request=REQUEST, trial=TRIAL)


def test_a_full_disk_is_one_clear_line_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = study_folder(tmp_path, request=REQUEST, trial=TRIAL)
    planned = store.plan(record(), Event(at_s=1.0, event="planned"))

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(
            StudyError,
            match=r"No space left on device\); make room and start again: finished runs are kept",
        ):
            store.add(planned, Event(at_s=2.0, event="submitted", handle="1"))
        with pytest.raises(StudyError, match=r"No space left"):
            store.plan(record(Layout(dp=8, gbs=8)), Event(at_s=1.0, event="planned"))
    assert [found.state for found in store.records()] == ["planned"]
    assert not list(tmp_path.rglob(".*"))


def test_of_many_who_begin_a_study_at_once_all_have_the_same(tmp_path: Path) -> None:
    """Each start makes a study of its own where it finds none; one of them is written."""
    folder = tmp_path / "study"
    gate = threading.Barrier(16)

    def begin(_: int) -> str:
        gate.wait()
        return study_folder(folder, request={"model": "m"}, trial={"steps": 8}).study.study_id

    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(begin, range(16)))
    assert found == {read_store(folder).study.study_id}
    assert sorted(path.name for path in folder.iterdir()) == ["runs", "study.yaml"]
