"""One run of a fine-tuning grid in a study's folder: its hyperparameters, from its choice to its
end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.errors import ConfigError
from meshwright.runs.belief import Prior
from meshwright.runs.choose import Options
from meshwright.runs.outcome import Measured
from meshwright.runs.record import DIGITS, Course, event_of

__all__ = ["GridMember", "GridRecord", "grid_options", "grid_record_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GridRecord(Course):
    """One combination; its id is its name and a digest of what runs."""

    name: str
    values: Mapping[str, Any]
    """By dotted key."""

    @property
    def cost_s(self) -> float | None:
        """Seconds of a step, which says nothing of a grid's best: that is the least validation
        loss."""
        return self.outcome.step_s if isinstance(self.outcome, Measured) else None

    @property
    def noise(self) -> float:
        """Nothing is chosen by it."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return what is known when it is chosen: the content of `run.json`."""
        return {
            "run_id": self.run_id,
            "number": self.number,
            "name": self.name,
            "values": dict(self.values),
            "chosen_because": self.chosen_because,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GridMember:
    """One combination before its run."""

    name: str
    values: Mapping[str, Any]
    digest: str

    @staticmethod
    def of(name: str, values: Mapping[str, Any], *, content: Any) -> GridMember:
        """Name a combination by what runs: another program or length is another run."""
        digest = hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode()
        ).hexdigest()[:DIGITS]
        return GridMember(name=name, values=values, digest=digest)

    @property
    def run_id(self) -> str:
        """`llama_grid_search_0-1f3a9c07`."""
        return f"{self.name}-{self.digest}"

    def planned(self, *, number: int, because: str) -> GridRecord:
        """Return the record of its run."""
        return GridRecord(
            run_id=self.run_id,
            number=number,
            name=self.name,
            values=self.values,
            chosen_because=because,
        )


def grid_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> GridRecord:
    """Read a run back from the content of its two files; ConfigError names the file that is no run
    of a grid."""
    names = ("run_id", "number", "name", "values", "chosen_because")
    try:
        record = GridRecord(**{name: content[name] for name in names})
        for line in events:
            record = record.after(event_of(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source}: no run of a grid ({type(error).__name__}: {error})") from None
    return record


def grid_options(members: Sequence[GridMember]) -> Options:
    """Return options in the order of the grid, of which nothing is believed: all of them are
    run."""
    count = len(members)
    even = Prior(mean=np.zeros(count), shared=np.zeros((count, count)), own=1.0)
    return Options(step=even, fill=even, axes=np.arange(count, dtype=float)[:, None])
