"""Samples from .bin/.idx files, written byte by byte here; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright.data.indexed import IndexedFile
from meshwright.trainer.batches import BlendedSamples, PackedSamples, open_blend
from meshwright.values.errors import ConfigError

TOKENS = bytes.fromhex("050006000700080050c4")
"""Documents [5, 6, 7] and [8, 50256] as u16, little-endian."""
INDEX = bytes.fromhex(
    "4d4d49444944580000"  # MMIDIDX and two zeros
    "0100000000000000"  # version 1
    "08"  # token type: u16
    "0200000000000000"  # sequences
    "0300000000000000"  # document bounds
    "03000000"
    "02000000"  # lengths of the sequences
    "0000000000000000"
    "0600000000000000"  # byte offsets of the sequences
    "0000000000000000"
    "0100000000000000"
    "0200000000000000"  # first sequence of each document, and the end
)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    path = tmp_path / "text"
    path.with_suffix(".bin").write_bytes(TOKENS)
    path.with_suffix(".idx").write_bytes(INDEX)
    return str(path)


def test_documents_and_tokens(prefix: str) -> None:
    file = IndexedFile(prefix)
    assert (file.num_documents, file.num_tokens) == (2, 5)
    assert file.starts.tolist() == [0, 3, 5]
    assert file.tokens.tolist() == [5, 6, 7, 8, 50256]


def test_samples_are_runs_of_the_shuffled_documents(prefix: str) -> None:
    """Five tokens are two samples of three that share the middle one, in one of two orders of the
    documents."""
    samples = PackedSamples(IndexedFile(prefix), length=3, seed=1, epochs=8)
    streams = {(5, 6, 7, 8, 50256), (8, 50256, 5, 6, 7)}
    seen = set()
    for epoch in range(8):
        pair = sorted(tuple(samples.read(2 * epoch + place).tolist()) for place in range(2))
        order = next(stream for stream in streams if pair == sorted((stream[:3], stream[2:])))
        seen.add(order)
    assert seen == streams


def test_a_sample_does_not_depend_on_what_was_read_before(prefix: str) -> None:
    first, second = (
        PackedSamples(IndexedFile(prefix), length=3, seed=1, epochs=4) for _ in range(2)
    )
    forwards = [first.read(number).tolist() for number in range(8)]
    backwards = [second.read(number).tolist() for number in reversed(range(8))]
    assert forwards == backwards[::-1]


def test_the_end_of_the_data_is_said(prefix: str) -> None:
    samples = PackedSamples(IndexedFile(prefix), length=3, seed=1, epochs=2)
    samples.read(3)
    with pytest.raises(ConfigError, match="sample 4 is behind 2 epochs of 2"):
        samples.read(4)


def test_a_blend_holds_each_source_by_its_share(tmp_path: Path) -> None:
    for name, token in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.bin").write_bytes(np.full(5, token, dtype="<u2").tobytes())
        (tmp_path / f"{name}.idx").write_bytes(INDEX)
    words = ["0.75", str(tmp_path / "a"), "0.25", str(tmp_path / "b")]
    blend = open_blend(words, length=3, seed=3, vocab=10, epochs=10_000)
    firsts = [int(blend.read(number)[0]) for number in range(4096)]
    assert (firsts.count(1), firsts.count(2)) == (3072, 1024)


@dataclass(frozen=True)
class _Numbered:
    """A source whose samples are its name and their number."""

    name: int

    def read(self, index: int) -> NDArray[np.int64]:
        return np.array([self.name, index])


def test_a_blend_of_many_sources_goes_on_for_as_long_as_is_asked() -> None:
    """150 equal shares: each gives its samples in their order, and in the end a 150th, but for one
    that takes what is rounded off."""
    sources = [_Numbered(name) for name in range(150)]
    blend = BlendedSamples(cast("list[PackedSamples]", sources), [1.0] * 150, seed=3)
    read = np.array([blend.read(number) for number in range(3 * 32_768)])
    counts = np.bincount(read[:, 0], minlength=150)
    assert all(read[read[:, 0] == name, 1].max() == counts[name] - 1 for name in range(150))
    assert counts[1:].min() == counts[1:].max() == 3 * 32_768 // 150


def test_the_last_documents_are_held_out_of_training(tmp_path: Path, prefix: str) -> None:
    """Documents 5 6 7 and 8 50256: half of them is one, and a tenth is one at least."""
    for share in (0.5, 0.1):
        rest, held_out = (
            open_blend([prefix], length=2, seed=1, vocab=50257, epochs=1, held_out=share, part=part)
            for part in ("rest", "held-out")
        )
        assert sorted(rest.read(number).tolist() for number in range(2)) == [[5, 6], [6, 7]]
        assert held_out.read(0).tolist() == [8, 50256]
    with pytest.raises(
        ConfigError,
        match=r"2 tokens in 1 of 2 documents \(valid.share\), fewer than one sequence of 3",
    ):
        open_blend([prefix], length=3, seed=1, vocab=50257, epochs=1, held_out=0.5, part="held-out")


def test_tokens_beyond_the_vocabulary_are_named(prefix: str) -> None:
    with pytest.raises(ConfigError, match="token 50256 is beyond the model's vocabulary of 2048"):
        open_blend([prefix], length=3, seed=1, vocab=2048, epochs=1)


@pytest.mark.parametrize(
    ("index", "tokens", "says"),
    [
        (INDEX[:20], TOKENS, "are no index"),
        (b"X" + INDEX[1:], TOKENS, "no index of Megatron's"),
        (INDEX[:-1], TOKENS, "the file is cut off"),
        (INDEX, TOKENS[:-2], "holds 4 tokens, its index names 5"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, index: bytes, tokens: bytes, says: str) -> None:
    (tmp_path / "text.idx").write_bytes(index)
    (tmp_path / "text.bin").write_bytes(tokens)
    with pytest.raises(ConfigError, match=says):
        IndexedFile(str(tmp_path / "text"))


def test_a_missing_file_and_too_little_data(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        IndexedFile(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="fewer than one sequence of 9"):
        PackedSamples(IndexedFile(prefix), length=9, seed=1, epochs=1)
