"""Work that memory bounds: norms, activations, rotary, residual sums, casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from meshwright.hardware.profile import Effort
from meshwright.trainer.profile._design import grid
from meshwright.trainer.profile._device import Device
from meshwright.trainer.profile._operator import Operator, Tensor, Work, forward_and_backward
from meshwright.trainer.profile.request import Dtype

__all__ = ["pointwise_operators", "quantise_operators"]

Maker = Callable[..., tuple[Work, tuple[Tensor, ...]]]
_HEAD_DIM = 128
_WIDTH = 1024
"""Of the rows that elements are laid out in."""
_MOST_8_BIT = 448.0
"""Largest number of float8 e4m3."""


def pointwise_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give norms, activations and the like in one precision, as eager torch runs them; fp8's are
    bf16's."""
    if dtype in ("fp8", "tf32"):
        return
    kind = device.torch_dtype(dtype)

    def random(*shape: int) -> Tensor:
        return device.random(*shape, dtype=kind, grad=True)

    for name, make in _norms(random).items():
        yield from forward_and_backward(
            name,
            kind=dtype,
            family="norm",
            dims=("rows", "width"),
            axes=grid("norm", device=device.kind, effort=effort),
            make=make,
            need_bytes=lambda rows, width: 16.0 * rows * width,
            written=1,
        )
    for name, make in {**_activations(random), "rotary": _rotary(random, device=device)}.items():
        yield from forward_and_backward(
            name,
            kind=dtype,
            family="elements",
            dims=("elements",),
            axes=grid("elements", device=device.kind, effort=effort),
            make=make,
            need_bytes=lambda elements: 32.0 * elements,
            written=1,
        )
    if dtype != "fp32":
        yield _cast(device, dtype=dtype, effort=effort)


def _norms(random: Callable[..., Tensor]) -> dict[str, Maker]:
    def rmsnorm(rows: int, width: int) -> tuple[Work, tuple[Tensor, ...]]:
        inputs, scale = random(rows, width), random(width)
        return (lambda: F.rms_norm(inputs, (width,), scale)), (inputs, scale)

    def layernorm(rows: int, width: int) -> tuple[Work, tuple[Tensor, ...]]:
        inputs, scale, shift = random(rows, width), random(width), random(width)
        return (lambda: F.layer_norm(inputs, (width,), scale, shift)), (inputs, scale, shift)

    return {"rmsnorm": rmsnorm, "layernorm": layernorm}


def _activations(random: Callable[..., Tensor]) -> dict[str, Maker]:
    """By the elements of the result."""

    def swiglu(elements: int) -> tuple[Work, tuple[Tensor, ...]]:
        inputs = random(elements // _WIDTH, 2 * _WIDTH)

        def call() -> Tensor:
            gate, value = inputs.chunk(2, dim=-1)
            return F.silu(gate) * value

        return call, (inputs,)

    def gelu(elements: int) -> tuple[Work, tuple[Tensor, ...]]:
        inputs = random(elements // _WIDTH, _WIDTH)
        return (lambda: F.gelu(inputs, approximate="tanh")), (inputs,)

    def residual(elements: int) -> tuple[Work, tuple[Tensor, ...]]:
        stream, change = random(elements // _WIDTH, _WIDTH), random(elements // _WIDTH, _WIDTH)
        return (lambda: stream + change), (stream, change)

    return {"swiglu": swiglu, "gelu": gelu, "residual": residual}


def _rotary(random: Callable[..., Tensor], *, device: Device) -> Maker:
    def rotary(elements: int) -> tuple[Work, tuple[Tensor, ...]]:
        heads = _WIDTH // _HEAD_DIM
        inputs = random(elements // _WIDTH, heads, _HEAD_DIM)
        angles = torch.rand(elements // _WIDTH, 1, _HEAD_DIM, device=device.kind)
        cosine, sine = angles.cos().to(inputs.dtype), angles.sin().to(inputs.dtype)

        def call() -> Tensor:
            low, high = inputs.chunk(2, dim=-1)
            return inputs * cosine + torch.cat((-high, low), dim=-1) * sine

        return call, (inputs,)

    return rotary


def _cast(device: Device, *, dtype: Dtype, effort: Effort) -> Operator:
    """From fp32, as main weights become working ones."""

    def build(elements: int) -> Work:
        main = device.random(elements, dtype=torch.float32)
        working = torch.empty(elements, dtype=device.torch_dtype(dtype), device=device.kind)
        return lambda: working.copy_(main)

    axes = grid("elements", device=device.kind, effort=effort)
    return Operator(
        name=f"cast/{dtype}",
        family="elements",
        dims=("elements",),
        axes=axes,
        build=build,
        need_bytes=lambda elements: 8.0 * elements,
    )


def quantise_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give the passes of per-tensor fp8 quantisation over 16-bit values."""
    if dtype != "fp8":
        return

    def amax(elements: int) -> Work:
        values = device.random(elements, dtype=torch.bfloat16)
        return lambda: torch.linalg.vector_norm(values, ord=float("inf"))

    def cast(elements: int) -> Work:
        values, scale = (
            device.random(elements, dtype=torch.bfloat16),
            torch.full((), 0.5, dtype=torch.bfloat16, device=device.kind),
        )
        return lambda: (values * scale).clamp_(-_MOST_8_BIT, _MOST_8_BIT).to(torch.float8_e4m3fn)

    axes = grid("elements", device=device.kind, effort=effort)
    for name, build in (("amax", amax), ("cast", cast)):
        yield Operator(
            name=f"quantise/{name}",
            family="elements",
            dims=("elements",),
            axes=axes,
            build=build,
            need_bytes=lambda n: 12.0 * n,
        )
