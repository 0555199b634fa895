from __future__ import annotations

import gzip
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.data.server import Site, serving

from meshwright.data.fetching import download
from meshwright.data.steps import ShardError, StepResult
from meshwright.data.transfer import Patience, Transfer, fetch

ROOT = Path(__file__).resolve().parents[2]
QUICK = Patience(tries=4, timeout_s=0.4, first_wait_s=0.01, most_wait_s=0.02)
BODY = bytes(range(256)) * 4000


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as found:
        yield found


def get(site: Site, *urls: str, output: Path, patience: Patience = QUICK) -> StepResult:
    return download(
        [site.url + url for url in urls],
        output=output,
        workers=1,
        patience=patience,
        progress=False,
    )


@pytest.mark.parametrize(
    "trouble",
    [
        ["429"],
        ["503:0"],
        ["500", "502", "504"],
        ["half"],
        ["half"] * 5,
        ["empty"],
        ["hang:0.6"],
        ["stall:0.6"],
    ],
)
def test_what_passes_is_survived(site: Site, tmp_path: Path, trouble: list[str]) -> None:
    site.files["/d/a.bin"] = BODY
    site.trouble["/d/a.bin"] = list(trouble)
    result = get(site, "/d/a.bin", output=tmp_path)
    assert (result.exit_code, result.report.failed) == (0, {})
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert result.files[0].sha256 == hashlib.sha256(BODY).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".meshwright",
        "a.bin",
        "manifest.json",
    ]


