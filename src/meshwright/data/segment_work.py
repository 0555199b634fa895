"""What a worker does with one segment: read, tokenize, and write one scratch file that the assembly
joins to the others.

A scratch file holds, key by key, the ids, the length of each sequence (i32) and the number of
sequences of each document (i32); then what was rejected, as JSON lines. The record in the journal
says how long each part is and holds its CRC-32, so that what a power cut tore is found and done
again; the scratch file itself is not put on the disk with fsync, the assembled file is.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from meshwright.data.documents import TextUnit, read_documents
from meshwright.data.encoders import Encoder, EncoderSpec, Engine
from meshwright.data.engines import Stamp, first_difference, open_encoder, reference_of
from meshwright.data.pieces import Document, Piece, Reject
from meshwright.data.segments import Segment
from meshwright.data.steps import Record, ShardError
from meshwright.data.workers import count
from meshwright.values.errors import ConfigError, load_extra

__all__ = ["DIRTY", "OnError", "SegmentTask", "part_path", "sentence_splitter", "tokenize_segment"]

MOST_CHARACTERS = 1_000_000
"""A longer text is split in pieces of this length, as Megatron does (preprocess_data.py)."""


_KEEPS_SPACE = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"
"""Where a sentence may end, as Megatron's --keep-newlines has it: the space behind the sign is of
the sentence, and may be none."""


@lru_cache(maxsize=1)
def sentence_splitter(language: str, *, keep_newlines: bool) -> Callable[[str], list[str]]:
    """Return what cuts a text into its sentences, with the space behind each or without;
    TimeoutError where NLTK gives up on a text. ConfigError where NLTK's data for the language is
    not on this machine."""
    load_extra("nltk", "data")
    from nltk.tokenize.punkt import PunktLanguageVars, PunktSentenceTokenizer, PunktTokenizer

    try:
        punkt = PunktTokenizer(language)
    except (LookupError, OSError, ValueError):
        raise ConfigError(
            f"--split-sentences: NLTK's model for {language!r} is not on this machine: python -m"
            " nltk.downloader punkt_tab, or set NLTK_DATA to a folder that holds"
            f" tokenizers/punkt_tab/{language} (NLTK reads no tokenizers/punkt any more)"
        ) from None
    if keep_newlines:
        words = type("KeepsSpace", (PunktLanguageVars,), {"_period_context_fmt": _KEEPS_SPACE})
        punkt = PunktSentenceTokenizer(train_text=punkt._params, lang_vars=words())

    def split(text: str) -> list[str]:
        starts = range(0, len(text), MOST_CHARACTERS)
        parts = (text[start : start + MOST_CHARACTERS] for start in starts)
        return [sentence for part in parts for sentence in punkt.tokenize(part)]

    return split


OnError = Literal["fail", "skip", "quarantine"]
_BATCH_BYTES = 1 << 21
_BATCH_DOCUMENTS = 8192
_SPOOL_BYTES = 1 << 23
_CHECK_CHARACTERS = 512
DIRTY = "dirty"
"""Kind of a segment that the policy `fail` ends; its reason is the rows of the rejects, in JSON."""
_MOST_DIRTY = 100
SECTIONS = ("tokens", "lengths", "counts")


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentTask:
    """One segment with all that its bytes depend on."""

    segment: Segment
    scratch: str
    spec: EncoderSpec
    stamp: Stamp
    """Of the tokenizer's files when the run began."""
    engine: Engine
    keys: tuple[str, ...]
    dtype: str
    append_eod: bool
    language: str | None
    """Of the sentences that texts are split into; None: not split."""
    keep_newlines: bool
    text_unit: TextUnit
    max_bytes: int
    on_error: OnError

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def size_bytes(self) -> int:
        return self.segment.size_bytes


def part_path(scratch: str | Path, name: str) -> Path:
    """Return the scratch file of a segment; a thousand to a folder."""
    return Path(scratch) / name[:-3] / f"{name}.part"


