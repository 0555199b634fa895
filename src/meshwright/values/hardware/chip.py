"""One accelerator, as software sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING

from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.workload import PRECISIONS, Precision

if TYPE_CHECKING:
    from meshwright.values.hardware.tables import ChipTables

__all__ = [
    "FLOOR_SHARE",
    "SHARE",
    "Chip",
    "DevicePlugin",
    "device_plugin",
    "require_limits",
    "share_at_power",
]

FLOOR_SHARE = 2.0 / 3.0
"""Share of its benchmarked rate at which a chip's voltage reaches its floor. Assumed: voltage
follows the clock down to about two thirds of the boost clock and stays there. Checked on A100 cards
of 300 W: 0.77 foretold from 0.85 at 400 W, 0.79 by the benchmarks of products (252.9 of 271.2
TFLOPS); with a floor of 0.6 it would be 0.77 too, with one of 0.8 0.72. docs/decisions/0006 says
what the runs on H100 of 500 W tell."""


def share_at_power(share: float, power_ratio: float) -> float:
    """Sustained share of a chip whose power per peak FLOP is `power_ratio` times that of one of the
    same silicon that sustains `share`.

    Formula:  power needed at share s: s up to FLOOR_SHARE (voltage at its floor, energy per FLOP
              constant), s^3 / FLOOR_SHARE^2 above it (voltage rises with the clock); the share at
              which that is `power_ratio` times as much, at most 1
    Units:    shares of the benchmarked rate.
    Source:   dynamic power of CMOS, capacitance * voltage^2 * frequency; the board's other parts
              are taken to scale with its limit.
    Valid:    one silicon at several power limits, in long compute-bound work.
    Checked:  tests/values/hardware/test_power.py
    """
    needed = power_ratio * (share if share <= FLOOR_SHARE else share**3 / FLOOR_SHARE**2)
    return min(1.0, needed if needed <= FLOOR_SHARE else (needed * FLOOR_SHARE**2) ** (1 / 3))


SHARE = "a share in (0, 1]"
_HOLDS: Mapping[str, Callable[[float], bool]] = {
    SHARE: lambda value: 0 < value <= 1,
    "a positive number": lambda value: 0 < value < inf,
    "0 or more": lambda value: 0 <= value < inf,
    "1 or more": lambda value: 1 <= value < inf,
}


def require_limits(owner: str, values: object, limits: Mapping[str, str]) -> None:
    """Raise ConfigError unless each field, by what it must be, is None or that."""
    for names, expected in limits.items():
        for name in names.split():
            value = getattr(values, name)
            if value is not None and not _HOLDS[expected](value):
                raise ConfigError(f"{owner}: {name}={value}: expected {expected}")


_UNIT_OF: dict[Precision, tuple[str, ...]] = {
    "fp32": ("fp32_flops_per_s",),
    "tf32": ("tf32_flops_per_s", "fp32_flops_per_s"),
    "bf16": ("bf16_flops_per_s", "fp16_flops_per_s"),
    "fp16": ("fp16_flops_per_s", "bf16_flops_per_s"),
    "fp8": ("fp8_flops_per_s",),
    "fp8-blockwise": ("fp8_flops_per_s",),
    "mxfp8": ("fp8_flops_per_s",),
    "nvfp4": ("fp4_flops_per_s",),
}

BEFORE_FLASH = ("volta", "turing")
TRANSPOSED_IN_8_BITS = ("ada", "hopper", "blackwell-rtx")
"""Generations without 8-bit products in other layouts (is_non_tn_fp8_gemm_supported of Transformer
Engine's pytorch/utils.py: compute capability 10 and 11, and 13 on, have them)."""
"""Generations of chips that flash attention has no kernels for."""
_LIMITS = {
    "nominal_bytes usable_bytes memory_bytes_per_s bf16_flops_per_s fp16_flops_per_s"
    " tf32_flops_per_s fp32_flops_per_s fp8_flops_per_s fp4_flops_per_s multiprocessors kin_speed"
    " host_bytes_per_s matrix_width tdp_w": "a positive number",
    "launch_s ramp_s gemm_workspace_bytes bytes_in_flight usd_per_hour": "0 or more",
    "matmul_efficiency fp8_matmul_efficiency memory_efficiency sustained_share"
    " narrow_sustained_share attention_forward_efficiency attention_backward_efficiency"
    " flash2_share": SHARE,
}
"""What each field must be where it is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """A chip's facts; `values/hardware/chips.csv` gives the source of each."""

    name: str
    vendor: str
    generation: str = ""
    """Architecture family (ampere, hopper, cdna3, ...), which kernel libraries are tuned for."""
    nominal_bytes: float
    """The size it is sold by."""
    usable_bytes: float
    """What a process sees (79.1 GiB of an H100's 80)."""
    memory_bytes_per_s: float
    bf16_flops_per_s: float | None = None
    """Dense peaks; None where the chip has no such unit."""
    fp16_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    fp32_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    fp4_flops_per_s: float | None = None
    matmul_efficiency: float = 0.8
    """Best share of the bf16 peak that a large matrix product reaches."""
    matmul_efficiency_source: str = ""
    kin_speed: float = 1.0
    """Speed of its products and attention against what the measured tables of its nearest kin
    promise at its own peak: 1.48 on an RTX 4090, which reaches 0.93 of its peak, where an L40S,
    whose power is short for twice that peak, reaches 0.63."""
    sustained_share: float = 1.0
    """Share of the benchmarked rates that holds through hours of training (power, clocks,
    shapes)."""
    narrow_sustained_share: float | None = None
    """The same for 8-bit and narrower products, which draw less power; None is as
    `sustained_share`."""
    fp8_matmul_efficiency: float | None = None
    """The same for the fp8 peak; None where nobody published it (then as `matmul_efficiency`)."""
    attention_forward_efficiency: float = 0.5
    """Share of the bf16 peak that the vendor's best fused attention reaches on long causal
    sequences, masked half not counted."""
    attention_backward_efficiency: float = 0.4
    flash2_share: float = 1.0
    """Speed of FlashAttention-2 against that kernel (0.6 on Hopper, new to it)."""
    memory_efficiency: float = 0.85
    """Share of the memory peak that a long streaming kernel reaches."""
    launch_s: float = 5e-6
    """Host time to launch one kernel in eager mode."""
    ramp_s: float = 2e-6
    """Device time that each kernel spends starting and draining."""
    gemm_workspace_bytes: float = 0.0
    """Scratch memory of one handle of the product library. PyTorch gives cuBLAS 32 MiB on Hopper
    and later and 8.125 MiB before (aten/src/ATen/cuda/CublasHandlePool.cpp); 0 where nobody
    said."""
    multiprocessors: float | None = None
    """Tiles of a matrix product that it works on at a time; None is as many as a large chip's."""
    bytes_in_flight: float = 0.0
    """Bytes that each multiprocessor must have under way to draw its share of the memory's rate: 32
    KiB on an H100, 48 on an H200, 64 on Blackwell (CUB's cc_to_min_bytes_in_flight,
    cub/device/dispatch/tuning/tuning_transform.cuh); 0 where nobody said."""
    host_bytes_per_s: float | None = None
    """Rate of its link to the host's memory, one way; None is taken as fast enough to hide what is
    sent there."""
    matrix_width: float | None = None
    """Side of its systolic array, of which a narrower operand fills a part (TPU); None where
    kernels have tiles for narrow operands."""
    tdp_w: float | None = None
    usd_per_hour: float | None = None
    confidence: str = "high"
    """high, medium or low, as in the catalogue."""
    source: str = ""
    notes: str = ""
    tables: ChipTables | None = None
    """Times of operators that were measured on the user's own chip, and those that stand in where
    they lack one; None reads the shipped tables of the chip's name."""

    def __post_init__(self) -> None:
        require_limits(f"chip {self.name}", self, _LIMITS)

    @property
    def is_processor(self) -> bool:
        """Whether it is a CPU, whose ranks run their operators and their exchanges on the same
        cores, one after another."""
        return self.generation == "cpu"

    @property
    def has_flash_attention(self) -> bool:
        """Whether flash attention has kernels for it: of NVIDIA's from Ampere on
        (Dao-AILab/flash-attention, README)."""
        return self.generation not in BEFORE_FLASH

    @property
    def narrow_orientations(self) -> int:
        """Copies of an 8-bit weight, by rows and by columns, that its products of forward and
        backward pass read: two where they take operands along the summed side alone."""
        return 2 if self.generation in TRANSPOSED_IN_8_BITS else 1

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """What it has matrix units for; on Volta and Turing half precision is fp16."""
        able = [p for p in PRECISIONS if any(getattr(self, f) for f in _UNIT_OF[p])]
        return tuple(p for p in able if p != "bf16" or self.bf16_flops_per_s)

    def require(self, precision: Precision) -> None:
        """ConfigError where the chip has no matrix units of that precision."""
        if precision not in self.precisions:
            raise self._lacks(precision)

    def peak_flops_per_s(self, precision: Precision) -> float:
        """Dense peak of the precision that linear layers run in, FLOP/s; bf16 at the rate of fp16
        where the chip has that alone. ConfigError where the chip has none."""
        for field in _UNIT_OF[precision]:
            peak: float | None = getattr(self, field)
            if peak:
                return peak
        raise self._lacks(precision)

    def _lacks(self, precision: Precision) -> ConfigError:
        known = ", ".join(self.precisions)
        return ConfigError(f"{self.name} has no {precision} matrix unit; precision may be {known}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlugin:
    """The words of one vendor, from `values/hardware/device_plugins.csv`."""

    vendor: str
    kubernetes_resource: str
    """The resource that a pod counts its chips by."""
    apptainer_flag: str
    """The option that brings the vendor's driver libraries into an Apptainer container."""


def device_plugin(vendor: str) -> DevicePlugin:
    """Return the words of a vendor; ConfigError where none are known."""
    known = {row["vendor"]: row for row in package_rows("values/hardware/device_plugins.csv")}
    if vendor not in known:
        raise ConfigError(
            f"no words are known by which a container asks for chips of {vendor}; known:"
            f" {', '.join(known)}"
        )
    return DevicePlugin(**{field.name: known[vendor][field.name] for field in fields(DevicePlugin)})
