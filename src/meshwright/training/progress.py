"""How far a training came, by its logs and its checkpoints."""

from __future__ import annotations

import os
import re
from pathlib import Path

from meshwright.logs import LogReading, Report, read_log
from meshwright.runs.outcome import read_run_logs
from meshwright.training.folder import LOGS

__all__ = ["last_report", "newest_checkpoint", "read_progress"]

_OWN = re.compile(r"step-(\d+)")
_TRACKER = "latest_checkpointed_iteration.txt"
"""Of Megatron-LM and Megatron-Bridge: written when a checkpoint is whole."""
_OWN_FACTS = "run.json"
_TAIL_BYTES = 1 << 16


def read_progress(job: Path) -> LogReading | None:
    """Read the logs in a job's folder."""
    return read_run_logs([job / name for name in LOGS]).reading


def last_report(job: Path) -> Report | None:
    """Return the last report of a job's log, from its end alone: logs of weeks are long."""
    try:
        with (job / LOGS[0]).open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    reading = read_log(text)
    return reading.reports[-1] if reading is not None and reading.reports else None


def newest_checkpoint(folder: Path) -> int | None:
    """Return the steps of the newest whole checkpoint; None where the folder can't be seen from
    here.

    Known are the embedded trainer's, which carry their name when they are whole, and Megatron's, by
    its tracker. 0: there is none.
    """
    if not folder.is_dir():
        return 0 if folder.parent.is_dir() else None
    steps = [
        int(match[1])
        for child in folder.iterdir()
        if (match := _OWN.fullmatch(child.name)) and (child / _OWN_FACTS).is_file()
    ]
    try:
        word = (folder / _TRACKER).read_text(encoding="utf-8").strip()
    except OSError:
        word = ""
    steps += [int(word)] if word.isdecimal() else []
    unknown = not steps and any(
        child for child in folder.iterdir() if not child.name.startswith("part-")
    )
    return None if unknown else max(steps, default=0)
