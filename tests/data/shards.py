"""A step for tests: it copies numbers, slowly where it is told to. Workers import it by name."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.data.atomic import writing
from meshwright.data.steps import ShardError
from meshwright.data.workers import count


@dataclass(frozen=True)
class Copy:
    name: str
    size_bytes: int
    output: str
    seconds: float = 0.0


def copy(task: Copy) -> dict[str, Any]:
    if task.name.startswith("bad"):
        raise ShardError("does not exist", kind="missing")
    if task.name.startswith("full"):
        raise OSError(28, "No space left on device", task.output)
    if task.name.startswith("dies"):
        os.kill(os.getpid(), 9)
    path = Path(task.output) / task.name
    with writing(path) as handle:
        for number in range(task.size_bytes):
            handle.write(b"%d\n" % number)
            if task.seconds:
                time.sleep(task.seconds / task.size_bytes)
    count(size_bytes=task.size_bytes, documents=1)
    return {"size_bytes": path.stat().st_size}


def environment(task: Copy) -> dict[str, Any]:
    return {"value": os.environ.get("MESHWRIGHT_TEST"), "folder": str(Path.cwd())}


def is_there(task: Copy, record: Any) -> bool:
    path = Path(task.output) / task.name
    return path.exists() and path.stat().st_size == record["size_bytes"]


def tasks_in(folder: Path, sizes: dict[str, int], *, seconds: float = 0.0) -> list[Copy]:
    return [Copy(name, size, str(folder / "out"), seconds) for name, size in sizes.items()]
