"""Requests that a service really got: when, how long, and which blocks of their prompts they
share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.kernels import Floats
from meshwright.values.errors import ConfigError
from meshwright.values.options import Option, word_of
from meshwright.values.units import GIB

__all__ = ["HOUR_S", "ROUTERS", "Counts", "Router", "Trace", "TrafficAsked", "Window", "windows_of"]

Counts = NDArray[np.int64]
Router = Literal["round-robin", "least-loaded", "cache-aware"]
"""In turn; to the copy with the fewest requests under way; to the copy with the fewest blocks to
work on and to hold, as Dynamo's router weighs them."""
ROUTERS: tuple[Router, ...] = get_args(Router)
HOUR_S = 3600.0


def _tail(figure: str, share: str) -> Option:
    """A limit on a percentile, in milliseconds."""
    what = {"ttft": "to the first token", "tpot": "between later tokens", "e2e": "of a request"}
    flag = (f"--{figure}-{share}",)
    help_ = f"Most milliseconds {what[figure]}, {share}."
    return Option(help_, flag, metavar="MS", kind=float, read=lambda given: given / 1e3)


def _bytes(gib: float) -> float:
    return gib * GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficAsked:
    """What is asked of a fleet under a trace, beside the limits of a ServingRequest."""

    router: Annotated[
        Router,
        Option(
            "With --trace: round-robin, least-loaded or cache-aware.",
            kind=str,
            read=word_of(Router, "--router"),
        ),
    ] = "least-loaded"
    host_cache_bytes: Annotated[
        float,
        Option(
            "With --trace: host memory of each GPU, for blocks of prompts that its cache drops.",
            ("--host-cache-gib",),
            metavar="GIB",
            kind=float,
            read=_bytes,
            usual=0.0,
        ),
    ] = 0.0
    ttft_p50_s: Annotated[float | None, _tail("ttft", "p50")] = None
    ttft_p95_s: Annotated[float | None, _tail("ttft", "p95")] = None
    ttft_p99_s: Annotated[float | None, _tail("ttft", "p99")] = None
    tpot_p50_s: Annotated[float | None, _tail("tpot", "p50")] = None
    tpot_p95_s: Annotated[float | None, _tail("tpot", "p95")] = None
    tpot_p99_s: Annotated[float | None, _tail("tpot", "p99")] = None
    e2e_p50_s: Annotated[float | None, _tail("e2e", "p50")] = None
    e2e_p95_s: Annotated[float | None, _tail("e2e", "p95")] = None
    e2e_p99_s: Annotated[float | None, _tail("e2e", "p99")] = None
    goodput: Annotated[
        float | None,
        Option(
            "This share of requests each keeps --ttft, --tpot and --e2e, instead of their means."
        ),
    ] = None
    sample: Annotated[
        int,
        Option("Requests of the trace to simulate at most: the busiest of each hour."),
    ] = 60000
    """Each hour has as many in a row, so that a long trace takes seconds."""

    def __post_init__(self) -> None:
        for name, limit in self.tails.items():
            if not 0 < limit < float("inf"):
                flag = "--" + "-".join(name)
                raise ConfigError(
                    f"{flag} {1e3 * limit:g}: expected a positive number of milliseconds"
                )
        if self.goodput is not None and not 0 < self.goodput <= 1:
            raise ConfigError(f"--goodput {self.goodput:g}: expected a share above 0, up to 1")
        if not 0 <= self.host_cache_bytes < float("inf"):
            raise ConfigError(
                f"--host-cache-gib {self.host_cache_bytes / GIB:g}: expected 0 GiB or more"
            )
        if self.sample < _FEWEST:
            raise ConfigError(f"--sample {self.sample}: expected {_FEWEST} requests or more")

    @property
    def tails(self) -> Mapping[tuple[str, str], float]:
        """Limits in seconds by figure and percentile."""
        names = [(figure, share) for figure in ("ttft", "tpot", "e2e") for share in _SHARES]
        given = {name: getattr(self, f"{name[0]}_{name[1]}_s") for name in names}
        return {name: limit for name, limit in given.items() if limit is not None}


