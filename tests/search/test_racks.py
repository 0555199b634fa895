from __future__ import annotations

import re
from pathlib import Path

import yaml

from meshwright import plan
from meshwright.search.plan import search_plans
from meshwright.search.request import PlanRequest

ASKED = {
    "model": "deepseek-v3",
    "seq_len": 4096,
    "gbs": 2048,
    "precision": "mxfp8",
    "top": 1,
    "racks": True,
}


def rack_note(**given: object) -> list[str]:
    found = search_plans(PlanRequest.of({**ASKED, "cluster": "gb200:288", **given}))
    return [note for note in found.notes if "chips idle" in note]


def test_what_the_note_says_is_what_the_smaller_cluster_takes(tmp_path: Path) -> None:
    [note] = rack_note()
    figures = re.search(r"faster: ([\d.]+) s on 256, ([\d.]+) s on 288;", note)
    form = re.search(r"'(pools: .*?)'", note)
    assert figures is not None and form is not None
    assert float(figures[1]) < float(figures[2])
    [pool] = yaml.safe_load(form[1])["pools"]
    assert pool == {"chip": "gb200", "count": 256, "domain_size": 64}
    assert "16 of each rack's 18 nodes" in note
    path = tmp_path / "racks.yaml"
    path.write_text(form[1])
    plans = plan(PlanRequest.of({**ASKED, "cluster": str(path)})).plans
    assert f"{min(each.step_s for each in plans):.3g}" == figures[1]


def test_nothing_is_said_of_what_is_no_faster_and_of_no_racks() -> None:
    assert rack_note(precision="bf16") == []  # 12.0 s on 288, 12.2 s on 256
    assert rack_note(cluster="gb200:256") == []  # racks that are not full
    assert rack_note(cluster="gb200:72") == []  # one rack


def test_the_second_search_is_offered_and_not_made_unasked() -> None:
    request = PlanRequest.of({**ASKED, "cluster": "gb200:288", "racks": False})
    assert (
        "racks of 72: --racks also looks at 64 of each rack's chips" in search_plans(request).notes
    )
