"""How nanotron cuts a model into stages, which no setting changes."""

from __future__ import annotations

__all__ = ["nanotron_stages"]


def nanotron_stages(*, layers: int, hidden: int, heads: int, ffn: int, vocab: int, pp: int) -> tuple[int, ...]:
    """Return the layers of each stage: the next stage begins behind the block that passes a stage's share of the cost.

    Formula:  a layer costs 4 * heads * (hidden // heads) * hidden + 3 * ffn * hidden (KV heads are not looked at), the head vocab * hidden
    Units:    layers, one entry per stage; the head may lie on a stage of its own.
    Source:   nanotron models/base.py build_model, models/llama.py get_block_compute_costs (2411b022).
    Checked:  tests/exports/test_nanotron.py::test_stages_by_hand
    """
    layer = 4 * heads * (hidden // heads) * hidden + 3 * ffn * hidden
    total = layer * layers + vocab * hidden
    sizes, stage = [0] * pp, 0
    for number in range(1, layers + 1):
        sizes[stage] += 1
        if number * layer > total * (stage + 1) / pp and stage < pp - 1:
            stage += 1
    return tuple(sizes)
