"""A Grafana dashboard of the metrics that `watch` serves, sends and writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.values.errors import ConfigError

__all__ = ["PANELS", "Panel", "dashboard", "write_dashboard"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
"""Of Grafana's grid."""
_RUN = '{run=~"$run"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A question and the metrics that answer it."""

    title: str
    says: str
    kind: Literal["stat", "timeseries", "state-timeline"]
    unit: str
    """As Grafana names it."""
    queries: tuple[tuple[str, str], ...]
    """PromQL, in which RUN is the chosen runs; and the words of its line."""
    width: int
    height: int = 8


PANELS: tuple[Panel, ...] = (
    Panel(
        title="Done",
        says="Steps that are done, of the whole run.",
        kind="stat",
        unit="percentunit",
        queries=(("meshwright_step RUN / meshwright_total_steps RUN", "{{run}}"),),
        width=4,
        height=4,
    ),
    Panel(
        title="Time left",
        says="Until the last step, at this speed.",
        kind="stat",
        unit="s",
        queries=(("meshwright_left_seconds RUN", "{{run}}"),),
        width=4,
        height=4,
    ),
    Panel(
        title="Step against plan",
        says="Measured over predicted step time. Above 1 the run is slower than its plan.",
        kind="stat",
        unit="none",
        queries=(
            ("meshwright_step_seconds RUN / meshwright_predicted_step_seconds RUN", "{{run}}"),
        ),
        width=4,
        height=4,
    ),
    Panel(
        title="Cost so far",
        says="Of the reported steps. Starts, evaluations and checkpoints come on top.",
        kind="stat",
        unit="currencyUSD",
        queries=(("meshwright_cost_usd RUN", "{{run}}"),),
        width=4,
        height=4,
    ),
    Panel(
        title="Steps since the last checkpoint",
        says="What a failure at this moment would undo.",
        kind="stat",
        unit="none",
        queries=(("meshwright_step RUN - meshwright_saved_step RUN", "{{run}}"),),
        width=4,
        height=4,
    ),
    Panel(
        title="Alarms",
        says="Rules that hold. The rules are those of `meshwright watch`.",
        kind="stat",
        unit="none",
        queries=(("sum by (run) (meshwright_alarm RUN)", "{{run}}"),),
        width=4,
        height=4,
    ),
    Panel(
        title="Loss",
        says="The newest of training, and the newest of held-out data.",
        kind="timeseries",
        unit="none",
        queries=(
            ("meshwright_loss RUN", "{{run}} training"),
            ("meshwright_validation_loss RUN", "{{run}} held out"),
        ),
        width=12,
    ),
    Panel(
        title="Gradient norm",
        says="The newest.",
        kind="timeseries",
        unit="none",
        queries=(("meshwright_gradient_norm RUN", "{{run}}"),),
        width=12,
    ),
    Panel(
        title="Time of a step",
        says="The median of the newest steps, beside the plan's.",
        kind="timeseries",
        unit="s",
        queries=(
            ("meshwright_step_seconds RUN", "{{run}} measured"),
            ("meshwright_predicted_step_seconds RUN", "{{run}} plan"),
        ),
        width=8,
    ),
    Panel(
        title="Tokens a second",
        says="Of all chips.",
        kind="timeseries",
        unit="short",
        queries=(("meshwright_tokens_per_second RUN", "{{run}}"),),
        width=8,
    ),
    Panel(
        title="MFU",
        says="Model FLOPs utilisation, beside the plan's. Unknown without a plan.",
        kind="timeseries",
        unit="percentunit",
        queries=(
            ("meshwright_mfu_ratio RUN", "{{run}} measured"),
            ("meshwright_predicted_mfu_ratio RUN", "{{run}} plan"),
        ),
        width=8,
    ),
    Panel(
        title="TFLOPS of a GPU",
        says="Model FLOPs, as the log or the plan counts them.",
        kind="timeseries",
        unit="none",
        queries=(("meshwright_tflops_per_gpu RUN", "{{run}}"),),
        width=8,
    ),
    Panel(
        title="Peak memory",
        says="The largest that a rank reported.",
        kind="timeseries",
        unit="bytes",
        queries=(("meshwright_peak_memory_bytes RUN", "{{run}}"),),
        width=8,
    ),
    Panel(
        title="Silence and restarts",
        says="Seconds since the log last grew, and starts behind the first.",
        kind="timeseries",
        unit="none",
        queries=(
            ("meshwright_silent_seconds RUN", "{{run}} silent, s"),
            ("meshwright_restarts RUN", "{{run}} restarts"),
        ),
        width=8,
    ),
    Panel(
        title="Which rule holds",
        says="1 while a rule of `meshwright watch` holds.",
        kind="state-timeline",
        unit="none",
        queries=(("meshwright_alarm RUN", "{{run}} {{kind}}"),),
        width=24,
    ),
)


def dashboard() -> dict[str, Any]:
    """Return what Grafana imports: a data source and runs to choose, and the panels in rows."""
    panels, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + row
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        x, row = x + panel.width, panel.height
        panels.append(_panel(panel, number, place))
    return {
        "uid": "meshwright-watch",
        "title": "Meshwright: trainings",
        "tags": ["meshwright"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _SOURCE,
            "expr": query.replace(" RUN", _RUN),
            "legendFormat": legend,
        }
        for i, (query, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "noValue": "not known"}
    if panel.kind == "state-timeline" or panel.title == "Alarms":
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
        defaults |= {
            "color": {"mode": "thresholds"},
            "thresholds": {"mode": "absolute", "steps": steps},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }


def _variables() -> list[dict[str, Any]]:
    """What a reader chooses above the panels."""
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
        },
        {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": "label_values(meshwright_alarm, run)", "refId": "runs"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def write_dashboard(path: Path) -> None:
    """Write it as JSON."""
    try:
        path.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--dashboard {path}: {error.strerror}") from None
