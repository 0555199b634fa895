"""Atomic files, journals and frozen lists."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from meshwright.data.atomic import (
    Journal,
    create_once,
    locked,
    read_journals,
    temporary_of,
    write_whole,
    writing,
)
from meshwright.data.listing import (
    FileRecord,
    natural_key,
    read_manifest,
    settle,
    sha256_of,
    walk,
    write_manifest,
)
from meshwright.data.workers import ALONE
from meshwright.values.errors import ConfigError


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.bin"
    with writing(path) as handle:
        handle.write(b"half")
        handle.flush()
        assert not path.exists()
        handle.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), writing(tmp_path / "a") as handle:
        handle.write(b"new")
        raise RuntimeError
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old"}


def test_what_a_kill_left_is_taken_over(tmp_path: Path) -> None:
    temporary_of(tmp_path / "a").write_bytes(b"much longer than what comes now")
    write_whole(tmp_path / "a", b"short")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"short"}


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "a"),
        pytest.raises(ConfigError, match="another process is writing it"),
        locked(tmp_path / "a"),
    ):
        pass
    with locked(tmp_path / "a"):
        pass


def test_of_many_that_create_a_file_one_does(tmp_path: Path) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        if create_once(tmp_path / "list", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "list").read_bytes() == b"%d" % won[0]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_torn_last_line_is_no_record(tmp_path: Path) -> None:
    with Journal(tmp_path, ALONE) as journal:
        journal.append({"shard": "a", "n": 1})
        journal.append({"shard": "b\udcff", "n": 2})
        path = journal.path
    with path.open("ab") as handle:
        handle.write(b'{"shard": "c", "n"')
    assert [record["shard"] for record in read_journals(tmp_path)] == ["a", "b\udcff"]
    with Journal(tmp_path, ALONE) as journal:
        journal.append({"shard": "c", "n": 3})
    assert [record["n"] for record in read_journals(tmp_path)] == [1, 2, 3]


def test_damage_inside_a_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0of1-0.jsonl").write_text('{"shard": "a"}\nrubbish\n{"shard": "b"}\n')
    with pytest.raises(ConfigError, match=r"rank0of1-0.jsonl:2: no record"):
        list(read_journals(tmp_path))


def test_natural_order() -> None:
    names = ["p10.txt", "p2.txt", "p02.txt", "a/p1.txt", "a2/x", "a10/x", "p", "p2"]
    assert sorted(names, key=natural_key) == [
        "a/p1.txt",
        "a2/x",
        "a10/x",
        "p",
        "p2",
        "p02.txt",
        "p2.txt",
        "p10.txt",
    ]


def test_walk_takes_folders_patterns_and_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in/b/10.jsonl", "in/b/9.jsonl", "in/a.jsonl", "in/.hidden.jsonl", "in/notes.md"):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    assert [f.name for f in walk(["in"], suffixes=[".jsonl"])] == [
        "a.jsonl",
        "b/9.jsonl",
        "b/10.jsonl",
    ]
    assert [f.name for f in walk(["in/**/*.jsonl"])] == ["a.jsonl", "b/9.jsonl", "b/10.jsonl"]
    Path("names").write_text("in/b/10.jsonl\nin/b/9.jsonl\n\n")
    assert [(f.name, f.size_bytes) for f in walk(["@names"])] == [("9.jsonl", 12), ("10.jsonl", 13)]
    assert [f.name for f in walk(["in", "in/b/9.jsonl", "@names"])] == [
        "a.jsonl",
        "b/9.jsonl",
        "b/10.jsonl",
        "notes.md",
    ]
    for words, message in (
        (["nothing"], "no such file"),
        (["in/*.gz"], "no file matches"),
        (["@none"], "@none: No such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            walk(words)


def test_a_manifest_of_ours_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "sub" / "manifest.json").write_text('{"text": "of a user"}')
    write_manifest(tmp_path, step="extract", settings={}, files=[])
    assert [f.name for f in walk([str(tmp_path)])] == ["a.json", "sub/manifest.json"]


def test_two_inputs_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text(folder)
    with pytest.raises(ConfigError, match=r"would both be written as x.jsonl"):
        walk([str(tmp_path / "a"), str(tmp_path / "b")])


def test_a_list_stays_as_the_first_rank_saw_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("x")
    first = settle(tmp_path / "list.jsonl", [str(folder)], settings={"level": 3})
    (folder / "3.txt").write_text("late")
    os.remove(folder / "0.txt")
    assert settle(tmp_path / "list.jsonl", [str(folder)], settings={"level": 3}) == first
    assert [f.name for f in first] == ["0.txt", "1.txt", "2.txt"]
    with pytest.raises(ConfigError, match=r"was begun with level=3, and 4 is asked for now"):
        settle(tmp_path / "list.jsonl", [str(folder)], settings={"level": 4})


def test_manifest_reads_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    digest = (  # FIPS 180-4, SHA-256 of "abc"
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert sha256_of(tmp_path / "a") == digest
    files = [
        FileRecord(name="a", size_bytes=3, sha256=digest, documents=1),
        FileRecord(name="b", size_bytes=0, documents=0),
    ]
    written = write_manifest(tmp_path, step="extract", settings={"level": 3}, files=files)
    assert read_manifest(tmp_path) == written
    assert (written.size_bytes, written.documents, written.tokens) == (3, 1, None)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ConfigError, match="no manifest"):
        read_manifest(tmp_path)
