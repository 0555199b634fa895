"""Checkpoints by torch.distributed.checkpoint: written beside, renamed when whole, read at any layout."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from meshwright.errors import ConfigError

__all__ = ["Checkpoints"]

_NAME = re.compile(r"step-(\d+)")
_FACTS = "run.json"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Checkpoints:
    """The checkpoints of one folder, `step-20/`, ...; only whole ones carry that name."""

    def __init__(self, folder: str, *, keep: int) -> None:
        self.folder, self.keep = Path(folder), keep
        self._pending: Any = None
        self._pending_step = 0
        self._group = dist.new_group(backend="gloo")  # writing goes on beside the collectives of the next steps

    def newest(self) -> int | None:
        """Steps done at the newest whole checkpoint."""
        found = [int(match[1]) for match in map(_NAME.fullmatch, self._names()) if match]
        return max(found, default=None)

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return [child.name for child in self.folder.iterdir() if (child / _FACTS).is_file()]

    def save(self, step: int, chunks: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], facts: dict[str, Any]) -> None:
        """Start to write; the step goes on while bytes flow. The checkpoint before is finished first."""
        self.finish()
        part = self.folder / f"part-{step}"
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        dist.barrier()
        self._facts = facts
        self._pending = dcp.async_save(_state(chunks, optimizers), checkpoint_id=str(part), process_group=self._group)
        self._pending_step = step

    def finish(self) -> None:
        """Wait for what is being written, and give it its name."""
        if self._pending is None:
            return
        self._pending.result()
        self._pending = None
        dist.barrier()
        if dist.get_rank() == 0:
            part = self.folder / f"part-{self._pending_step}"
            (part / _FACTS).write_text(json.dumps(self._facts), encoding="utf-8")
            whole = self.folder / f"step-{self._pending_step}"
            shutil.rmtree(whole, ignore_errors=True)
            part.rename(whole)
            self._forget()
        dist.barrier()

    def _forget(self) -> None:
        steps = sorted(int(match[1]) for match in map(_NAME.fullmatch, self._names()) if match)
        for step in steps[: -self.keep]:
            shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)

    def load(self, step: int, chunks: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], facts: dict[str, Any]) -> None:
        """Read weights and optimizer states; ConfigError where the checkpoint is of another model."""
        folder = self.folder / f"step-{step}"
        written = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        for key, value in facts.items():
            if written.get(key) != value:
                raise ConfigError(f"{folder}: its {key} is {written.get(key)}, this run's is {value}; give another save.folder")
        state = _state(chunks, optimizers)
        dcp.load(state, checkpoint_id=str(folder))
        _put(state, chunks, optimizers)


def _state(chunks: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for chunk, optimizer in zip(chunks, optimizers, strict=True):
        state |= {f"model.{name}": value for name, value in get_model_state_dict(chunk).items()}
        state |= {f"optimizer.{name}": value for name, value in get_optimizer_state_dict(chunk, optimizer, options=_FLAT).items()}
    return state


def _put(state: dict[str, Any], chunks: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    model = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    states = {name.removeprefix("optimizer."): value for name, value in state.items() if name.startswith("optimizer.")}
    for chunk, optimizer in zip(chunks, optimizers, strict=True):
        own = get_model_state_dict(chunk)
        set_model_state_dict(chunk, {name: model[name] for name in own})
        mine = get_optimizer_state_dict(chunk, optimizer, options=_FLAT)
        set_optimizer_state_dict(chunk, optimizer, {name: states[name] for name in mine}, options=_FLAT)
