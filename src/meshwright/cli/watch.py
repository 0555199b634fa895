"""`meshwright watch`: how a training does, from its logs as they grow."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap

import typer
from rich.console import Console
from rich.text import Text

from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import JsonFlag, warn
from meshwright.runs.post import read_address
from meshwright.runs.watch.dashboard import write_dashboard
from meshwright.runs.watch.follow import Output, Taker, follow, watched
from meshwright.runs.watch.notify import Notifier
from meshwright.runs.watch.otlp import MetricsSender
from meshwright.runs.watch.status import RunStatus
from meshwright.values.errors import ConfigError
from meshwright.values.units import (
    DAY_S,
    GIB,
    HOUR_S,
    MINUTE_S,
    format_count,
    format_seconds,
    parse_duration,
)

__all__ = ["drawn", "page", "shown", "watch"]


@command
def watch(
    target: Path = argument(
        REQUIRED, "A training's directory, a run's directory (with stdout.log), or a log file."
    ),
    plan: Path | None = option(
        None, "What `plan --json` wrote; FILE#2 is its second plan.", metavar="FILE"
    ),
    steps: int | None = option(None, "Of the whole run [default: as its log or directory says]."),
    gpus: int | None = option(None, "Of the run, for its cost [default: the plan's]."),
    usd_per_hour: float | None = option(None, "USD per chip and hour [default: the catalogue's]."),
    every: str = option("10s", "Between two looks.", metavar="TIME"),
    once: bool = option(False, "Look once; exit code 1 where the run makes no progress any more."),
    metrics_port: int | None = option(
        None, "Serve Prometheus metrics on this port, under /metrics."
    ),
    metrics_host: str | None = option(
        None, "Address of that port [default: 127.0.0.1, this machine alone]."
    ),
    textfile: Path | None = option(None, "Write the metrics for a node exporter.", metavar="FILE"),
    otlp: str | None = option(
        None,
        "Send the metrics to this OpenTelemetry endpoint, or the one in a file.",
        metavar="URL",
    ),
    notify: str | None = option(
        None,
        "Post alarms, starts and ends as JSON to this webhook, or the one in a file.",
        metavar="URL",
    ),
    dashboard: Path | None = option(
        None, "Write a Grafana dashboard of the metrics.", metavar="FILE"
    ),
    json_output: JsonFlag = False,
) -> None:
    """Show how a training does, and say when something is wrong.

    Reads logs of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, nanotron, DeepSpeed and the
    embedded trainer as they grow, and writes nothing there. The step's time against the plan's
    gives MFU, for model FLOPs are the same in both. Six rules warn: an error at the log's end, a
    number that is none, silence, a loss that leaps, steps that grow slow, steps beyond the plan's
    interval (docs/watch.md).

    Prints a page that is drawn again, into a pipe a line for each change; ends when all steps are
    done.

    Examples:

      meshwright watch train-llama3-8b

      meshwright watch logs/train.log --plan plan.json --metrics-port 9400

      meshwright watch slurm-4711.out --steps 5000 --once --json

      meshwright watch train-llama3-8b --notify ~/.config/meshwright/hook --otlp http://127.0.0.1:4318
    """
    if metrics_host is not None and metrics_port is None:
        raise ConfigError(f"--metrics-host {metrics_host}: of no effect without --metrics-port")
    if once and metrics_port is not None:
        raise ConfigError(
            "--metrics-port: a look that ends serves nobody; --textfile writes the metrics of"
            " --once"
        )
    every_s = float(parse_duration(every, name="--every"))
    follower = follow(target, plan=plan, steps=steps, chips=gpus, usd_per_hour=usd_per_hour)
    output = Output(
        port=metrics_port,
        host=metrics_host,
        textfile=textfile,
        takers=_takers(otlp=otlp, notify=notify),
    )
    if dashboard is not None:
        write_dashboard(dashboard)
    if once:
        now_s = time.time()
        status = output.write(follower.poll(now_s=now_s))
        lines = [json.dumps(status.to_dict())] if json_output else page(status, now_s=now_s)
        typer.echo("\n".join(lines))
    else:
        with shown(as_json=json_output) as show:
            status = watched(follower, every_s=every_s, output=output, show=show)
    if status.state in ("stopped", "waiting"):
        raise typer.Exit(1)


def _takers(*, otlp: str | None, notify: str | None) -> tuple[Taker, ...]:
    """Return the servers that are told; what they refuse is a warning."""
    found = list[Taker]()
    if otlp is not None:
        found.append(MetricsSender(read_address(otlp, option="--otlp"), warn=warn))
    if notify is not None:
        found.append(Notifier(read_address(notify, option="--notify"), warn=warn))
    return tuple(found)


@contextmanager
def shown(*, as_json: bool) -> Iterator[Callable[[RunStatus], None]]:
    """Give what a status is shown to."""
    if as_json:
        yield _Changes(lambda status: json.dumps(status.to_dict())).show
        return
    if not sys.stdout.isatty():
        yield _Changes(_line).show
        return
    from rich.live import Live

    console = Console(markup=False, highlight=False)
    with Live(console=console, auto_refresh=False) as live:

        def draw(status: RunStatus) -> None:
            live.update(drawn(page(status, now_s=time.time()), console.width), refresh=True)

        yield draw


def drawn(lines: Sequence[str], width: int) -> Text:
    """Return a page as a terminal shows it: long lines go on under their words, alarms in red."""
    found = []
    for line in lines:
        is_alarm = line.startswith("! ")
        parts = wrap(line, width, subsequent_indent=" " * (_ALARM_LEFT if is_alarm else _LEFT))
        found.append(Text("\n".join(parts), style="bold red" if is_alarm else ""))
    return Text("\n").join(found)


_LEFT, _ALARM_LEFT = 10, 14
"""Columns of the names that stand before the words."""


class _Changes:
    """A line for each change: another step or another alarm."""

    def __init__(self, write: Callable[[RunStatus], str]) -> None:
        self.write, self.last = write, ""

    def show(self, status: RunStatus) -> None:
        """Print a status that differs from the one before."""
        seen = repr(
            (
                status.step,
                status.restarts,
                status.state,
                [alarm.kind for alarm in status.alarms],
                status.notes,
            )
        )
        if seen != self.last:
            self.last = seen
            print(self.write(status), flush=True)


def _line(status: RunStatus) -> str:
    """Everything in one line, alarms at its end."""
    parts = [time.strftime("%H:%M:%S"), f"{status.state}: {_steps(status)}"]
    parts += [] if status.loss is None else [f"loss {status.loss:.4f}"]
    parts += (
        []
        if status.step_s is None
        else [f"step {format_seconds(status.step_s)}{_over_plan(status)}"]
    )
    parts += [] if status.tokens_per_s is None else [f"{status.tokens_per_s:,.0f} tokens/s"]
    parts += [] if status.mfu is None else [f"MFU {status.mfu:.1%}"]
    parts += [] if status.left_s is None else [f"{_span(status.left_s)} left"]
    parts += [] if status.usd is None else [f"{format_count(status.usd)} USD"]
    parts += [f"! {alarm.kind}: {alarm.message}" for alarm in status.alarms]
    return "  ".join(parts)


def page(status: RunStatus, *, now_s: float) -> list[str]:
    """Return the page; what is not known is left out, or said with what would tell it."""
    facts = status.facts
    lines = [
        f"{status.name}  {status.framework or 'no line of a training software that is known yet'},"
        f" {status.state}"
    ]
    lines += [f"Step      {_steps(status)}"]
    if status.step_s is not None:
        plan = ""
        if facts.step_s is not None and facts.step_interval_s is not None:
            low, high = facts.step_interval_s
            plan = (
                f"  plan {format_seconds(facts.step_s)} ({format_seconds(low)} to"
                f" {format_seconds(high)}){_over_plan(status)}"
            )
        lines.append(f"Time      {format_seconds(status.step_s)} a step{plan}")
    if status.tokens_per_s is not None:
        each = "" if facts.chips is None else f"  {status.tokens_per_s / facts.chips:,.0f} a GPU"
        lines.append(f"Tokens/s  {status.tokens_per_s:,.0f}{each}")
    lines += _mfu_lines(status)
    if status.loss is not None:
        norm = "" if status.grad_norm is None else f"  gradient norm {status.grad_norm:.3g}"
        lines.append(f"Loss      {status.loss:.4f}{norm}")
    if status.validation is not None and status.best_validation is not None:
        best = status.best_validation
        lines.append(
            f"Held out  {status.validation.loss:.4f} at step {status.validation.step:,}, least"
            f" {best.loss:.4f} at {best.step:,}"
        )
    if status.saved_step is not None and status.step is not None:
        behind = max(0, status.step - status.saved_step)
        time_words = "" if status.step_s is None else f", {_span(behind * status.step_s)} of work"
        undone = f"; a failure now would undo {behind:,} steps{time_words}" if behind else ""
        lines.append(f"Saved     step {status.saved_step:,}{undone}")
    if status.peak_memory_bytes is not None:
        lines.append(f"Memory    {status.peak_memory_bytes / GIB:.1f} GiB at most on a rank")
    if status.left_s is not None:
        lines.append(
            f"Left      {_span(status.left_s)} at this speed{_until(now_s + status.left_s)}"
        )
    lines += _cost_lines(status)
    if status.silent_s is not None:
        lines.append(f"Log       grew {_span(status.silent_s)} ago")
    lines += [f"Training  {note}" for note in status.notes]
    return [
        *lines,
        *(f"! {alarm.kind:<10}  {_at(alarm.step)}{alarm.message}" for alarm in status.alarms),
    ]


def _mfu_lines(status: RunStatus) -> Iterator[str]:
    if status.mfu is not None and status.facts.mfu is not None:
        rate = (
            "" if status.tflops_per_gpu is None else f"  {status.tflops_per_gpu:.4g} TFLOPS a GPU"
        )
        yield f"MFU       {status.mfu:.1%}  plan {status.facts.mfu:.1%}{rate}"
    elif status.step is not None:
        told = (
            ""
            if status.tflops_per_gpu is None
            else f"; the log counts {status.tflops_per_gpu:.4g} TFLOPS a GPU"
        )
        yield f"MFU       unknown without its plan (--plan FILE of `meshwright plan --json`){told}"


def _cost_lines(status: RunStatus) -> Iterator[str]:
    if status.usd is not None:
        left = "" if status.usd_left is None else f", {format_count(status.usd_left)} USD to go"
        yield (
            f"Cost      {format_count(status.usd)} USD of steps so far{left} "
            f" ({status.facts.usd_per_chip_hour:.3g} USD a GPU and hour)"
        )


def _steps(status: RunStatus) -> str:
    if status.step is None:
        return "none yet"
    share = (
        ""
        if not status.total_steps
        else f" of {status.total_steps:,} ({status.step / status.total_steps:.1%})"
    )
    starts = (
        ""
        if not status.restarts
        else f", started again {'once' if status.restarts == 1 else f'{status.restarts} times'}"
    )
    return f"{status.step:,}{share}{starts}"


def _over_plan(status: RunStatus) -> str:
    return "" if status.over_plan is None else f", {status.over_plan:.2f} times the plan's"


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step:,}: "


def _until(end_s: float) -> str:
    """The date of a Unix time; none beyond what the platform's calendar holds."""
    try:
        return f", until {time.strftime('%Y-%m-%d %H:%M', time.localtime(end_s))}"
    except (OverflowError, ValueError, OSError):
        return ""


def _span(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.1f} days"
