"""Every page of a report at the widths that people have: nothing is cut or out of reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser import chromium, faults_of, opened
from tests.report.test_study_info import STUDY
from tests.report.training import training_folder

from meshwright import api, serving
from meshwright.api.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
WIDTHS = (390, 768, 1280, 1920)
MOST_PRINTED = 1_000_000


def dense() -> Mapping[str, Any]:
    return api.plan(model="llama3-70b", cluster="h100:256", seq_len=8192, gbs=512).to_dict()


def deep() -> Mapping[str, Any]:
    """Many stages, experts, and more chips than are drawn one by one."""
    return api.plan(
        model="deepseek-v3", cluster="h100:4096", seq_len=4096, gbs=4096, pins={"pp": [16]}, top=3
    ).to_dict()


def mixed() -> Mapping[str, Any]:
    return api.plan(
        model="llama2-13b", cluster="a800:8,h800:8", seq_len=4096, gbs=64, top=3
    ).to_dict()


def served() -> Mapping[str, Any]:
    request = serving.ServingRequest.of(
        model="llama3.1-8b", cluster="h100:2", input_len=1000, output_len=200
    )
    return serving.plan(request).to_dict()


RESULTS: dict[str, Callable[[], Any]] = {
    "dense": dense,
    "deep": deep,
    "mixed": mixed,
    "serving": served,
    "study": lambda: STUDY,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module", params=[*RESULTS, "training"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "training":
        training_folder(folder / "train")
        return write_report([folder / "train"], output=folder / "report.html")
    return write_report([RESULTS[request.param]()], output=folder / "report.html")


CUT = """() => {
  const seen = (e) => e.checkVisibility() && e.getClientRects().length;
  const found = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) found.push(`the page is ${wide} wide`);
  for (const e of document.querySelectorAll("body *:not(svg *)")) {
    if (!seen(e) || e.closest("svg, .skip, caption")) continue;
    const r = e.getBoundingClientRect();
    if (r.right > innerWidth + 1) found.push(`${e.tagName} ${e.className} ends at ${r.right}`);
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && e.tagName !== "INPUT")
      found.push(`${e.tagName} ${e.className} holds ${e.scrollWidth} in ${e.clientWidth}: ${
        e.textContent.slice(0, 40)}`);
  }
  for (const svg of document.querySelectorAll("svg.chart")) {
    if (!seen(svg)) continue;
    const frame = svg.getBoundingClientRect(), name = svg.closest("figure").dataset.name;
    for (const words of svg.querySelectorAll("text")) {
      const r = words.getBoundingClientRect();
      const left = r.left - frame.left, right = r.right - frame.left;
      if (left < -2 || right > frame.width + 2 || words.textContent.includes("\\u2026"))
        found.push(`${name}: ${words.textContent}: ${left} to ${right} of ${frame.width}`);
    }
  }
  return found.slice(0, 12);
}"""


@pytest.mark.parametrize("wide", WIDTHS)
def test_no_page_overflows_and_no_text_is_cut(browser: Browser, report: Path, wide: int) -> None:
    with opened(browser, report) as (page, said):
        page.set_viewport_size({"width": wide, "height": 900})
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        assert page.evaluate(CUT) == []
        assert said == []


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("wide", [390, 1280])
def test_other_senses_miss_nothing(browser: Browser, report: Path, ground: Any, wide: int) -> None:
    with opened(browser, report, color_scheme=ground) as (page, said):
        page.set_viewport_size({"width": wide, "height": 900})
        assert faults_of(page) == []
        assert said == []


NUMBERED = """() => {
  const every = [...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")];
  const seen = every.filter((e) => e.checkVisibility() && e.getClientRects().length);
  seen.forEach((e, place) => { e.dataset.place = place; });
  return seen.length;
}"""
"""Numbers whatever can be used, and says how many that are."""


def test_the_keyboard_alone_reaches_everything(browser: Browser, report: Path) -> None:
    with opened(browser, report) as (page, _):
        total = page.evaluate(NUMBERED)
        reached = set()
        for _press in range(total + 5):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("() => document.activeElement.dataset.place"))
        assert {str(place) for place in range(total)} <= reached


def test_on_paper_it_is_small_and_every_picture_is_there(browser: Browser, report: Path) -> None:
    with opened(browser, report) as (page, _):
        printed = page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert len(printed) < MOST_PRINTED
        page.emulate_media(media="print")
        drawn = page.locator("figure svg.chart:visible").count()
        assert drawn == page.locator("figure").count()


def test_the_main_picture_comes_first(browser: Browser, report: Path) -> None:
    first = {
        "plan": "machine",
        "serving plan": "front",
        "study": "regret",
        "training": "loss",
    }
    with opened(browser, report) as (page, _):
        kind = page.locator(".kind").inner_text().lower()
        assert page.locator("figure").first.get_attribute("data-name") == first[kind]
