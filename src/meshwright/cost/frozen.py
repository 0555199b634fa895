"""Weights that do not learn: in how many bytes they are kept."""

from __future__ import annotations

from meshwright.values.hardware.chip import Chip
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = ["NF4_BYTES", "frozen_weight_bytes"]

NF4_BYTES = 0.516
"""Bytes per weight in four bits with its constants, 0.127 bits of them, doubly quantized (QLoRA,
arXiv:2305.14314, section 3)."""


def frozen_weight_bytes(work: Workload, stack: Stack, chip: Chip) -> float:
    """Bytes per weight of frozen layers.

    Formula:  frozen_weight_bytes, or NF4_BYTES; where weights are 8-bit ones themselves
              (narrow_param_gather, one scale a tensor) at most narrow_orientations
    Units:    bytes.
    Source:   NeMo's fp8_params: Transformer Engine's Float8Tensor, and its transpose where products
              need one; QLoRA (arXiv:2305.14314), section 3.
    Valid:    layers beside adapters.
    Checked:  tests/cost/test_memory.py
    """
    narrow = stack.narrow_param_gather and work.precision == "fp8"
    own = float(chip.narrow_orientations) if narrow else stack.frozen_weight_bytes
    return min(stack.frozen_weight_bytes, own, NF4_BYTES if work.frozen == "nf4" else own)
