"""What the site has beside docs/: the README, the change log and the guide for contributors as
pages, the decisions in its menu, and sources as plain names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the root, and the pages that they become."""


def on_config(config: Any) -> Any:
    """Put every decision behind the page that lists them."""
    decisions = [
        f"decisions/{path.name}" for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    ]
    reference = next(
        section["Reference"]
        for section in config["nav"]
        if isinstance(section, dict) and "Reference" in section
    )
    place = next(i for i, page in enumerate(reference) if "Decisions" in page)
    reference[place] = {"Decisions": ["decisions/README.md", *decisions]}
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the root's pages, their links turned to where the site has them."""
    from mkdocs.structure.files import File

    for name, page in OUTSIDE.items():
        text = (
            (ROOT / name)
            .read_text(encoding="utf-8")
            .replace("](docs/", "](")
            .replace("](CHANGELOG.md", "](changelog.md")
            .replace("](CONTRIBUTING.md", "](contributing.md")
        )
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that leave docs/ lead to the site's own pages; those to a source, which the site has
    not, are its name alone."""
    for name, page in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    markdown = markdown.replace("](decisions/)", "](decisions/README.md)")
    return re.sub(
        r"\[([^\]\n]+)\]\((?:(?:\.\./)+(?:src|scripts|benchmarks|tests)/[^)\n]*|LICENSE)\)",
        r"\1",
        markdown,
    )
