"""`concat`: many files of documents, one a line, into shards of a wanted size."""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from meshwright.data.archives import archive_of
from meshwright.data.atomic import create_once, read_journals, writing
from meshwright.data.listing import InputFile, settle
from meshwright.data.steps import (
    Record,
    ShardError,
    StepResult,
    conclude,
    is_written,
    require_read_back,
    run_step,
    state_folder,
)
from meshwright.data.workers import Place, count, find_place, format_size
from meshwright.values.errors import ConfigError
from meshwright.values.units import GIB, counted

__all__ = ["MAX_BYTES", "MIN_BYTES", "Part", "concat", "cuts_of"]

MIN_BYTES = 12 * GIB
MAX_BYTES = 16 * GIB
"""The size of shards in NVIDIA's recipe for SlimPajama."""
_BLOCK_BYTES = 8 << 20
_BLANK = re.compile(rb"^[ \t\r\v\f]*\n", flags=re.MULTILINE)
_SIGNS_OF_BLANKS = (b"\n\n", b"\n\r", b"\n ", b"\n\t", b"\n\v", b"\n\f")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A run of bytes of one input that begins and ends where a line does."""

    path: str
    begin: int
    end: int
    is_whole: bool
    """Whether it is all of the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Join:
    name: str
    size_bytes: int
    parts: tuple[Part, ...]
    output: Path
    consume: bool


def concat(
    inputs: Sequence[str],
    *,
    output: Path,
    min_bytes: int = MIN_BYTES,
    max_bytes: int = MAX_BYTES,
    shards: int | None = None,
    workers: int = 1,
    consume: bool = False,
    place: Place | None = None,
    progress: bool = True,
) -> StepResult:
    """Join plain files of lines, in natural order of their names, into shards between two sizes,
    cut where a line ends.

    Between documents is exactly one line end: a file without one at its end gets it, blank lines
    are left out. `consume` removes an input when every shard that holds a part of it was read back.
    One shard is smaller than `min_bytes` where all inputs together are. `shards` is their number
    instead of sizes: each has an even share of the bytes, to a line. ConfigError where no number of
    shards fits between the sizes, naming ones that do, or where a document is longer than
    `max_bytes`.
    """
    sizes = (
        {"min_bytes": min_bytes, "max_bytes": max_bytes} if shards is None else {"shards": shards}
    )
    settings = {"step": "concat", **sizes}
    state = state_folder(output, "concat")
    bounds_of = partial(_bounds, min_bytes=min_bytes, max_bytes=max_bytes, shards=shards)
    files = settle(state / "list.jsonl", inputs, settings=settings, check=bounds_of)
    bounds = _cuts(state / "cuts.json", lambda: bounds_of(files))
    tasks = _tasks(files, bounds, output, consume=consume)
    report = run_step(
        "concat",
        tasks,
        _join,
        state=state,
        place=place or find_place(os.environ),
        workers=workers,
        still_there=_still_there,
        after=_remove_whole if consume else None,
        progress=progress,
    )
    if consume:
        _remove_joined(tasks, state)
    return conclude(report, output=output, settings=settings)


def _bounds(
    files: Sequence[InputFile], *, min_bytes: int, max_bytes: int, shards: int | None
) -> list[int]:
    packed = next((file for file in files if archive_of(file.name)), None)
    if packed is not None:
        raise ConfigError(
            f"{packed.path}: is compressed; extract it first, or tokenize it as it is"
        )
    if shards is not None:  # sizes that leave the cuts free; their number makes them even
        min_bytes, max_bytes = 1, max(1, sum(file.size_bytes for file in files))
        if not 1 <= shards <= max_bytes:
            raise ConfigError(
                f"--shards {shards}: expected 1 to {max_bytes:,}, the bytes of the inputs"
            )
    bounds = cuts_of(files, min_bytes=min_bytes, max_bytes=max_bytes, number=shards)
    if shards is not None and len(bounds) - 1 != shards:
        raise ConfigError(
            f"--shards {shards}: a line is longer than a shard would be; the inputs make"
            f" {len(bounds) - 1}"
        )
    return bounds


def _cuts(path: Path, find: Callable[[], list[int]]) -> list[int]:
    if not path.exists():
        create_once(path, json.dumps(find()).encode())
    bounds: list[int] = json.loads(path.read_bytes())
    return bounds


def _tasks(
    files: Sequence[InputFile], bounds: Sequence[int], output: Path, *, consume: bool
) -> list[_Join]:
    digits, tasks = max(2, len(str(len(bounds) - 2))), []
    for number, (begin, end) in enumerate(pairwise(bounds)):
        name, parts = f"shard_{number:0{digits}}.jsonl", tuple(_parts(files, begin, end))
        size, path = end - begin, output / name
        tasks.append(_Join(name=name, size_bytes=size, parts=parts, output=path, consume=consume))
    return tasks


def _parts(files: Sequence[InputFile], begin: int, end: int) -> Iterator[Part]:
    starts = [0, *accumulate(file.size_bytes for file in files)]
    for place in range(max(0, bisect_right(starts, begin) - 1), len(files)):
        if starts[place] >= end:
            return
        first, last = max(begin, starts[place]), min(end, starts[place + 1])
        if first < last:
            begins, ends = first - starts[place], last - starts[place]
            whole = (begins, ends) == (0, files[place].size_bytes)
            yield Part(path=files[place].path, begin=begins, end=ends, is_whole=whole)


