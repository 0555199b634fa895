"""The Grafana dashboard asks for the metrics that there are, and for all of them."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.software.logs.forms import megatron_line

from meshwright.cli import run
from meshwright.runs.watch.alarms import RunFacts
from meshwright.runs.watch.dashboard import dashboard
from meshwright.runs.watch.follow import Follower
from meshwright.runs.watch.status import RunStatus, metrics_text
from meshwright.software.log import Evaluation


def full_status(tmp_path: Path) -> RunStatus:
    """A run of which everything is known."""
    log = tmp_path / "train.log"
    log.write_text("".join(megatron_line(step, 2000, loss=2.5) for step in range(1, 21)))
    facts = RunFacts(
        chips=8,
        total_steps=30,
        usd_per_chip_hour=2.0,
        gbs=8,
        seq_len=128,
        step_s=1.9,
        step_interval_s=(1.0, 3.0),
        mfu=0.4,
        tflops_per_gpu=400.0,
    )
    status = Follower(path=log, facts=facts).poll(now_s=log.stat().st_mtime)
    return replace(
        status,
        validation=Evaluation(step=10, loss=2.6),
        saved_step=10,
        peak_memory_bytes=2.0**36,
    )


def test_queries_name_the_exporters_metrics_and_leave_none_out(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="needs 'meshwright[prometheus]'")
    status = full_status(tmp_path)
    assert not [
        one.name
        for one in fields(status)
        if getattr(status, one.name) is None and one.name not in ("best_validation",)
    ]
    served = set(re.findall(r"^(\w+)\{", metrics_text(status), re.M))
    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\bmeshwright_\w+", query)}
    assert asked == served
    for query in queries:  # each metric is of the chosen runs
        assert query.count('{run=~"$run"}') == len(re.findall(r"\bmeshwright_\w+", query))
    [run_variable] = [one for one in dashboard()["templating"]["list"] if one["name"] == "run"]
    assert run_variable["query"]["query"] == "label_values(meshwright_alarm, run)"


def test_panels_lie_beside_each_other(tmp_path: Path) -> None:
    panels = dashboard()["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not own & cells
        cells |= own
    assert len(cells) == 24 * (1 + max(y for _, y in cells))  # no hole
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"].endswith(".") for panel in panels)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full_status(tmp_path)
    log, file = str(tmp_path / "train.log"), tmp_path / "grafana.json"
    assert run(["watch", log, "--once", "--dashboard", str(file)]) == 0
    assert json.loads(file.read_text()) == dashboard()
    assert run(["watch", log, "--once", "--dashboard", str(tmp_path / "none" / "x.json")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
