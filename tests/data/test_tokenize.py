"""Texts to .bin/.idx: the bytes, whatever the ranks, workers, forms and kills; and what is no
document, by file and line."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.corpora import bin_and_idx, end_of, gpt2_files, line, plain_ids, text

from meshwright.data import engines as opened
from meshwright.data.documents import SUFFIXES, form_of
from meshwright.data.encoders import EncoderSpec
from meshwright.data.indexed import IndexedFile
from meshwright.data.listing import walk
from meshwright.data.segment_work import sentence_splitter
from meshwright.data.tokenize_request import TokenizeReport, TokenizeRequest
from meshwright.data.tokenizing import tokenize
from meshwright.data.workers import Place
from meshwright.values.errors import ConfigError

Run = Callable[..., TokenizeReport]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EncoderSpec:
    return gpt2_files(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def run(tmp_path: Path, spec: EncoderSpec) -> Run:
    def started(
        name: str = "out",
        *,
        workers: int = 1,
        place: Place | None = None,
        overwrite: bool = False,
        **fields: object,
    ) -> TokenizeReport:
        plain = TokenizeRequest(
            inputs=(str(tmp_path / "in"),),
            output_prefix=str(tmp_path / name),
            tokenizer=spec,
            append_eod=True,
        )
        request = replace(plain, **fields)  # type: ignore[arg-type]
        where = {} if place is None else {"place": place}
        return tokenize(request, workers=workers, overwrite=overwrite, progress=False, **where)

    return started


def outputs(folder: Path, name: str = "out", key: str = "text") -> tuple[bytes, bytes]:
    return tuple(
        (folder / f"{name}_{key}_document.{ending}").read_bytes() for ending in ("bin", "idx")
    )  # type: ignore[return-value]


def corpus(folder: Path, files: int = 6, seed: int = 1) -> list[str]:
    """Write files of every kind and return their documents in order."""
    random_ = random.Random(seed)
    (folder / "in").mkdir()
    texts = []
    for number in range(files):
        documents = [text(random_) for _ in range(20)]
        texts += documents
        content = b"".join(line(document, id=number, score=float("nan")) for document in documents)
        name = folder / "in" / f"part_{number}"
        if number % 4 == 0:
            name.with_suffix(".jsonl").write_bytes(content)
        elif number % 4 == 1:
            name.with_suffix(".jsonl.gz").write_bytes(
                gzip.compress(content[:99]) + gzip.compress(content[99:])
            )
        elif number % 4 == 2:
            name.with_suffix(".jsonl.xz").write_bytes(lzma.compress(content))
        else:
            name.with_suffix(".json").write_text(
                json.dumps([{"text": document} for document in documents], indent=1)
            )
    return texts


def test_bytes_are_those_of_the_plainest_way(tmp_path: Path, spec: EncoderSpec, run: Run) -> None:
    texts = corpus(tmp_path)
    report = run()
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, texts), eod=end_of(spec))
    assert (report.exit_code, report.documents, report.note.startswith("gigatoken")) == (
        0,
        120,
        True,
    )
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert manifest["files"][0]["tokens"] * 2 == len(outputs(tmp_path)[0])


def test_engine_and_cut_change_no_byte(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path)
    run("one")
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 700)
    run("two", engine="library")
    assert len(list((tmp_path / ".meshwright/tokenize-two/journal").iterdir())) == 1
    assert outputs(tmp_path, "one") == outputs(tmp_path, "two")


@pytest.mark.parametrize("segment_bytes", [1, 2, 3, 7, 50, 1000])
def test_ranges_of_a_file_lose_and_repeat_no_line(
    tmp_path: Path, spec: EncoderSpec, run: Run, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", segment_bytes)
    texts = ["a", "bc" * 40, "d\ne", "f"]
    mark = b"\xef\xbb\xbf" if segment_bytes > 3 else b""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(
        mark + b"\n".join(map(line, texts))[:-1]
    )  # blank lines, no newline at the end
    run()
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, texts), eod=end_of(spec))


def test_ranks_that_start_at_different_times(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 500)
    corpus(tmp_path)
    run("whole")
    first = run("shared", place=Place(rank=0, world_size=2, source="test"))
    assert (first.manifest, first.exit_code) == (None, 0)
    assert first.open_segments > 0
    (tmp_path / "in" / "part_9.jsonl").write_bytes(line("came later, and is not of the list"))
    second = run("shared", place=Place(rank=1, world_size=2, source="test"))
    assert second.manifest is not None
    assert outputs(tmp_path, "shared") == outputs(tmp_path, "whole")
    assert run("shared").note.startswith("complete since an earlier start")


def test_two_workers(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 500)
    corpus(tmp_path)
    run("one")
    run("two", workers=2)
    assert outputs(tmp_path, "one") == outputs(tmp_path, "two")


DIRTY = (
    b'{"text": "fine"}\n{"text": 3}\n\n{"text": "cut\n{"text": "\xff"}\n{"text": ""}\n{"other":'
    b' "x"}\n[1]\n{"text": "\\ud800"}\nplain\n'
)
REASONS = {
    2: "key 'text' holds int, neither text nor a list of texts",
    4: "bad JSON: Unterminated string starting at at column 10",
    5: "bad UTF-8 at byte 11 of the line",
    6: "empty document",
    7: "missing key 'text'",
    8: "bad JSON: list where an object is expected",
    9: "bad UTF-8: key 'text' holds half a surrogate pair",
    10: "bad JSON: Expecting value at column 1",
}


def dirty(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_bytes(DIRTY)
    (folder / "in" / "b.jsonl").write_bytes(b"")
    (folder / "in" / "c.jsonl.gz").write_bytes(gzip.compress(line("x" * 5000))[:-9])
    (folder / "in" / "d.jsonl").write_bytes(line("good"))


@pytest.mark.parametrize("segment_bytes", [30, 1 << 22])
def test_what_is_no_document_is_named(
    tmp_path: Path, spec: EncoderSpec, run: Run, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", segment_bytes)
    dirty(tmp_path)
    failed = run()
    assert (failed.exit_code, failed.manifest) == (3, None)
    assert {
        failure.line: failure.reason
        for failure in failed.failed
        if failure.file.endswith("a.jsonl")
    } == REASONS
    whole = {
        Path(failure.file).name: failure.reason for failure in failed.failed if failure.line is None
    }
    assert whole == {
        "b.jsonl": "zero-byte file",
        "c.jsonl.gz": "is cut off before the end of its .gz data",
    }

    kept = run(on_error="quarantine")
    assert (kept.exit_code, kept.rejects, sorted(Path(name).name for name in kept.files_out)) == (
        3,
        10,
        ["b.jsonl", "c.jsonl.gz"],
    )
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, ["fine", "good"]), eod=end_of(spec))
    again = run(
        on_error="quarantine"
    )  # the output is there, and still not all of the input is in it
    assert (again.exit_code, again.files_out) == (3, kept.files_out)
    rows = [json.loads(row) for row in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    assert {
        row["line"]: row["reason"] for row in rows if row["file"].endswith("a.jsonl")
    } == REASONS
    assert rows[0]["record"] == '{"text": 3}'


@pytest.mark.parametrize("batch_documents", [1, 3, 7, 8192])
def test_small_files_go_together_and_a_torn_one_leaves_nothing(
    tmp_path: Path,
    spec: EncoderSpec,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    batch_documents: int,
) -> None:
    monkeypatch.setattr("meshwright.data.segment_work._BATCH_DOCUMENTS", batch_documents)
    (tmp_path / "in").mkdir()
    kept = []
    for number in range(12):
        texts = [f"file {number} text {place}" for place in range(4)]
        content = b"".join(line(one) for one in texts)
        torn = number % 5 == 2
        # Incompressible, so that the reader has yielded lines before it meets the end.
        tail = line(os.urandom(200_000).hex()) if torn else b""
        packed = gzip.compress(content + tail)
        name = tmp_path / "in" / f"{number:02}.jsonl.gz"
        name.write_bytes(packed[:-9] if torn else packed)
        kept += [] if torn else texts
        broken = b"{broken\n" if number % 3 == 0 else b""
        (tmp_path / "in" / f"{number:02}b.jsonl").write_bytes(line(f"b {number}") + broken)
        kept.append(f"b {number}")
    report = run(on_error="skip")
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, kept), eod=end_of(spec))
    torn_names = [f"{number:02}.jsonl.gz" for number in range(12) if number % 5 == 2]
    assert sorted(Path(one).name for one in report.files_out) == torn_names
    assert report.rejects == len(torn_names) + 4


def test_a_policy_without_raw_records(tmp_path: Path, run: Run) -> None:
    dirty(tmp_path)
    run(on_error="skip")
    rows = [json.loads(row) for row in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    assert all(set(row) == {"file", "line", "reason"} for row in rows)


def test_a_document_beyond_the_memory(tmp_path: Path, spec: EncoderSpec, run: Run) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(line("x" * 3000) + line("short") + line("y" * 900))
    report = run(max_document_bytes=1000, on_error="skip")
    assert report.rejects == 1
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, ["short", "y" * 900]), eod=end_of(spec))


def test_several_keys(tmp_path: Path, spec: EncoderSpec, run: Run) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(
        line("one", title="first") + line("two", title="second")
    )
    report = run(keys=("text", "title"), append_eod=False)
    assert outputs(tmp_path, key="text") == bin_and_idx(plain_ids(spec, ["one", "two"]), eod=None)
    assert outputs(tmp_path, key="title") == bin_and_idx(
        plain_ids(spec, ["first", "second"]), eod=None
    )
    assert report.documents == 2


def test_texts_and_their_units(tmp_path: Path, spec: EncoderSpec, run: Run) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n\n\nthree\n")
    expected = {
        "file": ["one\ntwo\n\n\nthree\n"],
        "line": ["one", "two", "three"],
        "paragraph": ["one\ntwo", "three"],
    }
    for unit, texts in expected.items():
        run(unit, text_unit=unit)
        assert outputs(tmp_path, unit) == bin_and_idx(plain_ids(spec, texts), eod=end_of(spec))


def test_parquet_by_row_groups(
    tmp_path: Path, spec: EncoderSpec, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    (tmp_path / "in").mkdir()
    texts = [f"document {number}" for number in range(10)]
    parquet.write_table(
        pa.table({"id": range(11), "text": [*texts, None]}),
        tmp_path / "in" / "a.parquet",
        row_group_size=2,
    )
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 1)
    failed = run("fails")
    assert [str(failure).rpartition("/")[2] for failure in failed.failed] == [
        "a.parquet:11: key 'text' holds NoneType, neither text nor a list of texts"
    ]
    run(on_error="skip")
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, texts), eod=end_of(spec))


def test_sentences(tmp_path: Path, spec: EncoderSpec, run: Run) -> None:
    """A list of texts is a document that is split already: one sequence each, empty ones left out,
    the end behind the last."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": ["one", "", "two two"]}) + "\n")
    run()
    file = IndexedFile(tmp_path / "out_text_document")
    one, two = plain_ids(spec, ["one", "two two"])
    assert [file.sequence(number).tolist() for number in range(file.num_sequences)] == [
        one,
        [*two, end_of(spec)],
    ]
    assert file.bounds.tolist() == [0, 2]


