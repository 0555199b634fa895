"""Seconds of collectives, by kind, from what a profiler recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Recorded", "collective_seconds"]

_CALLS = {
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "send": "send",
    "recv_": "receive",
    "broadcast_": "broadcast",
    "barrier": "barrier",
}
"""Operators of torch's `c10d` namespace, and our names for what they do."""
_KERNELS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "SendRecv": "send_receive",
    "Broadcast": "broadcast",
}
"""Words in the names of NCCL's kernels. All-to-all, send and receive are all made of SendRecv
there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One event of a profile."""

    name: str
    start_us: float
    duration_us: float
    on_device: bool


def collective_seconds(events: Sequence[Recorded]) -> dict[str, float]:
    """Return the seconds of each kind: of NCCL the time of its kernels; of gloo from the call until
    the work is done.

    Some of it lies behind compute, and several may run at once, so that the sum is not what
    collectives add to a step. A kind includes waiting for ranks that come later. gloo runs
    reduce-scatters as all-reduces, hence its work is named after the call before it.
    """
    found: dict[str, float] = {}
    calls = sorted(
        (event.start_us, event.name.removeprefix("c10d::"))
        for event in events
        if event.name.startswith("c10d::")
    )
    starts = [start for start, _ in calls]
    for event in events:
        if event.on_device and event.name.startswith("nccl"):
            kind = next((kind for word, kind in _KERNELS.items() if word in event.name), None)
        elif event.name.startswith("gloo:"):
            place = bisect_right(starts, event.start_us)
            call = calls[place - 1][1] if place else event.name
            kind = _CALLS.get(call, event.name.removeprefix("gloo:"))
        else:
            continue
        if kind is not None:
            found[kind] = found.get(kind, 0.0) + event.duration_us / 1e6
    return found
