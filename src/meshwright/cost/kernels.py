"""Time of single kernels on one chip: matrix products, attention, memory-bound passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from meshwright.cost.shapes import Floats
from meshwright.hardware.chip import Chip
from meshwright.hardware.tables import Role, gemm_seconds, kin
from meshwright.workload import Precision

__all__ = [
    "DEPTH_HALF",
    "TILE_ELEMENTS",
    "WAVE_ELEMENTS",
    "EagerPass",
    "eager_s",
    "element_bytes",
    "gemm_s",
    "matmul_share",
    "streaming_s",
    "sustained_share",
]

TILE_ELEMENTS = 128 * 256
"""Output elements that one multiprocessor works on at a time: CUTLASS's largest common tile."""
WAVE_ELEMENTS = 132 * TILE_ELEMENTS
"""Output elements that fill a large chip once: 132 multiprocessors (NVIDIA H100 white paper). Large
chips are within a third of it; where the catalogue counts a chip's own, as of T4 (40), they
count."""
DEPTH_HALF = 256.0
"""Inner dimension at which prologue and epilogue of a tile cost as much as its main loop: two loop
trips of 128, three stages of pipeline fill (CUTLASS documentation, efficient GEMM)."""
TILE_ROWS = 128.0
"""Rows of a tile; kernels with fewer rows exist in steps of 16."""

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
    """Bytes of one element of a matrix product's operand.

    Formula:  bits / 8; NVFP4 has 4 bits and one 8-bit scale per 16 elements: 0.5625
    Units:    bytes.
    Source:   NVIDIA Transformer Engine documentation, NVFP4 recipe.
    Valid:    every Precision.
    Checked:  tests/cost/test_kernels.py
    """
    return _ELEMENT_BYTES[precision]


FP4_SHARE = 0.6
"""Speed of NVFP4 products against what their peak and the chip's bf16 efficiency promise, where no
table tells it: the nvfp4 tables of B200 and GB200 hold 0.55 to 0.65 of it on large shapes."""


NARROW: tuple[Precision, ...] = ("fp8", "fp8-blockwise", "mxfp8", "nvfp4")
"""Precisions of 8 bits and less."""


def sustained_share(chip: Chip, precision: Precision) -> float:
    """Share of a benchmark's rate that holds through hours of training in this precision.

    Formula:  the chip's fitted share; narrow precisions have their own where published runs tell it
    Units:    a share in (0, 1].
    Source:   `presets/chips.csv`: the middle of measured over predicted rates of the published runs
              that `sustained_source` names.
    Valid:    matrix products and attention.
    Checked:  tests/cost/test_kernels.py
    """
    own = chip.narrow_sustained_share if precision in NARROW else None
    return chip.sustained_share if own is None else own


def matmul_share(chip: Chip, precision: Precision) -> float:
    """Share of the precision's peak that a large matrix product reaches through hours of training.

    Formula:  measured best share (fp8's own where published) * sustained share; NVFP4 times
              FP4_SHARE
    Units:    a share in (0, 1].
    Source:   `Chip.matmul_efficiency_source`, `Chip.sustained_share`.
    Valid:    large products.
    Checked:  tests/cost/test_kernels.py
    """
    narrow = precision in NARROW and precision != "nvfp4" and chip.fp8_matmul_efficiency is not None
    best = (
        chip.fp8_matmul_efficiency
        if narrow and chip.fp8_matmul_efficiency is not None
        else chip.matmul_efficiency
    )
    return best * sustained_share(chip, precision) * (FP4_SHARE if precision == "nvfp4" else 1.0)