@pytest.fixture
def punkt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of Punkt that knows one abbreviation, in the files of NLTK's punkt_tab."""
    nltk = pytest.importorskip("nltk", reason="nltk is not installed")
    folder = tmp_path / "nltk/tokenizers/punkt_tab/english"
    folder.mkdir(parents=True)
    for name, content in {
        "abbrev_types.txt": "dr\n",
        "collocations.tab": "",
        "sent_starters.txt": "",
        "ortho_context.tab": "",
    }.items():
        (folder / name).write_text(content)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk")])
    sentence_splitter.cache_clear()


STORY = "Dr. Smith left.  He ran.\n\nShe stayed!No space?Yes. ok\n"
SENTENCES = {
    False: ["Dr. Smith left.", "He ran.", "She stayed!No space?Yes.", "ok"],
    True: ["Dr. Smith left.  ", "He ran.\n\n", "She stayed!No space?Yes. ", "ok"],
}
"""What preprocess_data.py of Megatron-LM (d98e8a6) makes of it with NLTK 3.10.4, without and with
--keep-newlines."""


@pytest.mark.usefixtures("punkt")
@pytest.mark.parametrize("keep_newlines", [False, True])
def test_texts_are_split_as_megatron_splits_them(
    tmp_path: Path, spec: EncoderSpec, run: Run, keep_newlines: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(line(STORY))
    report = run(split_sentences=True, keep_newlines=keep_newlines, append_eod=False)
    assert report.documents == 1
    file = IndexedFile(tmp_path / "out_text_sentence")
    ids = [file.sequence(number).tolist() for number in range(file.num_sequences)]
    assert ids == plain_ids(spec, SENTENCES[keep_newlines])


@pytest.mark.usefixtures("punkt")
def test_a_text_that_nltk_gives_up_on_is_no_document(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(line("fine.") + line("gives up"))
    split = sentence_splitter("english", keep_newlines=False)

    def may_give_up(text: str) -> list[str]:
        if text == "gives up":
            raise TimeoutError
        return list(split(text))

    monkeypatch.setattr(
        "meshwright.data.segment_work.sentence_splitter",
        lambda language, keep_newlines: may_give_up,
    )
    failed = run(split_sentences=True)
    assert [str(row).rpartition("/")[2] for row in failed.failed] == [
        "a.jsonl:2: NLTK gives up on splitting it into sentences"
    ]
    assert run(split_sentences=True, on_error="skip").documents == 1


@pytest.mark.usefixtures("punkt")
@pytest.mark.parametrize("language", ["german", "../english"])
def test_sentences_want_the_model_of_their_language(
    tmp_path: Path, run: Run, language: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(line("one"))
    with pytest.raises(
        ConfigError,
        match=(
            f"NLTK's model for '{language}' is not on this machine: python -m nltk.downloader"
            " punkt_tab"
        ),
    ):
        run(split_sentences=True, language=language)


def test_a_tokenizer_that_changed_is_opened_anew(tmp_path: Path, spec: EncoderSpec) -> None:
    """Within one process, as the steps of a recipe are: ids of the file that is there, not of the
    one that was."""
    (tmp_path / "in.jsonl").write_bytes(line("the quick brown"))
    own = EncoderSpec(
        kind="gpt2", vocab_file=str(tmp_path / "vocab.json"), merge_file=spec.merge_file
    )
    ids = json.loads(Path(str(spec.vocab_file)).read_text())
    for name, shift in (("a", 0), ("b", 7)):
        (tmp_path / "vocab.json").write_text(
            json.dumps({token: (place + shift) % len(ids) for token, place in ids.items()})
        )
        tokenize(
            TokenizeRequest(
                inputs=(str(tmp_path / "in.jsonl"),),
                output_prefix=str(tmp_path / name),
                tokenizer=own,
            ),
            progress=False,
        )
    first, second = (np.frombuffer(outputs(tmp_path, name)[0], dtype="<u2") for name in ("a", "b"))
    assert ((first + 7) % len(ids)).tolist() == second.tolist()


def test_the_process_that_workers_are_forked_from_opens_their_tokenizer(
    spec: EncoderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_there(asked: EncoderSpec) -> int:
        for name, value in opened.asking_for(asked, None).items():
            monkeypatch.setenv(name, value)
        its_own = runpy.run_path(opened.__file__)
        its_own["reference_of"](spec, opened.stamp_of(spec))
        return int(its_own["reference_of"].cache_info().hits)

    assert opened_there(spec) == 1
    assert opened_there(replace(spec, merge_file="absent")) == 0


def test_a_refused_start_leaves_nothing_in_the_way(
    tmp_path: Path, spec: EncoderSpec, run: Run
) -> None:
    (tmp_path / "a.dat").write_bytes(line("one"))
    with pytest.raises(ConfigError, match="can't tell what it holds by its name; give --format"):
        run(inputs=(str(tmp_path / "a.dat"),))
    run(inputs=(str(tmp_path / "a.dat"),), form="json")
    assert outputs(tmp_path) == bin_and_idx(plain_ids(spec, ["one"]), eod=end_of(spec))
    with pytest.raises(ConfigError, match="--output-prefix is missing"):
        run(output_prefix="")


def test_a_refused_start_leaves_no_files(tmp_path: Path, run: Run) -> None:
    """Neither a lock, nor a list of inputs, nor a folder that it made; other people's stay."""
    (tmp_path / "a.dat").write_bytes(line("one"))
    there = sorted(tmp_path.rglob("*"))
    for name in ("out", "new/folder/out"):
        with pytest.raises(ConfigError, match="give --format"):
            run(name, inputs=(str(tmp_path / "a.dat"),))
        assert sorted(tmp_path.rglob("*")) == there
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="give --format"):
        run("empty/out", inputs=(str(tmp_path / "a.dat"),))
    assert not list((tmp_path / "empty").iterdir())


def test_a_start_refused_behind_its_inputs_leaves_no_files(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that cannot do the work is found once inputs are frozen."""
    corpus(tmp_path, files=1)
    there = sorted(tmp_path.rglob("*"))

    def refused(*_: object, **__: object) -> None:
        raise ConfigError("--engine gigatoken: not for this tokenizer")

    with monkeypatch.context() as patch:
        patch.setattr("meshwright.data.tokenizing.choose_engine", refused)
        with pytest.raises(ConfigError, match="not for this tokenizer"):
            run()
    assert sorted(tmp_path.rglob("*")) == there
    run()
    state = tmp_path / ".meshwright" / "tokenize-out"
    with pytest.raises(ConfigError, match="another inputs"):
        run(inputs=(str(tmp_path / "a.dat"),))
    assert (state / "inputs.jsonl").is_file()  # an earlier start's, which goes on


def test_other_settings_are_refused(tmp_path: Path, run: Run) -> None:
    corpus(tmp_path, files=1)
    run()
    with pytest.raises(
        ConfigError, match="made with another eod; give another --output-prefix, or --overwrite"
    ):
        run(append_eod=False)
    assert run(append_eod=False, overwrite=True).exit_code == 0
    with pytest.raises(ConfigError, match="--overwrite with 2 ranks"):
        run(overwrite=True, place=Place(rank=0, world_size=2, source="test"))
    (tmp_path / "x_text_document.bin").write_bytes(b"theirs")
    with pytest.raises(ConfigError, match="was not made by this step"):
        run("x")


def test_a_torn_scratch_file_is_done_again(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 2000)
    corpus(tmp_path)
    run("whole")
    run("torn", place=Place(rank=0, world_size=2, source="test"))
    part = next((tmp_path / ".meshwright/tokenize-torn/scratch").rglob("*.part"))
    part.write_bytes(bytes(part.stat().st_size))
    report = run("torn")
    assert (report.exit_code, report.manifest) == (3, None)
    assert "is lost or torn; start again" in report.problems[0]
    run("torn")
    assert outputs(tmp_path, "torn") == outputs(tmp_path, "whole")


def test_another_policy_after_half_of_the_output_is_joined(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was joined while the rest was tokenized stays; what a policy decides about is not joined
    before the end."""
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 400)
    monkeypatch.setattr("meshwright.data.assembly.COMMIT_BYTES", 300)
    corpus(tmp_path)
    (tmp_path / "in" / "part_4_dirty.jsonl").write_bytes(DIRTY)
    failed = run(on_error="fail")
    state = json.loads((tmp_path / ".meshwright/tokenize-out/scratch/assembly.json").read_text())
    assert failed.manifest is None
    assert state["segments"] > 3
    run(on_error="quarantine")
    run("whole", on_error="quarantine")
    assert outputs(tmp_path) == outputs(tmp_path, "whole")
    assert (tmp_path / "out.rejected.jsonl").read_bytes() == (
        tmp_path / "whole.rejected.jsonl"
    ).read_bytes()


KILLED = """
import sys
from meshwright.data.encoders import opened
from meshwright.data.documents import SUFFIXES, form_of
from meshwright.data.encoders import EncoderSpec
from meshwright.data import assembly, segments
from meshwright.data.tokenizing import TokenizeRequest, tokenize
if __name__ == "__main__":
    segments.LEAST_BYTES, assembly.COMMIT_BYTES = 400, 1500
    folder, vocab, merges, workers = sys.argv[1:]
    spec = EncoderSpec(kind="gpt2", vocab_file=vocab, merge_file=merges)
    request = TokenizeRequest(inputs=(folder + "/in",), output_prefix=folder + "/killed", tokenizer=spec, append_eod=True, on_error="skip")
    tokenize(request, workers=int(workers), progress=False)
"""  # noqa: E501


def test_kills_change_no_byte(
    tmp_path: Path, spec: EncoderSpec, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path, files=12)
    (tmp_path / "in" / "z.jsonl").write_bytes(DIRTY)
    monkeypatch.setattr("meshwright.data.segments.LEAST_BYTES", 400)
    whole = run("whole", on_error="skip")
    (tmp_path / "killed.py").write_text(KILLED)
    command = [
        sys.executable,
        str(tmp_path / "killed.py"),
        str(tmp_path),
        str(spec.vocab_file),
        str(spec.merge_file),
        "2",
    ]
    random_ = random.Random(3)
    for _ in range(3):
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        time.sleep(random_.uniform(0.2, 1.5))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = run("killed", on_error="skip")
    assert done.manifest is not None
    assert outputs(tmp_path, "killed") == outputs(tmp_path, "whole")
    assert (done.documents, done.tokens) == (whole.documents, whole.tokens)
    assert (tmp_path / "killed.rejected.jsonl").read_bytes() == (
        tmp_path / "whole.rejected.jsonl"
    ).read_bytes()


def test_files_of_wikiextractor_are_read_by_their_names(tmp_path: Path) -> None:
    """`AA/wiki_00` of its --json holds an object a line; its XML is named."""
    folder = tmp_path / "AA"
    folder.mkdir()
    (folder / "wiki_00").write_text('{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n')
    (folder / "my_wiki_01").write_text("no document")
    assert form_of(str(folder / "wiki_00"), None) == "json"
    assert [file.name for file in walk([str(folder)], suffixes=SUFFIXES)] == ["wiki_00"]
    (folder / "wiki_01").write_text('<doc id="1">\nOne\n</doc>\n')
    with pytest.raises(ConfigError, match="WikiExtractor's XML; run it with --json"):
        form_of(str(folder / "wiki_01"), None)
