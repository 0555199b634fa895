"""One file over HTTP: resumed, tried again after passing failures, checked before it is named."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from meshwright.data.archives import check_archive
from meshwright.data.atomic import locked, sync_folder, temporary_of
from meshwright.data.listing import sha256_of
from meshwright.data.steps import Record, ShardError
from meshwright.data.workers import count
from meshwright.values.errors import load_extra

if TYPE_CHECKING:
    import httpx

__all__ = ["Patience", "Transfer", "adopt", "fetch", "new_client"]

_GONE = (404, 410)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait, and how often."""

    tries: int = 8
    """Attempts in a row that bring nothing new; one that does starts the count again."""
    timeout_s: float = 60.0
    """Without a byte, until a server counts as hanging."""
    first_wait_s: float = 1.0
    """Doubles from attempt to attempt, up to `most_wait_s`, less a random part of it."""
    most_wait_s: float = 120.0
    most_asked_s: float = 3600.0
    """A longer Retry-After than this fails the file, for the next start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One file to fetch."""

    name: str
    size_bytes: int
    url: str
    output: Path
    sha256: str | None
    patience: Patience
    headers: tuple[tuple[str, str], ...] = ()


class _TryAgain(Exception):
    """An attempt that failed for a reason that may pass."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, kw_only=True, slots=True)
class _Promise:
    """What a server says that the file is."""

    size_bytes: int | None
    begin: int | None
    """Of the range that it sends."""
    sha256: str | None
    tag: str | None
    """ETag or date by which it can tell whether a part is still of the same file."""


def new_client(patience: Patience) -> httpx.Client:
    """Open connections that last; MissingExtraError where httpx is absent."""
    load_extra("httpx", "data")
    import httpx

    return httpx.Client(
        follow_redirects=True,
        timeout=patience.timeout_s,
        headers={"Accept-Encoding": "identity", "User-Agent": "meshwright"},
    )


def adopt(task: Transfer) -> Record | None:
    """Return the record of a present file that needs no server to be checked, else None."""
    size_bytes = task.output.stat().st_size if task.output.is_file() else None
    if size_bytes is None or task.size_bytes not in (0, size_bytes):
        return None
    try:
        archive = check_archive(task.output)
    except ShardError:
        return None
    digest = sha256_of(task.output)
    if task.sha256 not in (None, digest) or (task.sha256 is None and archive is None):
        return None
    return _record(size_bytes, digest, archive)


def fetch(
    task: Transfer, client: httpx.Client, *, sleep: Callable[[float], None] = time.sleep
) -> Record:
    """Fetch a file; ShardError if it does not exist (`missing`) or could not be had (`failed`)."""
    task.output.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_of(task.output)
    with locked(part) as handle:
        failures = 0
        while True:
            before = os.fstat(handle.fileno()).st_size
            try:
                record = _attempt(task, client, handle, part)
                break
            except _TryAgain as again:
                handle.flush()
                failures = 1 if os.fstat(handle.fileno()).st_size > before else failures + 1
                if failures >= task.patience.tries:
                    raise ShardError(f"{task.url}: {again} ({failures} times)") from None
                doubled = task.patience.first_wait_s * 2 ** (failures - 1)
                backoff = min(task.patience.most_wait_s, doubled) * random.uniform(0.5, 1)
                sleep(max(float(backoff), again.wait_s or 0.0))
        os.fsync(handle.fileno())
        part.replace(task.output)
        _tag_file(part).unlink(missing_ok=True)
    sync_folder(task.output.parent)
    return record


def _attempt(task: Transfer, client: httpx.Client, handle: IO[bytes], part: Path) -> Record:
    import httpx

    handle.flush()
    have = handle.seek(0, os.SEEK_END)
    tag = _read_tag(part, task.url) if have else None
    if have and tag is None:
        have = _start_over(handle)
    ask = {"Range": f"bytes={have}-", "If-Range": tag} if tag else {}
    try:
        with client.stream("GET", task.url, headers={**dict(task.headers), **ask}) as answer:
            promise = _promise(answer)
            if answer.status_code == 416 and promise.size_bytes == have:
                return _checked(task, handle, part, promise)
            if answer.status_code == 416:
                _start_over(handle)
                raise _TryAgain("the server has no such range")
            _check_status(task, answer)
            if answer.status_code != 206 or promise.begin != have:
                _start_over(handle)
                if answer.status_code == 206:
                    raise _TryAgain("the server sent another range than was asked for")
            tag_of = json.dumps({"url": task.url, "tag": promise.tag})
            _tag_file(part).write_text(tag_of, encoding="utf-8")
            # as it comes: blocks of a given size would keep back the last bytes before a break
            for block in answer.iter_raw():
                handle.write(block)
                count(size_bytes=len(block))
            return _checked(task, handle, part, promise)
    except httpx.TransportError as error:
        raise _TryAgain(f"{type(error).__name__} {error}") from None
    except httpx.HTTPError as error:
        raise ShardError(f"{task.url}: {error}") from None


def _checked(task: Transfer, handle: IO[bytes], part: Path, promise: _Promise) -> Record:
    """Return the record of the whole part; a wrong one starts anew, a short one from its end."""
    handle.flush()
    size_bytes = os.fstat(handle.fileno()).st_size
    wanted = task.size_bytes or promise.size_bytes
    if wanted and size_bytes < wanted:
        raise _TryAgain(f"the connection ended after {size_bytes:,} of {wanted:,} bytes")
    if not size_bytes:
        raise _TryAgain("the server answered with an empty file")
    try:
        if wanted and size_bytes > wanted:
            raise ShardError(f"has {size_bytes:,} bytes, expected {wanted:,}")
        digest, archive = sha256_of(part), check_archive(part, name=task.output.name)
        if (task.sha256 or promise.sha256) not in (None, digest):
            raise ShardError(f"its sha256 is {digest}, expected {task.sha256 or promise.sha256}")
    except ShardError as error:
        _start_over(handle)
        raise _TryAgain(str(error)) from None
    return _record(size_bytes, digest, archive)


def _record(size_bytes: int, digest: str, archive: str | None) -> Record:
    found = {"size_bytes": size_bytes, "sha256": digest}
    return found if archive is None else {**found, "archive": archive}


def _start_over(handle: IO[bytes]) -> int:
    handle.seek(0)
    handle.truncate()
    return 0


def _check_status(task: Transfer, answer: httpx.Response) -> None:
    status = answer.status_code
    words = f"{status} {answer.reason_phrase}".strip()
    if status in _GONE:
        raise ShardError(f"{task.url}: does not exist ({words})", "missing")
    if status in (401, 403):
        raise ShardError(f"{task.url}: {words}; a dataset behind a login needs HF_TOKEN", "refused")
    if status in _PASSING:
        wait_s = _asked_wait_s(answer.headers)
        if wait_s is not None and wait_s > task.patience.most_asked_s:
            raise ShardError(
                f"{task.url}: {words}, and the server asks for a pause of {wait_s:.0f} s"
            )
        raise _TryAgain(words, wait_s)
    if status not in (200, 206):
        raise ShardError(f"{task.url}: {words}")


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After, which is a number of seconds or a date."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def _promise(answer: httpx.Response) -> _Promise:
    """Read length, hash and tag; Hugging Face sends an LFS file's sha256 with the redirect."""
    headers, size = answer.headers, ""
    found = _RANGE.match(headers.get("content-range", ""))
    if answer.status_code in (206, 416):
        size = found[2] if found else ""
    elif "content-encoding" not in headers:
        size = headers.get("content-length", "")
    linked = [step.headers.get("x-linked-etag", "").strip('"') for step in answer.history]
    digest = next((tag for tag in linked if re.fullmatch(r"[0-9a-f]{64}", tag)), None)
    tag = headers.get("etag", "")
    return _Promise(
        size_bytes=int(size) if size.isdecimal() else None,
        begin=int(found[1]) if found and found[1] else None,
        sha256=digest,
        tag=tag if tag.startswith('"') else headers.get("last-modified"),
    )


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _read_tag(part: Path, url: str) -> str | None:
    """Return the tag of what the part is of; None for another URL, or without a tag."""
    try:
        found = json.loads(_tag_file(part).read_text(encoding="utf-8"))
        return str(found["tag"]) if found["url"] == url and found["tag"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
