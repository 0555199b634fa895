"""Work that memory bounds: norms, activations, rotary, residual sums, casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from meshwright.trainer.profile.design import (
    DIMS,
    Axes,
    Device,
    Dtype,
    Timing,
    sized,
    sustained_point,
)
from meshwright.trainer.profile.timing import (
    Behind,
    Bench,
    Clock,
    Made,
    Operator,
    Tensor,
    Work,
    measure,
)

__all__ = [
    "attention_operators",
    "expert_operators",
    "gemm_axes",
    "gemm_operators",
    "pointwise_operators",
    "quantise_operators",
]


def attention_operators(bench: Bench) -> Iterator[Operator]:
    """Give attention forward and backward; 8-bit training has its attention in bf16."""
    if bench.dtype == "fp8":
        return

    def attention(head_dim: int, group: int, heads: int, sequence: int, *, causal: bool) -> Made:
        query = bench.random(1, heads, sequence, head_dim)
        key, value = (bench.random(1, max(1, heads // group), sequence, head_dim) for _ in range(2))
        words = {"is_causal": causal, "enable_gqa": key.shape[1] != heads}
        inputs = (query, key, value)
        return (lambda: F.scaled_dot_product_attention(*inputs, **words)), inputs

    for name, causal in (("attention", True), ("attention_full", False)):
        yield from bench.with_backward(
            partial(attention, causal=causal),
            lambda dim, _group, heads, sequence: 12 * 4.0 * dim * heads * sequence,
            name=name,
            family="attention",
            written=3,
        )


_TRIAL = {"cpu": 1024, "cuda": 4096}
"""Size of the product that tells the device's rate."""


def gemm_axes(bench: Bench, *, clock: Clock, timing: Timing) -> Axes:
    """Return the grid of products that this device finishes in reasonable time."""
    size = _TRIAL[bench.device.kind]
    work = _Products(bench.device, bench.dtype).forward(size, size, size)
    trial = bench.operator(
        "trial", "gemm", build=lambda: work, need_bytes=lambda: 0.0, caches="warm"
    )
    seconds = measure(work, operator=trial, clock=clock, timing=timing).seconds
    return sized(bench.axes("gemm"), most=timing.longest_s / seconds * size**3)


def gemm_operators(device: Device, *, dtype: Dtype, axes: Axes) -> Iterator[Operator]:
    """Give the products of one precision."""
    products = _Products(device, dtype)

    def operator(
        name: str, family: str, build: Callable[..., Work], result_bytes: float = 0.0
    ) -> Operator:
        return Operator(
            name=f"{name}/{dtype}",
            family=family,
            dims=DIMS["gemm"],
            axes=axes,
            build=build,
            need_bytes=lambda m, n, k: 4.0 * (m * k + k * n) + (4.0 + result_bytes) * m * n,
        )

    forward = operator("gemm", "gemm", products.forward)
    yield forward
    if dtype != "fp8":
        # products of 8 bits have one layout; the others are transposed copies and the same product
        yield operator("gemm_dgrad", "gemm_dgrad", products.input_gradient)
        yield operator("gemm_wgrad", "gemm_wgrad", products.weight_gradient)
        yield operator("gemm_main_grad", "gemm_wgrad", products.main_gradient, 8.0)
        if dtype not in ("fp32", "tf32"):
            yield operator("gemm_main_grad_fused", "gemm_wgrad", products.fused_main_gradient, 4.0)
    yield replace(
        forward,
        name=f"gemm_sustained/{dtype}",
        family="gemm_sustained",
        axes=tuple((size,) for size in sustained_point(axes, device=device.kind)),
        caches="warm",
        clock="sustained",
    )


