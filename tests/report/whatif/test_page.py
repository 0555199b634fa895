from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser import chromium, faults_of, opened

from meshwright.cli import run

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'meshwright[ui]'")

SMALL = "model=llama3-8b&cluster=h100:16&seq=8192&gbs=64&layout=tp=2,mbs=1"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a page of a process of its own is; Ctrl-C then ends this with a word and exit code
    0."""
    command = [sys.executable, "-m", "meshwright", "ui", SMALL, "--json", "--no-browser"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        yield json.loads(child.stdout.readline())["address"]
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    assert (child.returncode, said) == (0, "stopped\n")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page with its first answer; whatever its console says is a fault."""
    with opened(browser, address) as (found, said):
        answered(found, 1)
        yield found
        assert said == []


def answered(page: Any, change: int) -> None:
    page.wait_for_selector(f'body[data-answered="{change}"]')


def step_s(page: Any) -> str:
    return str(page.inner_text("#figures dd strong"))


def test_it_listens_on_this_machine_alone(address: str) -> None:
    port = int(address.split(":")[2].split("/", maxsplit=1)[0])
    assert address.startswith("http://127.0.0.1:")
    for other in {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)} - {
        "127.0.0.1",
        "127.0.1.1",
        "::1",
    }:
        with pytest.raises(OSError):
            socket.create_connection((other, port), timeout=1).close()


@pytest.mark.slow
def test_a_shared_address_is_what_is_shown(page: Any) -> None:
    assert page.input_value("#model") == "llama3-8b"
    assert (page.input_value("#gpus"), page.input_value("#tp"), page.inner_text("#dp")) == (
        "16",
        "2",
        "8",
    )
    assert "8.03B parameters, 32 layers, on 16 × h100" in page.inner_text("#facts")
    assert re.fullmatch(r"[0-9.]+ m?s", step_s(page))
    assert page.locator("#memory tbody tr").count() == 1
    assert page.locator("#time tbody tr").count() > 5


@pytest.mark.slow
def test_a_slider_changes_figures_reasons_and_the_address(page: Any) -> None:
    before, because = step_s(page), page.inner_text("#binding")
    page.focus("#tp-slider")
    page.keyboard.press("ArrowRight")
    answered(page, 2)
    assert (page.input_value("#tp"), page.inner_text("#dp")) == ("4", "4")
    assert page.is_hidden("#followed")
    assert step_s(page) != before
    assert page.inner_text("#binding") != because
    assert "layout=tp=4,mbs=1" in page.url
    assert page.get_attribute("#tp-slider", "aria-valuetext") == "4"
    page.fill("#pp", "2")
    answered(page, 3)
    assert page.locator("#memory tbody tr").count() == 2


@pytest.mark.slow
def test_a_step_right_takes_the_batch_along_and_back(page: Any) -> None:
    page.fill("#gpus", "64")
    answered(page, 2)
    page.focus("#gpus-slider")
    page.keyboard.press("ArrowRight")  # 96 chips: 48 replicas of tp=2, which do not divide 64
    answered(page, 3)
    assert (page.input_value("#gpus"), page.input_value("#gbs")) == ("96", "48")
    assert page.inner_text("#followed") == "So that every rule is kept: gbs 64 → 48."
    assert page.is_hidden("#verdict")
    assert "gbs=48" in page.url
    page.keyboard.press("ArrowRight")  # 128 chips: 64 replicas
    answered(page, 4)
    assert (page.input_value("#gpus"), page.input_value("#gbs")) == ("128", "64")
    assert page.is_hidden("#followed")


@pytest.mark.slow
def test_figures_of_another_name_are_gone_at_once(page: Any) -> None:
    page.route("**/api/price*", lambda route: None)  # an answer that never comes
    page.select_option("#chip", "a100-80")
    assert (
        page.inner_text("#figures") == page.inner_text("#time") == page.inner_text("#facts") == ""
    )
    page.unroute("**/api/price*")


@pytest.mark.slow
def test_an_older_plan_is_not_read_while_a_new_price_is_on_its_way(page: Any) -> None:
    page.route("**/api/price*", lambda route: None)
    page.fill("#tp", "4")
    page.wait_for_timeout(400)
    assert (
        page.eval_on_selector("#figures strong", "e => getComputedStyle(e).visibility") == "hidden"
    )


