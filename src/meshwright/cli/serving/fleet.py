"""The part of `meshwright serving plan` that reads a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from meshwright.cli.options import Given
from meshwright.cli.serving.flags import worker_of
from meshwright.cli.terminal import print_json, search_progress
from meshwright.report.fleet_table import print_fleet
from meshwright.runs.loads.traces import read_traffic
from meshwright.serving.fleet_search import plan_fleet
from meshwright.serving.request import Mode, ServingRequest
from meshwright.serving.traffic import TrafficAsked
from meshwright.values.errors import ConfigError
from meshwright.values.units import GIB

__all__ = ["check_traced", "check_untraced", "only_aggregated", "plan_traced"]


def check_untraced(asked: Given, layout: str | None) -> None:
    """Raise ConfigError for what only a trace gives an effect."""
    told = [_NAMES.get(name, name) for name, value in asked.items() if value]
    given = [*told, *(["layout"] if layout is not None else [])]
    if given:
        raise ConfigError(f"{_flags(given)}: of no effect without --trace")


_NAMES = {"host_cache_bytes": "host_cache_gib"}
"""Of options that are named otherwise than their field."""


def check_traced(said: Given) -> None:
    """Raise ConfigError for what a trace leaves without an effect."""
    given = [name for name, value in said.items() if value not in (None, False)]
    if given:
        raise ConfigError(f"{_flags(given)}: of no effect with --trace, which names every request")


def only_aggregated(modes: tuple[Mode, ...] | None) -> tuple[Mode, ...]:
    """Return the one mode that is simulated under a trace; ConfigError where another was named."""
    one: tuple[Mode, ...] = ("aggregated",)
    if modes not in (None, one, ServingRequest.__dataclass_fields__["modes"].default):
        named = ",".join(modes or ())
        raise ConfigError(f"--mode {named}: under a trace copies are aggregated alone")
    return one


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name.removesuffix('_s').replace('_', '-')}" for name in names)


def plan_traced(
    request: ServingRequest, *, trace: Path, asked: Given, layout: str | None, json_output: bool
) -> None:
    """Find and print the smallest fleet under a trace."""
    worker = None if layout is None else worker_of(layout)
    question, read = TrafficAsked(**asked), read_traffic(trace)
    with search_progress("simulating fleets", quiet=False) as progress:
        found = plan_fleet(request, trace=read, asked=question, worker=worker, progress=progress)
    if json_output:
        print_json({"request": _asked(request, question), **found.to_dict()})
    else:
        print_fleet(found, Console())
    if not found.hours:
        raise typer.Exit(1)


def _asked(request: ServingRequest, question: TrafficAsked) -> dict[str, Any]:
    """What was asked, without the lengths that the trace has instead."""
    told = request.to_dict()
    for name in ("input_len", "output_len", "objective", "target_rate", "rate", "concurrency"):
        told.pop(name)
    tails = {f"{figure}_{share}_s": limit for (figure, share), limit in question.tails.items()}
    words: dict[str, Any] = {"host_cache_gib": question.host_cache_bytes / GIB}
    words |= {"router": question.router, "goodput": question.goodput, "sample": question.sample}
    return {**told, **words, **tails}
