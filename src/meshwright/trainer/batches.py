"""The samples of a step: which rank reads which, the same ones whatever the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.data.indexed import IndexedFile
from meshwright.trainer.job import TrainJob
from meshwright.trainer.mesh import Meshes
from meshwright.values.errors import ConfigError

__all__ = ["Samples", "StepData", "open_blend", "open_held_out", "open_samples"]


class Samples(Protocol):
    """Numbered sequences of seq_len + 1 tokens."""

    def read(self, index: int) -> NDArray[np.int64]: ...


class RandomSamples:
    """Uniform tokens from the seed and the sample's number."""

    def __init__(self, *, vocab: int, length: int, seed: int) -> None:
        self.vocab, self.length, self.seed = vocab, length, seed

    def read(self, index: int) -> NDArray[np.int64]:
        return np.random.default_rng((self.seed, index)).integers(
            self.vocab, size=self.length, dtype=np.int64
        )


def open_samples(job: TrainJob) -> Samples:
    """Return what the job trains on."""
    facts, blend = _facts(job), job.data.blend
    if not blend:
        return RandomSamples(**facts)
    return open_blend(blend, epochs=job.data.epochs, held_out=job.valid.share, part="rest", **facts)


def open_held_out(job: TrainJob) -> Samples | None:
    """Return what the job evaluates on; None where it never does."""
    if not job.valid.every:
        return None
    facts, blend = _facts(job), job.valid.blend or job.data.blend
    if not blend:
        return RandomSamples(**facts | {"seed": job.seed + _OTHER_SEED})
    part: Part = "all" if job.valid.blend else "held-out"
    return open_blend(blend, epochs=_AGAIN, held_out=job.valid.share, part=part, **facts)


def _facts(job: TrainJob) -> dict[str, int]:
    return {"length": job.seq_len + 1, "seed": job.seed, "vocab": job.model.vocab}


Part = Literal["all", "rest", "held-out"]
"""Of the documents of each file."""


_AGAIN = 10**9
"""Epochs of what is evaluated on."""
_OTHER_SEED = 2**32
"""Far from any seed that trains."""


class StepData:
    """Tokens and targets of this rank, step by step. Sample `step * gbs + i` belongs to the global
    batch of a step; micro batch j of data-parallel rank r holds samples (j * dp + r) * mbs onwards,
    so where a run goes on does not depend on dp. A context-parallel rank holds one or two runs of
    tokens."""

    def __init__(
        self, samples: Samples, job: TrainJob, meshes: Meshes, device: torch.device
    ) -> None:
        self.samples, self.job, self.meshes, self.device = samples, job, meshes, device

    def of(self, step: int) -> tuple[Tensor, Tensor]:
        """Both (samples of this rank, tokens of this context rank)."""
        layout = self.job.layout
        rank = self.meshes.place("dp")
        numbers = [
            step * layout.gbs + (j * layout.dp + rank) * layout.mbs + k
            for j in range(layout.num_microbatches)
            for k in range(layout.mbs)
        ]
        samples = np.stack([self.samples.read(number) for number in numbers])
        rows = torch.from_numpy(samples).to(self.device)
        runs = self.meshes.runs(self.job.seq_len)
        tokens = torch.cat([rows[:, run.start : run.stop] for run in runs], dim=1)
        return tokens, torch.cat([rows[:, run.start + 1 : run.stop + 1] for run in runs], dim=1)


class PackedSamples:
    """Sequences cut from an epoch's shuffled documents; neighbours share one token."""

    def __init__(
        self,
        file: IndexedFile,
        *,
        length: int,
        seed: int,
        epochs: int,
        documents: range | None = None,
    ) -> None:
        """Of all documents, or of some."""
        self.file, self.length, self.seed, self.epochs = file, length, seed, epochs
        self.documents = range(file.num_documents) if documents is None else documents
        first, behind = (file.starts[at] for at in (self.documents.start, self.documents.stop))
        self.num_tokens = int(behind) - int(first)
        self.per_epoch = (self.num_tokens - 1) // (length - 1)
        if self.per_epoch < 1:
            part = ""
            if documents is not None:
                part = f" in {len(documents)} of {file.num_documents} documents (valid.share)"
            raise ConfigError(
                f"data {file.prefix!r} holds {self.num_tokens} tokens{part}, fewer than one"
                f" sequence of {length}"
            )
        self._epoch = -1
        self._order = self._ends = self._shuffle = np.zeros(0, dtype=np.int64)

    def read(self, index: int) -> NDArray[np.int64]:
        """Return one sample; ConfigError behind the last epoch."""
        epoch, place = divmod(index, self.per_epoch)
        if epoch >= self.epochs:
            raise ConfigError(
                f"the data is at its end: sample {index} is behind {self.epochs} epochs of"
                f" {self.per_epoch}; raise data.epochs"
            )
        if epoch != self._epoch:
            self._open(epoch)
        start = int(self._shuffle[place]) * (self.length - 1)
        return self._tokens(start, start + self.length)

    def _open(self, epoch: int) -> None:
        draw = np.random.default_rng((self.seed, epoch))
        self._order = draw.permutation(len(self.documents)) + self.documents.start
        sizes = np.diff(self.file.starts)[self._order]
        self._ends = np.cumsum(sizes)
        self._shuffle = draw.permutation(self.per_epoch)
        self._epoch = epoch

    def _tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens of the epoch's stream."""
        parts = []
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            document = int(self._order[place])
            end = int(self._ends[place])
            first = int(self.file.starts[document + 1]) - (end - start)
            count = min(stop, end) - start
            parts.append(self.file.tokens[first : first + count])
            start += count
            place += 1
        return np.concatenate(parts).astype(np.int64)


