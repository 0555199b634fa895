"""One operator to measure, and the pairs of forward and backward that most come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from meshwright.trainer.profile._design import Axes

__all__ = ["Operator", "Tensor", "Work", "forward_and_backward"]

Tensor = Any
"""torch.Tensor; torch may be absent where types are checked."""
Work = Callable[[], object]
"""Runs the operator once."""


Bound = Literal["arithmetic", "memory", "chained"]
"""What bounds an operator. `memory`: caches are flushed before each repeat, on the CPU too. `chained`: memory as well, but in a step it
reads what the operator before it wrote, so that on the CPU, whose last cache holds that of small models, caches stay as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """How to run an operator at any shape, and at which."""

    name: str
    family: str
    """Whose shapes of a model it takes."""
    dims: tuple[str, ...]
    axes: Axes
    build: Callable[..., Work]
    """Makes the operands of a shape, one positional number per dim."""
    need_bytes: Callable[..., float]
    """Memory of a shape, operands and results."""
    bound: Bound = "memory"
    clock: Literal["work", "host", "sustained"] = "work"
    """work: until the device is done; host: until the host is free again; sustained: for seconds without a pause."""


def forward_and_backward(
    name: str,
    *,
    kind: str,
    family: str,
    dims: tuple[str, ...],
    axes: Axes,
    make: Callable[..., tuple[Callable[[], Tensor], tuple[Tensor, ...]]],
    need_bytes: Callable[..., float],
    bound: Bound = "memory",
) -> Iterator[Operator]:
    """Give an operator and its backward pass; `make` returns a call and the inputs that gradients are wanted of."""

    def forward(*point: int) -> Work:
        return make(*point)[0]

    def backward(*point: int) -> Work:
        call, inputs = make(*point)
        result = call()
        gradient = torch.ones_like(result)
        return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)

    for label, build in ((name, forward), (f"{name}_backward", backward)):
        yield Operator(
            name=f"{label}/{kind}", family=family, dims=dims, axes=axes, build=build, need_bytes=need_bytes, bound=bound, clock="work"
        )
