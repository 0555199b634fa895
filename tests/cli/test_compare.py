from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import run

Capture = pytest.CaptureFixture[str]
ASKED = ["compare", "llama3-8b", "--tokens", "300B", "--gbs", "64", "--seq", "4k"]
CLUSTERS = ["--clusters", "h100:8,h100:16,a100-80:8"]
PRICES = """chip,kind,usd_per_hour,provider,date,source
h100,on-demand,4,ours,2026-11-01,our contract
h100,spot,1,ours,2026-11-01,our contract
a100-80,reserved,2,ours,2026-11-01,our contract
"""


def rows(capsys: Capture, *words: str) -> dict[str, dict[str, Any]]:
    run([*ASKED, *words, "--json"])
    return {row["cluster"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_a_row_is_what_estimate_says_of_its_cluster(capsys: Capture) -> None:
    found = rows(capsys, *CLUSTERS)
    assert set(found) == {"h100:8", "h100:16", "a100-80:8"}
    asked = ["--cluster", "h100:16", "--seq", "4096", "--gbs", "64", "--tokens", "300B", "--json"]
    assert run(["estimate", "llama3-8b", *asked]) == 0
    alone = json.loads(capsys.readouterr().out)["run"]
    assert found["h100:16"]["days"] == pytest.approx(alone["days"])
    assert found["h100:16"]["usd"] == pytest.approx(alone["usd"])
    assert found["h100:16"]["interval"]["days"] == pytest.approx(alone["interval"]["days"])


def test_the_front_holds_what_nothing_beats(capsys: Capture) -> None:
    found = rows(capsys, *CLUSTERS)
    for name, row in found.items():
        beaten = any(
            other["days"] <= row["days"] and other["usd"] <= row["usd"]
            for key, other in found.items()
            if key != name
        )
        assert row["on_front"] == (not beaten)
    assert [row["usd"] for row in found.values()] == sorted(row["usd"] for row in found.values())


def test_prices_of_a_file_take_the_catalogue_s_place(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(PRICES)
    found = rows(capsys, *CLUSTERS, "--prices", str(path))
    spot, plain = found["h100:8"]["prices"]
    assert (spot["kind"], plain["kind"]) == ("spot", "on-demand")
    hours = 8 * found["h100:8"]["days"] * 24
    assert found["h100:8"]["usd"] == spot["usd"] == pytest.approx(hours * 1)
    assert plain["usd"] == pytest.approx(hours * 4)
    assert [price["kind"] for price in found["a100-80:8"]["prices"]] == ["reserved"]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ("h100,weekly,4,x,2026-11-01,y", "'weekly' is no known kind of price"),
        ("h100,spot,free,x,2026-11-01,y", "row 2: usd_per_hour=free: expected dollars"),
        ("h100,spot,4,x,,y", "row 2: a price needs its date and its source"),
        ("h1000,spot,4,x,2026-11-01,y", "did you mean 'h100'"),
    ],
)
def test_a_broken_price_is_one_line(
    cells: str, words: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(f"{PRICES.splitlines()[0]}\n{cells}\n")
    assert run([*ASKED, *CLUSTERS, "--prices", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


def test_a_budget_that_nothing_keeps_is_exit_1(capsys: Capture) -> None:
    assert run([*ASKED, *CLUSTERS, "--budget", "1k"]) == 1
    assert capsys.readouterr().out.count("too dear") == 3


def test_a_deadline_changes_which_cluster_keeps_it(capsys: Capture) -> None:
    days = sorted(row["days"] for row in rows(capsys, *CLUSTERS).values())
    found = rows(capsys, *CLUSTERS, "--deadline", f"{(days[0] + days[1]) / 2:.2f}d")
    assert [not row["broken_limits"] for row in found.values()].count(True) == 1
    assert found["h100:16"]["broken_limits"] == []


def test_names_are_looked_up_before_anything_is_searched(capsys: Capture) -> None:
    assert run([*ASKED, "--clusters", "h100:8,h1000:8"]) == 2
    assert "did you mean 'h100'" in capsys.readouterr().err
    assert run(ASKED) == 2
    assert "--clusters h100:64,mi300x:64" in capsys.readouterr().err


def test_chips_are_compared_at_one_count(capsys: Capture) -> None:
    assert set(rows(capsys, "--chips", "h100,h200", "--count", "8")) == {"h100:8", "h200:8"}
