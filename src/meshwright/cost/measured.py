"""What a user's profile alone knows: host time of the embedded trainer's layers, and torch's
element-wise operators."""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.cost.shapes import Floats, Shapes
from meshwright.hardware.chip import Chip
from meshwright.workload import Precision

__all__ = [
    "HostPass",
    "cold_launch_s",
    "host_ends_s",
    "host_layer_s",
    "host_sharded_s",
    "host_step_s",
    "kind_of_activations",
    "own_s",
]

HostPass = Literal["", "_backward"]
"""Ending of a series: the forward pass, or the backward pass."""


def own_s(chip: Chip, name: str, *arguments: Floats | float) -> Floats | None:
    """Time from a series of the user's own profile; None without one.

    Formula:  interpolated in the logarithms of the arguments, as every table
    Units:    seconds, the shape of the arguments.
    Source:   docs/profile.md.
    Valid:    positive arguments.
    Checked:  tests/cost/test_measured.py
    """
    tables = chip.tables
    if tables is None or tables.origins.get(name) != "profile":
        return None
    return np.asarray(tables.grids[name].lookup(*arguments).seconds)


def kind_of_activations(precision: Precision) -> str:
    """Precision in which element-wise work runs: that of the activations.

    Formula:  fp32 under fp32 and tf32, fp16 under fp16, else bf16
    Units:    none.
    Source:   `Site.activation_bytes`.
    Valid:    every Precision.
    Checked:  tests/cost/test_measured.py
    """
    return "fp32" if precision in ("fp32", "tf32") else "fp16" if precision == "fp16" else "bf16"


def host_layer_s(
    chip: Chip, shapes: Shapes, *, experts: Floats | None, way: HostPass
) -> Floats | None:
    """Host time of one layer of the embedded trainer, (U,); None without a profile of it. `experts`
    are those that a rank holds of it.

    Formula:  plain + (tensor or sequence - plain where tp > 1) + (context - plain where cp > 1) +
              (that of so many experts - plain where it has some)
    Units:    seconds per micro batch.
    Source:   the trainer's own layers with next to no arithmetic and exchanges that do nothing
              (docs/profile.md, `host/...`).
    Valid:    op by op; what several axes add is taken to sum.
    Checked:  tests/cost/test_measured.py
    """
    found = {
        kind: own_s(chip, f"host/{kind}{way}", 1.0)
        for kind in ("plain", "tensor", "sequence", "context")
    }
    routed = None if experts is None else own_s(chip, f"host/routed{way}", experts)
    if any(seconds is None for seconds in found.values()) or (
        experts is not None and routed is None
    ):
        return None
    plain, tensor, sequence, context = (float(np.asarray(seconds)) for seconds in found.values())
    cut = np.where(shapes.sp > 0, sequence, tensor) - plain
    added = 0.0 if routed is None else np.maximum(routed - plain, 0.0)
    return plain + (shapes.tp > 1) * cut + (shapes.cp > 1) * (context - plain) + added


def cold_launch_s(chip: Chip) -> float:
    """Host time of one operation on a processor behind arithmetic that took its caches, which times
    of operators measured so hold too.

    Formula:  the profile's `launch/cold`; without it the chip's launch time
    Units:    seconds.
    Source:   docs/profile.md.
    Valid:    processors.
    Checked:  tests/cost/test_measured.py
    """
    found = own_s(chip, "launch/cold", 1.0)
    return chip.launch_s if found is None else float(found)


def host_sharded_s(chip: Chip, way: HostPass) -> float:
    """Host time that gathering one layer's weights, and in the backward pass scattering its
    gradients, adds in each micro batch.

    Formula:  that of a layer under zero3 less that of a plain one; 0 without a profile
    Units:    seconds.
    Source:   as host_layer_s.
    Valid:    op by op.
    Checked:  tests/cost/test_measured.py
    """
    sharded, plain = own_s(chip, f"host/sharded{way}", 1.0), own_s(chip, f"host/plain{way}", 1.0)
    return 0.0 if sharded is None or plain is None else max(0.0, float(sharded - plain))


def host_ends_s(chip: Chip, shapes: Shapes, way: HostPass) -> Floats | None:
    """Host time of embedding, head and loss of one micro batch, (U,); None without a profile of it.

    Formula:  what a step takes beyond its layers, by one fit over two counts of layers; with tp > 1
              that of the cut vocabulary
    Units:    seconds per micro batch.
    Source:   as host_layer_s.
    Valid:    op by op.
    Checked:  tests/cost/test_measured.py
    """
    whole, cut = own_s(chip, f"host/ends{way}", 1.0), own_s(chip, f"host/ends_tensor{way}", 1.0)
    return None if whole is None or cut is None else np.where(shapes.tp > 1, cut, whole)


def host_step_s(chip: Chip, layers: Floats) -> Floats | None:
    """Host time of what a step does once: data, norm of the gradients, optimizer, (N,); None
    without a profile of it.

    Formula:  interpolated between few and many layers
    Units:    seconds.
    Source:   as host_layer_s.
    Valid:    one optimizer over all of a rank's weights.
    Checked:  tests/cost/test_measured.py
    """
    return own_s(chip, "host/step", layers)
