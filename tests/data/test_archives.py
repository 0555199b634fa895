from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from meshwright.data.archives import check_archive, extract, open_plain
from meshwright.data.listing import read_manifest
from meshwright.data.steps import ShardError
from meshwright.values.errors import ConfigError

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd.compress,
}
TEXT = b'{"text": "a document"}\n' * 5000


@pytest.mark.parametrize("kind", PACK)
def test_members_follow_each_other(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(PACK[kind](TEXT) + PACK[kind](b"") + PACK[kind](b"last\n"))
    with open_plain(path) as plain:
        assert plain.read() == TEXT + b"last\n"
    assert check_archive(path) == kind


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_cut_off_archive_is_found(tmp_path: Path, kind: str, cut: int) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes((PACK[kind](TEXT) + PACK[kind](TEXT[:999]))[:-cut])
    with pytest.raises(ShardError, match="is cut off") as found:
        check_archive(path)
    assert found.value.kind == "archive"


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"<html>429 Too Many Requests</html>", "is no whole")],
)
def test_what_is_no_archive_is_said(tmp_path: Path, kind: str, content: bytes, words: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    with pytest.raises(ShardError, match=words):
        check_archive(path)


def make(folder: Path) -> dict[str, bytes]:
    plain = {f"sub/{kind}_{number}.jsonl": TEXT[: 23 * number] for number, kind in enumerate(PACK)}
    for name, content in plain.items():
        kind = name[4:].partition("_")[0]
        path = folder / f"{name}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PACK[kind](content))
    return plain


def test_extract_keeps_names_and_reports_damage(tmp_path: Path) -> None:
    plain = make(tmp_path / "raw")
    (tmp_path / "raw" / "bad.txt.gz").write_bytes(gzip.compress(TEXT)[:-9])
    result = extract([str(tmp_path / "raw")], output=tmp_path / "out", progress=False)
    assert (result.exit_code, result.manifest) == (3, None)
    assert list(result.report.failed) == ["bad.txt"]
    assert not (tmp_path / "out" / "bad.txt").exists()
    (tmp_path / "raw" / "bad.txt.gz").write_bytes(gzip.compress(TEXT))
    result = extract([str(tmp_path / "raw")], output=tmp_path / "out", workers=2, progress=False)
    assert result.exit_code == 0
    assert {name: (tmp_path / "out" / name).read_bytes() for name in plain} == plain
    assert read_manifest(tmp_path / "out").size_bytes == sum(map(len, plain.values())) + len(TEXT)


def test_extract_removes_what_it_replaced_and_goes_on_without_it(tmp_path: Path) -> None:
    plain = make(tmp_path / "raw")
    for _ in range(2):
        assert (
            extract(
                [str(tmp_path / "raw")], output=tmp_path / "out", consume=True, progress=False
            ).exit_code
            == 0
        )
        assert [path for path in (tmp_path / "raw").rglob("*") if path.is_file()] == []
    assert {name: (tmp_path / "out" / name).read_bytes() for name in plain} == plain


def test_extract_refuses_two_of_one_name(tmp_path: Path) -> None:
    for kind in ("gz", "xz"):
        (tmp_path / f"a.{kind}").write_bytes(PACK[kind](b"x"))
    with pytest.raises(ConfigError, match="would both be written as a; extract"):
        extract([str(tmp_path)], output=tmp_path / "out")


@pytest.mark.parametrize("kind", list(PACK))
def test_extract_keeps_the_documents_of_chosen_sources(tmp_path: Path, kind: str) -> None:
    """As SlimPajama names the source of a document; a line may hold U+2028."""
    documents = [
        {"text": "a\u2028b", "meta": {"from": "C4"}},
        {"text": "b", "meta": {"from": "Book"}},
        {"text": "c", "meta": {}},
        {"text": "d" * 3_000_000, "meta": {"from": "arXiv"}},
    ]
    lines = [json.dumps(one, ensure_ascii=False).encode() for one in documents]
    (tmp_path / f"a.jsonl.{kind}").write_bytes(PACK[kind](b"\n".join(lines)))
    out = tmp_path / "out"
    words = [str(tmp_path / f"a.jsonl.{kind}")]
    result = extract(words, output=out, where="meta.from=C4,arXiv", progress=False)
    assert result.exit_code == 0
    assert (out / "a.jsonl").read_bytes() == lines[0] + b"\n" + lines[3]
    with pytest.raises(ConfigError, match="where"):
        extract(words, output=out, where="meta.from=C4", progress=False)


def test_what_no_document_can_be_chosen_by_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--where meta: expected KEY=VALUE,VALUE such as"):
        extract([str(tmp_path)], output=tmp_path / "out", where="meta")
    (tmp_path / "a.txt.gz").write_bytes(PACK["gz"](b"plain text\n"))
    result = extract(
        [str(tmp_path / "a.txt.gz")], output=tmp_path / "out", where="a=b", progress=False
    )
    assert result.exit_code == 3
