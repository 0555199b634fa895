"""`wiki`: a dump of MediaWiki to JSON lines of plain text, as WikiExtractor writes them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit
from xml.etree import ElementTree

from meshwright.data.archives import Span, archive_of, open_plain, plain_name
from meshwright.data.atomic import writing
from meshwright.data.listing import settle
from meshwright.data.steps import (
    Record,
    ShardError,
    StepReport,
    StepResult,
    run_to_manifest,
    state_folder,
)
from meshwright.data.workers import Place, count
from meshwright.values.errors import ConfigError, load_extra

__all__ = ["PIECE_BYTES", "Page", "Site", "pages_of", "plain_text", "site_of", "spans_of", "wiki"]

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
    """Lower-case namespaces whose links are no text: files and categories, English and local."""


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
    streams of bzip2. [None], the whole, for other kinds, or without a place to cut."""
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
    return [Span(begin=begin, end=end) for begin, end in pairwise((*bounds, size))]


def _find(handle: IO[bytes], pattern: re.Pattern[bytes], begin: int) -> int | None:
    handle.seek(begin)
    before, at = b"", begin
    while block := handle.read(_BLOCK_BYTES):
        window, is_last = before + block, len(block) < _BLOCK_BYTES
        if (found := pattern.search(window)) and (found.end() < len(window) or is_last):
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
    local = (names.get(_FILE, "").lower(), names.get(_CATEGORY, "").lower())
    hidden = {"file", "image", "category", *local}
    return Site(host=f"{base.scheme}://{base.netloc}", hidden=frozenset(hidden - {""}))


def pages_of(path: Path, span: Span | None) -> Iterator[Page]:
    """Yield the pages of a span; ShardError where one has no end or is no XML. A page is the lines
    between `<page>` and `</page>`: dumps escape text, so it has no such lines; memory holds one
    page."""
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


PIECE_BYTES = 32 << 20
"""Of a dump per shard: minutes of work, so a kill costs little and many workers have some."""
_SUFFIXES = (".xml", ".xml.bz2", ".xml.gz", ".xml.xz", ".xml.zst")
_NOT_TEXT = frozenset({"table", "gallery", "timeline", "imagemap", "score", "templatestyles"})
"""Tags without sentences; mwparserfromhell leaves those of its own list (ref, math, ...) out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    name: str
    size_bytes: int
    path: str
    span: Span | None
    output: Path


def wiki(
    inputs: Sequence[str],
    *,
    output: Path,
    piece_bytes: int = PIECE_BYTES,
    workers: int = 1,
    place: Place | None = None,
    progress: bool = True,
) -> StepResult:
    """Write the articles of `pages-articles` dumps (.xml, or compressed) as lines of `id`, `revid`,
    `url`, `title` and `text`. Plain XML and dumps of the kind `multistream.xml.bz2` are cut into
    pieces of about `piece_bytes`, which ranks and workers share; other archives are one piece each.
    Redirects, other namespaces and pages without text are left out and counted."""
    load_extra("mwparserfromhell", "data")
    if piece_bytes < 1:
        raise ConfigError(f"piece_bytes={piece_bytes}: expected 1 or more")
    settings = {"step": "wiki", "piece_bytes": piece_bytes}
    listed = state_folder(output, "wiki") / "list.jsonl"
    files = settle(listed, inputs, settings=settings, suffixes=_SUFFIXES)
    tasks: list[_Piece] = []
    for file in files:
        spans = spans_of(Path(file.path), piece_bytes=piece_bytes)
        stem, digits = plain_name(file.name).removesuffix(".xml"), max(4, len(str(len(spans) - 1)))
        for number, span in enumerate(spans):
            name = f"{stem}.{number:0{digits}}.jsonl"
            size = file.size_bytes if span is None else span.end - span.begin
            path, made = file.path, output / name
            tasks.append(_Piece(name=name, size_bytes=size, path=path, span=span, output=made))
    return run_to_manifest(
        "wiki",
        tasks,
        _write_piece,
        output=output,
        settings=settings,
        place=place,
        notes_of=_notes,
        workers=workers,
        progress=progress,
    )


_LEFT_OUT = ("redirects", "other_pages", "without_text", "unread")


def _notes(report: StepReport) -> tuple[str, ...]:
    records = report.records.values()
    totals = {key: sum(record[key] for record in records) for key in _LEFT_OUT}
    known = {key.replace("_", " "): number for key, number in totals.items() if number}
    left_out = ", ".join(f"{number:,} {words}" for words, number in known.items())
    return (f"left out: {left_out}",) if left_out else ()


def _write_piece(task: _Piece) -> Record:
    path = Path(task.path)
    site = site_of(path)
    digest, size_bytes, documents = hashlib.sha256(), 0, 0
    left_out = dict.fromkeys(_LEFT_OUT, 0)
    with writing(task.output) as handle:
        for page in pages_of(path, task.span):
            text, reason = _text_or_reason(page, site)
            if reason:
                left_out[reason] += 1
                continue
            row = {
                "id": page.page_id,
                "revid": page.revision_id,
                "url": f"{site.host}/wiki?curid={page.page_id}",
                "title": page.title,
                "text": text,
            }
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace")
            digest.update(line)
            size_bytes += handle.write(line)
            documents += 1
            count(documents=1)
    return {
        "size_bytes": size_bytes,
        "sha256": digest.hexdigest(),
        "documents": documents,
        **left_out,
    }


def _text_or_reason(page: Page, site: Site) -> tuple[str, str]:
    if page.is_redirect:
        return "", "redirects"
    if page.namespace != "0" or not page.is_wikitext:
        return "", "other_pages"
    try:
        text = plain_text(page.text, hidden=site.hidden)
    except ShardError:
        return "", "unread"
    return text, "" if text else "without_text"


def plain_text(wikitext: str, *, hidden: frozenset[str]) -> str:
    """Return an article's sentences, a paragraph a line: no templates, tables, references, files or
    categories; links by their words. ShardError where mwparserfromhell gives up."""
    import mwparserfromhell
    from mwparserfromhell.nodes import Tag, Wikilink
    from mwparserfromhell.parser import ParserError

    try:
        code = mwparserfromhell.parse(wikitext)
    except (ParserError, RecursionError) as error:
        raise ShardError(f"no wikitext ({error})", "dump") from None
    for node in code.filter(recursive=True, matches=lambda node: isinstance(node, (Tag, Wikilink))):
        is_link = isinstance(node, Wikilink)
        word = str(node.title).partition(":")[0] if is_link else str(cast("Tag", node).tag)
        if word.strip().lower() in (hidden if is_link else _NOT_TEXT):
            with suppress(ValueError):  # it was inside one that is gone
                code.remove(node)
    plain = str(code.strip_code(normalize=True, collapse=True))
    lines = (" ".join(line.split()) for line in plain.split("\n"))
    return "\n".join(line for line in lines if line)