class _Products:
    """Makers of products (m, k) x (k, n), each with its operands as training lays them out."""

    def __init__(self, device: Device, dtype: Dtype) -> None:
        self._device, self._dtype = device, dtype
        self._type = device.torch_dtype(dtype)

    def _random(self, rows: int, columns: int) -> Tensor:
        return self._device.random(rows, columns, dtype=self._type)

    def forward(self, m: int, n: int, k: int) -> Work:
        """Activations times the transpose of weights: both contiguous in k."""
        inputs, weight = self._random(m, k), self._random(n, k)
        if self._dtype == "fp8":
            return self._scaled(inputs, weight)
        result = torch.empty(m, n, dtype=self._type, device=self._device.kind)
        return Behind(lambda: torch.mm(inputs, weight.t(), out=result), (inputs,))

    def _scaled(self, inputs: Tensor, weight: Tensor) -> Work:
        one = torch.ones((), device=self._device.kind)
        a, b = inputs.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def input_gradient(self, m: int, n: int, k: int) -> Work:
        """The output's gradient times weights: the second operand is contiguous in n."""
        gradient, weight = self._random(m, k), self._random(k, n)
        result = torch.empty(m, n, dtype=self._type, device=self._device.kind)
        return Behind(lambda: torch.mm(gradient, weight, out=result), (gradient,))

    def weight_gradient(self, m: int, n: int, k: int) -> Work:
        """The transpose of the output's gradient times activations: both contiguous across k."""
        gradient, inputs = self._random(k, m), self._random(k, n)
        result = torch.empty(m, n, dtype=self._type, device=self._device.kind)
        return Behind(lambda: torch.mm(gradient.t(), inputs, out=result), (gradient,))

    def main_gradient(self, m: int, n: int, k: int) -> Work:
        """The same, added to an fp32 gradient as in eager training: by a pass or in the product."""
        gradient, inputs = self._random(k, m), self._random(k, n)
        main = torch.zeros(m, n, dtype=torch.float32, device=self._device.kind)
        if self._type == torch.float32:
            return Behind(lambda: main.addmm_(gradient.t(), inputs), (gradient,))
        return Behind(lambda: main.add_(torch.mm(gradient.t(), inputs)), (gradient,))

    def fused_main_gradient(self, m: int, n: int, k: int) -> Work:
        """The same in one kernel: operands in half precision, sum and result in fp32."""
        gradient, inputs = self._random(k, m), self._random(k, n)
        main = torch.zeros(m, n, dtype=torch.float32, device=self._device.kind)
        return Behind(
            lambda: torch.addmm(main, gradient.t(), inputs, out_dtype=torch.float32, out=main),
            (gradient,),
        )


def expert_operators(bench: Bench) -> Iterator[Operator]:
    """Give grouped products and the expert layer; none in fp8, which torch groups its own way."""
    if bench.dtype == "fp8":
        return
    size, random, place = 4.0, bench.random, bench.device.kind

    def ends(tokens: int, experts: int) -> Tensor:
        last = tokens * experts
        return torch.arange(tokens, last + 1, tokens, dtype=torch.int32, device=place)

    def grouped_gemm(tokens: int, experts: int, n: int, k: int) -> Made:
        inputs, weight = random(tokens * experts, k), random(experts, k, n)
        groups = ends(tokens, experts)
        return (lambda: F.grouped_mm(inputs, weight, offs=groups)), (inputs, weight)

    def layer(tokens: int, experts: int, hidden: int, inter: int) -> Made:
        """Gather tokens, both products around the gated activation, add up by router weight."""
        rows = tokens * experts
        inputs, up = random(rows, hidden), random(experts, hidden, 2 * inter)
        down = random(experts, inter, hidden)
        order, share = torch.randperm(rows, device=place), random(rows, 1)
        groups = ends(tokens, experts)

        def call() -> Tensor:
            gate, value = F.grouped_mm(inputs[order], up, offs=groups).chunk(2, dim=-1)
            found = F.grouped_mm(F.silu(gate) * value, down, offs=groups)
            return torch.zeros_like(inputs).index_add(0, order, found * share)

        return call, (inputs, up, down, share)

    yield from bench.with_backward(
        grouped_gemm,
        lambda tokens, experts, n, k: 2 * size * experts * (tokens * (n + k) + n * k),
        written=1,
    )
    yield from bench.with_backward(
        layer,
        lambda tokens, experts, h, inter: (
            2 * size * experts * (tokens * (4 * h + 4 * inter) + 3 * h * inter)
        ),
        name="experts",
        written=1,
    )


