"""Which ranks work together on which axis, as device meshes."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from meshwright.errors import LayoutError
from meshwright.layout import Layout
from meshwright.trainer.tokens import ContextWord, own_runs

__all__ = ["Meshes", "make_meshes", "shard_ranks"]


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
        """The tokens of a sequence that a context-parallel rank holds, this one unless `place`
        names another."""
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
    data = layout.dp * layout.cp
    shard = shard_ranks(layout)
    dense = init_device_mesh(
        device_type,
        (layout.pp, data // shard, shard, layout.tp),
        mesh_dim_names=("pp", "replicate", "shard", "tp"),
    )
    plain = init_device_mesh(
        device_type,
        (layout.pp, layout.dp, layout.cp, layout.tp),
        mesh_dim_names=("pp", "dp", "cp", "tp"),
    )
    return Meshes(
        layout=layout,
        device_type=device_type,
        dense=dense,
        data=plain,
        experts=_expert_mesh(layout, device_type) if has_experts else None,
        context=context,
    )


def _expert_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """Experts cut the ranks of one stage into ep groups, innermost but for etp; what is left holds
    copies of one shard."""
    ranks = layout.dp * layout.cp * layout.tp
    copies = ranks // (layout.ep * layout.expert_tp)
    shard = 1 if layout.sharding == "none" else copies
    sizes = (layout.pp, copies // shard, shard, layout.ep, layout.expert_tp)
    return init_device_mesh(
        device_type, sizes, mesh_dim_names=("pp", "expert_replicate", "expert_shard", "ep", "etp")
    )