def gemm_s(
    chip: Chip,
    *,
    m: Floats,
    n: Floats,
    k: Floats,
    precision: Precision,
    groups: Floats | float = 1.0,
    role: Role = "forward",
) -> Floats:
    """Time of `groups` matrix products (m, k) x (k, n) in one kernel.

    Formula:  max(2 m n k groups / (peak * efficiency), bytes / bandwidth) + ramp, where efficiency
              = best * e / (e + wave / 2) * k / (k + DEPTH_HALF), e the output elements in whole
              tiles of rows, a wave one tile on each of the chip's multiprocessors; half a wave is
              what the last, partly filled wave wastes on average. Where the chip or its generation
              has a measured table: groups * the table's time, scaled to the chip's peak / sustained
              share; a user's profile has one for each role
    Units:    seconds, (U,).
    Source:   `meshwright.hardware.tables`; else roofline (Williams et al. 2009); best share
              measured per chip (`Chip.matmul_efficiency_source`); tile and wave quantisation as in
              NVIDIA's Matrix Multiplication Background guide.
    Valid:    dense products; no sparsity. No table holds grouped products: small groups come out
              slower than one grouped kernel.
    Checked:  tests/cost/test_kernels.py
    """
    measured = _measured_gemm_s(chip, m=m, n=n, k=k, precision=precision, groups=groups, role=role)
    if measured is not None:
        return measured
    rows = np.maximum(m, np.minimum(TILE_ROWS, np.ceil(m / 16) * 16))
    elements = rows * n * groups
    wave = WAVE_ELEMENTS if chip.multiprocessors is None else chip.multiprocessors * TILE_ELEMENTS
    efficiency = (
        matmul_share(chip, precision) * elements / (elements + wave / 2) * k / (k + DEPTH_HALF)
    )
    work_s = 2.0 * rows * n * k * groups / (chip.peak_flops_per_s(precision) * efficiency)
    size = element_bytes(precision)
    bytes_moved = groups * (size * (m * k + k * n) + max(size, 2.0) * m * n)
    return np.asarray(np.maximum(work_s, streaming_s(chip, bytes_moved)) + chip.ramp_s)


def _measured_gemm_s(
    chip: Chip,
    *,
    m: Floats,
    n: Floats,
    k: Floats,
    precision: Precision,
    groups: Floats | float,
    role: Role,
) -> Floats | None:
    """Time from the chip's own measured table, or its generation's, scaled to its peak; None where
    there is none."""
    nearest = kin(chip)
    if nearest.relation not in ("itself", "generation"):
        return None
    found = gemm_seconds(nearest.table, precision=precision, m=m, n=n, k=k, role=role)
    if found is None:
        return None
    return np.asarray(
        found.seconds * groups * nearest.compute_scale(precision) / sustained_share(chip, precision)
    )


def streaming_s(chip: Chip, bytes_moved: Floats) -> Floats:
    """Time to read and write that many bytes of device memory in long passes, without the kernel's
    ramp.

    Formula:  bytes / (bandwidth * efficiency)
    Units:    seconds.
    Source:   BabelStream-like measured shares, `Chip.memory_efficiency`.
    Valid:    buffers larger than the caches.
    Checked:  tests/cost/test_kernels.py
    """
    return bytes_moved / (chip.memory_bytes_per_s * chip.memory_efficiency)


@dataclass(frozen=True, kw_only=True, slots=True)
class EagerPass:
    """One element-wise kernel of plain PyTorch."""

    read: float
    """Bytes of an element that it reads; what is broadcast stays in the caches."""
    written: float
    count: float = 1.0
    """Kernels of its kind, or the share of the elements that one works on."""
    wide: bool = False
    """Whether a thread reads 16 bytes at once, as where contiguous tensors of one type are added,
    joined or summed; a kernel that broadcasts, casts or reads in strides takes one element after
    another."""


THREAD_ELEMENTS = 4.0
"""Elements that a thread of such a kernel has under way (unroll factor of
aten/src/ATen/native/cuda/CUDALoops.cuh and thread_work_size of its thread_constants.h)."""
RESIDENT_THREADS = 2048.0
"""Threads that a multiprocessor holds (CUDA programming guide, compute capabilities 8.0, 9.0 and
10.0)."""


def eager_s(chip: Chip, passes: Iterable[EagerPass], *, elements: Floats) -> Floats:
    """Time of element-wise kernels of plain PyTorch, without their ramps.

    Formula:  sum of elements * count * (read + written) / (bandwidth * efficiency * share), where
              share = min(1, RESIDENT_THREADS * THREAD_ELEMENTS * read / bytes that must be under
              way); 1 for a wide pass, for one that reads nothing, and where nobody said how many
              bytes the chip needs
    Units:    seconds.
    Source:   Little's law; CUB's bytes in flight by generation (`Chip.bytes_in_flight`); kernels as
              PyTorch launches them.
    Valid:    tensors larger than the caches.
    Checked:  tests/cost/test_kernels.py
    """
    moved = 0.0
    for each in passes:
        narrow = chip.bytes_in_flight > 0 and each.read > 0 and not each.wide
        share = (
            min(1.0, RESIDENT_THREADS * THREAD_ELEMENTS * each.read / chip.bytes_in_flight)
            if narrow
            else 1.0
        )
        moved += each.count * (each.read + each.written) / share
    return streaming_s(chip, elements * moved)