def test_half_a_body_goes_on_where_it_ended(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = BODY
    site.trouble["/a.bin"] = ["half", "half"]
    get(site, "/a.bin", output=tmp_path)
    half = len(BODY) // 2
    assert [wanted for _, wanted in site.asked] == [
        None,
        f"bytes={half}-",
        f"bytes={half + half // 2}-",
    ]


def test_another_file_behind_the_url_starts_over(site: Site, tmp_path: Path) -> None:
    """If-Range: the server sends all of the new file instead of the rest."""
    site.files["/a.bin"] = BODY
    site.trouble["/a.bin"] = ["half", *["500"] * 4]
    assert get(site, "/a.bin", output=tmp_path).exit_code == 3
    site.files["/a.bin"] = BODY[::-1]
    assert get(site, "/a.bin", output=tmp_path).exit_code == 0
    assert (tmp_path / "a.bin").read_bytes() == BODY[::-1]


def test_without_a_tag_a_part_is_not_trusted(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"], site.tags["/a.bin"] = BODY, 'W/"weak"'
    site.trouble["/a.bin"] = ["half"]
    get(site, "/a.bin", output=tmp_path)
    assert [wanted for _, wanted in site.asked] == [None, None]
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_retry_after_is_waited_for(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = BODY
    site.trouble["/a.bin"] = ["429:7"]
    waits: list[float] = []
    task = Transfer(
        name="a",
        size_bytes=0,
        url=site.url + "/a.bin",
        output=tmp_path / "a",
        sha256=None,
        patience=QUICK,
    )
    with httpx.Client() as client:
        fetch(task, client, sleep=waits.append)
    assert waits == [7.0]


def test_a_pause_of_hours_is_left_to_the_next_start(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = BODY
    site.trouble["/a.bin"] = ["429:99999"]
    assert (
        "asks for a pause of 99999 s"
        in get(site, "/a.bin", output=tmp_path).report.failed["a.bin"][1]
    )


def test_missing_is_told_from_failed(site: Site, tmp_path: Path) -> None:
    site.files["/there.bin"] = BODY
    site.trouble["/broken.bin"] = ["503"] * 9
    site.trouble["/login.bin"] = ["403"]
    result = get(site, "/there.bin", "/gone.bin", "/broken.bin", "/login.bin", output=tmp_path)
    assert result.exit_code == 3
    assert {name: kind for name, (kind, _) in result.report.failed.items()} == {
        "gone.bin": "missing",
        "broken.bin": "failed",
        "login.bin": "refused",
    }
    assert len([path for path, _ in site.asked if path == "/gone.bin"]) == 1
    assert len([path for path, _ in site.asked if path == "/broken.bin"]) == QUICK.tries
    assert result.manifest is None


def test_an_error_page_is_no_archive(site: Site, tmp_path: Path) -> None:
    site.files["/a.jsonl.gz"] = gzip.compress(b"{}\n" * 999)
    site.trouble["/a.jsonl.gz"] = ["html"]
    result = get(site, "/a.jsonl.gz", output=tmp_path)
    assert (result.exit_code, result.files[0].archive) == (0, "gz")
    site.files["/b.jsonl.gz"] = site.files["/a.jsonl.gz"][:-9]  # cut off at its source
    other = get(site, "/b.jsonl.gz", output=tmp_path / "b")
    assert "is cut off" in other.report.failed["b.jsonl.gz"][1]
    assert not (tmp_path / "b" / "b.jsonl.gz").exists()


def test_a_wrong_hash_is_no_file(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = site.files["/b.bin"] = BODY
    (tmp_path / "list").write_text(
        f"# sums\n{site.url}/a.bin sha256:{'0' * 64}\n{site.url}/b.bin"
        f" {hashlib.sha256(BODY).hexdigest()}\n"
    )
    result = download(
        [f"@{tmp_path / 'list'}"],
        output=tmp_path / "out",
        workers=1,
        patience=QUICK,
        progress=False,
    )
    assert list(result.report.failed) == ["a.bin"]
    assert "expected 0000" in result.report.failed["a.bin"][1]
    assert [file.name for file in result.files] == ["b.bin"]


def test_a_finished_file_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    site.files["/a.gz"] = gzip.compress(BODY)
    (tmp_path / "a.gz").write_bytes(
        site.files["/a.gz"]
    )  # killed between its renaming and its line in the journal
    for _ in range(2):
        assert get(site, "/a.gz", output=tmp_path).exit_code == 0
    assert site.asked == []


def test_a_dataset_of_hugging_face(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", site.url)
    rows = [
        {"type": "directory", "path": "data"},
        {"type": "file", "path": "README.md", "size": 3},
        {
            "type": "file",
            "path": "data/a b.bin",
            "size": len(BODY),
            "lfs": {"oid": hashlib.sha256(BODY).hexdigest(), "size": len(BODY)},
        },
    ]
    site.pages["/api/datasets/owner/name/tree/v1?recursive=true"] = rows
    site.files["/datasets/owner/name/resolve/v1/data/a%20b.bin"] = BODY
    result = download(
        hf="owner/name@v1",
        include=["data/*"],
        output=tmp_path,
        workers=1,
        patience=QUICK,
        progress=False,
    )
    assert (result.exit_code, [file.name for file in result.files]) == (0, ["data/a b.bin"])
    assert (tmp_path / "data" / "a b.bin").read_bytes() == BODY


RUN = """
import sys
from pathlib import Path
from meshwright.data.fetching import download
from meshwright.data.transfer import Patience
if __name__ == "__main__":
    patience = Patience(timeout_s=5, first_wait_s=0.02, most_wait_s=0.1)
    print(download([sys.argv[1]], output=Path(sys.argv[2]), workers=2, patience=patience, progress=False).exit_code)
"""  # noqa: E501


@pytest.mark.slow
def test_kills_leave_whole_files(site: Site, tmp_path: Path) -> None:
    contents = {
        f"/f_{number}.gz": gzip.compress(os.urandom(50_000 * number)) for number in range(12)
    }
    site.files.update(contents)
    for path in contents:
        site.trouble[path] = ["half", "stall:0.2", "503:0"]
    (tmp_path / "run.py").write_text(RUN)
    command = [
        sys.executable,
        str(tmp_path / "run.py"),
        site.url + "/f_{0..11}.gz",
        str(tmp_path / "out"),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    for wait_s in (0.5, 0.8, 1.2):
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(wait_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert last.stdout == "0\n", last.stderr
    found = {f"/{path.name}": path.read_bytes() for path in (tmp_path / "out").glob("f_*")}
    assert found == contents


def test_a_server_that_is_not_there_fails_the_file(tmp_path: Path) -> None:
    task = Transfer(
        name="a",
        size_bytes=0,
        url="http://127.0.0.1:9/a",
        output=tmp_path / "a",
        sha256=None,
        patience=QUICK,
    )
    with (
        httpx.Client(trust_env=False) as client,
        pytest.raises(ShardError, match=r"ConnectError .* \(4 times\)"),
    ):
        fetch(task, client)
