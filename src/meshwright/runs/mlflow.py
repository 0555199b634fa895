"""Runs of a study in MLflow, through the REST interface of its tracking server."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from meshwright.runs.post import Address, Refused, get, post_json, read_address, with_path
from meshwright.runs.record import RunRecord
from meshwright.runs.results import StudyTables
from meshwright.runs.trackers import asked_of, curves, figures, run_name
from meshwright.software.log import Report
from meshwright.values.errors import ConfigError

__all__ = ["MlflowOptions", "MlflowTracker", "read_server"]

_API = "/api/2.0/mlflow/"
_URI = "MLFLOW_TRACKING_URI"
_USER, _PASSWORD, _TOKEN = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Of one request, as the REST interface limits them."""
_LONGEST_PARAM = 500
"""Letters of a parameter's value that servers since 1.0 take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MlflowOptions:
    """Where runs go."""

    server: Address
    experiment: str
    folder: Path
    """Holds which runs are there already."""
    study: str
    """The study's name, a tag of its runs."""
    clock: Callable[[], float] = field(default=time.time, repr=False)


def read_server(environment: Mapping[str, str] = os.environ) -> Address:
    """Read the server and its key from MLflow's own variables; ConfigError where none is told."""
    uri = environment.get(_URI, "")
    if not uri.startswith(("http://", "https://")):
        raise ConfigError(
            f"--mlflow: {_URI} must name a tracking server, such as http://127.0.0.1:5000;"
            " `mlflow server` starts one"
        )
    server = read_address(uri, option=_URI)
    headers = dict(server.headers)
    if token := environment.get(_TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    elif user := environment.get(_USER):
        pair = f"{user}:{environment.get(_PASSWORD, '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return replace(server, headers=headers)


class MlflowTracker:
    """Makes a run there for each run here, in one experiment.

    What was asked and predicted are its parameters, what was measured and the curves its metrics.
    """

    name = "mlflow"

    def __init__(self, options: MlflowOptions) -> None:
        self._options = options

    def add(self, record: RunRecord, tables: StudyTables, reports: Sequence[Report]) -> None:
        """Send a run; one that is there already is not sent twice."""
        options = self._options
        shown = options.folder / "shown" / record.run_id
        if shown.exists():
            return
        now_ms = int(options.clock() * 1e3)
        tags = {
            "mlflow.runName": run_name(record, tables.facts),
            "meshwright.study": options.study,
            "meshwright.run": record.run_id,
            "meshwright.chosen_because": record.chosen_because,
        }
        asked = {
            "experiment_id": self._experiment(),
            "run_name": run_name(record, tables.facts),
            "start_time": now_ms,
            "tags": _pairs(tags),
        }
        run_id = self._post("runs/create", asked)["run"]["info"]["run_id"]
        row = tables.row(record)
        params = {"layout": record.layout.words(), **asked_of(row)}
        for part in _parts(_pairs(params), _MOST_PARAMS):
            self._post("runs/log-batch", {"run_id": run_id, "params": part})
        for points in _parts(list(_metrics(row, reports, now_ms)), _MOST_METRICS):
            self._post("runs/log-batch", {"run_id": run_id, "metrics": points})
        status = "FINISHED" if record.failure is None else "FAILED"
        end = {"run_id": run_id, "status": status, "end_time": now_ms}
        self._post("runs/update", end)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.touch()

    def _experiment(self) -> str:
        """The experiment's number; it is made where it is not there."""
        name = self._options.experiment
        path = f"{_API}experiments/get-by-name"
        try:
            answer = get(
                with_path(self._options.server, path, urlencode({"experiment_name": name}))
            )
        except Refused as error:
            if error.code != 404:
                raise
            return str(self._post("experiments/create", {"name": name})["experiment_id"])
        return str(json.loads(answer)["experiment"]["experiment_id"])

    def _post(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        answer = json.loads(post_json(with_path(self._options.server, _API + path), content))
        return answer if isinstance(answer, dict) else {}


def _pairs(named: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"key": _key(name), "value": str(value)[:_LONGEST_PARAM]} for name, value in named.items()
    ]


def _parts(items: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]


def _key(name: str) -> str:
    """A name in the letters that MLflow takes."""
    return re.sub(r"[^\w ./-]+", "_", name)


def _metrics(
    row: Mapping[str, str | int | float | None], reports: Sequence[Report], now_ms: int
) -> Iterator[dict[str, Any]]:
    """Yield the row's figures at step 0, then the curves."""
    known = asked_of(row)
    for name, value in figures(row).items():
        if name not in known:
            yield {"key": f"study/{_key(name)}", "value": value, "timestamp": now_ms, "step": 0}
    for step, values in curves(reports):
        for name, value in values.items():
            if math.isfinite(value):
                yield {"key": name, "value": value, "timestamp": now_ms, "step": step}
