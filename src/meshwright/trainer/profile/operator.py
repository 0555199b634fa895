"""One operator to measure, and the pairs of forward and backward that most come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from meshwright.trainer.profile.design import Axes

__all__ = ["Behind", "Caches", "Operator", "Tensor", "Work", "forward_and_backward"]

Tensor = Any
"""torch.Tensor; torch may be absent where types are checked."""
Work = Callable[[], object]
"""Runs the operator once."""


Caches = Literal["cold", "warm"]
"""How a processor's caches are before each repeat. `cold`: flushed, as between two uses of a
weight, or of an activation and its gradient, lies most of a step; what `Behind` names is written
again then. `warm`: as the repeat before left them. A GPU's are always flushed."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Work that in a step comes right behind the operator that wrote some of what it reads."""

    run: Work
    written: tuple[Tensor, ...]

    def __call__(self) -> object:
        """Run the work."""
        return self.run()

    def write(self) -> None:
        """Bring into the caches what the operator before wrote."""
        for tensor in self.written:
            tensor.detach().mul_(1.0)


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
    caches: Caches = "cold"
    clock: Literal["work", "host", "sustained"] = "work"
    """work: until the device is done; host: until the host is free again; sustained: for seconds
    without a pause."""


def forward_and_backward(
    name: str,
    *,
    kind: str,
    family: str,
    dims: tuple[str, ...],
    axes: Axes,
    make: Callable[..., tuple[Callable[[], Tensor], tuple[Tensor, ...]]],
    need_bytes: Callable[..., float],
    written: int = 0,
    caches: Caches = "cold",
) -> Iterator[Operator]:
    """Give an operator and its backward pass; `make` returns a call and the inputs that gradients
    are wanted of, of which the operator before it wrote the first `written`; of the backward pass
    it wrote the result's gradient."""

    def forward(*point: int) -> Work:
        call, inputs = make(*point)
        return Behind(call, inputs[:written])

    def backward(*point: int) -> Work:
        call, inputs = make(*point)
        result = call()
        gradient = torch.ones_like(result)
        return Behind(
            lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True), (gradient,)
        )

    for label, build in ((name, forward), (f"{name}_backward", backward)):
        yield Operator(
            name=f"{label}/{kind}",
            family=family,
            dims=dims,
            axes=axes,
            build=build,
            need_bytes=need_bytes,
            caches=caches,
            clock="work",
        )
