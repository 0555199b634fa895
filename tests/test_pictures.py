"""Pictures of the documentation: they are there, small, described, and show the pages' numbers."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from scripts.pictures import accuracy_rows

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 300_000


def test_pictures_are_small_and_each_is_shown() -> None:
    files = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert sum(files.values()) < MOST_BYTES
    shown = set[str]()
    for page in (ROOT / "docs").glob("*.md"):
        for alt, name in re.findall(
            r"!\[([^\]]*)\]\(pictures/([^)]+)\)", page.read_text(encoding="utf-8")
        ):
            assert len(alt.split()) >= 5, f"{page.name}: {name} is not described"
            shown.add(name)
    assert shown == set(files)


def test_the_accuracy_chart_shows_the_pages_numbers() -> None:
    """Else run scripts/docs: `validate` has written the page anew."""
    rows = accuracy_rows((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))
    assert len(rows) >= 20
    drawn = (PICTURES / "accuracy.svg").read_text(encoding="utf-8")
    tips = [unescape(tip).splitlines() for tip in re.findall(r"<title>(.*?)</title>", drawn, re.S)]
    found = {
        lines[0]: tuple(float(line.rpartition(": ")[2].replace(",", "")) for line in lines[1:3])
        for lines in tips
        if len(lines) >= 3
    }
    assert found == {name: (number, error) for name, error, number in rows}


def test_the_first_picture_is_of_the_readmes_plan() -> None:
    """Else run scripts/docs: estimates have moved."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(r"^ ?1~? .*$", readme, re.M)
    assert row is not None
    drawn = unescape((PICTURES / "lost.svg").read_text(encoding="utf-8"))
    ends = re.findall(r">([\d.]+) s</text>", drawn)
    assert ends[-1] in row[0].split()
