"""Time of single kernels on one chip: matrix products, attention, memory-bound passes."""

from __future__ import annotations

import numpy as np

from meshwright.cost.shapes import Floats
from meshwright.hardware.chip import Chip
from meshwright.workload import Precision

__all__ = ["DEPTH_HALF", "WAVE_ELEMENTS", "element_bytes", "gemm_s", "streaming_s"]

WAVE_ELEMENTS = 132 * 128 * 256
"""Output elements that fill a large chip once: 132 multiprocessors (NVIDIA H100 white paper), one 128 x 256 tile each (CUTLASS's
largest common tile). Other chips of this class are within a third of it."""
DEPTH_HALF = 256.0
"""Inner dimension at which prologue and epilogue of a tile cost as much as its main loop: two loop trips of 128, three stages of
pipeline fill (CUTLASS documentation, efficient GEMM)."""
TILE_ROWS = 128.0
"""Rows of a tile: a product with fewer rows still pays for them all."""

_ELEMENT_BYTES: dict[Precision, float] = {
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8-blockwise": 1,
    "mxfp8": 1,
    "nvfp4": 0.5625,
}


def element_bytes(precision: Precision) -> float:
    """Bytes of one matrix operand; NVFP4 is 4 bits and one 8-bit scale per 16."""
    return _ELEMENT_BYTES[precision]


def gemm_s(chip: Chip, *, m: Floats, n: Floats, k: Floats, precision: Precision, groups: Floats | float = 1.0) -> Floats:
    """Time of `groups` matrix products (m, k) x (k, n) in one kernel.

    Formula:  max(2 m n k groups / (peak * efficiency), bytes / bandwidth) + ramp, where
              efficiency = best * e / (e + wave / 2) * k / (k + DEPTH_HALF), e the output elements in whole tiles of rows;
              half a wave is what the last, partly filled wave wastes on average
    Units:    seconds, (U,).
    Source:   roofline (Williams et al. 2009); best share measured per chip (`Chip.matmul_efficiency_source`); tile and wave
              quantisation as in NVIDIA's Matrix Multiplication Background guide.
    Valid:    dense products; no sparsity.
    Checked:  tests/cost/test_kernels.py
    """
    rows = np.maximum(m, np.minimum(TILE_ROWS, np.ceil(m / 16) * 16))
    elements = rows * n * groups
    efficiency = chip.matmul_efficiency * elements / (elements + WAVE_ELEMENTS / 2) * k / (k + DEPTH_HALF)
    work_s = 2.0 * rows * n * k * groups / (chip.peak_flops_per_s(precision) * efficiency)
    size = element_bytes(precision)
    bytes_moved = groups * (size * (m * k + k * n) + 2.0 * m * n)
    return np.maximum(work_s, streaming_s(chip, bytes_moved)) + chip.ramp_s


def streaming_s(chip: Chip, bytes_moved: Floats) -> Floats:
    """Time to read and write that many bytes of device memory in long passes, without the kernel's ramp.

    Formula:  bytes / (bandwidth * efficiency)
    Units:    seconds.
    Source:   BabelStream-like measured shares, `Chip.memory_efficiency`.
    Valid:    buffers larger than the caches.
    Checked:  tests/cost/test_kernels.py
    """
    return bytes_moved / (chip.memory_bytes_per_s * chip.memory_efficiency)
