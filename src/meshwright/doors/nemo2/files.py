"""Files of runs by the name of their configuration, and tables as text."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["files_of"]


def files_of(name: str, folder: Path) -> list[Path]:
    """Return the files whose path below a folder holds a configuration's name, and no longer name
    that begins with it."""
    whole = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?:(?![A-Za-z0-9.])|(?=\.[a-z]))")
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and whole.search(path.relative_to(folder).as_posix())
    ]