class BlendedSamples:
    """Several sources in fixed shares: every block holds each by its share, in random order."""

    def __init__(
        self, sources: Sequence[PackedSamples], weights: Sequence[float], *, seed: int
    ) -> None:
        self.sources, self.seed = sources, seed
        self.shares = np.asarray(weights) / sum(weights)
        self.block = _block_of(len(sources), float(self.shares.max()))
        self._block = -1
        self._choices: list[tuple[int, int]] = []

    def read(self, index: int) -> NDArray[np.int64]:
        block, place = divmod(index, self.block)
        if block != self._block:
            self._choices, self._block = self._plan(block), block
        source, number = self._choices[place]
        return self.sources[source].read(number)

    def _plan(self, block: int) -> list[tuple[int, int]]:
        """(source, its own number) of each sample of a block."""
        before, after = (self._given(number * self.block) for number in (block, block + 1))
        picks = np.repeat(np.arange(len(self.sources)), after - before)
        np.random.default_rng((self.seed, block)).shuffle(picks)
        numbers = before.copy()
        chosen = []
        for source in picks.tolist():
            chosen.append((source, int(numbers[source])))
            numbers[source] += 1
        return chosen

    def _given(self, count: int) -> NDArray[np.int64]:
        """Samples of each source among the first `count`: rounded down, the largest fills up."""
        given = np.floor(self.shares * count).astype(np.int64)
        given[np.argmax(self.shares)] += count - given.sum()
        return given


_BLOCK = 4096


def _block_of(sources: int, largest: float) -> int:
    """Samples of a block: enough for the largest share to absorb the others' roundings."""
    size = _BLOCK
    while largest * size < sources:
        size *= 2
    return size


def open_blend(
    words: Sequence[str],
    *,
    length: int,
    seed: int,
    vocab: int,
    epochs: int,
    held_out: float = 0.0,
    part: Part = "all",
) -> PackedSamples | BlendedSamples:
    """Open `0.7 a 0.3 b`, or prefixes weighed by tokens: all documents, or a part of each file."""
    weights, prefixes = _parse(words)
    files = [IndexedFile(prefix) for prefix in prefixes]
    for prefix, file in zip(prefixes, files, strict=True):
        most = int(file.tokens[:_PROBE].max(initial=0))
        if most >= vocab:
            raise ConfigError(
                f"data {prefix!r}: token {most} is beyond the model's vocabulary of {vocab}"
            )
    sources = []
    for place, file in enumerate(files):
        facts = {"length": length, "seed": seed + place, "epochs": epochs}
        chosen = _documents(file, held_out, part)
        sources.append(PackedSamples(file, **facts, documents=chosen))
    if len(sources) == 1:
        return sources[0]
    shares = weights if weights is not None else [float(source.num_tokens) for source in sources]
    return BlendedSamples(sources, shares, seed=seed)


def _documents(file: IndexedFile, held_out: float, part: Part) -> range | None:
    """The last documents are held out, one at least."""
    if part == "all" or not held_out:
        return None
    border = file.num_documents - max(1, round(held_out * file.num_documents))
    return range(border) if part == "rest" else range(border, file.num_documents)


_PROBE = 1 << 24


def _parse(words: Sequence[str]) -> tuple[list[float] | None, list[str]]:
    numbers = [_number(word) for word in words[::2]]
    if len(words) % 2 == 0 and all(number is not None for number in numbers):
        weights = [float(number) for number in numbers if number is not None]
        if min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(f"data.blend={' '.join(words)}: weights must be positive")
        return weights, list(words[1::2])
    return None, list(words)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
