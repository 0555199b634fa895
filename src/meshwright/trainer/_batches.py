"""The samples of a step: which rank reads which, the same ones whatever the layout."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.trainer._mesh import Meshes
from meshwright.trainer.job import TrainJob

__all__ = ["Samples", "StepData", "open_held_out", "open_samples"]


class Samples(Protocol):
    """Numbered sequences of seq_len + 1 tokens."""

    def read(self, index: int) -> NDArray[np.int64]:
        """Return one sample."""
        ...


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
    if job.data.blend:
        from meshwright.trainer.indexed import open_blend

        return open_blend(
            job.data.blend,
            epochs=job.data.epochs,
            held_out=job.valid.share,
            part="rest",
            **_facts(job),
        )
    return RandomSamples(vocab=job.model.vocab, length=job.seq_len + 1, seed=job.seed)


def open_held_out(job: TrainJob) -> Samples | None:
    """Return what the job evaluates on; None where it never does."""
    if not job.valid.every:
        return None
    blend = job.valid.blend or job.data.blend
    if blend:
        from meshwright.trainer.indexed import open_blend

        part: Literal["all", "held-out"] = "all" if job.valid.blend else "held-out"
        return open_blend(blend, epochs=_AGAIN, held_out=job.valid.share, part=part, **_facts(job))
    return RandomSamples(vocab=job.model.vocab, length=job.seq_len + 1, seed=job.seed + _OTHER_SEED)


def _facts(job: TrainJob) -> dict[str, int]:
    return {"length": job.seq_len + 1, "seed": job.seed, "vocab": job.model.vocab}


_AGAIN = 10**9
"""Epochs of what is evaluated on."""
_OTHER_SEED = 2**32
"""Far from any seed that trains."""


class StepData:
    """Tokens and targets of this rank, step by step.

    Sample `step * gbs + i` belongs to the global batch of a step; micro batch j of data-parallel
    rank r holds samples (j * dp + r) * mbs onwards, so where a run goes on does not depend on dp. A
    context-parallel rank holds one or two runs of the tokens.
    """

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
        rows = torch.from_numpy(np.stack([self.samples.read(number) for number in numbers])).to(
            self.device
        )
        runs = self.meshes.runs(self.job.seq_len)
        tokens = torch.cat([rows[:, run.start : run.stop] for run in runs], dim=1)
        return tokens, torch.cat([rows[:, run.start + 1 : run.stop + 1] for run in runs], dim=1)
