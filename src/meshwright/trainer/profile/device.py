"""The device as torch sees it: facts, types, memory, clocks to time with."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from meshwright.trainer.job import available_bytes, host_bytes
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.profile import Effort, Machine
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "DTYPES",
    "Device",
    "DeviceKind",
    "Dtype",
    "ProfileRequest",
    "free_bytes",
    "machine_of",
    "num_cores",
    "open_device",
    "read_dtypes",
]

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRequest:
    """Device, precisions, effort, and a model whose own shapes are measured too."""

    device: DeviceKind | None = None
    """None: a GPU where torch sees one, else the CPU."""
    dtypes: tuple[Dtype, ...] | None = None
    """None: on a GPU bf16, and fp8 where it has it; on the CPU fp32."""
    effort: Effort = "standard"
    model: ModelSpec | None = None

    def __post_init__(self) -> None:
        if self.device not in (None, *get_args(DeviceKind)):
            raise UnknownNameError("device", str(self.device), get_args(DeviceKind))


def read_dtypes(text: str) -> tuple[Dtype, ...]:
    """Read `bf16,fp8`; UnknownNameError with the nearest names."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"dtype={text!r}: expected some of {','.join(DTYPES)}")
    for word in words:
        if word not in DTYPES:
            raise UnknownNameError("dtype", word, DTYPES)
    return tuple(dtype for dtype in DTYPES if dtype in words)


_FP8_CAPABILITY = (8, 9)
"""Ada and later."""
_QUERY = "driver_version,clocks.sm,clocks.max.sm,power.limit"
_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device and the precisions that are measured on it."""

    kind: DeviceKind
    dtypes: tuple[Dtype, ...]

    def torch_dtype(self, dtype: Dtype) -> Any:
        """Type of the operands; fp8's activations are in bf16."""
        types = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
        return types.get(dtype, torch.bfloat16)

    def random(self, *shape: int, dtype: Any, grad: bool = False) -> Any:
        """Return a tensor of numbers in (-1, 1): zeros would draw less power and run faster."""
        drawn = torch.float32 if self.kind == "cpu" else dtype
        wide = torch.empty(shape, dtype=drawn, device=self.kind).uniform_(-1, 1)
        return wide.to(dtype).requires_grad_(grad)

    def synchronise(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()


def open_device(request: ProfileRequest) -> Device:
    """Return the device of a request; ConfigError where it is absent or lacks a precision."""
    has_gpu = torch.cuda.is_available()
    kind: DeviceKind = request.device or ("cuda" if has_gpu else "cpu")
    if kind == "cuda" and not has_gpu:
        is_plain = torch.version.cuda is None and torch.version.hip is None
        build = "this torch is built for the CPU" if is_plain else "torch sees no GPU"
        raise ConfigError(
            f"--device cuda: {build}; use --device cpu, or install a build of torch for the GPU"
        )
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if kind == "cpu" and request.dtypes and "tf32" in request.dtypes:
        raise ConfigError(
            "--dtype tf32: the CPU has no tf32 unit; dtypes there are fp32, bf16, fp16 and fp8"
        )
    usual: tuple[Dtype, ...] = ("fp32",)
    if kind == "cuda":
        capability = tuple(torch.cuda.get_device_capability())
        has_fp8 = torch.version.hip is None and capability >= _FP8_CAPABILITY
        usual = ("bf16", "fp8") if has_fp8 else ("bf16",)
    return Device(kind=kind, dtypes=request.dtypes or usual)


def free_bytes(device: Device) -> float:
    """Memory that is free now, on the device; what torch keeps for later is free too."""
    if device.kind == "cuda":
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return float(torch.cuda.mem_get_info()[0] + cached)
    return available_bytes()


def machine_of(device: Device) -> Machine:
    """Return what is known of this machine and its software; unreadable figures are None."""
    smi = _nvidia_smi() if device.kind == "cuda" else {}
    is_gpu = device.kind == "cuda"
    usable = total = host_bytes()
    if is_gpu:
        usable = float(torch.cuda.mem_get_info()[1])
        total = float(_properties().total_memory)
    return Machine(
        device=device.kind,
        device_name=torch.cuda.get_device_name() if is_gpu else _processor(),
        num_devices=torch.cuda.device_count() if is_gpu else 1,
        total_bytes=total,
        usable_bytes=usable,
        platform=f"{platform.system()} {platform.machine()}, {_processor()}",
        num_threads=torch.get_num_threads(),
        driver=smi.get("driver_version"),
        cuda_version=(torch.version.cuda or torch.version.hip) if is_gpu else None,
        torch_version=str(torch.__version__),
        python_version=platform.python_version(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        clock_mhz=_number(smi.get("clocks.sm")),
        max_clock_mhz=_number(smi.get("clocks.max.sm")),
        power_limit_w=_number(smi.get("power.limit")),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _properties() -> Any:
    return torch.cuda.get_device_properties(torch.cuda.current_device())


def _nvidia_smi() -> dict[str, str]:
    """What nvidia-smi says of the current device; nothing where it is absent or broken."""
    uuid = getattr(_properties(), "uuid", None)
    which = ["-i", f"GPU-{uuid}"] if uuid is not None else []
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", *which]
    try:
        words: Any = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        answer = subprocess.run(command, check=True, timeout=_SECONDS, **words)
    except (OSError, subprocess.SubprocessError):
        return {}
    first = answer.stdout.splitlines()[0] if answer.stdout else ""
    return dict(zip(_QUERY.split(","), (cell.strip() for cell in first.split(",")), strict=False))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # "[N/A]"
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = (*names, platform.processor())[0]
    return f"{name or platform.machine()} ({num_cores()} cores)"


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
