"""The page in a real browser."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser import chromium, faults_of, opened
from tests.report.answers import plan_answer, plan_of

from meshwright import api
from meshwright.api.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return api.plan(
        model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64, pins={"pp": [2, 4]}, top=20
    ).to_dict()


@pytest.fixture(scope="module")
def report(plan: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("report") / "report.html"
    return write_report([plan], output=page)


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    with opened(browser, report) as (found, said):
        yield found
        assert said == []


def test_nothing_is_fetched_and_nothing_is_wrong_for_other_senses(
    browser: Browser, plan: dict[str, Any], tmp_path: Path
) -> None:
    few = {**plan, "plans": plan["plans"][:2], "rejected": {}}
    with opened(
        browser, write_report([few], output=tmp_path / "one.html"), color_scheme="dark"
    ) as (page, said):
        page.locator("summary").first.click()
        assert faults_of(page) == []
        assert (
            page.evaluate(
                "performance.getEntriesByType('resource').filter((e) =>"
                " !e.name.startsWith('data:')).length"
            )
            == 0
        )
        assert said == []


def test_several_results_are_told_apart_on_one_page(browser: Browser, tmp_path: Path) -> None:
    answer = plan_answer(plan_of(1), plan_of(2, longer_s=0.5))
    answer["request"]["calibration"] = "gone.yaml"  # what the answers hold is enough here
    with opened(
        browser, write_report([answer, answer], output=tmp_path / "two.html"), color_scheme="light"
    ) as (page, said):
        assert faults_of(page) == []
        assert page.locator("article").count() == 2
        ids: list[str] = page.locator("[id]").evaluate_all("(all) => all.map((one) => one.id)")
        assert len(ids) == len(set(ids))
        assert said == []


def test_every_chart_of_the_report_is_drawn(page: Page) -> None:
    drawn = page.locator("figure svg.chart:visible")
    names = page.locator("figure").evaluate_all("(all) => all.map((one) => one.dataset.name)")
    assert {"machine", "lost", "rival", "time", "memory", "stages", "cells", "timeline"} <= set(
        names
    )
    for place in range(drawn.count()):
        box = drawn.nth(place).bounding_box()
        assert box is not None
        assert box["width"] > 600
        assert box["height"] > 80


def test_headings_sort_by_their_numbers_up_and_down(page: Page) -> None:
    table = page.locator('.table[data-name="plans"]')
    sort = table.get_by_role("button", name="peak, GiB")
    cells = table.locator("tbody tr")
    place = table.locator("th").evaluate_all(
        "(all) => all.findIndex((one) => one.dataset.key === 'peak_memory_gib')"
    )

    def shown() -> list[float]:
        found: list[float] = cells.evaluate_all(
            f"(rows) => rows.map((row) => Number(row.cells[{place}].dataset.v))"
        )
        return found

    sort.click()
    assert shown() == sorted(shown())
    assert table.locator('th[aria-sort="ascending"]').count() == 1
    sort.press("Enter")
    assert shown() == sorted(shown(), reverse=True)
    assert len(shown()) == 20


def test_the_filter_takes_figures_and_words_and_says_how_many_are_left(
    page: Page, plan: dict[str, Any]
) -> None:
    table = page.locator('.table[data-name="plans"]')
    wanted = [
        p
        for p in plan["plans"]
        if p["layout"]["tp"] == 2 and p["step_s"] < 1.2 * plan["plans"][0]["step_s"]
    ]
    assert 0 < len(wanted) < 20
    table.get_by_role("searchbox").fill(f"tp=2 step_s<{1.2 * plan['plans'][0]['step_s']!r}")
    assert table.get_by_role("status").inner_text() == f"{len(wanted)} of 20"
    assert table.locator("tbody tr:visible").count() == len(wanted)
    table.get_by_role("searchbox").fill("nothing-like-it")
    assert table.get_by_role("status").inner_text() == "0 of 20"


def test_csv_has_every_digit_of_what_is_shown(page: Page, plan: dict[str, Any]) -> None:
    table = page.locator('.table[data-name="plans"]')
    table.get_by_role("searchbox").fill("rank<=2")
    with page.expect_download() as caught:
        table.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(caught.value.path().read_text(encoding="utf-8"))))
    assert [float(row["step_s"]) for row in rows] == [p["step_s"] for p in plan["plans"][:2]]
    assert caught.value.suggested_filename == "plans.csv"


@pytest.mark.parametrize(("kind", "begins"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_charts_are_saved_as_images(page: Page, kind: str, begins: bytes) -> None:
    with page.expect_download() as caught:
        page.locator('figure[data-name="cells"]').get_by_role("button", name=kind).click()
    content = caught.value.path().read_bytes()
    assert content.startswith(begins)
    assert len(content) > 5000


def test_the_pipeline_zooms_to_single_micro_batches_and_back(page: Page) -> None:
    figure = page.locator('figure[data-name="timeline"]')
    window = "() => document.querySelector('.plot').getAttribute('viewBox')"
    opening = page.evaluate(window)
    figure.get_by_role("button", name="Whole step").click()
    whole = page.evaluate(window)
    assert float(opening.split()[2]) < float(whole.split()[2])
    for _ in range(4):
        figure.get_by_role("button", name="Zoom in").click()
    assert float(page.evaluate(window).split()[2]) == pytest.approx(float(whole.split()[2]) / 16)
    assert figure.locator("svg.chart > g > text.on-dark").count() > 0  # numbers of micro batches
    figure.get_by_role("button", name="Whole step").click()
    assert page.evaluate(window) == whole
    figure.get_by_role("button", name="Start").click()
    assert page.evaluate(window) == opening


def test_a_mark_tells_its_figure_under_the_pointer(page: Page) -> None:
    page.locator('figure[data-name="time"] [data-tip]:visible').first.hover()
    assert page.locator("#tip").inner_text().startswith("the same in all: ")
    page.locator('figure[data-name="time"] [data-tip]:visible').nth(1).hover()
    assert page.locator("#tip").inner_text().startswith("#1 ")


def test_it_prints_on_paper_in_full_and_light(page: Page) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert page.locator("nav").is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")
