"""How a run goes: its status for people, and as metrics for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from meshwright.runs.outcome import Failure
from meshwright.runs.watch.alarms import ALARMS, WINDOW, Alarm, RunFacts, find_alarms, quiet_limit_s
from meshwright.software.log import Evaluation, LogReading, Report, steady_reports
from meshwright.values.errors import ConfigError, MissingExtraError
from meshwright.values.units import GIB, HOUR_S

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = [
    "ALARM_GAUGE",
    "ALARM_HELP",
    "GAUGES",
    "LOCAL_ADDRESS",
    "RunStatus",
    "alarms_of",
    "gauges_of",
    "serve_metrics",
    "status_of",
    "write_metrics",
]

RunState = Literal["waiting", "running", "done", "ended", "stopped"]
"""No step yet; steps come; all steps are done; it ended well before its last; something fatal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """A run at a moment; None is not known."""

    name: str
    framework: str | None
    state: RunState
    facts: RunFacts
    step: int | None
    total_steps: int | None
    restarts: int
    """Starts of the software behind the first, by its count of steps going back."""
    loss: float | None
    """The newest."""
    grad_norm: float | None
    validation: Evaluation | None
    """The newest."""
    best_validation: Evaluation | None
    """The least of those that the log holds."""
    saved_step: int | None
    """Of the newest checkpoint that the log calls written."""
    step_s: float | None
    """Median of the newest reports, warm-ups left out."""
    tokens_per_s: float | None
    """Of all chips."""
    tflops_per_gpu: float | None
    mfu: float | None
    """In the plan's count, from the step's time; None without a plan."""
    peak_memory_bytes: float | None
    busy_s: float
    """In reported steps; starts, evaluations and checkpoints come on top."""
    left_s: float | None
    """Until the last step, at this speed."""
    silent_s: float | None
    """Since the log last grew."""
    alarms: tuple[Alarm, ...]
    notes: tuple[str, ...] = ()
    """What the training's own directory says last."""
    is_given_up: bool = False
    """Whether its starter stopped it for good."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "ended") or self.is_given_up

    @property
    def usd(self) -> float | None:
        """Of the reported steps."""
        return self._usd(self.busy_s)

    @property
    def usd_left(self) -> float | None:
        """Until the last step."""
        return self._usd(self.left_s)

    def _usd(self, seconds: float | None) -> float | None:
        chips, price = self.facts.chips, self.facts.usd_per_chip_hour
        if chips is None or price is None or seconds is None:
            return None
        return chips * price * seconds / HOUR_S

    @property
    def over_plan(self) -> float | None:
        """Times the predicted step."""
        if self.step_s is None or not self.facts.step_s:
            return None
        return self.step_s / self.facts.step_s

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `watch --json` prints; numbers that JSON has not are None."""
        return {name: _plain(getattr(self, _FIELDS.get(name, name))) for name in _PRINTED}

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        """Of one chip."""
        tokens, chips = self.tokens_per_s, self.facts.chips
        return None if tokens is None or chips is None else tokens / chips

    @property
    def peak_memory_gib(self) -> float | None:
        """The peak as it is printed."""
        return None if self.peak_memory_bytes is None else self.peak_memory_bytes / GIB

    @property
    def predicted(self) -> dict[str, Any]:
        """What the plan says of a step."""
        facts = self.facts
        interval = None if facts.step_interval_s is None else list(facts.step_interval_s)
        return {"step_s": facts.step_s, "mfu": facts.mfu, "interval": {"step_s": interval}}


_PRINTED = (
    *("run", "framework", "state", "step", "total_steps", "restarts", "loss", "grad_norm"),
    *("validation", "best_validation", "saved_step", "step_s", "tokens_per_s"),
    *("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_memory_gib", "predicted"),
    *("over_plan", "busy_s", "left_s", "usd", "usd_left", "silent_s", "notes", "alarms"),
)
"""What `watch --json` prints, in its order."""
_FIELDS = {"run": "name"}


