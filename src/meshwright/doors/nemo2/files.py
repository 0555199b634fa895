"""Files of runs by the name of their configuration, and tables as text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["csv_text", "files_of"]


def files_of(name: str, folder: Path) -> list[Path]:
    """Return the files whose path below a folder holds a configuration's name, and no longer name that begins with it."""
    whole = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?:(?![A-Za-z0-9.])|(?=\.[a-z]))")
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and whole.search(path.relative_to(folder).as_posix())]


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table with its headings."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
