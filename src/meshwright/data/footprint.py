"""`plan`: what a corpus takes on disk at each stage, and which way of making data fits a quota."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from meshwright.data.archives import archive_of, open_plain
from meshwright.data.documents import num_rows, text_bytes_of
from meshwright.data.fetching import Corpus, find_corpus
from meshwright.data.listing import InputFile, walk
from meshwright.data.workers import count_into, format_size
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import GIB, counted, format_count

__all__ = [
    "GPT2_VOCABULARY",
    "WIDE_VOCABULARY",
    "DiskPlan",
    "Footprint",
    "Need",
    "Stage",
    "Strategy",
    "footprint_of",
    "needs_of",
    "plan",
    "strategy_of",
]

Strategy = Literal["chunks", "direct", "text", "recipe"]
"""`chunks`: chunk by chunk, archives tokenized as they are and removed when the chunk's output is
verified. `direct`: all archives kept and tokenized as they are. `text`: extracted and joined, each
input removed when it is replaced. `recipe`: NVIDIA's steps for SlimPajama, where the inputs of a
step are removed when the step has ended; it is there to compare."""
RUNNABLE: tuple[Strategy, ...] = ("chunks", "direct", "text")
SHARD_BYTES = 16 * GIB
"""Of joined shards, as in that recipe."""
BYTES_PER_TOKEN = 2.54e12 / 636e9
"""Of plain JSON lines with GPT-2's BPE, over SlimPajama; other tokenizers and languages differ."""
GPT2_VOCABULARY = 50_257
WIDE_VOCABULARY = 65_500
"""Megatron-Core writes 2 bytes an id below it (indexed_dataset.py, DType.optimal_dtype), else 4."""
_INDEX_HEAD_BYTES = 34
_INDEX_BYTES_PER_DOCUMENT = 4 + 8 + 8
"""Length, pointer and document index of a document of one sequence."""
_SAMPLES, _SAMPLE_BYTES = 8, 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What a corpus is, before and after each stage."""

    name: str
    files: int
    archive_bytes: int
    plain_bytes: int
    documents: int
    tokens: int
    chunks: int
    """Parts that the strategy `chunks` fetches and tokenizes in turn, each to a .bin and .idx."""
    largest_chunk_frac: float
    """Of the corpus, by files: what the largest part takes that is fetched at once."""
    vocab_size: int = GPT2_VOCABULARY
    source: str

    @property
    def token_bytes(self) -> int:
        """Of one id in a `.bin`."""
        return 2 if self.vocab_size < WIDE_VOCABULARY else 4

    @property
    def bin_bytes(self) -> int:
        """Of all `.bin` files."""
        return self.tokens * self.token_bytes

    @property
    def index_bytes(self) -> int:
        """Of one `.idx` over all documents; each more file adds 42 bytes."""
        return _INDEX_HEAD_BYTES + 8 + _INDEX_BYTES_PER_DOCUMENT * self.documents

    @property
    def output_bytes(self) -> int:
        return self.bin_bytes + self.index_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of file of a pipeline."""

    name: str
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """The disk that a strategy takes."""

    strategy: Strategy
    peak_bytes: int
    when: str
    left_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskPlan:
    """What fits, and what would."""

    footprint: Footprint
    needs: tuple[Need, ...]
    quota_bytes: int | None
    advice: str | None
    """What would fit where the quota is too small for what was asked."""

    @property
    def exit_code(self) -> int:
        """0 where what was asked for fits, else 1."""
        return 0 if self.advice is None else 1

    def stages(self) -> tuple[Stage, ...]:
        found = self.footprint
        shards = -(-found.plain_bytes // SHARD_BYTES)
        rows = (
            ("archives", found.files, found.archive_bytes),
            ("plain text", found.files, found.plain_bytes),
            ("joined shards", shards, found.plain_bytes),
            (".bin", found.chunks, found.bin_bytes),
            (".idx", found.chunks, found.index_bytes),
        )
        return tuple(Stage(name=name, files=files, size_bytes=size) for name, files, size in rows)

    def fits(self, need: Need) -> bool | None:
        """Whether a strategy fits; None without a quota."""
        return None if self.quota_bytes is None else need.peak_bytes <= self.quota_bytes

    def to_dict(self) -> dict[str, Any]:
        found = self.footprint
        return {
            "corpus": found.name,
            "documents": found.documents,
            "tokens": found.tokens,
            "source": found.source,
            "stages": [asdict(stage) for stage in self.stages()],
            "strategies": [
                {
                    "name": need.strategy,
                    "peak_bytes": need.peak_bytes,
                    "when": need.when,
                    "left_bytes": need.left_bytes,
                    "fits": self.fits(need),
                }
                for need in self.needs
            ],
            "quota_bytes": self.quota_bytes,
            "advice": self.advice,
        }

    def lines(self) -> list[str]:
        found = self.footprint
        head = (
            f"{found.name}: {format_count(found.documents)} documents,"
            f" {format_count(found.tokens)} tokens ({found.source})"
        )
        lines = [head, ""]
        lines += [
            f"  {stage.name:<14}{stage.files:>9,} files {format_size(stage.size_bytes):>9}"
            for stage in self.stages()
        ]
        lines += ["", f"  {'strategy':<12}{'peak':>9} {'left':>9}  at its peak"]
        for need in self.needs:
            fits = {None: "", True: "fits  ", False: "no    "}[self.fits(need)]
            lines.append(
                f"  {need.strategy:<12}{format_size(need.peak_bytes):>9}"
                f" {format_size(need.left_bytes):>9}  {fits}{need.when}"
            )
        return lines if self.advice is None else [*lines, "", self.advice]


def plan(
    inputs: Sequence[str] = (),
    *,
    corpus: str | None = None,
    chunks: int | None = None,
    strategy: str | None = None,
    quota_bytes: int | None = None,
    vocab_size: int = GPT2_VOCABULARY,
    bytes_per_token: float = BYTES_PER_TOKEN,
) -> DiskPlan:
    """Say what each strategy takes, and whether one, or any that `data run` has, fits into a quota.
    The corpus is one known by name, or files that are there: their size is exact, what they hold is
    estimated from samples. ConfigError unless exactly one of both is given, or for an unknown
    strategy."""
    if (corpus is None) == (not inputs):
        raise ConfigError("expected either --corpus NAME or files and folders")
    if chunks is not None and corpus is None:
        raise ConfigError("--chunks has no effect without --corpus")
    if vocab_size < 1 or not 0 < bytes_per_token < float("inf"):
        raise ConfigError(
            f"vocab_size={vocab_size} bytes_per_token={bytes_per_token}: expected numbers above 0"
        )
    if corpus is not None:
        found = footprint_of(find_corpus(corpus), chunks=chunks, vocab_size=vocab_size)
    else:
        found = _sampled(walk(inputs), vocab_size=vocab_size, bytes_per_token=bytes_per_token)
    needs = needs_of(found)
    asked = strategy_of(strategy) if strategy is not None else None
    full = find_corpus(corpus) if corpus is not None else None
    advice = _advice(found, needs, asked, quota_bytes, full)
    return DiskPlan(footprint=found, needs=needs, quota_bytes=quota_bytes, advice=advice)


def strategy_of(word: str) -> Strategy:
    """Read a strategy's name."""
    for name in get_args(Strategy):
        if word == name:
            return name  # type: ignore[no-any-return]
    raise UnknownNameError("strategy", word, get_args(Strategy))


def footprint_of(
    corpus: Corpus, *, chunks: int | None = None, vocab_size: int = GPT2_VOCABULARY
) -> Footprint:
    """Return what the first chunks of a corpus are: their share of its figures by files."""
    most = len(corpus.files_per_chunk)
    if chunks is not None and not 1 <= chunks <= most:
        raise ConfigError(f"chunks={chunks}: {corpus.name} has {most} chunks; expected 1 to {most}")
    files = corpus.files_per_chunk[:chunks]
    share = sum(files) / corpus.num_files
    return Footprint(
        name=corpus.name if chunks is None else f"{corpus.name}, {len(files)} of {most} chunks",
        files=sum(files),
        archive_bytes=round(corpus.archive_bytes * share),
        plain_bytes=round(corpus.plain_bytes * share),
        documents=round(corpus.documents * share),
        tokens=round(corpus.tokens * share),
        chunks=len(files),
        largest_chunk_frac=max(files) / sum(files),
        vocab_size=vocab_size,
        source="measured over all of it, with GPT-2's BPE",
    )


def needs_of(found: Footprint) -> tuple[Need, ...]:
    """Return the peak of each strategy, the smallest first.

    Formula:  direct = archives + output;  chunks = largest chunk + output;  text = max(plain + one
              shard (all of it where it is smaller), plain + output); recipe = max(archives + plain,
              2 * plain, plain + output) (a step's inputs and outputs are on the disk together
              unless it consumes as it goes; scratch files of `tokenize` are removed while they are
              joined, so they count once)
    """
    archives, plain, output = found.archive_bytes, found.plain_bytes, found.output_bytes
    chunk = round(archives * found.largest_chunk_frac)
    text = max(
        (plain + min(SHARD_BYTES, plain), "while shards replace plain files"),
        (plain + output, "joined shards beside .bin and .idx"),
    )
    steps = (
        (archives + plain, "archives beside plain text"),
        (2 * plain, "plain text beside joined shards"),
        (plain + output, "joined shards beside .bin and .idx"),
    )
    last = (chunk + output, "the last chunk's archives beside .bin and .idx")
    every = (archives + output, "all archives beside .bin and .idx")
    rows: tuple[tuple[Strategy, tuple[int, str], int], ...] = (
        ("chunks", last, output),
        ("direct", every, archives + output),
        ("text", text, plain + output),
        ("recipe", max(steps), plain + output),
    )
    needs = [
        Need(strategy=name, peak_bytes=peak, when=when, left_bytes=left)
        for name, (peak, when), left in rows
    ]
    return tuple(sorted(needs, key=lambda need: need.peak_bytes))


def _advice(
    found: Footprint,
    needs: Sequence[Need],
    asked: Strategy | None,
    quota_bytes: int | None,
    corpus: Corpus | None,
) -> str | None:
    """Return what would fit instead, None where the request does; nothing runs `recipe` alone."""
    if quota_bytes is None:
        return None
    wanted = [need for need in needs if need.strategy in ((asked,) if asked else RUNNABLE)]
    if any(need.peak_bytes <= quota_bytes for need in wanted):
        return None
    least = next(need for need in needs if need.strategy in RUNNABLE)  # the smallest is first
    given = f"a quota of {format_size(quota_bytes)} is too small for {asked or 'any strategy'}"
    if least.peak_bytes <= quota_bytes:
        return (
            f"{given}, which takes {format_size(wanted[0].peak_bytes)}; {least.strategy} takes"
            f" {format_size(least.peak_bytes)}"
        )
    words = f"{given}: {least.strategy} takes the least, {format_size(least.peak_bytes)}"
    fewer = _most_chunks(corpus, found, quota_bytes)
    return words if fewer is None else f"{words}; --chunks {fewer} with {least.strategy} fits"


def _most_chunks(corpus: Corpus | None, found: Footprint, quota_bytes: int) -> int | None:
    """Return the largest number of chunks that fits with the most frugal strategy."""
    if corpus is None:
        return None
    for chunks in range(len(corpus.files_per_chunk), 0, -1):
        part = replace(footprint_of(corpus, chunks=chunks), vocab_size=found.vocab_size)
        peaks = [need.peak_bytes for need in needs_of(part) if need.strategy in RUNNABLE]
        if min(peaks) <= quota_bytes:
            return chunks
    return None


def _sampled(files: Sequence[InputFile], *, vocab_size: int, bytes_per_token: float) -> Footprint:
    """Estimate what files hold from the beginnings of some of them, spread over the list."""
    total = sum(file.size_bytes for file in files)
    if not total:
        raise ConfigError("the files are empty: nothing to plan")
    read_bytes, plain_bytes, lines = 0, 0, 0
    for file in sorted(files, key=lambda file: file.size_bytes)[:: max(1, len(files) // _SAMPLES)]:
        share, plain, found = _sample_of_rows(file) if _has_rows(file) else _sample(file)
        read_bytes, plain_bytes, lines = read_bytes + share, plain_bytes + plain, lines + found
    ratio = plain_bytes / max(1, read_bytes)
    whole = round(total * ratio)
    packed = any(archive_of(file.name) or _has_rows(file) for file in files)
    return Footprint(
        name=counted(len(files), "file"),
        files=len(files),
        archive_bytes=total,
        plain_bytes=whole if packed else total,
        documents=round(whole * lines / max(1, plain_bytes)),
        tokens=round(whole / bytes_per_token),
        chunks=1,
        largest_chunk_frac=1.0,
        vocab_size=vocab_size,
        source=f"estimated from {format_size(read_bytes)} of them, at {bytes_per_token:.3g} bytes"
        " a token",
    )


def _has_rows(file: InputFile) -> bool:
    return file.name.endswith(".parquet")


def _sample_of_rows(file: InputFile) -> tuple[int, int, int]:
    """Return a Parquet file's bytes that some rows stand for, their texts' bytes, and the rows."""
    rows, text_bytes = 0, 0
    for more, size in text_bytes_of(file.path):
        rows, text_bytes = rows + more, text_bytes + size
        if text_bytes >= 8 * _SAMPLE_BYTES:
            break
    return round(file.size_bytes * rows / max(1, num_rows(file.path))), text_bytes, rows


def _sample(file: InputFile) -> tuple[int, int, int]:
    """Return bytes read of a file, plain bytes that came out, and their lines."""
    cells = [0, 0, 0]
    count_into(cells, 0)
    plain_bytes = lines = 0
    with open_plain(Path(file.path)) as plain:
        while cells[0] < _SAMPLE_BYTES and plain_bytes < 8 * _SAMPLE_BYTES:
            if not (block := plain.read(1 << 20)):
                break
            plain_bytes += len(block)
            lines += block.count(b"\n")
    return cells[0], plain_bytes, lines
