"""A run's status as Prometheus metrics, through prometheus_client: served on a port, or written as
a node exporter's text file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.runs.watch.alarms import ALARMS
from meshwright.runs.watch.status import RunStatus
from meshwright.values.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = [
    "GAUGES",
    "LOCAL_ADDRESS",
    "metrics_text",
    "serve_metrics",
    "write_metrics",
]

LOCAL_ADDRESS = "127.0.0.1"

GAUGES: dict[str, tuple[str, Callable[[RunStatus], float | None]]] = {
    "meshwright_step": ("Steps that are done.", lambda status: status.step),
    "meshwright_total_steps": ("Steps of the whole run.", lambda status: status.total_steps),
    "meshwright_restarts": (
        "Starts of the software behind the first.",
        lambda status: status.restarts,
    ),
    "meshwright_loss": ("The newest training loss.", lambda status: status.loss),
    "meshwright_validation_loss": (
        "The newest of held-out data.",
        lambda status: None if status.validation is None else status.validation.loss,
    ),
    "meshwright_saved_step": (
        "Of the newest checkpoint that the log calls written.",
        lambda status: status.saved_step,
    ),
    "meshwright_gradient_norm": ("The newest gradient norm.", lambda status: status.grad_norm),
    "meshwright_step_seconds": ("Median of the newest steps.", lambda status: status.step_s),
    "meshwright_predicted_step_seconds": ("By the plan.", lambda status: status.facts.step_s),
    "meshwright_tokens_per_second": ("Of all chips.", lambda status: status.tokens_per_s),
    "meshwright_mfu_ratio": (
        "Model FLOPs utilisation, full attention, recompute not counted.",
        lambda status: status.mfu,
    ),
    "meshwright_predicted_mfu_ratio": ("By the plan.", lambda status: status.facts.mfu),
    "meshwright_tflops_per_gpu": (
        "Model TFLOPS of one chip.",
        lambda status: status.tflops_per_gpu,
    ),
    "meshwright_peak_memory_bytes": (
        "Largest that a rank reported.",
        lambda status: status.peak_memory_bytes,
    ),
    "meshwright_left_seconds": (
        "Until the last step, at this speed.",
        lambda status: status.left_s,
    ),
    "meshwright_cost_usd": ("Of the reported steps.", lambda status: status.usd),
    "meshwright_silent_seconds": ("Since the log last grew.", lambda status: status.silent_s),
}
"""What is exported, with its help; what is not known is left out. All carry the label `run`."""


class _Collector:
    """Makes the metrics of the newest status when they are asked for."""

    def __init__(self, newest: Callable[[], RunStatus]) -> None:
        self.newest = newest

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        status = self.newest()
        for name, (says, value_of) in GAUGES.items():
            value = value_of(status)
            if value is not None:
                gauge = GaugeMetricFamily(name, says, labels=["run"])
                gauge.add_metric([status.name], float(value))
                yield gauge
        alarms = GaugeMetricFamily(
            "meshwright_alarm", "1 while the rule of that kind holds.", labels=["run", "kind"]
        )
        raised = {alarm.kind for alarm in status.alarms}
        for kind in ALARMS:
            alarms.add_metric([status.name, kind], float(kind in raised))
        yield alarms


def _registry(newest: Callable[[], RunStatus]) -> CollectorRegistry:
    if find_spec("prometheus_client") is None:
        raise MissingExtraError("prometheus_client", "prometheus")
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(newest))
    return registry


def metrics_text(status: RunStatus) -> str:
    """Return the metrics in Prometheus' text format."""
    registry = _registry(lambda: status)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode("utf-8")


def serve_metrics(
    newest: Callable[[], RunStatus], *, port: int, host: str = LOCAL_ADDRESS
) -> Callable[[], None]:
    """Serve them under `/metrics` from a thread; return what ends it. ConfigError where the port
    can't be had."""
    registry = _registry(newest)
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--metrics-port {port} on {host}: {getattr(error, 'strerror', None) or error}"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def write_metrics(status: RunStatus, path: Path) -> None:
    """Write them whole or not at all, as node exporters' textfile collector reads them."""
    registry = _registry(lambda: status)
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigError(f"--textfile {path}: {error.strerror}") from None
