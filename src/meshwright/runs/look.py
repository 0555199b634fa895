"""A study's directory as the object that `tune --json` prints, at any time, without touching it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.runs.loop import View
from meshwright.runs.store import read_store
from meshwright.runs.tune import run_dict
from meshwright.values.units import HOUR_S

__all__ = ["study_record"]


def study_record(folder: Path) -> dict[str, Any]:
    """Return the runs of a study with its request; ConfigError where the folder is none. Why it
    stopped is not kept in it."""
    store = read_store(folder)
    records = store.records()
    best = View(records=records, waits={}, gpu_hours=0.0).best
    return {
        "study": str(folder),
        "request": store.study.request,
        "trial": store.study.trial,
        "best": None if best is None else run_dict(best),
        "runs": [run_dict(record) for record in records],
        "gpu_hours": sum(record.ran_s * record.layout.num_chips for record in records) / HOUR_S,
    }