@dataclass(slots=True)
class _Section:
    """One part of the scratch file while it is written."""

    handle: IO[bytes]
    size_bytes: int = 0
    crc: int = 0

    def mark(self) -> tuple[int, int, int]:
        return self.handle.tell(), self.size_bytes, self.crc

    def back_to(self, mark: tuple[int, int, int]) -> None:
        at, self.size_bytes, self.crc = mark
        self.handle.seek(at)
        self.handle.truncate()

    def write(self, content: NDArray[Any] | bytes) -> None:
        is_array = isinstance(content, np.ndarray) and content.size
        view = memoryview(cast("Any", content)).cast("B") if is_array else bytes(content)
        self.handle.write(view)
        self.size_bytes += len(view)
        self.crc = zlib.crc32(view, self.crc)


@dataclass(slots=True)
class _Tally:
    documents: int = 0
    tokens: int = 0
    rejects: int = 0
    files_out: list[str] = field(default_factory=list)
    dirty: list[dict[str, Any]] = field(default_factory=list)
    """By the policy `fail`: what ends the segment."""


class _Open(NamedTuple):
    """A segment while it is written."""

    task: SegmentTask
    sections: Mapping[str, _Section]
    tally: _Tally


def tokenize_segment(task: SegmentTask) -> Record:
    """Tokenize a segment and return its record; ShardError for a reject under the policy `fail`."""
    path = part_path(task.scratch, task.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with beside.open("wb") as handle:
            record = _write(task, handle)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return record


def _write(task: SegmentTask, handle: IO[bytes]) -> Record:
    tally = _Tally()
    names = [f"{key}.{section}" for key in task.keys for section in SECTIONS] + ["rejects"]
    with ExitStack() as stack:
        spools: list[Any] = [
            stack.enter_context(SpooledTemporaryFile(_SPOOL_BYTES, dir=task.scratch))
            for _ in names[1:]
        ]
        streams = zip(names, [handle, *spools], strict=True)
        sections = {name: _Section(stream) for name, stream in streams}
        batches = _Batches(_Open(task, sections, tally))
        for piece in task.segment.pieces:
            batches.read(piece)
        batches.flush()
        if tally.dirty:
            raise ShardError(json.dumps(tally.dirty), kind=DIRTY)
        for spool in spools:
            spool.seek(0)
            shutil.copyfileobj(spool, handle, 1 << 20)
    record: dict[str, Any] = {
        "size_bytes": sum(section.size_bytes for section in sections.values()),
        "sections": {name: [section.size_bytes, section.crc] for name, section in sections.items()},
        "documents": tally.documents,
        "tokens": tally.tokens,
    }
    if tally.rejects:
        record |= {"rejects": tally.rejects, "files_out": tally.files_out}
        record["on_error"] = task.on_error
    return record


class _Of(NamedTuple):
    """A document and the piece that it is of."""

    piece: Piece
    document: Document


class _Batches:
    """Documents on their way to the tokenizer: those of many small files go together, since each
    call of it, and each check of its ids, has a price of its own."""

    def __init__(self, out: _Open) -> None:
        self.out = out
        self._waiting: list[_Of] = []
        self._held = 0

    def read(self, piece: Piece) -> None:
        """Take a piece's documents; of a file that can't be read to its end nothing is kept."""
        task = self.out.task
        begun: tuple[dict[str, tuple[int, int, int]], _Tally] | None = None
        """What was written before anything of this piece was."""
        documents = read_documents(
            piece, keys=task.keys, text_unit=task.text_unit, max_bytes=task.max_bytes
        )
        for item in documents:
            if not isinstance(item, Reject):
                self._waiting.append(_Of(piece, item))
                self._held += item.size_bytes
                if self._held < _BATCH_BYTES and len(self._waiting) < _BATCH_DOCUMENTS:
                    continue
            begun = begun or self._settled(piece)
            if isinstance(item, Reject):
                if item.line is None:
                    self._forget(begun)
                _reject(self.out, piece, item)
            elif self._held >= _BATCH_BYTES or len(self._waiting) >= _BATCH_DOCUMENTS:
                self.flush()
        if piece.form == "parquet":
            count(size_bytes=task.size_bytes if piece.end is not None else piece.size_bytes)

    def flush(self) -> None:
        """Hand all that waits to the tokenizer."""
        batch, self._waiting, self._held = self._waiting, [], 0
        _encode(self.out, batch)

    def _settled(self, piece: Piece) -> tuple[dict[str, tuple[int, int, int]], _Tally]:
        """Write what waits of earlier pieces; return the places where this one's begins."""
        own = [one for one in self._waiting if one.piece is piece]
        self._waiting = self._waiting[: len(self._waiting) - len(own)]
        self.flush()
        self._waiting, self._held = own, sum(one.document.size_bytes for one in own)
        marks = {name: section.mark() for name, section in self.out.sections.items()}
        return marks, replace(self.out.tally)

    def _forget(self, begun: tuple[dict[str, tuple[int, int, int]], _Tally]) -> None:
        """Take back what is written and what waits of the piece that `begun` is about."""
        marks, before = begun
        for name, mark in marks.items():
            self.out.sections[name].back_to(mark)
        tally = self.out.tally
        tally.documents, tally.tokens = before.documents, before.tokens
        tally.rejects = before.rejects
        self._waiting, self._held = [], 0


def _encode(out: _Open, batch: list[_Of]) -> None:
    """Turn documents into ids and write them; a document without a token is rejected."""
    task, sections, tally = out.task, out.sections, out.tally
    if task.language is not None:
        batch = _split(out, batch)
    if not batch or tally.dirty:
        return
    encoder = open_encoder(reference_of(task.spec, task.stamp), task.engine)
    rows = [
        _sequences(task, encoder, [one.document.texts[place] for one in batch])
        for place in range(len(task.keys))
    ]
    keep = np.logical_and.reduce([row.counts > 0 for row in rows])
    reason = "empty document: the tokenizer gives it no token"
    for place in np.flatnonzero(~keep).tolist():
        _reject(out, batch[place].piece, Reject(line=batch[place].document.line, reason=reason))
    if task.engine == "gigatoken":
        _check(task, encoder, batch)
    for key, row in zip(task.keys, rows, strict=True):
        of_key = {name: sections[f"{key}.{name}"] for name in SECTIONS}
        tally.tokens += _append(task, encoder, row, keep, of_key)
    tally.documents += int(keep.sum())
    count(documents=int(keep.sum()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Sequences of a batch of documents."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    """Of the sequences that have ids, (sequences,)."""
    counts: NDArray[np.int64]
    """Sequences of each document, (documents,)."""


def _sequences(task: SegmentTask, encoder: Encoder, texts: Sequence[str | list[str]]) -> _Rows:
    parts = [[text] if isinstance(text, str) else text for text in texts]
    encoded = encoder.encode([part for document in parts for part in document])
    owners = np.repeat(np.arange(len(parts)), [len(document) for document in parts])
    counts = np.bincount(owners[encoded.lengths > 0], minlength=len(parts))
    ids, lengths = encoded.ids, encoded.lengths[encoded.lengths > 0]
    before, after = encoder.around
    if before or after:
        ids = _surround(ids, np.cumsum(lengths), before=before, after=after, dtype=task.dtype)
        lengths = lengths + len(before) + len(after)
    return _Rows(ids=ids, lengths=lengths, counts=counts)


def _split(out: _Open, batch: Sequence[_Of]) -> list[_Of]:
    """Return documents as sentences; one that NLTK gives up on is rejected."""
    task = out.task
    assert task.language is not None
    split = sentence_splitter(task.language, keep_newlines=task.keep_newlines)
    done = []
    for piece, document in batch:
        try:
            texts = tuple(split(one) if isinstance(one, str) else one for one in document.texts)
        except TimeoutError:
            reason = "NLTK gives up on splitting it into sentences"
            _reject(out, piece, Reject(line=document.line, reason=reason))
            continue
        done.append(_Of(piece, document._replace(texts=texts)))
    return done


def _append(
    task: SegmentTask,
    encoder: Encoder,
    rows: _Rows,
    keep: NDArray[np.bool_],
    sections: Mapping[str, _Section],
) -> int:
    """Write the sequences of the documents that are kept, each with its end, and return their
    tokens. A document that is left out has no ids, or has some under another key, which go with
    it."""
    kept = np.repeat(keep, rows.counts)
    ids = rows.ids if keep.all() else rows.ids[np.repeat(kept, rows.lengths)]
    lengths, counts = rows.lengths[kept], rows.counts[keep]
    if task.append_eod and encoder.eod is not None:
        last, end = np.cumsum(counts) - 1, (encoder.eod,)
        ids = _surround(ids, np.cumsum(lengths)[last], before=(), after=end, dtype=task.dtype)
        lengths[last] += 1
    sections["tokens"].write(ids.astype(task.dtype, copy=False))
    sections["lengths"].write(lengths.astype("<i4"))
    sections["counts"].write(counts.astype("<i4"))
    count(tokens=len(ids))
    return len(ids)


def _surround(
    ids: NDArray[Any],
    ends: NDArray[np.int64],
    *,
    before: Sequence[int],
    after: Sequence[int],
    dtype: str,
) -> NDArray[Any]:
    """Return ids with some before and behind each run of them; runs end at `ends`, (runs,)."""
    added = len(before) + len(after)
    shifts = np.arange(len(ends)) * added
    out = np.empty(len(ids) + len(ends) * added, dtype=dtype)
    for place, token in enumerate(before):
        out[np.concatenate([[0], ends[:-1]]) + shifts + place] = token
    for place, token in enumerate(after):
        out[ends + shifts + len(before) + place] = token
    begin = 0
    for end, shift in zip(ends.tolist(), (shifts + len(before)).tolist(), strict=True):
        # a run at a time: many times as fast as numpy's insert
        out[begin + shift : end + shift] = ids[begin:end]
        begin = end
    return out


def _check(task: SegmentTask, encoder: Encoder, batch: Sequence[_Of]) -> None:
    """Hold gigatoken against the tokenizer's own library on a little of each batch."""
    piece, document = batch[len(batch) // 2]
    sample = document.first_text[:_CHECK_CHARACTERS]
    difference = first_difference(encoder, reference_of(task.spec, task.stamp), [sample])
    if difference is not None:
        raise ConfigError(
            f"{piece.path}: gigatoken gives other ids than the tokenizer's own library:"
            f" {difference}; start again with --engine library --overwrite"
        )


def _reject(out: _Open, piece: Piece, reject: Reject) -> None:
    """Note what is no document, or end the segment where the policy is to fail."""
    task, tally = out.task, out.tally
    row: dict[str, Any] = {
        "file": piece.path,
        "line": reject.line,
        "start": piece.start,
        "form": piece.form,
        "reason": reject.reason,
    }
    if task.on_error == "fail":
        tally.dirty.append(row)
        if len(tally.dirty) >= _MOST_DIRTY:
            raise ShardError(json.dumps(tally.dirty), kind=DIRTY)
        return
    tally.rejects += 1
    if reject.line is None:
        tally.files_out.append(piece.path)
    if task.on_error == "quarantine" and reject.raw:
        try:
            row["record"] = reject.raw.decode("utf-8")
        except UnicodeDecodeError:
            row["record_base64"] = base64.b64encode(reject.raw).decode("ascii")
    line = json.dumps(row, ensure_ascii=False) + "\n"
    out.sections["rejects"].write(line.encode("utf-8", "surrogateescape"))
