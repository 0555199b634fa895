from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from meshwright.data.wikipedia import plain_text, wiki

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
HIDDEN = frozenset({"file", "image", "category", "datei", "kategorie"})


def page(number: int, text: str, *, namespace: int = 0, redirect: bool = False) -> str:
    extra = '    <redirect title="X" />\n' if redirect else ""
    return (
        f"  <page>\n    <title>Seite {number} &amp; mehr</title>\n    <ns>{namespace}</ns>\n   "
        f" <id>{number}</id>\n{extra}"
        f"    <revision>\n      <id>{number + 1000}</id>\n      <model>wikitext</model>\n"
        f'      <text bytes="9" xml:space="preserve">{escape(text)}</text>\n    </revision>\n '
        " </page>\n"
    )


PAGES = [
    page(number, f"'''Seite''' {number} über [[Ort|Orte]].\n<page>\nEnde") for number in range(60)
]
OTHERS = [
    page(90, "#WEITERLEITUNG [[X]]", redirect=True),
    page(91, "Vorlage", namespace=10),
    page(92, "{{nur|eine Vorlage}}"),
]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (
            "'''A''' is a [[political philosophy|philosophy]].<ref>{{cite|x=y}}</ref>",
            "A is a philosophy.",
        ),
        ("[[Datei:F.jpg|mini|Ein [[Bild]].]]\nText. [[Kategorie:Dinge]]", "Text."),
        (
            "== Geschichte ==\n{| class=x\n! a !! [[b]]\n|-\n| 1 || 2\n|}\n\n\n* eins\n* zwei",
            "Geschichte\neins\nzwei",
        ),
        ("{{Infobox|a={{b}}}} x&nbsp;y <!-- no --><nowiki>[[raw]]</nowiki>", "x y [[raw]]"),
        ("<gallery>\nFile:a.jpg|x\n</gallery>{{only}}", ""),
        ("[http://a.b label] and [[Category:X]]", "label and"),
    ],
)
def test_plain_text(wikitext: str, text: str) -> None:
    assert plain_text(wikitext, hidden=HIDDEN) == text


def test_articles_as_wikiextractor_writes_them(tmp_path: Path) -> None:
    (tmp_path / "dewiki.xml").write_text(
        HEAD + "".join(PAGES + OTHERS) + "</mediawiki>\n", encoding="utf-8"
    )
    result = wiki([str(tmp_path / "dewiki.xml")], output=tmp_path / "out", progress=False)
    assert result.exit_code == 0
    assert result.lines()[-1] == "left out: 1 redirects, 1 other pages, 1 without text"
    found = rows(tmp_path / "out")
    assert found[7] == {
        "id": "7",
        "revid": "1007",
        "url": "https://de.wikipedia.org/wiki?curid=7",
        "title": "Seite 7 & mehr",
        "text": "Seite 7 über Orte.\n<page>\nEnde",
    }
    assert [row["id"] for row in found] == [str(number) for number in range(60)]


def test_pieces_of_any_kind_hold_the_same_articles(tmp_path: Path) -> None:
    text = [HEAD, *("".join(PAGES[at : at + 5]) for at in range(0, 60, 5)), "</mediawiki>\n"]
    (tmp_path / "a.xml").write_text("".join(text), encoding="utf-8")
    (tmp_path / "b.xml.bz2").write_bytes(
        b"".join(bz2.compress(part.encode()) for part in text)
    )  # as multistream dumps are
    (tmp_path / "c.xml.gz").write_bytes(gzip.compress("".join(text).encode()))
    pieces = {}
    for name in ("a.xml", "b.xml.bz2", "c.xml.gz"):
        output = tmp_path / f"out-{name}"
        result = wiki(
            [str(tmp_path / name)], output=output, piece_bytes=700, workers=2, progress=False
        )
        assert result.exit_code == 0
        pieces[name] = len(result.files)
        assert [row["id"] for row in rows(output)] == [str(number) for number in range(60)]
    assert pieces["c.xml.gz"] == 1
    assert pieces["a.xml"] > 9
    assert pieces["b.xml.bz2"] > 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("<html></html>\n", "has no <siteinfo>"),
        (HEAD + PAGES[0] + PAGES[1][:-20], "ends inside a page"),
        (HEAD + "<page>\n<x>\n</page>\n", "no XML"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "x.xml").write_text(content, encoding="utf-8")
    result = wiki([str(tmp_path / "x.xml")], output=tmp_path / "out", progress=False)
    assert result.exit_code == 3
    assert words in next(iter(result.report.failed.values()))[1]
