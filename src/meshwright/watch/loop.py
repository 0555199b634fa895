"""Look at a run again and again, until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshwright.watch.follow import Follower, follow
from meshwright.watch.metrics import LOCAL_ADDRESS, serve_metrics, write_metrics
from meshwright.watch.status import RunStatus

__all__ = ["Output", "watch_run", "watched"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Where metrics go; None of them is asked for unless given."""

    port: int | None = None
    host: str | None = None
    textfile: Path | None = None

    def write(self, status: RunStatus) -> RunStatus:
        """Write the text file, and return the status."""
        if self.textfile is not None:
            write_metrics(status, self.textfile)
        return status


def watched(
    follower: Follower,
    *,
    every_s: float,
    output: Output,
    show: Callable[[RunStatus], None],
    sleep: Callable[[float], None] = time.sleep,
) -> RunStatus:
    """Show a run's status at every look, until all its steps are done or its starter gave it up;
    return the last one."""
    newest = [output.write(follower.poll(now_s=time.time()))]
    stop = (
        None
        if output.port is None
        else serve_metrics(lambda: newest[0], port=output.port, host=output.host or LOCAL_ADDRESS)
    )
    try:
        while True:
            show(newest[0])
            if newest[0].is_over:
                return newest[0]
            sleep(every_s)
            newest[0] = output.write(follower.poll(now_s=time.time()))
    finally:
        if stop is not None:
            stop()


def watch_run(
    path: str | Path,
    *,
    plan: str | Path | None = None,
    steps: int | None = None,
    gpus: int | None = None,
    usd_per_hour: float | None = None,
) -> RunStatus:
    """Return how a training does at this moment, by its directory or its log; `plan` is what `plan
    --json` wrote.

    `meshwright.watch.follow.follow` returns what can be asked again and again, and then reads only
    what is new.
    """
    found = follow(
        Path(path),
        plan=None if plan is None else Path(plan),
        steps=steps,
        chips=gpus,
        usd_per_hour=usd_per_hour,
    )
    return found.poll(now_s=time.time())
