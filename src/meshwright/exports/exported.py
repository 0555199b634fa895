"""What an export consists of: files, a command, environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["EnvVar", "Exported", "ExportedFile", "RunsOn", "TrainedLayers"]

RunsOn = Literal["rank", "node", "once"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvVar:
    """An environment variable of the training processes."""

    name: str
    value: str
    why: str
    """A few words for the reader of the script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFile:
    """One file of an export."""

    name: str
    """Relative to the folder of the export."""
    text: str
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A plan in the words of one training software."""

    target: str
    files: tuple[ExportedFile, ...]
    command: tuple[str, ...]
    """The program and its arguments, without interpreter or launcher: `pretrain_gpt.py --num-layers
    32 ...`, `-m torchtitan.train ...`."""
    runs_on: RunsOn = "rank"
    """rank: the command is run for each chip, behind torchrun or its like; node: once per node,
    where it starts the ranks itself and reads NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; once:
    on one machine, from which it starts everything."""
    environment: tuple[EnvVar, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader must know before the start: what to edit, what was left to the program's
    default."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "target": self.target,
            "files": [
                {"name": file.name, "text": file.text, "executable": file.executable}
                for file in self.files
            ],
            "command": list(self.command),
            "runs_on": self.runs_on,
            "environment": [
                {"name": var.name, "value": var.value, "why": var.why} for var in self.environment
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedLayers:
    """Layers that an exported configuration would train, found by reading the export back as its
    program does."""

    chunks: tuple[int, ...]
    """Layers (of encoder and decoder) of each chunk in model order: one entry per stage, or per
    chunk where stages are interleaved."""
    mtp: int = 0
    """Layers of multi-token prediction beside them."""
