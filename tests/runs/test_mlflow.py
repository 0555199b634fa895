"""Runs of a study in MLflow: what its tracking server is asked, by one that stands in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.runs.test_trackers import FAILED, RUN, TABLES, reports, study, view_of

from meshwright import cli
from meshwright.runs.mlflow import MlflowOptions, MlflowTracker, read_server
from meshwright.runs.post import Address
from meshwright.runs.trackers import Tracking, track, tracked
from meshwright.software.log import Report
from meshwright.values.errors import ConfigError

SECRET = "T0PS3CRET"


class Server:
    """Takes what MLflow's REST interface takes, within its limits."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.authorization: set[str | None] = set()
        self.is_away = False

    def answer(self, path: str, content: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.is_away:
            return 503, {}
        asked = path.removeprefix("/api/2.0/mlflow/")
        if asked == "experiments/get-by-name":
            found = self.experiments.get(content["experiment_name"])
            missing = {"error_code": "RESOURCE_DOES_NOT_EXIST"}
            return (
                (404, missing) if found is None else (200, {"experiment": {"experiment_id": found}})
            )
        if asked == "experiments/create":
            self.experiments[content["name"]] = str(len(self.experiments) + 1)
            return 200, {"experiment_id": self.experiments[content["name"]]}
        if asked == "runs/create":
            run_id = f"r{len(self.runs)}"
            self.runs[run_id] = {**content, "params": {}, "metrics": {}}
            return 200, {"run": {"info": {"run_id": run_id}}}
        run = self.runs[content["run_id"]]
        if asked == "runs/update":
            run["status"] = content["status"]
            return 200, {}
        assert asked == "runs/log-batch"
        assert len(content.get("params", ())) <= 100
        assert len(content.get("metrics", ())) <= 1000
        for param in content.get("params", ()):
            assert param["key"] not in run["params"]
            run["params"][param["key"]] = param["value"]
        for metric in content.get("metrics", ()):
            run["metrics"].setdefault(metric["key"], {})[metric["step"]] = metric["value"]
        return 200, {}


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            words = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.reply(*state.answer(parts.path, words))

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(*state.answer(self.path, content))

        def reply(self, code: int, content: dict[str, Any]) -> None:
            state.authorization.add(self.headers["Authorization"])
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state, f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()


def tracker(url: str, folder: Path) -> MlflowTracker:
    return MlflowTracker(
        MlflowOptions(
            server=Address(url=url, shown=url),
            experiment="mesh & wright",
            folder=folder,
            study="5f5f",
        )
    )


def test_a_run_has_its_words_its_figures_and_its_curves(
    server: tuple[Server, str], tmp_path: Path
) -> None:
    state, url = server
    for _ in range(2):  # the second finds it there
        tracker(url, tmp_path).add(RUN, TABLES, reports())
    tracker(url, tmp_path).add(replace(FAILED, run_id="other"), TABLES, ())
    assert state.experiments == {"mesh & wright": "1"}
    found, failed = state.runs.values()
    assert (found["experiment_id"], found["run_name"]) == ("1", f"llama3-8b-{RUN.run_id}")
    assert (found["status"], failed["status"]) == ("FINISHED", "FAILED")
    tags = {tag["key"]: tag["value"] for tag in found["tags"]}
    assert (tags["meshwright.study"], tags["meshwright.run"]) == ("5f5f", RUN.run_id)
    assert found["params"]["layout"] == RUN.layout.words()
    assert found["params"]["TP"] == str(RUN.layout.tp)
    assert "predicted_step_s" in found["params"]
    assert found["metrics"]["loss"] == {1: 9, 2: 8, 3: 7, 4: 6}
    assert found["metrics"]["step_s"] == pytest.approx({1: 2.001, 2: 2.002, 3: 2.003, 4: 2.004})
    assert found["metrics"]["study/Time per Step"] == {0: 2.0}
    assert not set(found["params"]) & {name.removeprefix("study/") for name in found["metrics"]}


def test_long_curves_go_in_parts_and_a_loss_that_is_none_is_left_out(
    server: tuple[Server, str], tmp_path: Path
) -> None:
    state, url = server
    long = [Report(step=i, step_s=1.0, loss=float("nan")) for i in range(1, 2501)]
    tracker(url, tmp_path).add(RUN, TABLES, long)
    [found] = state.runs.values()
    assert len(found["metrics"]["step_s"]) == 2500
    assert "loss" not in found["metrics"]


def test_a_server_that_is_away_is_a_line_and_the_run_is_sent_later(
    server: tuple[Server, str], tmp_path: Path
) -> None:
    state, url = server
    state.is_away = True
    assert track([tracker(url, tmp_path)], RUN, TABLES, ()) == (
        f"mlflow: {RUN.run_id} is not shown (OSError: it answered 503)",
    )
    state.is_away = False
    assert track([tracker(url, tmp_path)], RUN, TABLES, ()) == ()
    assert len(state.runs) == 1


def test_a_study_sends_runs_as_they_end(
    server: tuple[Server, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, url = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    store = study(tmp_path / "study", RUN)
    shown = tracked(
        lambda view: None,
        Tracking(mlflow_experiment="mesh"),
        store=store,
        facts=TABLES.facts,
        model=TABLES.model,
        warn=pytest.fail,
    )
    for _ in range(2):
        shown(view_of(RUN))
    [found] = state.runs.values()
    assert found["metrics"]["step_s"] == pytest.approx({1: 2.0, 2: 2.0, 3: 2.0})
    assert state.authorization == {f"Bearer {SECRET}"}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written


def test_the_server_is_what_mlflows_variables_say() -> None:
    # the example of RFC 7617, section 2
    found = read_server(
        {
            "MLFLOW_TRACKING_URI": "https://example.org/team/",
            "MLFLOW_TRACKING_USERNAME": "Aladdin",
            "MLFLOW_TRACKING_PASSWORD": "open sesame",
        }
    )
    assert found.headers == {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}
    assert "QWxh" not in repr(found)
    for uri in ("", "sqlite:///mlflow.db", "databricks", f"file:///{SECRET}"):
        with pytest.raises(ConfigError, match="must name a tracking server") as caught:
            read_server({"MLFLOW_TRACKING_URI": uri})
        assert SECRET not in str(caught.value)


def test_no_server_stops_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "study"
    words = ["tune", "tiny-llama", "--cluster", "local:2", "--mlflow", "mesh", "-o", str(folder)]
    assert cli.run(words) == 2
    assert "MLFLOW_TRACKING_URI must name a tracking server" in capsys.readouterr().err
    assert not folder.exists()