_SHARES = ("p50", "p95", "p99")
_FEWEST = 100


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests in the order in which they were sent; the first at 0."""

    name: str
    sent_s: Floats
    """(N,)"""
    prompts: Counts
    """(N,) tokens."""
    outputs: Counts
    """(N,) tokens."""
    hashes: tuple[tuple[int, ...], ...] | None = None
    """Of each request the names of its prompt's blocks, each of which tells the blocks before it,
    too; None where the trace does not tell."""
    block_tokens: int = 512
    started: str | None = None
    """The clock's time of the first request, where the trace has one."""
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(self.sent_s)

    @property
    def seconds(self) -> float:
        """From the first request to the last, a second at least."""
        return max(float(self.sent_s[-1]), 1.0)

    @property
    def longest(self) -> tuple[int, int]:
        """Prompt and answer of the request with the most tokens."""
        at = int(np.argmax(self.prompts + self.outputs))
        return int(self.prompts[at]), int(self.outputs[at])

    def prefix_share(self, first: int, last: int) -> float:
        """Return the share of these prompts' tokens that a cache of any size would hold by the
        requests before them in the same stretch."""
        if self.hashes is None:
            return 0.0
        known: set[int] = set()
        held = 0
        for number in range(first, last):
            names = self.hashes[number]
            new = next((at for at, name in enumerate(names) if name not in known), len(names))
            held += min(new * self.block_tokens, int(self.prompts[number]) - 1)
            known.update(names)
        return max(0.0, held / float(self.prompts[first:last].sum()))

    def to_dict(self) -> dict[str, Any]:
        """Return what it is, in plain types."""
        return {
            "name": self.name,
            "requests": self.size,
            "seconds": self.seconds,
            "started": self.started,
            "mean_input_len": float(self.prompts.mean()),
            "mean_output_len": float(self.outputs.mean()),
            "longest": list(self.longest),
            "prefix_hashes": self.hashes is not None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The requests of an hour that are simulated: a stretch in a row."""

    hour: int
    """From the trace's first request on."""
    seconds: float
    """Of the hour that the trace covers."""
    requests: int
    """Of the whole hour."""
    output_tokens: int
    """Of the whole hour."""
    warm: int
    """The first request to send; those before `first` fill the copies and are not counted."""
    first: int
    last: int
    """One past the last request."""

    @property
    def counted(self) -> int:
        """Requests that are counted."""
        return self.last - self.first


def windows_of(trace: Trace, *, sample: int) -> tuple[Window, ...]:
    """Return each hour's busiest stretch, of as many requests as fit `sample` over all hours.

    Formula:  the stretch of a given number of requests with the most tokens per second
    Units:    requests; hours begin at the first request, and a rest of less than half an hour
              belongs to the hour before. Hours without a request are left out.
    Source:   none: a rule that overstates an hour's need rather than understating it.
    Valid:    a stretch that is long beside a request's time.
    Checked:  tests/serving/test_traffic.py
    """
    hours = max(1, round(trace.seconds / HOUR_S))
    starts = np.searchsorted(trace.sent_s, HOUR_S * np.arange(hours)).tolist()
    edges = [*starts, trace.size]
    filled = sum(high > low for low, high in pairwise(edges))
    each = trace.size if trace.size <= sample else max(_FEWEST, sample // filled)
    tokens = np.concatenate([[0], np.cumsum(trace.prompts + trace.outputs)])
    found = []
    for hour, (low, high) in enumerate(pairwise(edges)):
        if high == low:
            continue
        first, last = _busiest(trace.sent_s, tokens, low, high, each)
        earlier = int(np.searchsorted(trace.sent_s, trace.sent_s[first] - _WARM_S))
        end = trace.seconds if hour == hours - 1 else HOUR_S * (hour + 1)
        found.append(
            Window(
                hour=hour,
                seconds=end - HOUR_S * hour,
                requests=high - low,
                output_tokens=int(trace.outputs[low:high].sum()),
                warm=max(earlier, first - int(_WARM * each)),
                first=first,
                last=last,
            )
        )
    return tuple(found)


def _busiest(sent: Floats, tokens: Any, low: int, high: int, count: int) -> tuple[int, int]:
    """The stretch of `count` requests with the most tokens per second."""
    if high - low <= count:
        return low, high
    starts = np.arange(low, high - count + 1)
    seconds = np.maximum(sent[starts + count - 1] - sent[starts], 1e-9)
    first = int(starts[np.argmax((tokens[starts + count] - tokens[starts]) / seconds)])
    return first, first + count


_WARM, _WARM_S = 0.1, 600.0
"""Those before a stretch are sent first, of so many seconds and up to this share of its size, for
copies and their caches are empty at the start."""
