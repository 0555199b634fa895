from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshwright.report.whatif_page.answers import Answers

starlette = pytest.importorskip(
    "starlette.testclient", reason="starlette is not installed: pip install 'meshwright[ui]'"
)
from meshwright.report.whatif_page.server import make_app  # noqa: E402

SMALL = "model=tiny-llama&cluster=h100:8&seq=512&gbs=8&layout=tp=1"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with starlette.TestClient(make_app(Answers()), base_url="http://127.0.0.1:9") as found:
        yield found


def test_the_page_and_its_files_come_with_headers_that_keep_them_to_themselves(client: Any) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/pictures.js", "text/javascript"),
        ("/charts.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert "http" not in client.get("/").text


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "192.168.1.5:80", "0.0.0.0"],
)
def test_another_name_for_this_address_is_refused(client: Any, host: str) -> None:
    for path in ("/", f"/api/price?{SMALL}"):
        assert client.get(path, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost"])
def test_its_own_names_are_answered(client: Any, host: str) -> None:
    assert client.get(f"/api/price?{SMALL}", headers={"host": host}).json()["fits"] == "yes"


def test_another_site_is_refused_but_its_links_are_not(client: Any) -> None:
    assert (
        client.get(
            f"/api/price?{SMALL}",
            headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        ).status_code
        == 403
    )
    assert (
        client.get(
            "/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        ).status_code
        == 200
    )
    assert (
        client.get(
            f"/api/price?{SMALL}",
            headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},
        ).status_code
        == 200
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("model=llama3-71b", "'llama3-71b' is no known model"),
        ("cluster=/etc/passwd", "cluster='/etc/passwd': the page takes up to four kinds of chips"),
        ("cluster=h101:8", "'h101' is no known chip"),
        ("layout=tp=x", "tp"),
        ("precision=fp8&cluster=a100-80:8", "fp8"),
    ],
)
def test_bad_words_are_one_sentence(client: Any, query: str, words: str) -> None:
    answer = client.get(f"/api/price?{query}")
    assert answer.status_code == 200
    assert words in answer.json()["refused"]
    assert "\n" not in answer.json()["refused"]


def test_a_broken_rule_is_an_answer(client: Any) -> None:
    answer = client.get(f"/api/price?{SMALL.replace('tp=1', 'tp=3')}")
    assert answer.status_code == 200
    assert answer.json()["mends"] == [{"axis": "tp", "value": 4}]


def test_every_question_is_answered(client: Any) -> None:
    assert client.get(f"/api/near?{SMALL}").json()["rivals"]
    assert client.get(f"/api/serve?{SMALL}").json()["plans"]
    assert client.get(f"/api/compare?{SMALL}").json()["refused"].startswith("tokens: say how many")
    assert "<svg" in client.get(f"/api/pictures?{SMALL}&wide=600").json()["machine"]
    assert client.get(f"/api/plan?{SMALL}").json()["plans"]
    assert client.get(f"/api/export?{SMALL}&to=megatron-lm").json()["files"]
    assert (
        client.get(f"/api/export?{SMALL}&to=x")
        .json()["refused"]
        .startswith("'x' is no known export target")
    )
    other = SMALL.replace("tp=1", "tp=2").replace("&", "%26").replace("=", "%3D")
    assert (
        client.get(f"/api/difference?{SMALL}&other={other}").json()["differences"][0]["field"]
        == "tp"
    )
    assert client.get(f"/api/difference?{SMALL}").json() == {
        "refused": "other: expected the address of the plan to compare with"
    }


def test_nothing_is_changed_by_asking(client: Any) -> None:
    assert client.post("/api/price").status_code == 405
