"""Checkpoints by torch.distributed.checkpoint: written beside, renamed when whole, read at any
layout.

part-20/            is being written, or was when the run was killed; never chosen, removed before
                    the next save
step-20/run.json    written last but for the rename: what the run was, and the validation loss
step-20/model/      weights
step-20/optimizer/  optimizer states; older checkpoints may have lost them
gone-10/            is being removed: renamed first, so that a kill leaves no half-removed `step-10`
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from meshwright.data.atomic import sync_folder, write_whole
from meshwright.sizing.checkpoints import Choice, Saved, choose
from meshwright.trainer.job import SaveSettings
from meshwright.trainer.reports import CheckpointReport
from meshwright.values.errors import ConfigError
from meshwright.values.units import format_bytes

__all__ = ["Checkpoints"]

_NAME = re.compile(r"step-(\d+)")
_LEFT = re.compile(r"(?:part|gone)-.*")
_FACTS = "run.json"
_MODEL, _OPTIMIZER = "model", "optimizer"
_INDEX = ".metadata"
"""What torch.distributed.checkpoint writes last."""
_LOSS = "validation_loss"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(kw_only=True)
class _Pending:
    step: int
    facts: dict[str, Any]
    began: float
    futures: list[Any]
    """None are left where it was written at once."""
    ended: list[float]
    """When each of them was done."""


class Checkpoints:
    """The checkpoints of one folder; all ranks call its methods together."""

    def __init__(self, settings: SaveSettings, *, device_type: str) -> None:
        assert settings.folder is not None
        self.folder, self.settings = Path(settings.folder), settings
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"save.folder={settings.folder}: {error.strerror}") from None
        self.behind = settings.wait == "no" or (settings.wait == "auto" and device_type != "cpu")
        self._pending: _Pending | None = None
        # writing goes on beside the collectives of the next steps, and weights and states beside
        # each other
        self._groups = {name: dist.new_group(backend="gloo") for name in (_MODEL, _OPTIMIZER)}

    def newest(self) -> int | None:
        """Steps at rank 0's newest whole checkpoint; ConfigError if optimizer states are lost."""
        seen: list[Any] = [self._saved() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(seen)
        found = [one.step for one in seen[0] if one.has_states]
        if seen[0] and not found:
            raise ConfigError(
                f"{self.folder}: none of its checkpoints has optimizer states to go on from; give"
                " another save.folder"
            )
        return max(found, default=None)

    def _saved(self) -> list[Saved]:
        found = []
        for child in self.folder.iterdir():
            match = _NAME.fullmatch(child.name)
            if match and (child / _FACTS).is_file() and (child / _MODEL / _INDEX).is_file():
                loss, states = _facts_of(child).get(_LOSS), child / _OPTIMIZER / _INDEX
                found.append(Saved(step=int(match[1]), loss=loss, has_states=states.is_file()))
        return found

    def save(
        self,
        step: int,
        chunks: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        facts: dict[str, Any],
        *,
        loss: float | None,
    ) -> None:
        """Write, or start to write, a checkpoint, one at a time; `finish` makes it whole."""
        assert self._pending is None
        part = self.folder / f"part-{step}"
        if dist.get_rank() == 0:
            for child in self.folder.iterdir():
                if _LEFT.fullmatch(child.name):
                    shutil.rmtree(child, ignore_errors=True)
            part.mkdir()
        dist.barrier()
        self._pending = pending = _Pending(
            step=step, facts=facts | {_LOSS: loss}, began=perf_counter(), futures=[], ended=[]
        )
        states = {_MODEL: _model_state(chunks), _OPTIMIZER: _optimizer_state(chunks, optimizers)}
        with _named(part):
            for name, state in states.items():
                words = self._words(part, name)
                if self.behind:
                    future = dcp.async_save(state, **words)
                    future.add_done_callback(lambda _: pending.ended.append(perf_counter()))
                    pending.futures.append(future)
                else:
                    dcp.save(state, **words)
        if not self.behind:
            pending.ended.append(perf_counter())

    def is_written(self) -> bool:
        """Whether this rank's part of what was started is written, and waits to be made whole."""
        return self._pending is not None and all(future.done() for future in self._pending.futures)

    def finish(self) -> CheckpointReport | None:
        """Wait for what is being written, name it, and remove by the rules; None if nothing is."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        with _named(self.folder / f"part-{pending.step}"):
            for future in pending.futures:
                future.result()
        dist.barrier()
        choice: list[Any] = [self._make_whole(pending) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(choice)
        return CheckpointReport(
            step=pending.step,
            validation_loss=pending.facts[_LOSS],
            write_s=max(pending.ended) - pending.began,
            deleted=list(choice[0].delete),
            stripped=list(choice[0].strip),
        )

    def _make_whole(self, pending: _Pending) -> Choice:
        part, whole = (self.folder / f"{word}-{pending.step}" for word in ("part", "step"))
        write_whole(part / _FACTS, json.dumps(pending.facts).encode())
        if whole.exists():  # not whole, else the run had gone on from it
            self._remove(whole)
        part.rename(whole)
        sync_folder(self.folder)
        choice = choose(self._saved(), self.settings.retention)
        for step in choice.delete:
            self._remove(self.folder / f"step-{step}")
        for step in choice.strip:
            self._remove(self.folder / f"step-{step}" / _OPTIMIZER)
        return choice

    def _remove(self, folder: Path) -> None:
        gone = self.folder / f"gone-{'-'.join(folder.relative_to(self.folder).parts)}"
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def load(
        self,
        step: int,
        chunks: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        facts: dict[str, Any],
    ) -> None:
        """Read weights and optimizer states; ConfigError where the model is another one."""
        folder = self.folder / f"step-{step}"
        written = _facts_of(folder)
        for key, value in facts.items():
            if written.get(key) != value:
                raise ConfigError(
                    f"{folder}: its {key} is {written.get(key)}, this run's is {value}; give"
                    " another save.folder"
                )
        model, states = _model_state(chunks), _optimizer_state(chunks, optimizers)
        dcp.load(model, **self._words(folder, _MODEL))
        dcp.load(states, **self._words(folder, _OPTIMIZER))
        for chunk, optimizer in zip(chunks, optimizers, strict=True):
            set_model_state_dict(chunk, {name: model[name] for name in get_model_state_dict(chunk)})
            own = get_optimizer_state_dict(chunk, optimizer, options=_FLAT)
            mine = {name: states[name] for name in own}
            set_optimizer_state_dict(chunk, optimizer, mine, options=_FLAT)

    def _words(self, folder: Path, name: str) -> dict[str, Any]:
        return {"checkpoint_id": str(folder / name), "process_group": self._groups[name]}


def _facts_of(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    return facts


@contextmanager
def _named(part: Path) -> Iterator[None]:
    """Say in one line why a checkpoint can't be written."""
    try:
        yield
    except CheckpointException as error:
        first: Any = next(iter(error.failures.values()), error)
        reason = first[0] if isinstance(first, tuple) else first
        # torch's words do not name a full disk
        free = f"{format_bytes(shutil.disk_usage(part.parent).free)} are free there"
        raise OSError(f"{part}: this checkpoint can't be written; {free}; {reason}") from None


def _model_state(chunks: Sequence[nn.Module]) -> dict[str, Any]:
    return {name: value for chunk in chunks for name, value in get_model_state_dict(chunk).items()}


def _optimizer_state(
    chunks: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for chunk, own in zip(chunks, optimizers, strict=True):
        found |= get_optimizer_state_dict(chunk, own, options=_FLAT)
    return found
