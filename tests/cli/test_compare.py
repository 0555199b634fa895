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
    assert found["h100:8"]["usd"] == plain["usd"] == pytest.approx(hours * 4)
    assert found["h100:8"]["price_kind"] == "on-demand"
    assert spot["usd"] == pytest.approx(hours * 1)
    assert [price["kind"] for price in found["a100-80:8"]["prices"]] == ["reserved"]
    assert found["a100-80:8"]["price_kind"] == "reserved"
    cheap = rows(capsys, *CLUSTERS, "--prices", str(path), "--pay", "spot")
    assert cheap["h100:8"]["usd"] == pytest.approx(hours * 1)


def test_a_kind_that_nobody_lists_is_said(capsys: Capture) -> None:
    assert run([*ASKED, "--clusters", "mi300x:8,tpu-v5e:32"]) == 0
    out = capsys.readouterr().out
    mi300x = next(line for line in out.splitlines() if line.startswith("mi300x:8"))
    assert mi300x.count("not listed") == 2  # spot and reserved
    tpu = next(line for line in out.splitlines() if line.startswith("tpu-v5e:32"))
    assert tpu.count("not listed") == 4  # and its power: no energy, no carbon
    assert "no published power of the chip is known, so no energy and no carbon: tpu-v5e:32" in out
    run([*ASKED, "--clusters", "mi300x:8", "--pay", "spot"])
    assert "no price spot is listed, so another kind counts: mi300x:8" in capsys.readouterr().out


def test_a_deadline_chooses_the_number_of_chips(capsys: Capture) -> None:
    [row] = rows(capsys, "--clusters", "h100", "--deadline", "12d").values()
    smaller = f"h100:{int(row['cluster'].partition(':')[2]) // 2}"
    assert row["days"] <= 12
    assert rows(capsys, "--clusters", smaller)[smaller]["days"] > 12


def test_a_budget_chooses_the_number_of_chips(capsys: Capture) -> None:
    dear = rows(capsys, "--clusters", "h100:512")["h100:512"]["usd"]
    [row] = rows(capsys, "--clusters", "h100", "--budget", str(dear - 1)).values()
    assert row["usd"] < dear
    [more] = rows(capsys, "--clusters", "h100", "--budget", str(dear + 1)).values()
    assert (row["cluster"], more["cluster"]) == ("h100:256", "h100:512")


def test_a_given_number_of_chips_stays(capsys: Capture) -> None:
    found = rows(capsys, "--clusters", "h100:8,h200", "--count", "16", "--deadline", "2d")
    assert set(found) == {"h100:8", "h200:16"}
    assert set(rows(capsys, "--clusters", "h100")) == {"h100:64"}
    assert run([*ASKED, "--clusters", "dgx-h100", "--deadline", "2d"]) == 2
    assert "say how many of this server, as in dgx-h100:8" in capsys.readouterr().err


def test_the_picture_has_every_cluster(tmp_path: Path, capsys: Capture) -> None:
    svg, page = tmp_path / "front.svg", tmp_path / "front.html"
    for path in (svg, page):
        assert run([*ASKED, *CLUSTERS, "--picture", str(path)]) == 0
        text = path.read_text()
        assert all(name in text for name in ("h100:8", "h100:16", "a100-80:8"))
    assert "Days against dollars" in svg.read_text()
    assert run([*ASKED, *CLUSTERS, "--picture", str(tmp_path / "front.gif")]) == 2
    assert "expected a name that ends in .png, .svg, .html or .md" in capsys.readouterr().err


def test_report_reads_what_compare_printed(tmp_path: Path, capsys: Capture) -> None:
    run([*ASKED, *CLUSTERS, "--json"])
    record = json.loads(capsys.readouterr().out)
    path = tmp_path / "compare.json"
    path.write_text(json.dumps(record))
    assert run(["report", str(path), "--json"]) == 0
    [part] = json.loads(capsys.readouterr().out)["parts"]
    blocks = {block["key"]: block for section in part["sections"] for block in section["blocks"]}
    shown = {
        row[1]: dict(zip(blocks["front"]["columns"], row, strict=True))
        for row in blocks["front"]["rows"]
    }
    assert {name: row["usd"] for name, row in shown.items()} == {
        row["cluster"]: row["usd"] for row in record["rows"]
    }
    assert len(blocks["prices"]["rows"]) == sum(len(row["prices"]) for row in record["rows"])


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
