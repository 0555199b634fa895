"""The processes of a run: how they find each other, their device, and what happens when one is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from meshwright.errors import ConfigError
from meshwright.trainer.job import DeviceWord

__all__ = ["processes"]

PATIENCE = timedelta(seconds=50)
"""How long a collective waits for a rank; then the run ends and says so."""
COMPILING = timedelta(minutes=10)
"""The same where ranks compile, which takes some longer than others."""


@contextmanager
def processes(word: DeviceWord, *, compile: bool) -> Iterator[torch.device]:
    """Join the group of all processes; the device of this one."""
    device, patience = _device(word), COMPILING if compile else PATIENCE
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    alone = os.environ["WORLD_SIZE"] == "1" and os.environ["MASTER_PORT"] == "0"
    words = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1} if alone else {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=patience, **words)
    try:
        yield device
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise ConnectionError(
                f"rank {dist.get_rank()}: another rank is lost, or behind by more than {patience.seconds} s; {_first_line(error)}"
            ) from None
        raise
    dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _device(word: DeviceWord) -> torch.device:
    if word == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no GPU here; device=cpu runs on the processor")
    if word == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
