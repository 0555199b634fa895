"""Activations that wait in host memory: what the link to it does not carry behind compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.layer import LayerPrice
from meshwright.cost.stages import Floats
from meshwright.values.hardware.chip import Chip
from meshwright.values.layout import RECOMPUTES, Layouts
from meshwright.values.stack import Stack

__all__ = ["Offloaded", "exposed_offload_s", "offloaded_bytes", "on_device_bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offloaded:
    """Seconds of a layer and micro batch that wait for host memory; (N,) each."""

    forward_s: Floats
    backward_s: Floats


def on_device_bytes(price: LayerPrice, kept: Floats, at: NDArray[Any], stack: Stack) -> Floats:
    """Of what selective recompute keeps of a layer, the bytes that do not wait in host memory,
    (N,).

    Formula:  input * (1 - offloads_inputs) + (kept - input) * (1 - offloads_kept)
    Units:    bytes per layer, rank and micro batch.
    Source:   definition of the stack's two fields, which are 0 or 1.
    Valid:    selective recompute.
    Checked:  tests/cost/test_offload.py
    """
    entry = price.input_bytes[at]
    return np.asarray(
        entry * (not stack.offloads_inputs) + (kept - entry) * (not stack.offloads_kept)
    )


def offloaded_bytes(
    layouts: Layouts, price: LayerPrice, kept: Floats, at: NDArray[Any], *, stack: Stack
) -> Floats:
    """Bytes that one layer of one micro batch sends to host memory, and fetches back, (N,); `kept`
    are those that selective recompute leaves of it.

    Formula:  input * offloads_inputs under full and selective recompute, + (kept - input) *
              offloads_kept under selective, + output * offloads_outputs
    Units:    bytes per layer, rank and micro batch.
    Source:   definition of the stack's fields, which are 0 or 1.
    Valid:    software that moves these tensors whole (MaxText's remat policies).
    Checked:  tests/cost/test_offload.py
    """
    selective = layouts.recompute == RECOMPUTES.index("selective")
    redone = layouts.recompute != RECOMPUTES.index("none")
    entry = price.input_bytes[at]
    rest = selective * np.maximum(kept - entry, 0.0) * stack.offloads_kept
    ends = entry * stack.offloads_inputs + price.output_bytes[at] * stack.offloads_outputs
    return np.asarray(rest + redone * ends)


@makes("offload")
def exposed_offload_s(
    moved_bytes: Floats, chip: Chip, *, forward_s: Floats, backward_s: Floats
) -> Offloaded:
    """Seconds of one layer that its offloaded activations add to compute, (N,).

    `backward_s` is the backward pass with what it does again.

    Formula:  max(0, bytes / host_bytes_per_s - forward_s), and so against backward_s; 0 where the
              rate is not known
    Units:    seconds per layer and micro batch.
    Source:   counting: a layer's tensors leave behind the next layer's forward pass, and come back
              behind the backward pass of the layer before (XLA's asynchronous host offloading).
    Valid:    layers alike, one copy each way at a time.
    Checked:  tests/cost/test_offload.py
    """
    if chip.host_bytes_per_s is None:
        nothing = np.zeros_like(forward_s)
        return Offloaded(forward_s=nothing, backward_s=nothing)
    copy_s = moved_bytes / chip.host_bytes_per_s
    return Offloaded(
        forward_s=np.maximum(0.0, copy_s - forward_s),
        backward_s=np.maximum(0.0, copy_s - backward_s),
    )
