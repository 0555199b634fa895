"""Messages between the stages of a pipeline."""

from __future__ import annotations

import numpy as np

from meshwright.cost.collectives import all_gather_s, group_of, point_to_point_s
from meshwright.cost.shapes import Floats
from meshwright.hardware.cluster import Pool
from meshwright.layout import Layouts
from meshwright.stack import Stack

__all__ = ["message_s"]


def message_s(
    layouts: Layouts, message_bytes: Floats, *, pool: Pool, stack: Stack, way: Pool | None = None
) -> Floats:
    """Time of one pipeline message, mean of both ways, (N,); 0 without a pipeline.

    `way` has the links over which the message goes, where they are not the pool's own.

    Formula:  whole messages: latency + bytes / rate; scattered ones: that of bytes / tp, and an
              all-gather over tp at the receiver; with sequence parallelism each rank has its part
              alone. Where several stages lie in one domain and others outside it, the mean of a
              message inside and one across: a stage at the border has a neighbour of either kind
    Units:    seconds.
    Source:   scatter-gather optimisation (arXiv:2104.04473, section 4.1).
    Valid:    neighbouring stages are dp * cp * tp ranks apart.
    Checked:  tests/cost/test_step.py::test_a_message_between_stages,
              ::test_a_message_sent_in_parts_is_gathered
    """
    distance = (layouts.tp * layouts.cp * layouts.dp).astype(np.float64)
    span = distance * layouts.pp
    way = way or pool
    whole = _hop_s(way, message_bytes, distance, span)
    if not stack.p2p_scattered:
        return np.where(layouts.pp > 1, stack.factors.pipeline * whole, 0.0)
    part = _hop_s(way, message_bytes / layouts.tp, distance, span)
    part = part + all_gather_s(group_of(layouts.tp, np.ones_like(layouts.tp), pool), message_bytes)
    scattered = stack.p2p_scattered * (layouts.tp > 1) * (layouts.sp == 0)
    return np.where(
        layouts.pp > 1, stack.factors.pipeline * (whole + scattered * (part - whole)), 0.0
    )


def _hop_s(way: Pool, message_bytes: Floats, distance: Floats, span: Floats) -> Floats:
    across = point_to_point_s(way, message_bytes=message_bytes, distance=distance, span=span)
    border = (distance < way.node.domain_size) & (span > way.node.domain_size)
    if not border.any():
        return across
    inside = point_to_point_s(way, message_bytes=message_bytes, distance=distance, span=distance)
    return np.where(border, (inside + across) / 2.0, across)
