"""The device as torch sees it, and which shapes are measured on it: log grids by device and effort,
and a model's own."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from meshwright.trainer.job import available_bytes, host_bytes
from meshwright.values.data import package_yaml
from meshwright.values.errors import ConfigError, UnknownNameError, load_extra
from meshwright.values.hardware.profile import Effort, Machine
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "DIMS",
    "DTYPES",
    "EFFORTS",
    "Axes",
    "Device",
    "DeviceKind",
    "Dtype",
    "Point",
    "ProfileRequest",
    "Timing",
    "free_bytes",
    "grid",
    "grid_points",
    "machine_of",
    "model_points",
    "num_cores",
    "open_device",
    "read_dtypes",
    "sized",
    "sustained_point",
]

torch = load_extra("torch", "train")

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
        clock_mhz=_reading(smi.get("clocks.sm")),
        max_clock_mhz=_reading(smi.get("clocks.max.sm")),
        power_limit_w=_reading(smi.get("power.limit")),
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


def _reading(text: str | None) -> float | None:
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


Point = tuple[int, ...]
Axes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How much care each shape gets."""

    budget_s: float
    """Most time of one shape, after its first run and beyond the least repeats."""
    least_repeats: int
    most_repeats: int
    goal_frac: float
    """Enough where the median's spread (quartiles over median, by root of repeats) is below it."""
    sustained_s: float
    """How long the largest product runs without a pause."""
    longest_s: float
    """The grid of products ends before one would take longer than this at the rate of a trial."""


K = 2**10
_UNITS = {"K": K, "M": K * K}


def _number(word: str) -> int:
    return int(word.rstrip("KM")) * _UNITS.get(word[-1], 1)


def _axis(words: str) -> tuple[int, ...]:
    """Read `16, 64, 1K`, `16..8K` (each twice the one before) or `16..4K by 4`."""
    first, dots, rest = words.partition("..")
    if not dots:
        return tuple(map(_number, words.split(", ")))
    last, _, step = rest.partition(" by ")
    points = [_number(first)]
    while points[-1] < _number(last):
        points.append(points[-1] * int(step or 2))
    return tuple(points)


_DESIGN = package_yaml("trainer/profile/grids.yaml")
EFFORTS: dict[Any, Timing] = {name: Timing(**row) for name, row in _DESIGN["timing"].items()}
"""The care that each effort takes."""
DIMS: dict[str, tuple[str, ...]] = {name: tuple(dims) for name, dims in _DESIGN["dims"].items()}
"""Names of the axes of each family."""
_GRIDS: dict[Any, dict[Any, dict[str, Axes]]] = {
    device: {
        effort: {family: tuple(map(_axis, axes)) for family, axes in families.items()}
        for effort, families in efforts.items()
    }
    for device, efforts in _DESIGN["grids"].items()
}
"""Points of each axis by device, effort and family."""

_SUSTAINED = {"cpu": 2 * K, "cuda": 8 * K}
"""No dimension of the product that runs for seconds is larger."""
_MODEL_TOKENS: dict[DeviceKind, tuple[int, ...]] = {"cpu": (256, K), "cuda": (2 * K, 4 * K, 8 * K)}
"""Tokens of a micro batch at which a model's own shapes are measured."""
_MODEL_TP: dict[DeviceKind, tuple[int, ...]] = {"cpu": (1,), "cuda": (1, 2, 4, 8)}
_EXPERTS_AT_ONCE = 64
"""A rank holds no more experts than this; more are cut by halves."""


def grid(family: str, *, device: DeviceKind, effort: Effort) -> Axes:
    """Return the axes of a family of operators."""
    return _GRIDS[device][effort][family]


def grid_points(axes: Sequence[Sequence[int]]) -> list[Point]:
    """Return every point of a grid, small work before large."""
    return sorted(product(*axes), key=lambda point: (prod(point), point))


def sized(axes: Axes, *, most: float) -> Axes:
    """Drop last points of the longest axes until the largest product is at most `most`."""
    kept = [list(axis) for axis in axes]
    while prod(axis[-1] for axis in kept) > most and any(len(axis) > 1 for axis in kept):
        longest = max((axis for axis in kept if len(axis) > 1), key=lambda axis: axis[-1])
        longest.pop()
    return tuple(tuple(axis) for axis in kept)


def sustained_point(axes: Axes, *, device: DeviceKind) -> Point:
    """Return the largest product of a grid that is worth repeating for seconds."""
    return tuple(
        max((point for point in axis if point <= _SUSTAINED[device]), default=axis[0])
        for axis in axes
    )


def model_points(model: ModelSpec | None, *, device: DeviceKind) -> dict[str, list[Point]]:
    """Return the exact shapes of a model by family, on one rank of a tensor-parallel group."""
    points: dict[str, list[Point]] = {}
    if model is None:
        return points
    for tp in _MODEL_TP[device]:
        if model.num_heads % tp or model.ffn % tp:
            continue
        for tokens in _MODEL_TOKENS[device]:
            for family, found in _on_one_rank(model, tokens=tokens, tp=tp).items():
                points.setdefault(family, []).extend(found)
    return {family: list(dict.fromkeys(found)) for family, found in points.items()}


def _on_one_rank(model: ModelSpec, *, tokens: int, tp: int) -> dict[str, list[Point]]:
    linears = _linears(model, tp=tp)
    points: dict[str, list[Point]] = {
        "gemm": [(tokens, out, into) for out, into in linears],
        "gemm_dgrad": [(tokens, into, out) for out, into in linears],
        "gemm_wgrad": [(out, into, tokens) for out, into in linears],
        "norm": [(tokens, model.hidden)],
        "cross_entropy": [(tokens, -(-model.vocab // tp))],
    }
    if model.mla is None:
        heads, kv_heads = model.num_heads // tp, max(1, model.num_kv_heads // tp)
        points["attention"] = [(model.head_dim, heads // kv_heads, heads, tokens)]
    if model.moe is not None:
        experts = model.moe.num_experts
        while experts > _EXPERTS_AT_ONCE:
            experts //= 2
        per_expert = max(1, tokens * model.moe.top_k // experts)
        points["experts"] = [(per_expert, experts, model.hidden, model.moe.expert_ffn)]
    return points


def _linears(model: ModelSpec, *, tp: int) -> list[tuple[int, int]]:
    """Outputs and inputs of a rank's linear layers: columns of a pair's first, then rows."""
    h, d, ways = model.hidden, model.head_dim, 2 if model.gated else 1
    heads, kv_heads = model.num_heads // tp, max(1, model.num_kv_heads // tp)
    pairs = [(-(-model.vocab // tp), h)]
    if model.mla is None:
        pairs += [((heads + 2 * kv_heads) * d, h), (h, heads * d)]
    else:
        mla = model.mla
        query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        pairs += [
            (mla.kv_lora_rank + mla.qk_rope_head_dim, h),
            (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        ]
        pairs += (
            [(heads * query, h)]
            if mla.q_lora_rank is None
            else [(mla.q_lora_rank, h), (heads * query, mla.q_lora_rank)]
        )
        pairs += [(h, heads * mla.v_head_dim)]
    widths = [model.ffn // tp] if model.ffn else []
    widths += [model.moe.shared_ffn // tp] if model.moe is not None and model.moe.shared_ffn else []
    for width in widths:
        pairs += [(ways * width, h), (h, width)]
    return list(dict.fromkeys(pairs))
