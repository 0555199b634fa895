from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.data.corpora import bin_and_idx, end_of, gpt2_files, line, plain_ids

from meshwright.cli import run


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "text.json").write_bytes(line("one two") + line("three"))
    return tmp_path


def test_a_command_line_of_megatrons(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = gpt2_files(files / "vocabulary")
    words = f"""data tokenize --input {files}/text.json --output-prefix {files}/my --vocab-file {spec.vocab_file} --dataset-impl mmap
    --tokenizer-type GPT2BPETokenizer --merge-file {spec.merge_file} --append-eod --workers 1 --chunk-size 32 --log-interval 10"""  # noqa: E501
    assert run(words.split()) == 0
    expected = bin_and_idx(plain_ids(spec, ["one two", "three"]), eod=end_of(spec))
    assert (
        tuple((files / f"my_text_document.{ending}").read_bytes() for ending in ("bin", "idx"))
        == expected
    )
    printed = capsys.readouterr()
    assert "my_text_document.bin: 28 B, 2 documents, 14 tokens" in printed.out
    assert "--chunk-size 32 has no effect here" in printed.err


def test_words_behind_json_keys_are_keys(files: Path) -> None:
    spec = gpt2_files(files / "vocabulary")
    (files / "text.json").write_bytes(line("one", title="t"))
    words = (
        f"data tokenize --input {files}/text.json -o {files}/my --vocab-file {spec.vocab_file}"
        f" --merge-file {spec.merge_file} --quiet"
    )
    assert run([*words.split(), "--json-keys", "text", "title"]) == 0
    assert (files / "my_title_document.idx").is_file()


def test_json_of_a_failed_run(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = gpt2_files(files / "vocabulary")
    (files / "text.json").write_bytes(line("one") + b"{}\n")
    words = (
        f"data tokenize {files}/text.json -o {files}/my --vocab-file {spec.vocab_file} --merge-file"
        f" {spec.merge_file} --json --quiet"
    )
    assert run(words.split()) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["complete"], found["failed"]) == (
        False,
        [{"file": f"{files}/text.json", "line": 2, "reason": "missing key 'text'"}],
    )


def test_an_output_below_a_file_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = gpt2_files(files / "vocabulary")
    words = (
        f"data tokenize {files}/text.json -o {files}/text.json/my --vocab-file {spec.vocab_file}"
        f" --merge-file {spec.merge_file} --quiet"
    )
    assert run([*words.split(), "--overwrite"]) == 2
    assert (
        capsys.readouterr().err
        == f"error: {files}/text.json/my_text_document.bin: Not a directory\n"
    )
    assert run(words.split()) == 2
    assert capsys.readouterr().err.endswith(": Not a directory\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "-o my",
            "which tokenizer? give --tokenizer FILE, or --vocab-file and --merge-file for GPT-2's",
        ),
        (
            "-o my --tokenizer none.json",
            "none.json: no such file; give a tokenizer.json or its folder",
        ),
        (
            "-o my --tokenizer x.json --tokenizer-type GPTBPETokenizer",
            "'GPTBPETokenizer' is no known tokenizer type; did you mean",
        ),
        ("-o my --vocab-file v.json", "--vocab-file alone: give --merge-file with it (GPT-2)"),
        ("-o my --tokenizer x.json --on-error drop", "'drop' is no known value of --on-error"),
        ("-o my --tokenizer x.json --dataset-impl lazy", "--dataset-impl lazy: expected mmap"),
        (
            "--tokenizer x.json",
            "--output-prefix is missing: give the beginning of the output files' names",
        ),
    ],
)
def test_bad_requests_are_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert run(["data", "tokenize", str(files / "text.json"), *words.split()]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1
