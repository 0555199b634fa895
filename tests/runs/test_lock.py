"""One tuner at a time, whatever happened to the last."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meshwright.runs import lock as lock_module
from meshwright.runs.lock import STALE_S, Holder, locked
from meshwright.values.errors import StudyError


def elsewhere(**changes: str | int) -> Holder:
    plain = Holder(token="t", host="another-host", pid=1, started="1", boot="b")
    return replace(plain, **changes)  # type: ignore[arg-type]


def leave(folder: Path, holder: Holder, *, age_s: float) -> Path:
    path = folder / "lock"
    path.write_text(json.dumps(asdict(holder)))
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def test_it_is_held_and_let_go(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        lock.require()
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_second_one_is_refused_by_name(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(StudyError, match=rf"in use by process {os.getpid()} on .*; wait for it"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_a_killed_holder_on_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from meshwright.runs.lock import locked\n"
    code += "with locked(Path(sys.argv[1])): print(1, flush=True); time.sleep(60)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None
    with child, child.stdout:
        child.stdout.readline()
        with pytest.raises(StudyError, match=f"process {child.pid}"), locked(tmp_path):
            pass
        child.kill()
    with locked(tmp_path) as lock:
        lock.require()


def test_a_process_that_got_the_dead_one_s_number_is_not_the_holder(tmp_path: Path) -> None:
    me = lock_module._holder()
    leave(tmp_path, replace(me, started="1"), age_s=0)
    with locked(tmp_path):
        pass


def test_a_holder_on_another_machine_is_believed_while_it_touches_its_file(tmp_path: Path) -> None:
    leave(tmp_path, elsewhere(), age_s=STALE_S - 30)
    with pytest.raises(StudyError, match="process 1 on another-host"), locked(tmp_path):
        pass
    leave(tmp_path, elsewhere(), age_s=STALE_S + 30)
    with locked(tmp_path):
        pass


def test_a_machine_that_was_started_again_is_another_one(tmp_path: Path) -> None:
    me = lock_module._holder()
    leave(tmp_path, replace(me, boot="before"), age_s=STALE_S + 30)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 3}'])
def test_a_half_written_lock_is_waited_for_and_then_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    with pytest.raises(StudyError, match="being made by another process"), locked(tmp_path):
        pass
    then = time.time() - STALE_S - 30
    os.utime(path, (then, then))
    with locked(tmp_path):
        pass


def test_who_lost_the_lock_says_so_and_leaves_the_other_s_alone(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        leave(tmp_path, elsewhere(token="other"), age_s=0)
        with pytest.raises(
            StudyError,
            match="held by process 1 on another-host now, who took this process for dead",
        ):
            lock.require()
    assert json.loads((tmp_path / "lock").read_text())["token"] == "other"


def test_it_is_touched_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.02)
    with locked(tmp_path):
        then = time.time() - 1000
        os.utime(tmp_path / "lock", (then, then))
        end = time.time() + 5
        while (tmp_path / "lock").stat().st_mtime < then + 500 and time.time() < end:
            time.sleep(0.02)
        assert (tmp_path / "lock").stat().st_mtime > then + 500


def test_without_hard_links_it_is_made_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with locked(tmp_path) as lock:
        lock.require()
        with pytest.raises(StudyError, match="in use"), locked(tmp_path):
            pass


def _try(folder: Path, gate: Path, out: Path, others_done: Path) -> None:
    while not gate.exists():
        time.sleep(0.001)
    try:
        with locked(folder):
            (out / str(os.getpid())).touch()
            while not others_done.exists():  # a slow rival must not find the lock free
                time.sleep(0.01)
    except StudyError:
        pass


def test_of_many_who_find_a_dead_lock_at_once_one_gets_it(tmp_path: Path) -> None:
    folder, out, gate, others_done = (
        tmp_path / "study",
        tmp_path / "out",
        tmp_path / "gate",
        tmp_path / "done",
    )
    folder.mkdir()
    out.mkdir()
    leave(folder, elsewhere(), age_s=STALE_S + 60)
    rivals = [
        multiprocessing.get_context("fork").Process(
            target=_try, args=(folder, gate, out, others_done)
        )
        for _ in range(8)
    ]
    for rival in rivals:
        rival.start()
    gate.touch()
    until = time.monotonic() + 60
    while sum(rival.is_alive() for rival in rivals) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    others_done.touch()
    for rival in rivals:
        rival.join()
    assert len(list(out.iterdir())) == 1
