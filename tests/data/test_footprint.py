from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from meshwright.cli import run
from meshwright.data.footprint import plan
from meshwright.values.errors import ConfigError, UnknownNameError

TB = 10**12


def peaks(**words: object) -> dict[str, float]:
    found = plan(**words)  # type: ignore[arg-type]
    return {need.strategy: round(need.peak_bytes / TB, 2) for need in found.needs}


def test_slimpajama_by_hand() -> None:
    """2 * 636e9 bytes of ids and 20 * 594e6 of index are 1.28 TB; the usual recipe holds 2.54 TB
    twice; a chunk is a tenth of 0.947 TB."""
    assert peaks(corpus="slimpajama") == {
        "chunks": 1.38,
        "direct": 2.23,
        "text": 3.82,
        "recipe": 5.08,
    }
    stages = {
        stage.name: (stage.files, round(stage.size_bytes / TB, 3))
        for stage in plan(corpus="slimpajama").stages()
    }
    assert stages == {
        "archives": (59_166, 0.947),
        "plain text": (59_166, 2.54),
        "joined shards": (148, 2.54),
        ".bin": (10, 1.272),
        ".idx": (10, 0.012),
    }


def test_a_large_vocabulary_takes_four_bytes() -> None:
    assert plan(corpus="slimpajama", vocab_size=65_499).footprint.bin_bytes == 2 * 636 * 10**9
    assert plan(corpus="slimpajama", vocab_size=65_500).footprint.bin_bytes == 4 * 636 * 10**9


@pytest.mark.parametrize(
    ("quota_tb", "strategy", "words"),
    [
        (1.5, None, None),
        (2.3, "direct", None),
        (2.0, "direct", "too small for direct, which takes 2.23 TB; chunks takes 1.38 TB"),
        (1.0, None, "chunks takes the least, 1.38 TB; --chunks 7 with chunks fits"),
        (0.1, None, "chunks takes the least, 1.38 TB"),
        (4.0, "recipe", "too small for recipe, which takes 5.08 TB; chunks takes 1.38 TB"),
    ],
)
def test_a_quota_names_what_fits(quota_tb: float, strategy: str | None, words: str | None) -> None:
    """Seven chunks: 0.7 * 1.284 + 0.095 = 0.99 TB."""
    found = plan(corpus="slimpajama", quota_bytes=round(quota_tb * TB), strategy=strategy)
    assert (found.exit_code, found.advice is None) == ((0, True) if words is None else (1, False))
    assert words is None or str(found.advice).endswith(words)


def test_files_that_are_there_are_sampled(tmp_path: Path) -> None:
    line = b'{"text": "' + b"a few words " * 40 + b'"}\n'
    for number in range(20):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(line * 100))
    found = plan([str(tmp_path)], bytes_per_token=5).footprint
    assert (found.files, found.plain_bytes, found.documents, found.tokens) == (
        20,
        2000 * len(line),
        2000,
        400 * len(line),
    )
    text = next(
        need for need in plan([str(tmp_path)], bytes_per_token=5).needs if need.strategy == "text"
    )
    assert text.peak_bytes == 2 * found.plain_bytes  # one shard holds all of it


def test_rows_of_parquet_are_documents(tmp_path: Path) -> None:
    """Compressed a hundredfold: 1,000 rows of 600 bytes, of which the file's own bytes tell
    nothing."""
    pa = pytest.importorskip("pyarrow", reason="Parquet needs pip install 'meshwright[data]'")
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"id": range(1000), "text": ["a few words " * 50] * 1000}), tmp_path / "a.parquet"
    )
    found = plan([str(tmp_path)], bytes_per_token=5).footprint
    assert (found.documents, found.plain_bytes, found.tokens) == (1000, 600_000, 120_000)
    assert found.archive_bytes == (tmp_path / "a.parquet").stat().st_size < 60_000
    parquet.write_table(pa.table({"id": range(3)}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="no column of texts; it has id"):
        plan([str(tmp_path)])
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match="no Parquet file"):
        plan([str(tmp_path)])


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected either --corpus NAME or files"):
        plan()
    with pytest.raises(UnknownNameError, match="did you mean 'direct'"):
        plan(corpus="slimpajama", strategy="dircet")
    with pytest.raises(ConfigError, match="expected numbers above 0"):
        plan(corpus="slimpajama", bytes_per_token=float("inf"))
    with pytest.raises(ConfigError, match="has 10 chunks"):
        plan(corpus="slimpajama", chunks=0)


def test_exit_code_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "plan", "--corpus", "slimpajama", "--quota", "1TB"]) == 1
    out = capsys.readouterr().out
    assert "  recipe        5.08 TB   3.82 TB  no    plain text beside joined shards" in out
    assert run(["data", "plan", "--corpus", "slimpajama", "--quota", "1G"]) == 2