_HEAD_DIM = 128
_WIDTH = 1024
"""Of the rows that elements are laid out in."""
_MOST_8_BIT = 448.0
"""Largest number of float8 e4m3."""


def pointwise_operators(bench: Bench) -> Iterator[Operator]:
    """Give norms, activations and the like, as eager torch runs them; fp8's are bf16's."""
    if bench.dtype in ("fp8", "tf32"):
        return
    for make in _norms(bench.random):
        yield from bench.with_backward(
            make, lambda rows, width: 16.0 * rows * width, family="norm", written=1
        )
    for make in _of_elements(bench):
        yield from bench.with_backward(
            make, lambda elements: 32.0 * elements, family="elements", written=1
        )
    if bench.dtype != "fp32":
        yield _cast(bench)


def _norms(random: Callable[..., Tensor]) -> tuple[Callable[..., Made], ...]:
    def rmsnorm(rows: int, width: int) -> Made:
        inputs, scale = random(rows, width), random(width)
        return (lambda: F.rms_norm(inputs, (width,), scale)), (inputs, scale)

    def layernorm(rows: int, width: int) -> Made:
        inputs, scale, shift = random(rows, width), random(width), random(width)
        return (lambda: F.layer_norm(inputs, (width,), scale, shift)), (inputs, scale, shift)

    return rmsnorm, layernorm


def _of_elements(bench: Bench) -> tuple[Callable[..., Made], ...]:
    """By the elements of the result."""
    random = bench.random

    def swiglu(elements: int) -> Made:
        inputs = random(elements // _WIDTH, 2 * _WIDTH)

        def call() -> Tensor:
            gate, value = inputs.chunk(2, dim=-1)
            return F.silu(gate) * value

        return call, (inputs,)

    def gelu(elements: int) -> Made:
        inputs = random(elements // _WIDTH, _WIDTH)
        return (lambda: F.gelu(inputs, approximate="tanh")), (inputs,)

    def residual(elements: int) -> Made:
        stream, change = random(elements // _WIDTH, _WIDTH), random(elements // _WIDTH, _WIDTH)
        return (lambda: stream + change), (stream, change)

    def rotary(elements: int) -> Made:
        heads = _WIDTH // _HEAD_DIM
        inputs = random(elements // _WIDTH, heads, _HEAD_DIM)
        angles = torch.rand(elements // _WIDTH, 1, _HEAD_DIM, device=bench.device.kind)
        cosine, sine = angles.cos().to(inputs.dtype), angles.sin().to(inputs.dtype)

        def call() -> Tensor:
            low, high = inputs.chunk(2, dim=-1)
            return inputs * cosine + torch.cat((-high, low), dim=-1) * sine

        return call, (inputs,)

    return swiglu, gelu, residual, rotary


def _cast(bench: Bench) -> Operator:
    """From fp32, as main weights become working ones."""
    device = bench.device

    def build(elements: int) -> Work:
        main = device.random(elements, dtype=torch.float32)
        working = torch.empty(elements, dtype=device.torch_dtype(bench.dtype), device=device.kind)
        return lambda: working.copy_(main)

    return bench.operator(
        f"cast/{bench.dtype}", "elements", build=build, need_bytes=lambda elements: 8.0 * elements
    )


def quantise_operators(bench: Bench) -> Iterator[Operator]:
    """Give the passes of per-tensor fp8 quantisation over 16-bit values."""
    if bench.dtype != "fp8":
        return
    device = bench.device

    def amax(elements: int) -> Work:
        values = device.random(elements, dtype=torch.bfloat16)
        return lambda: torch.linalg.vector_norm(values, ord=float("inf"))

    def cast(elements: int) -> Work:
        values = device.random(elements, dtype=torch.bfloat16)
        scale = torch.full((), 0.5, dtype=torch.bfloat16, device=device.kind)
        return lambda: (values * scale).clamp_(-_MOST_8_BIT, _MOST_8_BIT).to(torch.float8_e4m3fn)

    for build in (amax, cast):
        yield bench.operator(
            f"quantise/{build.__name__}", "elements", build=build, need_bytes=lambda n: 12.0 * n
        )