@pytest.mark.slow
def test_a_dead_end_has_a_way_out(page: Any) -> None:
    page.fill("#gpus", "7")
    answered(page, 2)
    assert "does not divide 7 chips" in page.inner_text("#verdict")
    assert page.inner_text("#figures") == ""
    assert page.is_hidden("#machine-title")
    page.get_by_role("button", name="Let the rest follow").click()
    answered(page, 3)
    assert "breaks a rule" not in page.inner_text("#verdict")
    assert (page.input_value("#gpus"), page.input_value("#tp")) == ("7", "1")
    assert page.locator("#figures dd strong").count() > 4


@pytest.mark.slow
def test_the_machine_and_the_pipeline_follow_the_plan(page: Any) -> None:
    page.fill("#pp", "2")
    answered(page, 2)
    page.wait_for_selector('#machine[data-change="2"] svg')
    page.fill("#rank", "9")
    assert "Chip 9, node 1, stage 1" in page.inner_text("#rank-said")
    before = page.locator("#pipeline svg").first.inner_html()
    page.get_by_role("button", name="Whole step").click()
    assert page.locator("#pipeline svg").first.inner_html() != before


@pytest.mark.slow
def test_serving_fine_tuning_comparing_and_two_kinds_are_on_the_same_page(page: Any) -> None:
    page.check("input[value=serve]")
    page.wait_for_selector("#deployments tbody tr", timeout=60_000)
    assert "new tokens/s" in page.inner_text("#serve-figures").lower()
    assert page.is_hidden("#tp")
    page.check("input[value=compare]")
    page.fill("#clusters", "h100:8,h200:8")
    page.keyboard.press("Tab")
    page.wait_for_selector("#compared tbody tr >> nth=1", timeout=60_000)
    assert "what=compare" in page.url
    page.check("input[value=train]")
    page.wait_for_selector("#figures dd strong")
    page.fill("#gpus", "8")
    page.select_option("#finetune", "lora")
    page.wait_for_selector("#command:has-text('--finetune lora')")
    page.select_option("#finetune", "")
    page.wait_for_selector("#figures dd strong")
    page.select_option("#chip2", "a800")
    page.wait_for_selector("#facts:has-text('a800:8')")
    assert page.is_hidden("#tp")


@pytest.mark.slow
@pytest.mark.parametrize("wide", [390, 768, 1280, 1920])
@pytest.mark.parametrize(
    "words",
    [SMALL, "what=serve&model=llama3-8b&cluster=h100:8", "what=compare&tokens=1T&model=llama3-8b"],
)
def test_nothing_is_cut_at_any_width(browser: Any, address: str, wide: int, words: str) -> None:
    place = f"{address.split('?', maxsplit=1)[0]}?{words}"
    with opened(browser, place) as (page, said):
        page.set_viewport_size({"width": wide, "height": 900})
        page.wait_for_selector("body[data-answered]", timeout=60_000)
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") == wide
        cut = """() => Array.from(
            document.querySelectorAll('button, label, legend, h1, h2, dt, strong, th'))
          .filter((e) => e.offsetParent && !e.closest('.wide, .unseen')
            && !e.matches('.unseen') && (e.scrollWidth > e.clientWidth + 1)
            && getComputedStyle(e).display !== 'inline')
          .map((e) => e.textContent)"""
        assert page.evaluate(cut) == []
        assert said == []


@pytest.mark.slow
def test_the_keyboard_alone_reaches_every_control(page: Any) -> None:
    page.wait_for_selector("#near tbody tr")
    wanted = set(
        page.evaluate(
            """() => Array.from(
                document.querySelectorAll('button, input, select, textarea, a[href]'))
              .filter((e) => e.offsetParent && !e.disabled && (e.type !== 'radio' || e.checked))
              .map((e, i) => { e.dataset.stop = String(i); return String(i); })"""
        )
    )
    for _ in range(3 * len(wanted)):
        page.keyboard.press("Tab")
        wanted.discard(page.evaluate("document.activeElement?.dataset?.stop ?? ''"))
        if not wanted:
            break
    assert wanted == set()


