"""How a run of a training software on Megatron-Core is started: what it is told beside the
layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FULL_ITERATION", "Dispatcher", "GraphMaker", "Start"]

Dispatcher = Literal["alltoall", "deepep", "hybridep"]
GraphMaker = Literal["none", "local", "transformer_engine", "full_iteration"]
FULL_ITERATION = "full_iteration"


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What recipes switch on, and exports write; as nobody says anything by default."""

    dispatcher: Dispatcher | None = None
    """What carries tokens to their experts; None: the software's own, NCCL."""
    a2a_overlap: bool = False
    """Exchanges of one micro-batch run beside another's compute."""
    cuda_graph_impl: GraphMaker = "none"
    cuda_graph_scope: tuple[str, ...] = ()
    """Parts of a layer that are captured; () with a maker is all of them."""
    router_fusion: bool = False
    op_fuser: bool = False
    """Transformer Engine's fused operations, the grouped feed-forward among them."""
    tp_comm_overlap: bool = False
    cpu_offloading_num_layers: int = 0
    """Layers of a stage whose activations wait in host memory."""
    half_moments: bool = False
    """Adam's two moments are kept in bfloat16."""

    @property
    def whole_step(self) -> bool:
        """Whether one graph holds forward and backward pass."""
        impl, scope = self.cuda_graph_impl, self.cuda_graph_scope
        if impl == "none":
            return False
        return FULL_ITERATION in (impl, *scope) or (impl == "local" and not scope)
