"""A real headless Chromium for tests of pages; they are skipped, saying so, where it is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

__all__ = ["chromium", "faults_of", "opened"]

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium with a profile of its own; skip the test where it, or Playwright, is
    absent."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, place: Path | str, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """Open a file or an address in a window of its own, with a list that everything its console
    says is put in; downloads go to memory."""
    context = browser.new_context(
        viewport={"width": 1400, "height": 900}, accept_downloads=True, **options
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(f"failed: {request.url[:80]}"))
    page.goto(place if isinstance(place, str) else place.as_uri())
    yield page, said
    context.close()


def faults_of(page: Page) -> list[str]:
    """Return what axe-core finds wrong for readers with other senses or means, one line each."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    found = axe.Axe().run(page).response["violations"]
    return [f"{fault['id']}: {node['html'][:120]}" for fault in found for node in fault["nodes"]]
