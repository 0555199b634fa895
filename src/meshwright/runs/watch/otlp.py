"""A run's metrics by OpenTelemetry's protocol: OTLP over HTTP, in its JSON encoding.

Names and labels are those of the Prometheus metrics, so that one dashboard serves both.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from meshwright.runs.post import Address, Refused, post_json, with_path
from meshwright.runs.watch.status import (
    ALARM_GAUGE,
    ALARM_HELP,
    RunStatus,
    alarms_of,
    gauges_of,
)
from meshwright.values.errors import ConfigError

__all__ = ["MetricsSender", "headers_of", "metrics_request"]

_PATH = "/v1/metrics"
"""Of this signal, behind the endpoint of all."""
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Variables of the protocol's own; the second goes before the first."""
_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
"""Ends of names, and the units as OpenTelemetry writes them."""


def metrics_request(status: RunStatus, *, now_s: float, service: str) -> dict[str, Any]:
    """Return an ExportMetricsServiceRequest: a gauge for each metric that is known and finite."""
    stamp = str(int(now_s * 1e9))  # 64 bits are text in the JSON of protobuf
    metrics = [
        _gauge(name, says, [_point(value, stamp, run=status.name)])
        for name, says, value in gauges_of(status)
        if math.isfinite(value)
    ]
    alarms = [_point(value, stamp, run=status.name, kind=kind) for kind, value in alarms_of(status)]
    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": _attributes({"service.name": service})},
                "scopeMetrics": [
                    {
                        "scope": {"name": "meshwright.watch"},
                        "metrics": [*metrics, _gauge(ALARM_GAUGE, ALARM_HELP, alarms)],
                    }
                ],
            }
        ]
    }


def _gauge(name: str, says: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return {"name": name, "description": says, "unit": unit, "gauge": {"dataPoints": points}}


def _point(value: float, stamp: str, **labels: str) -> dict[str, Any]:
    return {"timeUnixNano": stamp, "asDouble": value, "attributes": _attributes(labels)}


def _attributes(named: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in named.items()]


def headers_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what `KEY=VALUE,...` in the protocol's variables says, where a key to a server is."""
    found: dict[str, str] = {}
    for variable in _HEADERS:
        for name, value in _pairs(variable, environment.get(variable, "")):
            found[name] = value
    return found


def _pairs(variable: str, text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not equals or not name.replace("-", "").replace("_", "").isalnum() or "\n" in value:
            raise ConfigError(f"{variable}: expected NAME=VALUE,NAME=VALUE")
        yield name, value


class MetricsSender:
    """Sends every look's metrics; one that did not arrive is a gap."""

    def __init__(
        self,
        address: Address,
        *,
        warn: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        headers = {**address.headers, **headers_of(environment)}
        self._address = with_path(replace(address, headers=headers), _PATH)
        self._service = environment.get("OTEL_SERVICE_NAME") or "meshwright"
        self._warn, self._clock = warn, clock
        self._has_warned = False

    def take(self, status: RunStatus) -> None:
        """Send a look; a server that is away is one warning until it is back."""
        content = metrics_request(status, now_s=self._clock(), service=self._service)
        try:
            post_json(self._address, content)
        except (OSError, Refused) as error:
            if not self._has_warned:
                self._warn(f"--otlp {self._address.shown}: {error}; this look is not there")
            self._has_warned = True
        else:
            self._has_warned = False