def cuts_of(
    files: Sequence[InputFile], *, min_bytes: int, max_bytes: int, number: int | None = None
) -> list[int]:
    """Return the bounds of the shards in the joined bytes, each at the end of a line or of a file,
    (shards + 1,); None: as few as fit. A cut is looked for at an even share of what is left; where
    the line there ends too late for `max_bytes`, it is the line before."""
    total = sum(file.size_bytes for file in files)
    limit = f"one of {number} even shards" if number else f"--max-size {format_size(max_bytes)}"
    number = number or _number_of_shards(total, min_bytes, max_bytes)
    starts = [0, *accumulate(file.size_bytes for file in files)]
    bounds = [0]
    while bounds[-1] < total:
        left = max(number - len(bounds) + 1, -(-(total - bounds[-1]) // max_bytes))
        wanted = bounds[-1] + (total - bounds[-1]) // left
        if wanted >= total:
            bounds.append(total)
            break
        cut = _line_end_after(files, starts, wanted)
        if cut - bounds[-1] > max_bytes:
            cut = _line_end_before(files, starts, wanted, least=bounds[-1])
        if cut <= bounds[-1]:
            path = files[bisect_right(starts, wanted) - 1].path
            raise ConfigError(f"a document of {path} is longer than {limit}")
        bounds.append(cut)
    return bounds if total else [0, 0]


def _number_of_shards(total: int, min_bytes: int, max_bytes: int) -> int:
    if not 0 < min_bytes <= max_bytes:
        raise ConfigError(
            f"min_bytes={min_bytes} max_bytes={max_bytes}: expected 0 < minimum <= maximum"
        )
    number = max(1, -(-total // max_bytes))
    if number > 1 and total / number < min_bytes:
        fits = total // number
        raise ConfigError(
            f"{total} bytes make no shards of {min_bytes} to {max_bytes} bytes;"
            f" {counted(number, 'shard')} of {fits} would fit: --min-size {fits}"
        )
    return number


def _line_end_after(files: Sequence[InputFile], starts: Sequence[int], position: int) -> int:
    """Return where the line that holds a position ends."""
    place = bisect_right(starts, position) - 1
    if starts[place] == position:
        return position
    with open(files[place].path, "rb") as handle:
        handle.seek(position - starts[place] - 1)  # a line that ends right here counts
        while block := handle.read(1 << 16):
            if (found := block.find(b"\n")) >= 0:
                return starts[place] + handle.tell() - len(block) + found + 1
    return starts[place + 1]


def _line_end_before(
    files: Sequence[InputFile], starts: Sequence[int], position: int, *, least: int
) -> int:
    """Return the last line end at or before a position of a file, or `least`."""
    place = bisect_right(starts, position) - 1
    first, at = max(least, starts[place]), position
    with open(files[place].path, "rb") as handle:
        while at > first:
            begin = max(first, at - (1 << 16))
            handle.seek(begin - starts[place])
            if (found := handle.read(at - begin).rfind(b"\n")) >= 0:
                return begin + found + 1
            at = begin
    return first


def _join(task: _Join) -> Record:
    digest, size_bytes, documents = hashlib.sha256(), 0, 0
    with writing(task.output) as handle:
        for part in task.parts:
            for block in _whole_lines(part):
                digest.update(block)
                size_bytes += handle.write(block)
                lines = block.count(b"\n")
                documents += lines
                count(documents=lines)
    if task.consume:
        require_read_back(task.output, digest.hexdigest(), kept="its inputs are kept")
    return {
        "size_bytes": size_bytes,
        "sha256": digest.hexdigest(),
        "documents": documents,
        "verified": task.consume,
    }


def _whole_lines(part: Part) -> Iterator[bytes]:
    """Yield the lines of a part in blocks, without blank ones; the last one ends too."""
    rest = b""
    for block in _blocks(part):
        head, end, tail = (rest + block).rpartition(b"\n")
        rest = tail
        if end:
            yield _without_blanks(head + end)
    if rest.strip():
        yield rest + b"\n"


def _blocks(part: Part) -> Iterator[bytes]:
    try:
        with open(part.path, "rb") as handle:
            handle.seek(part.begin)
            left = part.end - part.begin
            while left and (block := handle.read(min(left, _BLOCK_BYTES))):
                left -= len(block)
                count(size_bytes=len(block))
                yield block
    except FileNotFoundError:
        raise ShardError(f"{part.path}: does not exist", "missing") from None
    if left:
        raise ShardError(
            f"{part.path}: is {left} bytes shorter than when the list was made", "changed"
        )


def _without_blanks(lines: bytes) -> bytes:
    suspect = lines[:1].isspace() or any(sign in lines for sign in _SIGNS_OF_BLANKS)
    return _BLANK.sub(b"", lines) if suspect else lines


def _still_there(task: _Join, record: Mapping[str, Any]) -> bool:
    """Whether the shard is there, and was read back where its inputs are to be removed."""
    unread = task.consume and not record["verified"]
    if unread and all(Path(part.path).exists() for part in task.parts):
        return False
    return is_written(task, record)


def _remove_whole(task: _Join, record: Record) -> None:
    for part in task.parts:
        if part.is_whole:
            Path(part.path).unlink(missing_ok=True)


def _remove_joined(tasks: Sequence[_Join], state: Path) -> None:
    """Remove the inputs whose every shard is verified, whichever rank did it."""
    records = read_journals(state / "journal")
    verified = {record["shard"] for record in records if record.get("verified")}
    needed = {part.path for task in tasks if task.name not in verified for part in task.parts}
    for path in {part.path for task in tasks for part in task.parts} - needed:
        Path(path).unlink(missing_ok=True)
