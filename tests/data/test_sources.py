from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.data.fetching import corpus_files, download, expand, find_corpus, url_files
from meshwright.values.errors import ConfigError, UnknownNameError


def test_slimpajama_has_its_59166_files() -> None:
    """The number on the dataset's card, huggingface.co/datasets/cerebras/SlimPajama-627B."""
    corpus = find_corpus("slimpajama")
    files = corpus_files(corpus)
    assert (len(files), len(corpus.files_per_chunk)) == (59_166, 10)
    assert len({file.path for file in files}) == 59_166
    first = corpus_files(corpus, chunks=1)
    assert [first[0].name, first[-1].name] == [
        "chunk1/example_train_0.jsonl.zst",
        "chunk1/example_train_5911.jsonl.zst",
    ]
    assert (
        files[-1].path
        == "https://huggingface.co/datasets/cerebras/SlimPajama-627B/resolve/main/train/chunk10/example_train_5911.jsonl.zst"
    )
    with pytest.raises(ConfigError, match="slimpajama has 10 chunks; expected 1 to 10"):
        corpus_files(corpus, chunks=11)


@pytest.mark.parametrize(
    ("pattern", "urls"),
    [
        ("h/f", ["h/f"]),
        ("h/f_{8..10}", ["h/f_8", "h/f_9", "h/f_10"]),
        ("h/f_{008..010}", ["h/f_008", "h/f_009", "h/f_010"]),
        ("h/{a,b}/{0..1}", ["h/a/0", "h/a/1", "h/b/0", "h/b/1"]),
        ("h/{2..0}", ["h/2", "h/1", "h/0"]),
        ("h/{x}", ["h/{x}"]),
    ],
)
def test_braces_as_in_bash(pattern: str, urls: list[str]) -> None:
    assert expand(pattern) == urls


def test_names_begin_below_the_shared_folder(tmp_path: Path) -> None:
    urls = [f"https://h/data/{part}/f.zst?download=true" for part in ("train", "test")]
    assert [file.name for file in url_files(urls)] == ["train/f.zst", "test/f.zst"]
    assert [file.name for file in url_files(["https://h/a/b/c%20d.gz"])] == ["c d.gz"]


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (["ftp://h/a"], "expected a URL"),
        (["https://h/a", "https://h/a?x=1"], "would both be written as a"),
        (["https://h/a/../../b", "https://h/c"], "makes no name"),
        (["https://h/{0..99999999}"], "stands for 100,000,000 names"),
        (["https://h/a nohash"], "nothing or its sha256"),
    ],
)
def test_urls_that_are_none(urls: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        url_files(urls)


def test_exactly_one_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        download(output=tmp_path)
    with pytest.raises(ConfigError, match="--chunks has no effect"):
        download(["https://h/a"], chunks=1, output=tmp_path)
    with pytest.raises(UnknownNameError, match="did you mean 'slimpajama'"):
        download(corpus="slimpyjama", output=tmp_path)
