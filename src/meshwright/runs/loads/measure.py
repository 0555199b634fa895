"""Loads on a server, one after the other; each is a point."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.runs.loads.client import Dialect, Target, find_dialect, find_model, send_load
from meshwright.runs.loads.engine_process import EngineProcess, PortTaken, free_port, running_engine
from meshwright.runs.loads.figures import Figures, Limits, figures_of
from meshwright.runs.loads.job import Line, ServeJob
from meshwright.runs.loads.load import Ask, Load
from meshwright.values.errors import ServerError

__all__ = [
    "MeasuredLoad",
    "measure_engine",
    "measure_server",
]

_WARM_CLIENTS = 8
"""Most requests of the warm-up, which goes before each load: pages are touched, graphs captured,
kernels chosen."""
_WATCH_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLoad:
    """One load and what was measured under it."""

    load: Load
    figures: Figures
    notes: tuple[str, ...] = ()
    """Words of the protocol that the server refuses."""


def measure_server(
    target: Target,
    loads: Sequence[Load],
    *,
    limits: Limits | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> tuple[MeasuredLoad, ...]:
    """Send loads to a server that runs already and return what each saw; ServerError where it takes
    no request."""
    named = target if target.model is not None else replace(target, model=find_model(target))
    dialect = find_dialect(named)
    found: list[MeasuredLoad] = []
    for load in loads:
        show(load.name)
        found.append(_measured(named, dialect, load, limits))
    return tuple(found)


def _measured(target: Target, dialect: Dialect, load: Load, limits: Limits | None) -> MeasuredLoad:
    send_load(target, dialect, _warm_up(load))
    return MeasuredLoad(
        load=load,
        figures=figures_of(send_load(target, dialect, load), limits=limits),
        notes=dialect.notes(),
    )


def _warm_up(load: Load) -> Load:
    """As many requests at a time as the load has, up to a few, with short answers."""
    at_once = min(load.clients or _WARM_CLIENTS, _WARM_CLIENTS, len(load.asks))
    asks = tuple(
        Ask(input_len=ask.input_len, output_len=min(ask.output_len, 4))
        for ask in load.asks[:at_once]
    )
    return Load(kind="concurrency", value=float(at_once), asks=asks, seed=load.seed + 1)


def measure_engine(job: ServeJob, *, write: Callable[[str], None]) -> bool:
    """Start an engine, send it its loads and write a line for each; return whether all were
    measured.

    Nothing that was started is left, whatever happens. A load under which the engine died, or
    refused every request, is a point that failed; those after it are not tried where it is gone.
    """

    def say(kind: Any, **content: Any) -> None:
        write(Line(kind=kind, content=content).text())

    port = free_port() if job.port is None else job.port
    say("starting", command=list(job.command), port=port)
    try:
        with running_engine(job.command, port=port, environment=job.environment) as engine:
            return _measure_loads(job, engine, say)
    except PortTaken as error:
        say("failed", failure_class="launcher_error", message=str(error), evidence=None)
    except ServerError as error:
        say("failed", failure_class="config_error", message=str(error), evidence=None)
    return False


def _measure_loads(job: ServeJob, engine: EngineProcess, say: Callable[..., None]) -> bool:
    target = Target(url=engine.url, model=job.model, vocab=job.vocab, patience_s=job.patience_s)
    try:
        ready_s = engine.wait_ready(job.health, seconds=job.ready_s)
        target = target if target.model is not None else replace(target, model=find_model(target))
        dialect = find_dialect(target)
    except ServerError as error:
        say(
            "failed",
            failure_class="hang" if engine.ended() is None else "unknown",
            message=str(error),
            evidence=engine.last_words(),
        )
        return False
    say(
        "ready",
        ready_s=ready_s,
        model=target.model,
        dialect=dialect.to_dict(),
        notes=list(dialect.notes()),
    )
    done = 0
    for load in job.loads:
        why, figures = _under_load(engine, target, dialect, load, job.limits)
        words = {
            "name": load.name,
            "kind_of_load": load.kind,
            "value": load.value,
            "figures": figures.to_dict() if figures else None,
        }
        say("point", **words, error=why, evidence=engine.last_words() if why else None)
        done += why is None
        if engine.ended() is not None:
            break
    say("end", measured=done, asked=len(job.loads))
    return done == len(job.loads)


def _under_load(
    engine: EngineProcess, target: Target, dialect: Dialect, load: Load, limits: Limits
) -> tuple[str | None, Figures | None]:
    """Return why a load counts for nothing, and its figures where there are any.

    A dead engine refuses what comes after at once; one that lives but whose child hangs would keep
    requests waiting, so the load is sent from a thread and left alone once the engine is gone.
    """
    found: list[MeasuredLoad] = []
    broken: list[BaseException] = []

    def send() -> None:
        try:
            found.append(_measured(target, dialect, load, limits))
        except Exception as error:  # told below, in the thread that waits
            broken.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    while sender.is_alive() and engine.ended() is None:
        sender.join(_WATCH_S)
    if (how := engine.ended()) is not None:
        return f"the engine {how} under {load.name}", None
    if broken:
        raise broken[0]
    figures = found[0].figures
    if not figures.requests:
        time.sleep(_WATCH_S)  # an engine that is about to end may answer with errors first
        how = engine.ended()
        return (
            f"the engine {how} under {load.name}"
            if how
            else f"every request failed: {figures.first_error}"
        ), figures
    if figures.failed:
        return (
            (
                f"{figures.failed} of {figures.failed + figures.requests} requests failed:"
                f" {figures.first_error}"
            ),
            figures,
        )
    return None, figures
