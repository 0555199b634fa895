from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs.loads.standin import Manners, standing_in
from tests.runs.loads.test_readers import AIPERF, VLLM

from meshwright.cli import run


def test_measure_prints_a_line_for_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in(Manners(first_s=0.02, each_s=0.01, refuses=("min_tokens",))) as url:
        assert (
            run(
                [
                    "serving",
                    "measure",
                    url,
                    "--concurrency",
                    "1,2",
                    "--input-len",
                    "8",
                    "--output-len",
                    "3",
                    "--requests",
                    "4",
                ]
            )
            == 0
        )
    said = capsys.readouterr()
    heading, one, two = said.out.splitlines()[:3]
    assert heading.split()[:3] == ["load", "requests", "failed"]
    assert (one.split()[:3], two.split()[:3]) == (
        ["concurrency=1", "4", "0"],
        ["concurrency=2", "4", "0"],
    )
    assert "warning: the server refuses min_tokens" in said.err


def test_measure_as_json_and_one_that_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--concurrency",
        "1",
        "--input-len",
        "8",
        "--output-len",
        "2",
        "--requests",
        "2",
        "--json",
        "--ttft",
        "5000",
    ]
    with standing_in(Manners(first_s=0.0, each_s=0.0)) as url:
        assert run(["serving", "measure", url, *words]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    assert (load["load"], load["figures"]["output_tokens"]) == ("concurrency=1", 4)
    assert load["figures"]["good_per_s"] == pytest.approx(load["figures"]["requests_per_s"])
    with standing_in(
        Manners(fails_with=503, fails_from=1)
    ) as url:  # the first request asks how it is spoken to
        assert run(["serving", "measure", url, *words]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "url=nowhere: expected http://HOST:PORT"),
        (
            ["http://127.0.0.1:9", "--concurrency", "1", "--rate", "2"],
            "give one of --concurrency, --rate and --trace",
        ),
        (
            ["http://127.0.0.1:9", "--concurrency", "1.5"],
            "--concurrency 1.5: expected whole numbers of clients",
        ),
        (
            ["http://127.0.0.1:9", "--concurrency", "0"],
            "--concurrency 0: expected positive numbers such as 1,2,4",
        ),
        (
            ["http://127.0.0.1:9", "--rate", "x"],
            "--rate x: expected positive numbers such as 1,2,4",
        ),
        (
            ["http://127.0.0.1:9", "--ttft", "-1"],
            "--ttft -1: expected a positive number of milliseconds",
        ),
        (["http://127.0.0.1:9", "--requests", "1"], "requests=1: fewer than the 2 clients"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serving", "measure", *words]) == 2
    assert says in capsys.readouterr().err


def test_read_shows_files_of_several_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, content in zip(paths, (VLLM, AIPERF), strict=True):
        path.write_text(json.dumps(content))
    assert run(["serving", "read", *map(str, paths)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["vllm", "bench", "a.json", "concurrency=8"]
    assert lines[2].split()[:3] == ["aiperf", "b.json", "concurrency=16"]
    assert run(["serving", "read", str(paths[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loads"][0]["figures"]["requests"] == 40
