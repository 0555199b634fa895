"""The processes of a run: their device and its memory, how they find each other, and what happens
when one is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from meshwright.errors import ConfigError
from meshwright.trainer.host import host_bytes
from meshwright.trainer.job import TrainJob
from meshwright.trainer.room import Room

__all__ = ["joined", "open_device", "room_of"]

PATIENCE_S = 50.0
"""How long a collective waits for a rank; then the run ends and says so."""
COMPILING_S = 600.0
"""The same where ranks compile, which takes some longer than others."""


def open_device(job: TrainJob) -> torch.device:
    """The device of this process; ConfigError where the job names one that is absent."""
    if job.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no GPU here; device=cpu runs on the processor")
    if job.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise ConfigError(
            f"device=cuda: local rank {local} has no GPU of its own; torch sees"
            f" {torch.cuda.device_count()} on this host"
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def room_of(device: torch.device) -> Room:
    """The memory that ranks of this host have."""
    rank, local, count = (int(os.environ.get(name, default)) for name, default in _PLACES)
    ranks = range(rank - local, rank - local + count)
    if device.type == "cuda":
        size = float(torch.cuda.mem_get_info(device)[1])
        return Room(
            device_name=torch.cuda.get_device_name(device), bytes_per_rank=size, ranks=ranks
        )
    return Room(device_name=None, bytes_per_rank=host_bytes() / count, ranks=ranks)


_ADVICE = ". This is typically caused by"
"""What gloo adds to its reason, and says of no run of ours."""
_PLACES = (("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
"""What torchrun tells a process, and what holds without it."""


@contextmanager
def joined(job: TrainJob, device: torch.device) -> Iterator[None]:
    """Join the group of all processes. ConnectionError when another rank is lost, MemoryError when
    memory is out."""
    patience_s = job.patience_s or (COMPILING_S if job.compile else PATIENCE_S)
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ):
        os.environ.setdefault(name, value)
    alone = os.environ["WORLD_SIZE"] == "1" and os.environ["MASTER_PORT"] == "0"
    words = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1} if alone else {}
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=patience_s),
            **words,
        )
        yield
    except RuntimeError as error:
        first = str(error).partition("\n")[0].partition(_ADVICE)[0]
        if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in first:
            raise MemoryError(f"out of memory; {first}") from None
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise ConnectionError(
                f"another rank is lost, or behind by more than {patience_s:g} s; {first}"
            ) from None
        raise
    dist.destroy_process_group()
