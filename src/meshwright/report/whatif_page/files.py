"""The files of the page, the same for the server and for a page without one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from meshwright.report.charts.svg import chart_css
from meshwright.report.page import pictures_script

__all__ = ["PAGE_FILES", "page_file"]

PAGE_FILES: Mapping[str, str] = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "asked.js": "text/javascript",
    **dict.fromkeys(
        ("state.js", "shown.js", "plan.js", "pins.js", "others.js", "pictures.js"),
        "text/javascript",
    ),
    "charts.css": "text/css",
    "icon.svg": "image/svg+xml",
}
"""Each with its type."""


def page_file(name: str) -> bytes:
    """Return what a file of the page holds; rules and scripts of pictures are those of reports."""
    if name == "charts.css":
        return chart_css().encode()
    if name == "pictures.js":
        return pictures_script().encode()
    return (resources.files("meshwright.report.whatif_page") / "page" / name).read_bytes()
