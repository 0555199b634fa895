"""`meshwright watch`: how a training does, from its logs as they grow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import typer

from meshwright.cli.layout_case import JsonFlag
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.watch_view import page, shown
from meshwright.runs.watch.follow import Output, follow, watched
from meshwright.values.errors import ConfigError
from meshwright.values.units import parse_duration

__all__ = ["watch"]


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
    """
    if metrics_host is not None and metrics_port is None:
        raise ConfigError(f"--metrics-host {metrics_host}: of no effect without --metrics-port")
    if once and metrics_port is not None:
        raise ConfigError(
            "--metrics-port: a look that ends serves nobody; --textfile writes the metrics of"
            " --once"
        )

    every_s = float(parse_duration(every, name="every"))
    follower = follow(target, plan=plan, steps=steps, chips=gpus, usd_per_hour=usd_per_hour)
    output = Output(port=metrics_port, host=metrics_host, textfile=textfile)
    if once:
        now_s = time.time()
        status = output.write(follower.poll(now_s=now_s))
        typer.echo(
            json.dumps(status.to_dict()) if json_output else "\n".join(page(status, now_s=now_s))
        )
    else:
        with shown(as_json=json_output) as show:
            status = watched(follower, every_s=every_s, output=output, show=show)
    if status.state in ("stopped", "waiting"):
        raise typer.Exit(1)
