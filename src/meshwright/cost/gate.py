"""Gates on attention's output."""

from __future__ import annotations

from dataclasses import replace

from meshwright.cost._makes import makes
from meshwright.cost.operators import Part, Site, passes
from meshwright.cost.stages import Floats

__all__ = ["gate_parts"]


@makes("pointwise")
def gate_parts(site: Site, elements: Floats) -> list[Part]:
    """Return attention's output times the sigmoid of a gate; nothing where there is none.

    Formula:  forward 3 * elements * activation_bytes, backward 5; keeps 2 (gate and output)
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   counting: output and gate read, product written; backward: gradient, output and gate
              read, two gradients written (transformers' modeling_qwen3_next.py has the operation).
    Valid:    any attention; `elements` are those of its output.
    Checked:  tests/cost/test_delta.py::test_a_gate_widens_the_projection_and_is_kept
    """
    if not site.model.attention_gate:
        return []
    moved = elements * site.activation_bytes
    part = passes(
        site, "attention gate", forward_bytes=3 * moved, backward_bytes=5 * moved, kernels=2
    )
    return [replace(part, saved_bytes=2 * moved)]
