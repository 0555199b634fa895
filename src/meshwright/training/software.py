"""What a training software does at the end of its time and at its next start: one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.errors import UnknownNameError
from meshwright.exports.registry import TARGETS
from meshwright.runs.trial import OWN_TRAINER
from meshwright.training.limits import TimeForm, written

__all__ = ["SOFTWARE", "Software", "find_software"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """One software that trains."""

    name: str
    """A target of `meshwright export`, or that of the embedded trainer."""
    stop: tuple[str, ...] = ()
    """Words that end it by itself, with a checkpoint, where {limit} is the time; empty: it knows no
    such end."""
    form: TimeForm = "minutes"
    """Of {limit}."""
    resumes: Literal["load", "alone"] = "alone"
    """load: from `load_dir`, the folder that it saves into; alone: it looks there by itself."""
    keeps: int | None = None
    """Checkpoints that stay, beside the one being written; None: all of them."""
    reads_indexed: bool = True
    """Whether its data are .bin/.idx pairs."""
    source: str
    """Of the words above."""

    def stop_words(self, seconds: int) -> tuple[str, ...]:
        """Return the words that end it after a time."""
        return tuple(word.format(limit=written(seconds, self.form)) for word in self.stop)


LAST = 2
"""Newest checkpoints that the embedded trainer keeps beside its best."""
_MEGATRON = "megatron/training/arguments.py and checkpointing.py of Megatron-LM core 0.16"
_LIGHTNING = (
    "Trainer.max_time of PyTorch Lightning, DD:HH:MM:SS; NeMo 1.x counts it anew in every job"
    " (StatelessTimer)"
)
SOFTWARE: tuple[Software, ...] = (
    Software(
        name=OWN_TRAINER,
        stop=("minutes={limit}",),
        form="decimal minutes",
        keeps=LAST,
        source="docs/trainer.md",
    ),
    Software(
        name="megatron-lm",
        stop=("--exit-duration-in-mins", "{limit}", "--exit-signal-handler"),
        resumes="load",
        source=_MEGATRON,
    ),
    Software(
        name="megatron-bridge",
        stop=("train.exit_duration_in_mins={limit}", "train.exit_signal_handler=true"),
        resumes="load",
        source="megatron/bridge/training/config.py of Megatron-Bridge 0.3",
    ),
    Software(
        name="nemo2",
        source="NeMo 2.x: resume_if_exists is in the recipe, a limit on its time is not",
    ),
    Software(
        name="nemo1-script",
        stop=("trainer.max_time={limit}",),
        form="days:hours:minutes:seconds",
        keeps=11,
        source=_LIGHTNING,
    ),
    Software(
        name="torchtitan",
        reads_indexed=False,
        keeps=10,
        source="torchtitan 0.2: checkpoint.keep_latest_k is 10, and no limit on its time",
    ),
    Software(
        name="torchtitan-toml",
        reads_indexed=False,
        keeps=10,
        source="torchtitan 0.1: checkpoint.keep_latest_k is 10, and no limit on its time",
    ),
    Software(
        name="nanotron",
        resumes="load",
        reads_indexed=False,
        source="nanotron: resume_checkpoint_path; no limit on its time",
    ),
    Software(
        name="deepspeed",
        reads_indexed=False,
        source="transformers' run_clm.py goes on from the last checkpoint of its output folder",
    ),
    Software(
        name="accelerate",
        reads_indexed=False,
        source="transformers' run_clm.py goes on from the last checkpoint of its output folder",
    ),
)
"""In the order of `meshwright export --to`. NeMo 1.x keeps its best ten and the last."""


def find_software(name: str) -> Software:
    """Return a row; UnknownNameError for a software that is no export's, or that can't be started
    by a job script and gone on with."""
    for row in SOFTWARE:
        if row.name == name.lower():
            return row
    hint = ""
    if name.lower() in {target.name for target in TARGETS}:
        hint = (
            "; its export is no job that could be gone on with: `meshwright export` writes its"
            " files"
        )
    raise UnknownNameError(
        "software to train with", name, [row.name for row in SOFTWARE], hint=hint
    )
