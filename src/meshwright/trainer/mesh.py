"""Which ranks work together on which axis, as device meshes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from meshwright.trainer.job import ContextWord, TrainJob, host_bytes, own_runs
from meshwright.trainer.room import Room
from meshwright.values.errors import ConfigError, LayoutError
from meshwright.values.layout import Layout

__all__ = [
    "Meshes",
    "gather_tokens",
    "joined",
    "make_meshes",
    "open_device",
    "room_of",
    "route",
    "scatter_sum",
    "shard_ranks",
    "sum_gradient",
    "swap_dims",
]


@dataclass(frozen=True, kw_only=True)
class Meshes:
    """The groups of one process; the order of ranks is Megatron's, tp fastest, then cp, dp, pp."""

    layout: Layout
    device_type: str
    dense: DeviceMesh
    """(pp, replicate, shard, tp): replicate * shard = dp * cp."""
    data: DeviceMesh
    """(pp, dp, cp, tp)."""
    experts: DeviceMesh | None
    """(pp, expert_replicate, expert_shard, ep[, etp]); None without experts."""
    context: ContextWord = "all-to-all"

    def runs(self, seq_len: int, *, place: int | None = None) -> tuple[range, ...]:
        """The tokens that a context-parallel rank holds, this one unless `place` is given."""
        return own_runs(
            seq_len,
            cp=self.layout.cp,
            place=self.place("cp") if place is None else place,
            context=self.context,
        )

    def place(self, axis: str) -> int:
        """This rank's coordinate on dp, cp, tp or pp."""
        return self.data.get_local_rank(axis)

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks along dp, cp, tp or pp."""
        return self.data.get_group(axis)

    @property
    def tp(self) -> DeviceMesh:
        """Tensor parallel ranks, beside the sharding mesh of the same parent."""
        return self.dense["tp"]

    @property
    def sharding(self) -> DeviceMesh:
        """What fully_shard takes: replicas and shards of everything but experts."""
        return self.dense["replicate", "shard"]

    @property
    def expert_sharding(self) -> DeviceMesh:
        """The same for experts."""
        assert self.experts is not None
        return self.experts["expert_replicate", "expert_shard"]


def shard_ranks(layout: Layout) -> int:
    """Ranks that share one copy of what data parallelism splits."""
    data = layout.dp * layout.cp
    if layout.sharding == "none":
        return 1
    size = data if layout.shard_size is None else layout.shard_size
    if data % size:
        raise LayoutError(f"shard_size={size}: expected a divisor of dp * cp = {data}")
    return size


def make_meshes(
    layout: Layout, *, device_type: str, has_experts: bool, context: ContextWord
) -> Meshes:
    """Build every group of the layout; all ranks call it together."""
    data, shard = layout.dp * layout.cp, shard_ranks(layout)

    def mesh(**sizes: int) -> DeviceMesh:
        return init_device_mesh(
            device_type, (layout.pp, *sizes.values()), mesh_dim_names=("pp", *sizes)
        )

    dense = mesh(replicate=data // shard, shard=shard, tp=layout.tp)
    plain = mesh(dp=layout.dp, cp=layout.cp, tp=layout.tp)
    experts = None
    if has_experts:
        # the ranks of one stage in ep groups, innermost but for etp; the rest are copies
        copies = data * layout.tp // (layout.ep * layout.expert_tp)
        cut = 1 if layout.sharding == "none" else copies
        names = {"expert_replicate": copies // cut, "expert_shard": cut}
        experts = mesh(**names, ep=layout.ep, etp=layout.expert_tp)
    return Meshes(
        layout=layout,
        device_type=device_type,
        dense=dense,
        data=plain,
        experts=experts,
        context=context,
    )


class _Exchange(torch.autograd.Function):
    """An exchange among ranks, and the one that brings its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: _Way, back: _Way) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None


_Way = Callable[[Tensor], Tensor]


def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


def sum_gradient(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return x; its gradient is summed over ranks that use x on other tokens or heads."""
    if group.size() == 1:
        return x
    return _Exchange.apply(x, lambda same: same.view_as(same), partial(_sum, group=group))


def _gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def _scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


def gather_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all ranks, (ranks * n, ...); partial gradients are summed to (n, ...)."""
    if group.size() == 1:
        return x
    return _Exchange.apply(x, partial(_gather, group=group), partial(_scatter, group=group))


def scatter_sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's rows of the sum over ranks, (n / ranks, ...)."""
    if group.size() == 1:
        return x
    return _Exchange.apply(x, partial(_scatter, group=group), partial(_gather, group=group))


def _all_to_all(
    x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


def route(x: Tensor, *, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send `sent[i]` rows to rank i in order; return what arrives, (sum(received), ...)."""
    if group.size() == 1:
        return x
    there = partial(_all_to_all, sent=sent, received=received, group=group)
    back = partial(_all_to_all, sent=received, received=sent, group=group)
    return _Exchange.apply(x, there, back)


def _swap(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    parts = torch.stack(x.chunk(group.size(), dim=split)).contiguous()
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group)
    return torch.cat(out.unbind(0), dim=join)


def swap_dims(x: Tensor, *, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """Cut dim `split` over ranks and join dim `join`: sequence parts become heads' parts."""
    if group.size() == 1:
        return x
    there = partial(_swap, split=split, join=join, group=group)
    return _Exchange.apply(x, there, partial(_swap, split=join, join=split, group=group))


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


_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@contextmanager
def joined(job: TrainJob, device: torch.device) -> Iterator[None]:
    """Join all processes. ConnectionError when a rank is lost, MemoryError when memory is out."""
    patience_s = job.patience_s or (COMPILING_S if job.compile else PATIENCE_S)
    for name, value in _ALONE.items():
        os.environ.setdefault(name, value)
    alone = os.environ["WORLD_SIZE"] == "1" and os.environ["MASTER_PORT"] == "0"
    words = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1} if alone else {}
    try:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=patience_s), **words)
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
