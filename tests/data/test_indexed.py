"""Megatron's .bin/.idx: by hand, and byte for byte with Megatron-Core's own builder and reader
where it is installed."""

from __future__ import annotations

import io
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.data.indexed import IndexedFile, dtype_code, index_bytes, token_dtype, write_index
from meshwright.values.errors import ConfigError

DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 65_499), min_size=1, max_size=6), max_size=4), max_size=8
)
"""Documents of sentences of ids; some documents are empty."""


def write(prefix: Path, documents: list[list[list[int]]], dtype: str) -> None:
    lengths = [len(sentence) for document in documents for sentence in document]
    bounds = np.cumsum([0, *map(len, documents)])
    ids = [token for document in documents for sentence in document for token in sentence]
    prefix.with_suffix(".bin").write_bytes(np.array(ids, dtype=dtype).tobytes())
    with prefix.with_suffix(".idx").open("wb") as handle:
        write_index(
            handle,
            dtype=np.dtype(dtype),
            lengths=np.array(lengths, dtype=np.int32),
            bounds=bounds.astype(np.int64),
        )


def megatron() -> Any:
    """Megatron-Core's module of indexed data sets, or a skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = (
            "megatron-core and torch are not installed: the format is compared with its builder"
            " where they are"
        )
        return pytest.importorskip("megatron.core.datasets.indexed_dataset", reason=reason)


def test_two_documents_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "text", [[[5, 6, 7]], [[8, 50256]]], "<u2")
    assert (tmp_path / "text.bin").read_bytes().hex() == "050006000700080050c4"
    index = (tmp_path / "text.idx").read_bytes()
    assert len(index) == 82 == index_bytes(2, 3)
    assert (
        index.hex()
        == (
            "4d4d49444944580000"
            + "0100000000000000"
            + "08"
            + "0200000000000000"
            + "030000000000000003000000"
            + "02000000"  # lengths
            "0000000000000000" + "0600000000000000"  # bytes before each sequence
            "0000000000000000"
            + "0100000000000000"
            + "0200000000000000"  # first sequence of each document, and the end
        )
    )


def test_small_vocabularies_are_u16() -> None:
    assert (token_dtype(65_499), token_dtype(65_500)) == (np.dtype("<u2"), np.dtype("<i4"))
    assert (
        dtype_code(np.dtype("<u2")),
        dtype_code(np.dtype("<i4")),
        dtype_code(np.dtype("u1")),
    ) == (8, 4, 1)
    with pytest.raises(ConfigError, match="no code"):
        dtype_code(np.dtype("<u4"))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS, dtype=st.sampled_from(["<u2", "<i4", "<i8"]))
def test_what_is_written_is_read(
    tmp_path: Path, documents: list[list[list[int]]], dtype: str
) -> None:
    write(tmp_path / "text", documents, dtype)
    file = IndexedFile(tmp_path / "text")
    joined = [list(chain(*document)) for document in documents]
    assert [file.document(number).tolist() for number in range(file.num_documents)] == joined
    assert [file.sequence(number).tolist() for number in range(file.num_sequences)] == list(
        chain(*documents)
    )
    assert file.num_tokens == sum(map(len, joined))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents=DOCUMENTS, dtype=st.sampled_from(["<u2", "<i4"]))
def test_bytes_are_megatrons(tmp_path: Path, documents: list[list[list[int]]], dtype: str) -> None:
    module = megatron()
    builder = module.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.dtype(dtype).type)
    for document in documents:
        builder.add_document(list(chain(*document)), [len(sentence) for sentence in document])
    builder.finalize(str(tmp_path / "theirs.idx"))
    write(tmp_path / "ours", documents, dtype)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (
            tmp_path / f"theirs.{ending}"
        ).read_bytes()
    if any(documents):  # their reader can't map an empty file
        theirs = module.IndexedDataset(str(tmp_path / "ours"))
        assert [theirs[number].tolist() for number in range(len(theirs))] == list(chain(*documents))
        assert theirs.document_indices.tolist() == np.cumsum([0, *map(len, documents)]).tolist()


def test_no_sequence_at_all(tmp_path: Path) -> None:
    write(tmp_path / "text", [[], []], "<u2")
    file = IndexedFile(tmp_path / "text")
    assert (file.num_documents, file.num_sequences, file.num_tokens) == (2, 0, 0)
    assert file.document(1).tolist() == []


def test_an_index_is_written_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, bounds = np.arange(1, 8, dtype=np.int32), np.arange(8, dtype=np.int64)
    whole, pieces = io.BytesIO(), io.BytesIO()
    write_index(whole, dtype=np.dtype("<i4"), lengths=lengths, bounds=bounds)
    monkeypatch.setattr("meshwright.data.indexed._CHUNK", 3)
    write_index(pieces, dtype=np.dtype("<i4"), lengths=lengths, bounds=bounds)
    assert pieces.getvalue() == whole.getvalue()
