from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.data.atomic import parse_size
from meshwright.data.join import concat
from meshwright.data.workers import Place
from meshwright.values.errors import ConfigError


def fill(folder: Path, contents: list[bytes]) -> str:
    folder.mkdir(parents=True)
    for number, content in enumerate(contents):
        (folder / f"part_{number}.jsonl").write_bytes(content)
    return str(folder)


def shards(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("shard_*"))]


def documents(contents: list[bytes]) -> list[bytes]:
    return [line for content in contents for line in content.split(b"\n") if line.strip()]


def test_one_line_end_between_documents(tmp_path: Path) -> None:
    contents = [
        b"a\nb",
        b"\n\nc\n\n",
        b"",
        b"d\r\n \n\ne",
        *[b"%d" % number for number in range(4, 12)],
    ]
    result = concat([fill(tmp_path / "in", contents)], output=tmp_path / "out", progress=False)
    assert shards(tmp_path / "out") == [
        b"a\nb\nc\nd\r\ne\n" + b"".join(b"%d\n" % number for number in range(4, 12))
    ]
    assert result.to_dict()["documents"] == 13


@pytest.mark.parametrize("blank", [b"", b" ", b"\t", b"\r", b"\v", b"\f"])
def test_a_line_of_white_space_is_blank_wherever_it_stands(tmp_path: Path, blank: bytes) -> None:
    concat(
        [fill(tmp_path / "in", [blank + b"\na\n" + blank + b"\nb\n" + blank])],
        output=tmp_path / "out",
        progress=False,
    )
    assert shards(tmp_path / "out") == [b"a\nb\n"]


@settings(max_examples=30)
@given(
    contents=st.lists(
        st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"x")), max_size=9).map(
            b"\n".join
        ),
        max_size=12,
    ),
    most=st.integers(40, 90),
)
def test_no_document_is_lost_glued_or_moved(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], most: int
) -> None:
    folder = tmp_path_factory.mktemp("join")
    source = fill(folder / "in", contents) if contents else fill(folder / "in", [b""])
    concat([source], output=folder / "out", min_bytes=1, max_bytes=most, progress=False)
    found = shards(folder / "out")
    assert documents(found) == documents(contents)
    assert all(line.strip() for shard in found for line in shard.split(b"\n")[:-1])
    assert all(len(shard) <= most + len(contents) for shard in found)


def test_sizes_are_between_the_two(tmp_path: Path) -> None:
    lines = [b"x" * (number % 97) + b"\n" for number in range(3000)]
    source = fill(tmp_path / "in", [b"".join(lines[at : at + 70]) for at in range(0, 3000, 70)])
    concat([source], output=tmp_path / "out", min_bytes=9_000, max_bytes=12_000, progress=False)
    found = shards(tmp_path / "out")
    assert len(found) > 9
    assert {9_000 <= len(shard) <= 12_000 for shard in found} == {True}


def test_ranks_write_what_one_process_writes(tmp_path: Path) -> None:
    contents = [b"%d\n" % number * (number % 13) for number in range(200)]
    source = fill(tmp_path / "in", contents)
    concat([source], output=tmp_path / "one", min_bytes=300, max_bytes=500, progress=False)
    for rank in (2, 0, 1):
        place = Place(rank=rank, world_size=3, source="test")
        last = concat(
            [source],
            output=tmp_path / "three",
            min_bytes=300,
            max_bytes=500,
            place=place,
            consume=True,
            progress=False,
        )
    assert shards(tmp_path / "three") == shards(tmp_path / "one")
    assert last.manifest is not None
    left = [path.read_bytes() for path in (tmp_path / "in").iterdir()]
    assert left == [
        b"",
        *([b""] * (len(left) - 1)),
    ]  # empty files hold nothing that a shard replaces


def test_inputs_stay_until_every_shard_of_theirs_is_there(tmp_path: Path) -> None:
    source = fill(tmp_path / "in", [b"0123456789\n" * 100])
    place = Place(rank=0, world_size=2, source="test")
    concat(
        [source],
        output=tmp_path / "out",
        min_bytes=400,
        max_bytes=600,
        place=place,
        consume=True,
        progress=False,
    )
    assert (tmp_path / "in" / "part_0.jsonl").exists()
    concat(
        [source],
        output=tmp_path / "out",
        min_bytes=400,
        max_bytes=600,
        consume=True,
        progress=False,
    )
    assert not (tmp_path / "in" / "part_0.jsonl").exists()
    assert b"".join(shards(tmp_path / "out")) == b"0123456789\n" * 100


@pytest.mark.parametrize(
    ("contents", "least", "most", "words"),
    [
        ([b"a\n" * 550], 1000, 1000, r"2 shards of 550 would fit: --min-size 550"),
        ([b"a" * 900], 100, 300, r"a document of .*part_0.jsonl is longer than --max-size 300 B"),
        ([b"a"], 5, 4, "minimum <= maximum"),
    ],
)
def test_sizes_that_fit_nothing(
    tmp_path: Path, contents: list[bytes], least: int, most: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        concat(
            [fill(tmp_path / "in", contents)],
            output=tmp_path / "out",
            min_bytes=least,
            max_bytes=most,
        )
    concat(
        [str(tmp_path / "in")], output=tmp_path / "out", min_bytes=1, max_bytes=2000, progress=False
    )  # refused is not begun
    assert b"".join(shards(tmp_path / "out")).rstrip(b"\n") == b"".join(contents).rstrip(b"\n")


def test_archives_are_not_joined(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(b"x")
    with pytest.raises(ConfigError, match="is compressed; extract it first"):
        concat([str(tmp_path)], output=tmp_path / "out")


def test_sizes_as_people_write_them() -> None:
    assert [parse_size(text) for text in ("16GiB", "1.5 GB", "7", "2.5TB", "2PB", 12)] == [
        *(2**34, 1_500_000_000, 7, 2_500_000_000_000, 2 * 10**15, 12)
    ]
    with pytest.raises(ConfigError, match=r"--max-size=16G: expected a size such as 500MB"):
        parse_size("16G", name="--max-size")


def test_a_number_of_even_shards(tmp_path: Path) -> None:
    """300 lines of 10 bytes in 7 shards: 428 or 429 bytes each, cut at the line end behind."""
    source = fill(
        tmp_path / "in",
        [b"".join(b"%09d\n" % number for number in range(at, at + 50)) for at in range(0, 300, 50)],
    )
    concat([source], output=tmp_path / "out", shards=7, progress=False)
    found = shards(tmp_path / "out")
    assert b"".join(found) == b"".join(b"%09d\n" % number for number in range(300))
    assert sorted(len(shard) for shard in found) == [420] * 1 + [430] * 6
    with pytest.raises(ConfigError, match="--shards 0: expected 1 to"):
        concat([source], output=tmp_path / "none", shards=0, progress=False)


def test_more_shards_than_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"part_0\.jsonl is longer than one of 9 even shards"):
        concat(
            [fill(tmp_path / "in", [b"long line\nother\n"])],
            output=tmp_path / "out",
            shards=9,
            progress=False,
        )
