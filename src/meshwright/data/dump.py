"""The pages of a MediaWiki dump: where a file can be cut, and what each page holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from xml.etree import ElementTree

from meshwright.data.archives import Span, archive_of, open_plain
from meshwright.data.steps import ShardError

__all__ = ["Page", "Site", "pages_of", "site_of", "spans_of"]

_BZ2_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
"""How a stream of bzip2 begins: its level and the magic of its first block. Dumps of the kind
`multistream` have one per 100 pages."""
_PAGE_LINE = re.compile(rb"^[ \t]*<page>[ \t\r]*$", flags=re.MULTILINE)
_BLOCK_BYTES = 1 << 20
_OVERLAP = 64
"""Bytes of one block that are searched again with the next: more than either pattern takes."""
_FILE, _CATEGORY = "6", "14"
"""Numbers of two namespaces, the same in every language."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What the head of a dump says of the wiki."""

    host: str
    """`https://en.wikipedia.org`."""
    hidden: frozenset[str]
    """Namespaces whose links are no text, in lower case: files and categories, in English and in
    the wiki's language."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One page, with its last revision."""

    page_id: str
    revision_id: str
    namespace: str
    title: str
    is_redirect: bool
    is_wikitext: bool
    text: str


def spans_of(path: Path, *, piece_bytes: int) -> list[Span | None]:
    """Return spans that can be read on their own and make up the file: at pages of plain XML, at
    streams of bzip2.

    [None], the whole, where the file is of another kind, or has no place to cut.
    """
    kind = archive_of(path.name)
    if kind not in (None, "bz2"):
        return [None]
    pattern, size = (_PAGE_LINE if kind is None else _BZ2_STREAM), path.stat().st_size
    bounds = [0]
    with path.open("rb") as handle:
        while bounds[-1] + piece_bytes < size:
            found = _find(handle, pattern, bounds[-1] + piece_bytes)
            if found is None:
                break
            bounds.append(found)
    if len(bounds) == 1:
        return [None]
    return [
        Span(begin=begin, end=end) for begin, end in zip(bounds, [*bounds[1:], size], strict=True)
    ]


def _find(handle: IO[bytes], pattern: re.Pattern[bytes], begin: int) -> int | None:
    handle.seek(begin)
    before, at = b"", begin
    while block := handle.read(_BLOCK_BYTES):
        window = before + block
        if (found := pattern.search(window)) and (
            found.end() < len(window) or len(block) < _BLOCK_BYTES
        ):
            return at - len(before) + found.start()
        at += len(block)
        before = window[-_OVERLAP:]
    return None


def site_of(path: Path) -> Site:
    """Read the head of a dump; ShardError where it has none."""
    lines: list[bytes] = []
    with open_plain(path, counted=False) as plain:
        for line in plain:
            lines.append(line)
            if line.strip() == b"</siteinfo>":
                break
            if line.strip() == b"<page>" or len(lines) > 10_000:
                raise ShardError(
                    f"{path}: has no <siteinfo>; expected a dump of MediaWiki's pages", "dump"
                )
    begin = next((place for place, line in enumerate(lines) if line.strip() == b"<siteinfo>"), None)
    if begin is None:
        raise ShardError(f"{path}: has no <siteinfo>; expected a dump of MediaWiki's pages", "dump")
    info = ElementTree.fromstring(b"".join(lines[begin:]))
    base = urlsplit(info.findtext("base") or "")
    names = {name.get("key"): name.text or "" for name in info.iter("namespace")}
    hidden = {
        "file",
        "image",
        "category",
        names.get(_FILE, "").lower(),
        names.get(_CATEGORY, "").lower(),
    }
    return Site(host=f"{base.scheme}://{base.netloc}", hidden=frozenset(hidden - {""}))


def pages_of(path: Path, span: Span | None) -> Iterator[Page]:
    """Yield the pages of a span; ShardError where one has no end or is no XML.

    A page is the lines between `<page>` and `</page>`: text is escaped in dumps, so it has no such
    lines, and memory holds one page.
    """
    with open_plain(path, span=span) as plain:
        for content in _page_texts(plain, path):
            try:
                yield _page(ElementTree.fromstring(content))
            except ElementTree.ParseError as error:
                raise ShardError(f"{path}: a page is no XML ({error})", "dump") from None


def _page_texts(lines: Iterable[bytes], path: Path) -> Iterator[bytes]:
    page: list[bytes] | None = None
    for line in lines:
        mark = line.strip() if len(line) < _OVERLAP else b""
        if mark == b"<page>":
            page = [line]
        elif page is not None:
            page.append(line)
            if mark == b"</page>":
                yield b"".join(page)
                page = None
    if page is not None:
        raise ShardError(f"{path}: ends inside a page", "dump")


def _page(page: ElementTree.Element) -> Page:
    revisions = page.findall("revision")
    last = revisions[-1] if revisions else ElementTree.Element("revision")
    return Page(
        page_id=page.findtext("id") or "",
        revision_id=last.findtext("id") or "",
        namespace=page.findtext("ns") or "0",
        title=page.findtext("title") or "",
        is_redirect=page.find("redirect") is not None,
        is_wikitext=(last.findtext("model") or "wikitext") == "wikitext",
        text=last.findtext("text") or "",
    )
