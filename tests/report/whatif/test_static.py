from __future__ import annotations

import functools
import http.server
import json
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import chromium, faults_of, opened

from meshwright import api
from meshwright.api.browser import InPlace
from meshwright.cli import run
from meshwright.report.whatif_page.fetched import fetch_commands, fetch_core
from meshwright.report.whatif_page.static import find_core, write_files
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError

MOST_BYTES = 15e6
LAYOUTS = ("tp=2,pp=2,mbs=1", "tp=4,pp=2,vpp=2,mbs=1", "tp=2,mbs=2,recompute=full")


class _Host(http.server.SimpleHTTPRequestHandler):
    """A host of files, as there are many; it packs nothing."""

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as the command writes it; what it needs comes from npm and PyPI."""
    held, place = tmp_path_factory.mktemp("core"), tmp_path_factory.mktemp("page") / "public"
    try:
        fetch_core(held)
    except ConfigError as error:
        pytest.skip(str(error))
    assert run(["ui", "--static", str(place), "--pyodide", str(held)]) == 0
    return place


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Host, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def assert_same(found: Any, same: Any) -> None:
    """Equal in all digits that anything prints; a sum's last bit may hang on its columns."""
    if isinstance(same, dict):
        assert found.keys() == same.keys()
        for key in same:
            assert_same(found[key], same[key])
    elif isinstance(same, list):
        for one, other in zip(found, same, strict=True):
            assert_same(one, other)
    else:
        assert found == (same if isinstance(same, str) else pytest.approx(same, rel=1e-12))


@pytest.mark.slow
def test_the_page_is_small_and_asks_nobody_else(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        if path.parent == folder and path.suffix in (".js", ".html", ".css"):
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert "http" not in text.replace("http-equiv", ""), path.name


@pytest.mark.slow
def test_prices_in_the_browser_equal_the_commands(
    browser: Any, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = "model=llama3-8b&cluster=h100:16&seq=8192&gbs=64"
    with opened(browser, f"{host}?{shared}&layout={LAYOUTS[0]}") as (page, said):
        page.set_default_timeout(400_000)
        for change, layout in enumerate(LAYOUTS, 1):
            if change > 1:
                page.evaluate(f"history.replaceState(null, '', '?{shared}&layout={layout}')")
                page.evaluate("window.dispatchEvent(new PopStateEvent('popstate'))")
            page.wait_for_selector(f'body[data-answered="{change}"]')
            with page.expect_download() as waited:
                page.click("#save")
            found = json.loads(Path(waited.value.path()).read_text(encoding="utf-8"))
            [_, *command] = shlex.split(page.inner_text("#command"))
            assert command[:4] == ["explain", "llama3-8b", "--cluster", "h100:16"]
            assert run([*command, "--json"]) == 0
            same = json.loads(capsys.readouterr().out)
            for key in ("step_s", "mfu", "time", "memory", "peak_memory_gib", "interval", "fits"):
                assert_same(found[key], same[key])
        page.wait_for_selector("#near tbody tr")
        page.wait_for_selector("#machine svg")
        assert faults_of(page) == []
        assert said == []


@pytest.mark.slow
def test_a_search_in_the_browser_finds_the_commands_plan(browser: Any, host: str) -> None:
    words = "model=tiny-llama&cluster=h100:2&seq=512&gbs=8&layout=tp=1,mbs=1"
    request = PlanRequest.of(
        {"model": "tiny-llama", "cluster": "h100:2", "seq_len": 512, "gbs": 8, "stack": "megatron"}
    )
    best = api.plan(request).best
    assert best is not None
    with opened(browser, f"{host}?{words}") as (page, said):
        page.set_default_timeout(400_000)
        page.wait_for_selector('body[data-answered="1"]')
        page.click("#best-now")
        page.wait_for_selector("#best tbody tr")
        assert page.inner_text("#best tbody tr code") == best.layout.words()
        assert said == []


@pytest.mark.slow
def test_the_usual_plan_is_shown_before_python_is_there(browser: Any, host: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/core/**", lambda route: None)  # it never comes
    page.goto(host)
    page.wait_for_selector('body[data-answered="1"]', timeout=10_000)
    request = {"model": "llama3-70b", "cluster": "h100:256", "seq_len": 8192, "gbs": 512}
    request |= {"stack": "megatron"}
    step_s = api.explain("tp=8,pp=4,mbs=1", PlanRequest.of(request)).quote.step_s
    assert page.inner_text("#figures dd strong >> nth=0") == f"{step_s:.2f} s"
    context.close()


@pytest.mark.slow
def test_a_host_without_a_file_is_told(browser: Any, host: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/core/meshwright.zip", lambda route: route.fulfill(status=404))
    page.goto(f"{host}?model=llama3-8b&cluster=h100:8&layout=tp=2")
    page.wait_for_selector("#verdict:not([hidden])", timeout=400_000)
    assert "meshwright.zip: the host answers 404" in page.inner_text("#verdict")
    context.close()


def test_what_is_fetched_has_one_version_each() -> None:
    npm, pip = fetch_commands()
    assert re.fullmatch(r"pyodide@\d+\.\d+\.\d+", npm[-1])
    assert re.fullmatch(r"pydantic-core==[0-9.]+", pip[-1])
    assert pip[pip.index("--python-version") + 1] == "3.14"


def test_a_client_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="npm is not installed: install it; otherwise unpack"):
        fetch_core(tmp_path)
    monkeypatch.undo()
    failed = subprocess.CompletedProcess([], 1, "", "npm error network down\n")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("subprocess.run", lambda *words, **named: failed)
    with pytest.raises(ConfigError, match=r"pyodide@.* failed: npm error network down"):
        fetch_core(tmp_path)


def test_a_folder_without_pyodide_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no pyodide\.asm\.wasm; `npm pack pyodide@"):
        find_core(tmp_path)
    (tmp_path / "pyodide.asm.wasm").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no pyodide\.mjs, .*; take Pyodide"):
        find_core(tmp_path)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds other files; name a new folder"):
        write_files(tmp_path, {"index.html": b'<html data-core="static">'})
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == "<p>mine"
    ours = tmp_path / "new"
    for text in (b'<html data-core="static">', b'<html data-core="static">2'):
        assert write_files(ours, {"index.html": text}) == len(text)
        assert (ours / "index.html").read_bytes() == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ui", "--pyodide", "x"], "error: --pyodide: of no effect without --static DIR"),
        (["ui", "model=llama3-8b", "--static", "x"], "error: 'model=llama3-8b': of no effect"),
        (
            ["ui", "--static", "x", "--calibration", "c.yaml"],
            "error: --calibration and --profile: a page without a server has none",
        ),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.startswith(message)


def test_one_thread_does_what_is_submitted_at_once() -> None:
    with InPlace(max_workers=4) as pool:
        assert pool.submit(max, 1, 3).result() == 3
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
