"""Profiles that several tests look at: an H100 whose every rate is known, and a processor."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from meshwright.values.hardware.profile import Machine, Profile, Sample, Series

H100 = Machine(
    device="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    num_devices=8,
    total_bytes=85e9,
    usable_bytes=84e9,
    platform="Linux x86_64, some processor",
    num_threads=8,
    torch_version="2.13.0",
    python_version="3.11.7",
    date="2026-11-21T00:00:00Z",
)
PROCESSOR = replace(
    H100,
    device="cpu",
    device_name="Some CPU (4 cores)",
    num_devices=1,
    total_bytes=32e9,
    usable_bytes=30e9,
)

GEMM_RATE, DGRAD_RATE, FUSED_RATE = 5e11, 4e11, 2.5e11
"""FLOP/s of the processor, and a thousand times that of the H100."""
COPY_RATE = 50e9
"""Bytes read and written per second; of the H100 fifty times that."""
ATTENTION_RATE, BACKWARD_RATE = 2e11, 1e11


def gemm(name: str, rate: float) -> Series:
    axes = ((256.0, 2048.0, 16384.0), (256.0, 16384.0), (256.0, 16384.0))
    samples = tuple(
        Sample(point=point, seconds=2 * point[0] * point[1] * point[2] / rate, repeats=9)
        for point in product(*axes)
    )
    return Series(name=name, dims=("m", "n", "k"), axes=axes, samples=samples)


def attention(name: str, rate: float) -> Series:
    axes = ((64.0, 128.0), (1.0, 8.0), (8.0, 128.0), (256.0, 16384.0))
    samples = tuple(
        Sample(point=point, seconds=2 * point[0] * point[2] * point[3] ** 2 / rate, repeats=9)
        for point in product(*axes)
    )
    return Series(
        name=name,
        dims=("head_dim", "heads_per_kv_head", "batch_heads", "sequence"),
        axes=axes,
        samples=samples,
    )


def line(name: str, dim: str, *pairs: tuple[float, float]) -> Series:
    samples = tuple(Sample(point=(size,), seconds=seconds, repeats=9) for size, seconds in pairs)
    return Series(name=name, dims=(dim,), axes=(tuple(size for size, _ in pairs),), samples=samples)


def profile(machine: Machine, precision: str, *, times: float = 1.0) -> Profile:
    """A machine whose products, attention and copies run at the rates above, `times` faster."""
    return Profile(
        machine=machine,
        effort="quick",
        complete=True,
        series=(
            gemm(f"gemm/{precision}", GEMM_RATE * times),
            gemm(f"gemm_dgrad/{precision}", DGRAD_RATE * times),
            gemm(f"gemm_main_grad_fused/{precision}", FUSED_RATE * times),
            attention(f"attention/{precision}", ATTENTION_RATE * times),
            attention(f"attention_backward/{precision}", BACKWARD_RATE * times),
            line(
                "copy/device",
                "bytes",
                (1e8, 2e8 / COPY_RATE / max(1.0, times / 20)),
                (1e9, 2e9 / COPY_RATE / max(1.0, times / 20)),
            ),
            line("launch/host", "operations", (200.0, 200 * 3e-6)),
        ),
    )


ON_H100 = profile(H100, "bf16", times=1000.0)
ON_CPU = profile(PROCESSOR, "fp32")
