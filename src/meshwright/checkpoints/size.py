"""Bytes of one checkpoint, by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from meshwright.errors import UnknownNameError
from meshwright.models.params import model_params
from meshwright.models.spec import ModelSpec
from meshwright.stack import Stack
from meshwright.units import GIB
from meshwright.workload import Precision

__all__ = ["OPTIMIZERS", "CheckpointSize", "Optimizer", "checkpoint_size"]

Optimizer = Literal["adam", "adam-bf16", "adam-8bit", "muon", "lion", "sgd-momentum", "sgd"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
_STATE_BYTES: dict[Optimizer, float] = {
    "adam-bf16": (
        4.0
    ),  # both moments in bf16, as Megatron-Core's --exp-avg-dtype and --exp-avg-sq-dtype
    "adam-8bit": (
        2.0 + 2 * 4.0 / 256
        # two bytes, and an fp32 scale for each block of 256 of either (bitsandbytes, arXiv:2110.02861)  # noqa: E501
    ),
    "lion": 4.0,  # one fp32 momentum (arXiv:2302.06675)
    "sgd-momentum": 4.0,
    "sgd": 0.0,
}
_MUON_BYTES, _ADAM_BYTES = 4.0, 8.0
"""Muon keeps one fp32 momentum of a matrix inside a layer; embedding, head and norms have Adam's
two (arXiv:2502.16982)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSize:
    """What one checkpoint holds, in bytes of all ranks together."""

    params: int
    weight_bytes: float
    """The weights that the model computes with, half precision where training is; in fp32, or where
    the software keeps fp32 ones alone, those."""
    master_bytes: float
    """The fp32 copy beside half-precision weights; 0 where there is none."""
    state_bytes: float
    """The optimizer's moments."""

    @property
    def total_bytes(self) -> float:
        """All of it: a run goes on from this."""
        return self.weight_bytes + self.master_bytes + self.state_bytes

    @property
    def without_states_bytes(self) -> float:
        """What stays when master copy and moments are dropped: enough to evaluate, export or
        fine-tune from."""
        return self.weight_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "params": self.params,
            "bytes_per_param": self.total_bytes / self.params,
            "total_gib": self.total_bytes / GIB,
            "weight_gib": self.weight_bytes / GIB,
            "master_gib": self.master_bytes / GIB,
            "state_gib": self.state_bytes / GIB,
            "without_states_gib": self.without_states_bytes / GIB,
        }


def checkpoint_size(
    model: ModelSpec, *, stack: Stack, precision: Precision = "bf16", optimizer: Optimizer = "adam"
) -> CheckpointSize:
    """Bytes of one checkpoint of a model, as a training software writes it.

    Formula:  params * (weights + master copy + moments). In half precision 2 + 4 + 8 = 14 with
              Adam; 4 + 8 = 12 where the software keeps fp32 weights alone (FSDP without
              half-precision shards) and in fp32; 2 + 4 where it updates half-precision weights
    Units:    bytes.
    Source:   the stack's row in presets/stacks.csv (master_bytes, moment_bytes, half_shards);
              optimizers as listed above
    Valid:    every parameter is trained; padding of the vocabulary, data loaders' and generators'
              states are left out
    Checked:  tests/checkpoints/test_size.py: NeMo's 6.838 B model is 89.2 GiB
    """
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
    params = model_params(model)
    half = precision not in ("fp32", "tf32")
    master = stack.master_bytes if half else 0.0
    only_master = half and stack.family == "fsdp" and master > 0 and not stack.half_shards
    if optimizer == "adam":
        states = stack.moment_bytes if half else _ADAM_BYTES
    elif optimizer == "muon":
        outside = params.embedding + params.positions + params.head + params.norms
        states = _MUON_BYTES + (_ADAM_BYTES - _MUON_BYTES) * outside / params.total
    else:
        states = _STATE_BYTES[optimizer]
    return CheckpointSize(
        params=params.total,
        weight_bytes=params.total * (master if only_master else 2.0 if half else 4.0),
        master_bytes=0.0 if only_master else params.total * master,
        state_bytes=params.total * states,
    )
