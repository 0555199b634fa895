"""Whether a run's memory, as predicted, is there."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import LayoutError
from meshwright.hardware.catalogue import default_node, find_device, find_link
from meshwright.hardware.chip import Chip
from meshwright.hardware.cluster import Node, Pool
from meshwright.search.binding import binding_words
from meshwright.search.quote import Quote, Setting, quotes
from meshwright.stack import Stack, find_stack
from meshwright.trainer.job import TrainJob
from meshwright.units import GIB
from meshwright.workload import Workload

__all__ = ["Room", "predicted", "require_room"]

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
    shares = room.device_name is None
    most = sum(used) / len(used) if shares else max(used)
    if most > room.bytes_per_rank:
        shared = (
            f" Ranks of this host share {room.bytes_per_rank * len(used) / GIB:.1f} GiB."
            if shares and len(used) > 1
            else ""
        )
        raise LayoutError(
            f"{binding_words(quote, (), _setting(job, room))}{shared} That is predicted;"
            " check_memory=false starts it all the same"
        )


def predicted(job: TrainJob, room: Room) -> Quote:
    """Price the layout; only the memory means something, as the chip may be unknown."""
    return quotes([job.layout], _setting(job, room))[0]


def _setting(job: TrainJob, room: Room) -> Setting:
    return Setting(
        model=job.model,
        pool=_pool(job, room),
        work=Workload(seq_len=job.seq_len, gbs=job.layout.gbs, precision=job.precision),
        stack=_stack(job, room),
        limit_bytes=room.bytes_per_rank,
    )


def _pool(job: TrainJob, room: Room) -> Pool:
    """Devices of this kind; one that the catalogue lacks has no libraries that anybody measured."""
    known = None if room.device_name is None else find_device(room.device_name)
    count = len(room.ranks)
    if known is not None:
        return Pool(
            node=default_node(known.name, gpus_per_node=count), num_chips=job.layout.num_chips
        )
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
    return Pool(node=node, num_chips=job.layout.num_chips)


def _stack(job: TrainJob, room: Room) -> Stack:
    """What the trainer keeps."""
    stack = find_stack(_COMPILED if job.compile else _EAGER)
    return stack if room.device_name is not None else stack.on_processors()