@pytest.mark.slow
def test_a_broken_rule_says_its_sentence_and_mends_at_a_press(page: Any) -> None:
    good = step_s(page)
    page.fill("#tp", "3")
    answered(page, 2)
    words = page.inner_text("#verdict")
    assert (
        "This layout breaks a rule. tp=3 * cp=1 * pp=1 = 3 does not divide 16 chips; take 15 or 18"
        " chips" in words
    )
    assert page.is_disabled("#pin")
    page.get_by_role("button", name="tp = 4").click()
    answered(page, 3)
    assert page.is_hidden("#verdict")
    assert page.input_value("#tp") == "4"
    page.fill("#tp", "2")
    answered(page, 4)
    assert step_s(page) == good


@pytest.mark.slow
def test_what_does_not_fit_says_which_term(page: Any) -> None:
    page.fill("#tp", "1")
    answered(page, 2)
    page.fill("#mbs", "4")
    answered(page, 3)
    assert "It does not fit. Memory of stage 0: it needs" in page.inner_text("#verdict")


@pytest.mark.slow
def test_plans_are_pinned_compared_loaded_and_kept_by_the_address(page: Any, browser: Any) -> None:
    page.click("#pin")
    page.fill("#tp", "4")
    answered(page, 2)
    assert page.locator("#pins tbody tr").count() == 2
    page.get_by_role("button", name=re.compile("^Compare with llama3-8b")).click()
    page.wait_for_selector("#difference table")
    assert "matrices are cut into another number of slices" in page.inner_text("#difference")
    with opened(browser, page.url) as (again, said):
        answered(again, 1)
        again.wait_for_selector("#pins tbody tr >> nth=1")
        assert (again.input_value("#tp"), step_s(again)) == ("4", step_s(page))
        assert said == []
    page.get_by_role("button", name=re.compile("^Use llama3-8b")).click()
    answered(page, 3)
    assert page.input_value("#tp") == "2"
    page.get_by_role("button", name=re.compile("^Unpin")).click()
    assert page.locator("#pins tbody tr").count() == 0
    assert "pin=" not in page.url


@pytest.mark.slow
def test_neighbours_and_the_search_can_be_used(page: Any) -> None:
    page.wait_for_selector("#near tbody tr")
    page.click("#best-now")
    page.wait_for_selector("#best tbody tr", timeout=60_000)
    assert "layouts priced" in page.inner_text("#searched")
    answered(page, 2)
    assert f"tp={page.input_value('#tp')}," in page.inner_text("#best tbody tr code")
    assert page.is_hidden("#verdict")
    page.get_by_role("button", name="Use plan 2", exact=True).click()
    answered(page, 3)


@pytest.mark.slow
def test_files_are_written_and_the_answer_is_saved(page: Any) -> None:
    page.click("#export")
    page.wait_for_selector("#files pre")
    assert "--tensor-model-parallel-size 2" in page.inner_text("#files")
    with page.expect_download() as waited:
        page.click("#save")
    with open(waited.value.path(), encoding="utf-8") as file:
        assert json.load(file)["layout"]["tp"] == 2


@pytest.mark.slow
def test_words_that_are_none_are_told(page: Any) -> None:
    page.fill("#more", "tq=4")
    page.keyboard.press("Tab")
    page.wait_for_selector("#verdict:not([hidden])")
    assert (
        "This can't be priced. 'tq' is no known layout key; known: cp, dp, ep"
        in page.inner_text("#verdict")
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(browser: Any, address: str, scheme: str) -> None:
    with opened(browser, address, color_scheme=scheme) as (page, _):
        answered(page, 1)
        page.click("#pin")
        page.fill("#tp", "3")
        answered(page, 2)
        page.wait_for_selector("#verdict:not([hidden])")
        assert faults_of(page) == []
        page.get_by_role("button", name="Let the rest follow").click()
        page.wait_for_selector("#near tbody tr")
        assert faults_of(page) == []
        for what in ("serve", "compare"):
            page.check(f"input[value={what}]")
            place = "#deployments" if what == "serve" else "#compared"
            page.wait_for_selector(f"{place} tbody tr", timeout=60_000)
            assert faults_of(page) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["ui", "nonsense"],
            "error: 'nonsense': expected an address of this page, or its part behind '?', such as",
        ),
        (["ui", "model=llama3-8b&tp=2"], "error: 'tp' is no known word of the address"),
        (["ui", "--port", "99999"], "error: --port 99999: expected 1 to 65535"),
    ],
)
def test_bad_words_of_the_command_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_port_that_is_taken_is_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ui", "--port", address.split(":")[2].split("/", maxsplit=1)[0]]) == 2
    assert "Address already in use; without --port a free one is taken" in capsys.readouterr().err
