"""What failures and checkpoints cost a long run: the share of wall time that trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.errors import ConfigError
from meshwright.units import GB, HOUR_S, MINUTE_S

__all__ = ["Goodput", "Reliability", "best_interval_s", "goodput", "share_of", "write_s"]

_MOST_EXPONENT = 3.0
"""exp(3): one attempt in twenty reaches its checkpoint; nobody runs that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """How often chips stop, how long a start takes, and how fast checkpoints are written."""

    chip_mtbf_s: float = 50_000 * HOUR_S
    """Mean time between failures of one chip with its share of the node. 419 unexpected
    interruptions of 16,384 H100 in 54 days are one in 50,700 chip-hours: Llama 3
    (arXiv:2407.21783), section 3.3.4."""
    restart_s: float = 15 * MINUTE_S
    """From a failure to the first step again: noticed, placed, started, loaded. Assumed."""
    write_bytes_per_s_per_node: float = 20 * GB / 32
    """Into the shared file system while every node writes: 20 GB/s per 32 nodes, the standard tier
    of NVIDIA's DGX H100 SuperPOD reference architecture (from memory)."""
    save_interval_s: float | None = None
    """Seconds of training between checkpoints; None is the best by Daly."""

    def __post_init__(self) -> None:
        for name in ("chip_mtbf_s", "restart_s", "write_bytes_per_s_per_node", "save_interval_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value:g}: expected a positive number")


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """How much longer than its steps a run takes."""

    share: float
    """Seconds of steps over seconds on the wall, in (0, 1]."""
    interval_s: float
    """Seconds of training between checkpoints."""
    checkpoint_bytes: float
    """Of one checkpoint, by all nodes."""
    write_s: float
    """Seconds of one checkpoint, in which no step runs."""
    mtbf_s: float
    """Between failures of the whole job."""


def write_s(size_bytes: float, *, nodes: int, reliability: Reliability) -> float:
    """Seconds to write a checkpoint from all nodes at once; the run waits for it."""
    return size_bytes / (nodes * reliability.write_bytes_per_s_per_node)


def best_interval_s(*, write_s: float, mtbf_s: float) -> float:
    """Seconds of training between two checkpoints that lose the least time.

    Formula:  sqrt(2 * write * mtbf) * (1 + sqrt(write / (2 * mtbf)) / 3 + write / (2 * mtbf) / 9) -
              write, or mtbf where write >= 2 * mtbf
    Units:    s.
    Source:   Daly, Future Generation Computer Systems 22 (2006), the estimate of higher order; its
              first term is Young's (1974)
    Checked:  tests/sizing/test_goodput.py: against a search for the least of `goodput`
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = write_s / (2 * mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def share_of(interval_s: float, *, write_s: float, mtbf_s: float, restart_s: float) -> float | None:
    """Share of the wall time that goes into steps at an interval; None where such a run hardly ever
    reaches its next checkpoint.

    Formula:  interval / (mtbf * exp(restart / mtbf) * (exp((interval + write) / mtbf) - 1))
    Units:    seconds; a share in (0, 1]
    Source:   Daly (2006): the mean time of a run whose failures are exponential and lose the work
              since the last checkpoint
    Valid:    checkpoints that stop the run while they are written; asynchronous ones cost less
    Checked:  tests/sizing/test_goodput.py: against a simulation
    """
    exponent = (interval_s + write_s) / mtbf_s
    if exponent + restart_s / mtbf_s > _MOST_EXPONENT:
        return None
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def goodput(
    *, checkpoint_bytes: float, train_s: float, chips: int, nodes: int, reliability: Reliability
) -> Goodput:
    """Share of the wall time that goes into steps, with failures that come at random; the last step
    is followed by a checkpoint.

    Formula:  `share_of` the interval that is asked for, else of the best one; mtbf = chip_mtbf /
              chips
    Units:    seconds; a share in (0, 1]
    Source:   Daly (2006)
    Valid:    as `share_of`
    Checked:  tests/sizing/test_goodput.py: against a simulation
    """
    mtbf_s = reliability.chip_mtbf_s / chips
    written_s = write_s(checkpoint_bytes, nodes=nodes, reliability=reliability)
    asked_s = reliability.save_interval_s or best_interval_s(write_s=written_s, mtbf_s=mtbf_s)
    interval_s = min(asked_s, train_s)
    share = share_of(interval_s, write_s=written_s, mtbf_s=mtbf_s, restart_s=reliability.restart_s)
    if share is None:
        raise ConfigError(
            f"{chips} chips fail every {mtbf_s / HOUR_S:.2g} h, but a restart and the way to the"
            f" next checkpoint take {(interval_s + written_s + reliability.restart_s) / HOUR_S:.2g}"
            " h: such a run never ends; write faster or save more often"
        )
    return Goodput(
        share=share,
        interval_s=interval_s,
        checkpoint_bytes=checkpoint_bytes,
        write_s=written_s,
        mtbf_s=mtbf_s,
    )
