"""`wiki`: a dump of MediaWiki to JSON lines of plain text, as WikiExtractor writes them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.data.archives import Span, plain_name
from meshwright.data.atomic import writing
from meshwright.data.counters import count
from meshwright.data.dump import Page, Site, pages_of, site_of, spans_of
from meshwright.data.listing import settle
from meshwright.data.ranks import Place, find_place
from meshwright.data.results import StepResult, conclude
from meshwright.data.steps import Record, ShardError, run_step, state_folder
from meshwright.errors import ConfigError, MissingExtraError

__all__ = ["PIECE_BYTES", "plain_text", "wiki"]

PIECE_BYTES = 32 << 20
"""Of a dump per shard: minutes of work, so that a kill costs little and many workers have something
to do."""
_SUFFIXES = (".xml", ".xml.bz2", ".xml.gz", ".xml.xz", ".xml.zst")
_NOT_TEXT = frozenset({"table", "gallery", "timeline", "imagemap", "score", "templatestyles"})
"""Tags that hold no sentences; those of mwparserfromhell's own list (ref, math, ...) it leaves out
itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    """Pages of one dump file that become one file of JSON lines."""

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
    `url`, `title` and `text`.

    Plain XML and dumps of the kind `multistream.xml.bz2` are cut into pieces of about
    `piece_bytes`, which ranks and workers share; other archives are one piece each. Redirects,
    other namespaces and pages without text are left out and counted.
    """
    try:
        import mwparserfromhell  # noqa: F401
    except ImportError:
        raise MissingExtraError("mwparserfromhell", "data") from None
    if piece_bytes < 1:
        raise ConfigError(f"piece_bytes={piece_bytes}: expected 1 or more")
    settings = {"step": "wiki", "piece_bytes": piece_bytes}
    state = state_folder(output, "wiki")
    files = settle(state / "list.jsonl", inputs, settings=settings, suffixes=_SUFFIXES)
    tasks: list[_Piece] = []
    for file in files:
        spans = spans_of(Path(file.path), piece_bytes=piece_bytes)
        stem, digits = plain_name(file.name).removesuffix(".xml"), max(4, len(str(len(spans) - 1)))
        for number, span in enumerate(spans):
            name = f"{stem}.{number:0{digits}}.jsonl"
            size = file.size_bytes if span is None else span.end - span.begin
            tasks.append(
                _Piece(name=name, size_bytes=size, path=file.path, span=span, output=output / name)
            )
    report = run_step(
        "wiki",
        tasks,
        _write_piece,
        state=state,
        place=place or find_place(os.environ),
        workers=workers,
        still_there=_still_there,
        progress=progress,
    )
    return conclude(report, output=output, settings=settings, notes=_notes(report.records.values()))


def _notes(records: Any) -> tuple[str, ...]:
    totals = {
        key: sum(record[key] for record in records)
        for key in ("redirects", "other_pages", "without_text", "unread")
    }
    left_out = ", ".join(
        f"{number:,} {key.replace('_', ' ')}" for key, number in totals.items() if number
    )
    return (f"left out: {left_out}",) if left_out else ()


def _write_piece(task: _Piece) -> Record:
    path = Path(task.path)
    site = site_of(path)
    digest, size_bytes, documents = hashlib.sha256(), 0, 0
    left_out = {"redirects": 0, "other_pages": 0, "without_text": 0, "unread": 0}
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
    categories; links by their words.

    ShardError where mwparserfromhell gives up.
    """
    import mwparserfromhell
    from mwparserfromhell.nodes import Tag, Wikilink
    from mwparserfromhell.parser import ParserError

    try:
        code = mwparserfromhell.parse(wikitext)
    except (ParserError, RecursionError) as error:
        raise ShardError(f"no wikitext ({error})", "dump") from None
    for node in code.filter(recursive=True, matches=lambda node: isinstance(node, (Tag, Wikilink))):
        is_hidden = (
            isinstance(node, Wikilink)
            and str(node.title).partition(":")[0].strip().lower() in hidden
        )
        is_table = isinstance(node, Tag) and str(node.tag).strip().lower() in _NOT_TEXT
        if is_hidden or is_table:
            try:
                code.remove(node)
            except ValueError:  # it was inside one that is gone
                continue
    lines = (
        " ".join(line.split())
        for line in str(code.strip_code(normalize=True, collapse=True)).split("\n")
    )
    return "\n".join(line for line in lines if line)


def _still_there(task: _Piece, record: Mapping[str, Any]) -> bool:
    return task.output.exists() and task.output.stat().st_size == record["size_bytes"]
