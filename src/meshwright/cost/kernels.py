"""Time of single kernels on one chip: matrix products, attention, memory-bound passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.stages import Floats, Shapes
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.tables import Role, gemm_seconds, kin
from meshwright.values.workload import Precision

__all__ = [
    "DEPTH_HALF",
    "TILE_ELEMENTS",
    "WAVE_ELEMENTS",
    "EagerPass",
    "HostPass",
    "cold_launch_s",
    "eager_s",
    "element_bytes",
    "gemm_s",
    "host_ends_s",
    "host_layer_s",
    "host_sharded_s",
    "host_step_s",
    "kind_of_activations",
    "matmul_share",
    "own_s",
    "streaming_s",
    "sustained_share",
]

TILE_ELEMENTS = 128.0 * 256.0
"""Output elements that one multiprocessor works on at a time: CUTLASS's largest common tile."""
WAVE_ELEMENTS = 132.0 * TILE_ELEMENTS
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
    Source:   `values/hardware/chips.csv`: the middle of measured over predicted rates of the
              published runs
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


@makes("matmul", "head")
def gemm_s(
    chip: Chip,
    *,
    m: Floats,
    n: Floats,
    k: Floats,
    precision: Precision,
    groups: Floats | float = 1.0,
    at_once: float | None = None,
    role: Role = "forward",
) -> Floats:
    """Time of `groups` matrix products (m, k) x (k, n), in one kernel or `at_once` of them at a
    time.

    Formula:  max(2 m n k groups / (peak * efficiency), bytes / bandwidth) + ramp * rounds, where
              efficiency = best * e / (e + wave / 2) * k / (k + DEPTH_HALF), e the output elements
              in whole tiles of rows of what runs at once, a wave one tile on each of the chip's
              multiprocessors; half a wave is what the last, partly filled wave wastes on average.
              Where the chip or its generation has a measured table: groups * the table's time,
              scaled to the chip's peak / sustained share; a user's profile has one for each role
    Units:    seconds, (U,).
    Source:   `meshwright.values.hardware.tables`; else roofline (Williams et al. 2009); best share
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
    together = groups if at_once is None else np.minimum(groups, at_once)
    elements = rows * n * together
    wave = WAVE_ELEMENTS if chip.multiprocessors is None else chip.multiprocessors * TILE_ELEMENTS
    efficiency = (
        matmul_share(chip, precision) * elements / (elements + wave / 2) * k / (k + DEPTH_HALF)
    )
    work_s = 2.0 * rows * n * k * groups / (chip.peak_flops_per_s(precision) * efficiency)
    size = element_bytes(precision)
    bytes_moved = groups * (size * (m * k + k * n) + max(size, 2.0) * m * n)
    return np.asarray(
        np.maximum(work_s, streaming_s(chip, bytes_moved)) + groups / together * chip.ramp_s
    )


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
    there is none.

    Formula:  table's seconds * groups * compute_scale / sustained_share
    Units:    seconds, (U,).
    Source:   `values/hardware/tables.py` (docs/operators.md); the peaks' ratio is
              `Kin.compute_scale`. That groups take their sum is assumed: no shipped table of
              grouped products is used here.
    """
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


HostPass = Literal["", "_backward"]
"""Ending of a series: the forward pass, or the backward pass."""


def own_s(chip: Chip, name: str, *arguments: Floats | float) -> Floats | None:
    """Time from a series of the user's own profile; None without one.

    Formula:  interpolated in the logarithms of the arguments, as every table
    Units:    seconds, the shape of the arguments.
    Source:   docs/profile.md.
    Valid:    positive arguments.
    Checked:  tests/cost/test_measured.py
    """
    tables = chip.tables
    if tables is None or tables.origins.get(name) != "profile":
        return None
    return np.asarray(tables.grids[name].lookup(*arguments).seconds)