def _plain(value: Any) -> Any:
    """Return a field in plain types; what is no finite number is None."""
    if isinstance(value, Evaluation):
        return {"step": value.step, "loss": _plain(value.loss)}
    if isinstance(value, tuple):
        return [part.to_dict() if isinstance(part, Alarm) else part for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def status_of(
    name: str,
    reading: LogReading | None,
    *,
    facts: RunFacts,
    silent_s: float | None = None,
    failure: Failure | None = None,
    end: Literal["done", "ended"] | None = None,
    notes: Sequence[str] = (),
    is_given_up: bool = False,
) -> RunStatus:
    """Return how a run does; `end` is what its starter or its software says of its end.

    Formula:  step_s = median of the newest WINDOW steady reports; mfu = predicted mfu * predicted
              step_s / step_s; left_s = (total_steps - step) * step_s; busy_s = sum over reports of
              step_s * steps since the report before
    Units:    s, tokens/s, TFLOPS, shares
    Source:   model FLOPs are the same in plan and run, so MFU goes with 1 / step time
    Valid:    a run of the plan's batch
    Checked:  tests/runs/watch/test_status.py
    """
    reports = reading.reports if reading else ()
    step_s = _step_s(reports, facts)
    total = facts.total_steps or (reading.total_steps if reading else None)
    step = reports[-1].step if reports else None
    evaluations = reading.evaluations if reading else ()
    is_done = end == "done" or (step is not None and total is not None and step >= total)
    ended = is_done or end == "ended"
    is_saving = reading is not None and reading.is_saving
    limit_s = quiet_limit_s(_usual_s(reports, facts), step_s=step_s, is_saving=is_saving)
    failure = None if ended else failure
    alarms = find_alarms(
        reports, facts=facts, silent_s=silent_s, limit_s=limit_s, failure=failure, ended=ended
    )
    tflops = _by_plan(facts.tflops_per_gpu, facts, step_s)
    return RunStatus(
        name=name,
        framework=reading.framework if reading else None,
        state=_state(alarms, is_done=is_done, ended=ended, reports=reports),
        facts=facts,
        step=step,
        total_steps=total,
        restarts=reports[-1].start if reports else 0,
        loss=_newest(reports, "loss"),
        grad_norm=_newest(reports, "grad_norm"),
        validation=evaluations[-1] if evaluations else None,
        best_validation=_best(evaluations),
        saved_step=reading.saved_step if reading else None,
        step_s=step_s,
        tokens_per_s=_tokens_per_s(reports, facts, step_s),
        tflops_per_gpu=_newest(reports, "tflops_per_gpu") if tflops is None else tflops,
        mfu=_by_plan(facts.mfu or None, facts, step_s),
        peak_memory_bytes=_peak(reading),
        busy_s=_busy_s(reports, facts, num_reports=reading.num_reports if reading else 0),
        left_s=None if is_done else _left_s(step, total, step_s),
        silent_s=silent_s,
        alarms=alarms,
        notes=tuple(notes),
        is_given_up=is_given_up,
    )


def _state(
    alarms: Sequence[Alarm], *, is_done: bool, ended: bool, reports: Sequence[Report]
) -> RunState:
    if any(alarm.fatal for alarm in alarms):
        return "stopped"
    if ended:
        return "done" if is_done else "ended"
    return "running" if reports else "waiting"


def _left_s(step: int | None, total: int | None, step_s: float | None) -> float | None:
    if total is None or step is None or step_s is None:
        return None
    return (total - step) * step_s


def _best(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    finite = (one for one in evaluations if math.isfinite(one.loss))
    return min(finite, key=lambda one: one.loss, default=None)


def _step_s(reports: Sequence[Report], facts: RunFacts) -> float | None:
    times = [facts.seconds(report) for report in steady_reports(reports)]
    known = [found for found in times if found is not None]
    return median(known[-WINDOW:]) if known else None


def _by_plan(predicted: float | None, facts: RunFacts, step_s: float | None) -> float | None:
    """A predicted rate at the step's real time; None where one of them is not known."""
    if predicted is None or not facts.step_s or not step_s:
        return None
    return predicted * facts.step_s / step_s


def _newest(reports: Sequence[Report], name: str) -> float | None:
    """The newest figure of that name that a report tells."""
    told = (getattr(report, name) for report in reversed(reports))
    return next((value for value in told if value is not None), None)


def _peak(reading: LogReading | None) -> float | None:
    return None if reading is None else reading.peak_reserved_bytes or reading.peak_allocated_bytes


def _tokens_per_s(reports: Sequence[Report], facts: RunFacts, step_s: float | None) -> float | None:
    if facts.tokens is not None and step_s is not None:
        return facts.tokens / step_s
    rates = [
        report.tokens_per_s for report in steady_reports(reports) if report.tokens_per_s is not None
    ]
    return median(rates[-WINDOW:]) if rates else None


def _gaps(reports: Sequence[Report]) -> list[int]:
    """Steps that each report stands for: those since the one before in the same start."""
    usual = [
        b.step - a.step
        for a, b in pairwise(reports)
        if a.step is not None and b.step is not None and b.step > a.step
    ]
    gap = round(median(usual)) if usual else 1
    found = [gap]
    for a, b in pairwise(reports):
        known = a.step is not None and b.step is not None and a.start == b.start and b.step > a.step
        found.append((b.step or 0) - (a.step or 0) if known else gap)
    return found[: len(reports)]


def _busy_s(reports: Sequence[Report], facts: RunFacts, *, num_reports: int) -> float:
    """Of long logs the first reports are counted alone: they are taken to be like the others."""
    spans = [
        (facts.seconds(report) or 0.0) * gap
        for report, gap in zip(reports, _gaps(reports), strict=True)
    ]
    return sum(spans) * num_reports / len(spans) if spans else 0.0


def _usual_s(reports: Sequence[Report], facts: RunFacts) -> float | None:
    """Usual time between two reports; None before there are two."""
    spans = [
        found * gap
        for report, gap in zip(reports, _gaps(reports), strict=True)
        if (found := facts.seconds(report)) is not None
    ]
    return median(spans) if len(spans) >= 2 else None


LOCAL_ADDRESS = "127.0.0.1"
_MFU_HELP = "Model FLOPs utilisation, full attention, recompute not counted."

GAUGES: tuple[tuple[str, str, str], ...] = (
    ("meshwright_step", "step", "Steps that are done."),
    ("meshwright_total_steps", "total_steps", "Steps of the whole run."),
    ("meshwright_restarts", "restarts", "Starts of the software behind the first."),
    ("meshwright_loss", "loss", "The newest training loss."),
    ("meshwright_validation_loss", "validation.loss", "The newest of held-out data."),
    ("meshwright_saved_step", "saved_step", "Of the newest checkpoint that the log calls written."),
    ("meshwright_gradient_norm", "grad_norm", "The newest gradient norm."),
    ("meshwright_step_seconds", "step_s", "Median of the newest steps."),
    ("meshwright_predicted_step_seconds", "facts.step_s", "By the plan."),
    ("meshwright_tokens_per_second", "tokens_per_s", "Of all chips."),
    ("meshwright_mfu_ratio", "mfu", _MFU_HELP),
    ("meshwright_predicted_mfu_ratio", "facts.mfu", "By the plan."),
    ("meshwright_tflops_per_gpu", "tflops_per_gpu", "Model TFLOPS of one chip."),
    ("meshwright_peak_memory_bytes", "peak_memory_bytes", "Largest that a rank reported."),
    ("meshwright_left_seconds", "left_s", "Until the last step, at this speed."),
    ("meshwright_cost_usd", "usd", "Of the reported steps."),
    ("meshwright_silent_seconds", "silent_s", "Since the log last grew."),
)
"""What is exported: its name, the field of RunStatus, its help; what is not known is left out. All
carry the label `run`."""

ALARM_GAUGE = "meshwright_alarm"
"""One for each rule, with the label `kind`."""
ALARM_HELP = "1 while the rule of that kind holds."


def gauges_of(status: RunStatus) -> Iterator[tuple[str, str, float]]:
    """Yield the name, the help and the value of each metric that is known."""
    for name, path, says in GAUGES:
        value: Any = status
        for field in path.split("."):
            value = None if value is None else getattr(value, field)
        if value is not None:
            yield name, says, float(value)


def alarms_of(status: RunStatus) -> Iterator[tuple[str, float]]:
    """Yield every rule's kind, and 1 where it holds."""
    raised = {alarm.kind for alarm in status.alarms}
    for kind in ALARMS:
        yield kind, float(kind in raised)


class _Collector:
    """Makes the metrics of the newest status when they are asked for."""

    def __init__(self, newest: Callable[[], RunStatus]) -> None:
        self.newest = newest

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        status = self.newest()
        for name, says, value in gauges_of(status):
            gauge = GaugeMetricFamily(name, says, labels=["run"])
            gauge.add_metric([status.name], value)
            yield gauge
        alarms = GaugeMetricFamily(ALARM_GAUGE, ALARM_HELP, labels=["run", "kind"])
        for kind, is_raised in alarms_of(status):
            alarms.add_metric([status.name, kind], is_raised)
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
    """Serve them under `/metrics` from a thread; return what ends it, or raise ConfigError."""
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
