"""The documentation builds as a site, whole and without the network."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.browser import chromium, opened

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


@pytest.mark.slow
def test_the_search_finds_pages(site: Path) -> None:
    """The way of a reader: `/`, words, and the first results, from the files alone."""
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            with chromium() as browser:
                place = f"http://127.0.0.1:{server.server_address[1]}/index.html"
                for words, wanted in (
                    ("pipeline bubble", "formulas.html"),
                    ("webhook", "watch.html"),
                ):
                    with opened(browser, place) as (page, said):
                        page.keyboard.press("/")
                        page.keyboard.type(words)
                        page.wait_for_selector(
                            f'.md-search-result__link[href*="{wanted}"]',
                            state="attached",  # those behind "more on this page" too
                            timeout=60_000,  # the index is made in the reader's browser
                        )
                        assert said == []
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