def kind_of_activations(precision: Precision) -> str:
    """Precision in which element-wise work runs: that of the activations.

    Formula:  fp32 under fp32 and tf32, fp16 under fp16, else bf16
    Units:    none.
    Source:   `Site.activation_bytes`.
    Valid:    every Precision.
    Checked:  tests/cost/test_measured.py
    """
    return "fp32" if precision in ("fp32", "tf32") else "fp16" if precision == "fp16" else "bf16"


def host_layer_s(
    chip: Chip, shapes: Shapes, *, experts: Floats | None, way: HostPass
) -> Floats | None:
    """Host time of one layer of the embedded trainer, (U,); None without a profile of it. `experts`
    are those that a rank holds of it.

    Formula:  plain + (tensor or sequence - plain where tp > 1) + (context - plain where cp > 1) +
              (that of so many experts - plain where it has some)
    Units:    seconds per micro batch.
    Source:   the trainer's own layers with next to no arithmetic and exchanges that do nothing
              (docs/profile.md, `host/...`).
    Valid:    op by op; what several axes add is taken to sum.
    Checked:  tests/cost/test_measured.py
    """
    found = {
        kind: own_s(chip, f"host/{kind}{way}", 1.0)
        for kind in ("plain", "tensor", "sequence", "context")
    }
    routed = None if experts is None else own_s(chip, f"host/routed{way}", experts)
    if any(seconds is None for seconds in found.values()) or (
        experts is not None and routed is None
    ):
        return None
    plain, tensor, sequence, context = (float(np.asarray(seconds)) for seconds in found.values())
    cut = np.where(shapes.sp > 0, sequence, tensor) - plain
    added = 0.0 if routed is None else np.maximum(routed - plain, 0.0)
    return plain + (shapes.tp > 1) * cut + (shapes.cp > 1) * (context - plain) + added


def cold_launch_s(chip: Chip) -> float:
    """Host time of one operation on a processor behind arithmetic that took its caches, which times
    of operators measured so hold too.

    Formula:  the profile's `launch/cold`; without it the chip's launch time
    Units:    seconds.
    Source:   docs/profile.md.
    Valid:    processors.
    Checked:  tests/cost/test_measured.py
    """
    found = own_s(chip, "launch/cold", 1.0)
    return chip.launch_s if found is None else float(found)


def host_sharded_s(chip: Chip, way: HostPass) -> float:
    """Host time that gathering one layer's weights, and in the backward pass scattering its
    gradients, adds in each micro batch.

    Formula:  that of a layer under zero3 less that of a plain one; 0 without a profile
    Units:    seconds.
    Source:   as host_layer_s.
    Valid:    op by op.
    Checked:  tests/cost/test_measured.py
    """
    sharded, plain = own_s(chip, f"host/sharded{way}", 1.0), own_s(chip, f"host/plain{way}", 1.0)
    return 0.0 if sharded is None or plain is None else max(0.0, float(sharded - plain))


def host_ends_s(chip: Chip, shapes: Shapes, way: HostPass) -> Floats | None:
    """Host time of embedding, head and loss of one micro batch, (U,); None without a profile of it.

    Formula:  what a step takes beyond its layers, by one fit over two counts of layers; with tp > 1
              that of the cut vocabulary
    Units:    seconds per micro batch.
    Source:   as host_layer_s.
    Valid:    op by op.
    Checked:  tests/cost/test_measured.py
    """
    whole, cut = own_s(chip, f"host/ends{way}", 1.0), own_s(chip, f"host/ends_tensor{way}", 1.0)
    return None if whole is None or cut is None else np.where(shapes.tp > 1, cut, whole)


def host_step_s(chip: Chip, layers: Floats) -> Floats | None:
    """Host time of what a step does once: data, norm of the gradients, optimizer, (N,); None
    without a profile of it.

    Formula:  interpolated between few and many layers
    Units:    seconds.
    Source:   as host_layer_s.
    Valid:    one optimizer over all of a rank's weights.
    Checked:  tests/cost/test_measured.py
    """
    return own_s(chip, "host/step", layers)
