"""The documentation builds as a site, whole and without the network."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed")
    built = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(built),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return built


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert {page.replace("decisions/README", "decisions/index") for page in pages} | {
        "readme",
        "changelog",
    } <= built


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    broken = []
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if (
                not re.match(r"[a-z]+:", target)
                and target != "."
                and page.name != "404.html"
                and not (page.parent / target).exists()
            ):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="https?:'  # noqa: E501
    assert [
        page.name
        for page in site.rglob("*.html")
        if re.search(loads, page.read_text(encoding="utf-8"))
    ] == []


def test_the_sums_of_the_physics_page_are_right() -> None:
    found = doctest.testfile(
        str(ROOT / "docs" / "physics.md"), module_relative=False, encoding="utf-8"
    )
    assert found.attempted > 20
    assert found.failed == 0
