"""Archives entered at their frames: where these begin, and that no line is lost, repeated or
counted wrongly."""

from __future__ import annotations

import bz2
import random
from pathlib import Path

import pytest
from backports import zstd
from tests.data.corpora import bin_and_idx, end_of, gpt2_files, line, plain_ids

from meshwright.data.indexed import IndexedFile
from meshwright.data.segments import entries_of
from meshwright.data.tokenize_request import TokenizeReport, TokenizeRequest
from meshwright.data.tokenizing import tokenize


def zstd_frame(content: bytes, random_: random.Random) -> bytes:
    """With or without its size and a checksum, in one go or in blocks."""
    parameter = zstd.CompressionParameter
    options = {
        int(name): random_.randint(0, 1)
        for name in (parameter.checksum_flag, parameter.content_size_flag)
    }
    if random_.random() < 0.5:
        return zstd.compress(content, options=options)
    stream = zstd.ZstdCompressor(options=options)
    half = len(content) // 2
    return (
        stream.compress(content[:half])
        + stream.compress(content[half:], stream.FLUSH_BLOCK)
        + stream.flush()
    )


def skippable(size: int) -> bytes:
    return b"\x5e\x2a\x4d\x18" + size.to_bytes(4, "little") + bytes(size)


@pytest.mark.parametrize("seed", range(8))
def test_frames_are_found_where_they_begin(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    archive, begins = b"", []
    for _ in range(random_.randint(1, 9)):
        archive += random_.choice([b"", skippable(random_.randint(0, 40))])
        begins.append(len(archive))
        size = random_.choice([0, 1, 5, 1000, 300_000])
        archive += zstd_frame(
            random_.choice([bytes(size), random_.randbytes(size), b"abc def " * (size // 8)]),
            random_,
        )
    (tmp_path / "a.zst").write_bytes(archive + skippable(9))
    assert entries_of(tmp_path / "a.zst", piece_bytes=1) == begins[1:]
    (tmp_path / "a.zst").write_bytes(archive[:-1])
    assert (
        entries_of(tmp_path / "a.zst", piece_bytes=1) == []
    )  # cut off: it is read from its beginning, and said


def test_entries_lie_apart_and_other_kinds_have_none(tmp_path: Path) -> None:
    frame = zstd.compress(random.Random(1).randbytes(100))
    (tmp_path / "a.zst").write_bytes(frame * 10)
    assert entries_of(tmp_path / "a.zst", piece_bytes=3 * len(frame)) == [
        3 * len(frame),
        6 * len(frame),
        9 * len(frame),
    ]
    for name in ("a.jsonl", "a.gz", "a.xz"):
        (tmp_path / name).write_bytes(frame * 10)
        assert entries_of(tmp_path / name, piece_bytes=1) == []


def _run(folder: Path, name: str, on_error: str = "fail") -> TokenizeReport:
    request = TokenizeRequest(
        inputs=(str(folder / "in"),),
        output_prefix=str(folder / name),
        tokenizer=gpt2_files(folder / "tokenizer"),
        append_eod=True,
        on_error=on_error,  # type: ignore[arg-type]
    )
    return tokenize(request, progress=False)


@pytest.mark.parametrize("kind", ["zst", "bz2"])
@pytest.mark.parametrize("seed", range(4))
def test_no_line_is_lost_wherever_frames_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 1)
    random_ = random.Random(seed)
    texts = [f"document {number} " + "jumps over " * random_.randint(0, 30) for number in range(20)]
    bad = random_.randrange(20)
    plain = b"\xef\xbb\xbf" + b"".join(
        b'{"text": 3}\n' * (number == bad) + line(text) for number, text in enumerate(texts)
    )
    plain = plain.removesuffix(b"\n") if seed % 2 else plain
    ends = [
        place + 1 for place, byte in enumerate(plain) if byte == 10
    ]  # frames end at lines, within them, and hold none
    cuts = sorted(random_.sample(range(1, len(plain)), 6) + random_.sample(ends, 3))
    parts = [plain[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(plain)], strict=True)]
    pack = bz2.compress if kind == "bz2" else lambda part: zstd_frame(part, random_)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.jsonl.{kind}").write_bytes(b"".join(pack(part) for part in parts))
    failed = _run(tmp_path, "out")
    assert [row.line for row in failed.failed] == [bad + 1]
    assert failed.open_segments == 0
    _run(tmp_path, "out", on_error="skip")
    assert len(list((tmp_path / ".meshwright/tokenize-out").glob("entries.json"))) == 1
    spec = gpt2_files(tmp_path / "tokenizer")
    made = tuple(
        (tmp_path / f"out_text_document.{ending}").read_bytes() for ending in ("bin", "idx")
    )
    assert made == bin_and_idx(plain_ids(spec, texts), eod=end_of(spec))


def test_a_damaged_frame_is_named_by_where_it_was_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 1)
    options = {int(zstd.CompressionParameter.checksum_flag): 1}
    first, second = (
        zstd.compress(random.Random(1).randbytes(0) + line(text), options=options)
        for text in ("one", "two")
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.zst").write_bytes(first + second[:-1] + bytes([second[-1] ^ 1]))
    reasons = [row.reason for row in _run(tmp_path, "out").failed]
    assert any(f"(read from byte {len(first):,} on)" in reason for reason in reasons)


def test_a_run_begun_before_archives_were_entered_goes_on_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.zst").write_bytes(
        b"".join(zstd.compress(line(text)) for text in ("one", "two"))
    )
    (tmp_path / "in" / "b.jsonl").write_bytes(b"no JSON\n")
    with monkeypatch.context() as before:
        before.setattr("meshwright.data.segments.entries", lambda files, **_: {})
        _run(tmp_path, "out")  # a.jsonl.zst is done, as one segment
    state = tmp_path / ".meshwright/tokenize-out"
    (state / "entries.json").unlink()
    _run(tmp_path, "out", on_error="skip")
    assert (state / "entries.json").read_text() == "{}"
    assert IndexedFile(tmp_path / "out_text_document").num_documents == 2
