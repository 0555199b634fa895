"""Whether a run's memory, as predicted, is there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.search.explain import binding_words
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.trainer.job import TrainJob
from meshwright.values.errors import LayoutError
from meshwright.values.hardware.catalogue import default_node, find_device, find_link
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Node, Pool
from meshwright.values.stack import find_stack
from meshwright.values.units import GIB
from meshwright.values.workload import Workload

__all__ = ["Recorded", "Room", "collective_seconds", "predicted", "require_room"]

_EAGER, _COMPILED = "embedded", "embedded-compiled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """The memory that this host's ranks have."""

    device_name: str | None
    """As the driver spells it; None is a processor, whose ranks share the host's memory."""
    bytes_per_rank: float
    ranks: range
    """Of this host."""


def require_room(job: TrainJob, room: Room) -> None:
    """Raise LayoutError where the ranks of this host need more than there is."""
    quote = predicted(job, room)
    stage_ranks = job.layout.num_chips // job.layout.pp
    used = [quote.stages[rank // stage_ranks].used_bytes for rank in room.ranks]
    shares, shared = room.device_name is None, ""
    most = sum(used) / len(used) if shares else max(used)
    if most > room.bytes_per_rank:
        if shares and len(used) > 1:
            total = room.bytes_per_rank * len(used) / GIB
            shared = f" Ranks of this host share {total:.1f} GiB."
        raise LayoutError(
            f"{binding_words(quote, (), _setting(job, room))}{shared} That is predicted;"
            " check_memory=false starts it all the same"
        )


def predicted(job: TrainJob, room: Room) -> Quote:
    """Price the layout; only the memory means something, as the chip may be unknown."""
    return quotes([job.layout], _setting(job, room))[0]


def _setting(job: TrainJob, room: Room) -> Setting:
    stack = find_stack(_COMPILED if job.compile else _EAGER)
    return Setting(
        model=job.model,
        pool=_pool(job, room),
        work=Workload(seq_len=job.seq_len, gbs=job.layout.gbs, precision=job.precision),
        stack=stack if room.device_name is not None else stack.on_processors(),
        limit_bytes=room.bytes_per_rank,
    )


def _pool(job: TrainJob, room: Room) -> Pool:
    """Devices of this kind; one that the catalogue lacks has no libraries that anybody measured."""
    known = None if room.device_name is None else find_device(room.device_name)
    count, num_chips = len(room.ranks), job.layout.num_chips
    if known is not None:
        return Pool(node=default_node(known.name, gpus_per_node=count), num_chips=num_chips)
    chip = Chip(
        name=room.device_name or "processor",
        vendor="",
        nominal_bytes=room.bytes_per_rank,
        usable_bytes=room.bytes_per_rank,
        memory_bytes_per_s=1.0,
        bf16_flops_per_s=1.0,
        fp32_flops_per_s=1.0,
    )
    link = find_link("tcp-25")  # any: memory does not depend on it
    node = Node(
        chip=chip, chips_per_node=count, domain_size=count, domain_link=link, network_link=link
    )
    return Pool(node=node, num_chips=num_chips)


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
"""Words in names of NCCL's kernels; all-to-all, send and receive are SendRecv there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One event of a profile."""

    name: str
    start_us: float
    duration_us: float
    on_device: bool


def collective_seconds(events: Sequence[Recorded]) -> dict[str, float]:
    """Return the seconds of each kind: of NCCL the time of its kernels; of gloo from the call until
    the work is done. Some of it lies behind compute, and several may run at once, so that the sum
    is not what collectives add to a step. A kind includes waiting for ranks that come later. gloo
    runs reduce-scatters as all-reduces, hence its work is named after the call before it."""
    found: dict[str, float] = {}
    called = [event for event in events if event.name.startswith("c10d::")]
    calls = sorted((event.start_us, event.name.removeprefix("c10d::")) for event in called)
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
