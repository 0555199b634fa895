"""Work that memory bounds: norms, activations, rotary, residual sums, casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from meshwright.trainer.profile.design import Axes, Timing, grid, sized, sustained_point
from meshwright.trainer.profile.device import Device, Dtype
from meshwright.trainer.profile.timing import (
    Behind,
    Clock,
    Operator,
    Tensor,
    Work,
    forward_and_backward,
    measure,
)
from meshwright.values.hardware.profile import Effort

__all__ = [
    "attention_operators",
    "expert_operators",
    "gemm_axes",
    "gemm_operators",
    "pointwise_operators",
    "quantise_operators",
]


def attention_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give attention forward and backward; 8-bit training has its attention in bf16."""
    if dtype == "fp8":
        return
    kind = device.torch_dtype(dtype)

    def attention(
        head_dim: int, group: int, heads: int, sequence: int, *, causal: bool
    ) -> tuple[Work, tuple[Tensor, ...]]:
        query = device.random(1, heads, sequence, head_dim, dtype=kind, grad=True)
        key, value = (
            device.random(1, max(1, heads // group), sequence, head_dim, dtype=kind, grad=True)
            for _ in range(2)
        )
        grouped = key.shape[1] != heads
        return (
            lambda: F.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=grouped
            )
        ), (query, key, value)

    for name, causal in (("attention", True), ("attention_full", False)):
        yield from forward_and_backward(
            name,
            kind=dtype,
            family="attention",
            dims=("head_dim", "heads_per_kv_head", "batch_heads", "sequence"),
            axes=grid("attention", device=device.kind, effort=effort),
            make=lambda dim, group, heads, sequence, causal=causal: attention(
                dim, group, heads, sequence, causal=causal
            ),
            need_bytes=lambda dim, _group, heads, sequence: 12 * 4.0 * dim * heads * sequence,
            written=3,
        )


_PRODUCT = ("m", "n", "k")
_TRIAL = {"cpu": 1024, "cuda": 4096}
"""Size of the product that tells the device's rate."""


def gemm_axes(
    device: Device, *, dtype: Dtype, effort: Effort, clock: Clock, timing: Timing
) -> Axes:
    """Return the grid of products that this device finishes in reasonable time."""
    size = _TRIAL[device.kind]
    work = _Products(device, dtype).forward(size, size, size)
    trial = Operator(
        name="trial",
        family="gemm",
        dims=_PRODUCT,
        axes=((size,),) * 3,
        build=lambda: work,
        need_bytes=lambda: 0.0,
        caches="warm",
    )
    seconds = measure(work, operator=trial, clock=clock, timing=timing).seconds
    return sized(
        grid("gemm", device=device.kind, effort=effort), most=timing.longest_s / seconds * size**3
    )


def gemm_operators(device: Device, *, dtype: Dtype, axes: Axes) -> Iterator[Operator]:
    """Give the products of one precision."""
    products = _Products(device, dtype)

    def operator(
        name: str, family: str, build: Callable[..., Work], result_bytes: float = 0.0
    ) -> Operator:
        def need_bytes(m: int, n: int, k: int) -> float:
            return 4.0 * (m * k + k * n) + (4.0 + result_bytes) * m * n

        return Operator(
            name=f"{name}/{dtype}",
            family=family,
            dims=_PRODUCT,
            axes=axes,
            build=build,
            need_bytes=need_bytes,
        )

    forward = operator("gemm", "gemm", products.forward)
    yield forward
    if (
        dtype != "fp8"
    ):  # products of 8 bits have one layout; the others are transposed copies and the same product
        yield operator("gemm_dgrad", "gemm_dgrad", products.input_gradient)
        yield operator("gemm_wgrad", "gemm_wgrad", products.weight_gradient)
        yield operator("gemm_main_grad", "gemm_wgrad", products.main_gradient, 8.0)
        if dtype not in ("fp32", "tf32"):
            yield operator("gemm_main_grad_fused", "gemm_wgrad", products.fused_main_gradient, 4.0)
    point = sustained_point(axes, device=device.kind)
    yield Operator(
        name=f"gemm_sustained/{dtype}",
        family="gemm_sustained",
        dims=_PRODUCT,
        axes=tuple((size,) for size in point),
        build=products.forward,
        need_bytes=forward.need_bytes,
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


def expert_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give grouped products and the expert layer; none in fp8, which torch groups its own way."""
    if dtype == "fp8":
        return
    kind, size = device.torch_dtype(dtype), 4.0

    def random(*shape: int) -> Tensor:
        return device.random(*shape, dtype=kind, grad=True)

    def ends(tokens: int, experts: int) -> Tensor:
        last = tokens * experts
        return torch.arange(tokens, last + 1, tokens, dtype=torch.int32, device=device.kind)

    def grouped(tokens: int, experts: int, n: int, k: int) -> tuple[Work, tuple[Tensor, ...]]:
        inputs, weight = random(tokens * experts, k), random(experts, k, n)
        groups = ends(tokens, experts)
        return (lambda: F.grouped_mm(inputs, weight, offs=groups)), (inputs, weight)

    def layer(
        tokens: int, experts: int, hidden: int, inter: int
    ) -> tuple[Work, tuple[Tensor, ...]]:
        """Gather tokens, both products around the gated activation, add up by router weight."""
        rows = tokens * experts
        inputs, up = random(rows, hidden), random(experts, hidden, 2 * inter)
        down = random(experts, inter, hidden)
        order, share = torch.randperm(rows, device=device.kind), random(rows, 1)
        groups = ends(tokens, experts)

        def call() -> Tensor:
            gate, value = F.grouped_mm(inputs[order], up, offs=groups).chunk(2, dim=-1)
            found = F.grouped_mm(F.silu(gate) * value, down, offs=groups)
            return torch.zeros_like(inputs).index_add(0, order, found * share)

        return call, (inputs, up, down, share)

    yield from forward_and_backward(
        "grouped_gemm",
        kind=dtype,
        family="grouped_gemm",
        dims=("tokens_per_expert", "experts", "n", "k"),
        axes=grid("grouped_gemm", device=device.kind, effort=effort),
        make=grouped,
        need_bytes=lambda tokens, experts, n, k: 2 * size * experts * (tokens * (n + k) + n * k),
        written=1,
    )
    yield from forward_and_backward(
        "experts",
        kind=dtype,
        family="experts",
        dims=("tokens_per_expert", "experts", "hidden", "inter"),
        axes=grid("experts", device=device.kind, effort=effort),
        make=layer,
        need_bytes=lambda tokens, experts, h, inter: (
            2 * size * experts * (tokens * (4 * h + 4 * inter) + 3 * h * inter)
        ),
        written=1,
    )


Maker = Callable[..., tuple[Work, tuple[Tensor, ...]]]
_HEAD_DIM = 128
_WIDTH = 1024
"""Of the rows that elements are laid out in."""
_MOST_8_BIT = 448.0
"""Largest number of float8 e4m3."""


def pointwise_operators(device: Device, *, dtype: Dtype, effort: Effort) -> Iterator[Operator]:
    """Give norms, activations and the like, as eager torch runs them; fp8's are bf16's."""
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
