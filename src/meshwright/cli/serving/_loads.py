"""From flags to loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.loads.figures import Limits
    from meshwright.loads.load import Lengths, Load

__all__ = ["limits_of", "loads_of", "numbers"]


def loads_of(
    *,
    lengths: Lengths,
    concurrency: str | None,
    rate: str | None,
    trace: Path | None,
    requests: int | None,
    default: tuple[int, ...],
) -> tuple[Load, ...]:
    """Return the loads that flags make: clients, rates or a trace, one kind of them; ConfigError
    where there are two."""
    from meshwright.errors import ConfigError
    from meshwright.loads.load import closed_loop, poisson, read_trace

    if sum(given is not None for given in (concurrency, rate, trace)) > 1:
        raise ConfigError("give one of --concurrency, --rate and --trace")
    if trace is not None:
        if requests is not None:
            raise ConfigError("--requests has no effect with --trace, which names every request")
        return (read_trace(trace, seed=lengths.seed),)
    if rate is not None:
        return tuple(
            poisson(value, lengths, requests=requests) for value in numbers("--rate", rate)
        )
    clients = (
        [float(count) for count in default]
        if concurrency is None
        else numbers("--concurrency", concurrency)
    )
    if fraction := next((value for value in clients if value != int(value)), None):
        raise ConfigError(f"--concurrency {fraction:g}: expected whole numbers of clients")
    return tuple(closed_loop(int(count), lengths, requests=requests) for count in clients)


def numbers(flag: str, text: str) -> list[float]:
    """Read `1,2,4`; ConfigError where one is no positive number, or is there twice."""
    from meshwright.errors import ConfigError

    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < float("inf") for value in found):
        raise ConfigError(f"{flag} {text}: expected positive numbers such as 1,2,4")
    if len(set(found)) < len(found):
        raise ConfigError(f"{flag} {text}: a number occurs twice")
    return found


def limits_of(*, ttft_ms: float | None, tpot_ms: float | None, e2e_ms: float | None) -> Limits:
    """Return limits in seconds; ConfigError for one that is no positive number."""
    from meshwright.errors import ConfigError
    from meshwright.loads.figures import Limits

    given = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms}
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name} {value:g}: expected a positive number of milliseconds")
    return Limits(
        **{f"{name}_s": None if value is None else value / 1e3 for name, value in given.items()}
    )
